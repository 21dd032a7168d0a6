"""Monte Carlo expectations: draws of missing values pass through trees as bits of words."""
