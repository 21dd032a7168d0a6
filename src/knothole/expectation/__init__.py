"""Expected predictions: where trees meet densities."""
