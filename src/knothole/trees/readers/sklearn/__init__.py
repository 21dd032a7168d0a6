"""scikit-learn: trees, forests, bags and gradient boosting, from live objects."""
