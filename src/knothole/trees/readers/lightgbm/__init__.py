"""LightGBM: models and model text."""
