"""Estimators like fitted ones, to be fitted to other rows."""

from __future__ import annotations

from typing import Any

from sklearn.base import clone

# What CatBoost is told, if anything, of what it should tell.
_TELLING = {"verbose", "silent", "logging_level", "verbose_eval"}


def unfitted(estimator: Any, quiet: bool = False) -> Any:
    """An estimator with the same parameters, as scikit-learn clones it.

    CatBoost's do not allow that where they were told which columns are categories. They are made
    anew, also with the categories that ``fit`` was told of; and ``quiet`` where that was left open.
    """
    if not hasattr(estimator, "get_cat_feature_indices"):
        return clone(estimator)
    parameters = estimator.get_params()
    if estimator.is_fitted():
        parameters["cat_features"] = estimator.get_cat_feature_indices()
    if quiet:
        silent = {} if parameters.keys() & _TELLING else {"verbose": False}
        parameters = {"allow_writing_files": False, **silent, **parameters}
    return type(estimator)(**parameters)


def weight_name(estimator: Any) -> str:
    """What ``fit`` calls the weights of rows: a pipeline hands them to its last step.

    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.tree import DecisionTreeRegressor
    >>> weight_name(make_pipeline("passthrough", DecisionTreeRegressor()))
    'decisiontreeregressor__sample_weight'
    """
    steps = getattr(estimator, "steps", None)
    return f"{steps[-1][0]}__{weight_name(steps[-1][1])}" if steps else "sample_weight"
