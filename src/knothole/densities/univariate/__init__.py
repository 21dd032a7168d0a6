"""Univariate distributions: of one variable, for every state of a latent at once."""
