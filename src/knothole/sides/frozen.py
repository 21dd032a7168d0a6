"""The part of :class:`Robust` that scikit-learn sees: an estimator, fitted and left as it is."""

from __future__ import annotations

from types import MethodType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from knothole.answers import class_lists, is_classifier
from knothole.expectation.expectation import Expectation


class for_classifiers:
    """Decorates a method that a wrapped regressor does not have: ``hasattr`` is False."""

    def __init__(self, method: Any) -> None:
        self._method = method

    def __get__(self, robust: Any, owner: Any = None) -> Any:
        if robust is None:
            return self._method
        robust.require_classifier(self._method.__name__)
        return MethodType(self._method, robust)


class Frozen:
    """An estimator whose ``fit`` does nothing and which is its own clone, as a FrozenEstimator."""

    expectation_: Expectation
    model_name_: str

    def fit(self, X: Any, y: Any = None, **options: Any) -> Self:
        """Do nothing: the model is fitted. scikit-learn's tools ask that there be a ``fit``."""
        return self

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Nothing: what was fitted has no parameters left."""
        return {}

    @property
    def n_features_in_(self) -> int:
        """How many columns."""
        return len(self.expectation_.columns)

    @property
    def feature_names_in_(self) -> NDArray[Any]:
        """Names of the columns, where they have names."""
        if not self.expectation_.columns.named:
            raise AttributeError("feature_names_in_: the model's columns have no names.")
        return np.array(self.expectation_.columns.names, dtype=object)

    def require_classifier(self, what: str) -> None:
        """Refuse what only classifiers have."""
        if not is_classifier(self.expectation_.original):
            raise AttributeError(
                f"{what}: the wrapped {self.model_name_} is no classifier; use predict."
            )

    def __sklearn_clone__(self) -> Self:
        return self

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import ClassifierTags, InputTags, RegressorTags, Tags, TargetTags

        ensemble = self.expectation_.original
        classifier = is_classifier(ensemble)
        several = len(class_lists(ensemble)) > 1 if classifier else ensemble.n_responses > 1
        return Tags(
            estimator_type="classifier" if classifier else "regressor",
            target_tags=TargetTags(required=False, multi_output=several),
            transformer_tags=None,
            classifier_tags=ClassifierTags() if classifier else None,
            regressor_tags=None if classifier else RegressorTags(),
            input_tags=InputTags(allow_nan=True, categorical=True, string=True),
        )
