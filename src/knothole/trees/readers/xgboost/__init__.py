"""XGBoost: models, JSON and UBJ files."""
