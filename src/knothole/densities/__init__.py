"""Densities p(X): tractable distributions learned from tables with missing values."""
