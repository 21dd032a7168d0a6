"""Reach: the probability that a row with holes arrives at a leaf. Where trees meet densities."""
