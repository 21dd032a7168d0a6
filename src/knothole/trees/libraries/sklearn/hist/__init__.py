"""scikit-learn's HistGradientBoosting."""
