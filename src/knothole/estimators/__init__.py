"""The scikit-learn face: ``wrap`` and what it returns."""

from knothole.estimators.robust import Robust
from knothole.estimators.wrapping import wrap

__all__ = ["Robust", "wrap"]
