"""Times of knothole as ratios to those of the libraries themselves, measured in one run."""
