"""Univariate distributions: of one variable, for all states of a latent at once."""
