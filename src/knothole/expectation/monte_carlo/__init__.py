"""Monte Carlo expectations: draws of missing values go through trees as the bits of words."""
