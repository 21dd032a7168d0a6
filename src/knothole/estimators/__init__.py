"""The scikit-learn face: ``wrap`` and what it returns, and meta-estimators."""

from knothole.estimators.meta import ExpectedClassifier, ExpectedRegressor
from knothole.estimators.robust import Robust
from knothole.estimators.storage import load
from knothole.estimators.wrapping import wrap

__all__ = ["ExpectedClassifier", "ExpectedRegressor", "Robust", "load", "wrap"]
