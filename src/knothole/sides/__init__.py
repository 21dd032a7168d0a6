"""Sides of a wrapped model: what it is asked, how it is calibrated, what scikit-learn sees."""
