"""What is minimised, as a function of the margin."""
