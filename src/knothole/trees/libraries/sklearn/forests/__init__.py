"""scikit-learn's trees, forests, bags and GradientBoosting."""
