"""Mixtures of products, and the product alone."""
