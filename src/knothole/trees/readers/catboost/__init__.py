"""CatBoost: models, cbm and JSON files."""
