"""Mixtures of Gaussians on normal scores, with discrete variables beside them."""
