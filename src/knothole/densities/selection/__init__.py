"""The choice between densities, on rows held out."""
