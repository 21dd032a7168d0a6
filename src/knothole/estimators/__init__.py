"""The scikit-learn face: ``wrap`` and what it returns, meta-estimators, and an imputer."""

from knothole.estimators.imputer import Imputer
from knothole.estimators.meta import ExpectedClassifier, ExpectedRegressor
from knothole.estimators.robust import Robust
from knothole.estimators.storage import load
from knothole.estimators.wrapping import wrap

__all__ = ["ExpectedClassifier", "ExpectedRegressor", "Imputer", "Robust", "load", "wrap"]
