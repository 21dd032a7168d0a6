"""One policy for compiled kernels, and the small functions that they share."""
