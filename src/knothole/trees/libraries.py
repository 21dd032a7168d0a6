"""The libraries of tree models: which one a model or a file is of, and what a reader is.

A library is found by the *name* of the model's class: one that is not installed is never imported,
and one that is installed has been imported by its own model.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from knothole.arrays import Floats, Integers, Ints
from knothole.columns.read import class_names
from knothole.errors import DamagedFile, NotFitted, UnsupportedModel
from knothole.files import check_regular
from knothole.trees.ensemble import Ensemble

# Classes of models by the top-level package that they come from, which names the module too.
CLASSES = {
    "xgboost": ("Booster", "XGBModel"),
    "lightgbm": ("Booster", "LGBMModel"),
    "catboost": ("CatBoost",),
    "sklearn": (
        *("BaseDecisionTree", "BaseForest", "BaseBagging"),
        *("BaseGradientBoosting", "BaseHistGradientBoosting"),
    ),
    "quantile_forest": ("BaseForestQuantileRegressor",),
    "sksurv": ("_BaseSurvivalForest", "SurvivalTree"),
    "interpret": ("EBMModel",),
}
# Those with files that need no unpickling, in the order in which they are asked about a file.
WITH_FILES = ("own", "lightgbm", "xgboost", "catboost")


@dataclass(frozen=True)
class Replay:
    """The native answer to rows of codes: margins (rows, outputs), leaves (rows, trees) or None.

    Leaves are numbered as in ``Ensemble.native_leaf``; None where the library cannot tell.
    """

    margin: Floats
    leaves: Ints | None = None


@dataclass(frozen=True)
class ModelReading:
    """What a reader found, and how to ask the library itself.

    ``replay(X)`` takes a float64 matrix encoded as ``ensemble.columns`` says (NaN for missing, the
    number of levels for a category never seen) and returns the library's own answer. Where the
    library itself refuses NaN, ``takes_nan`` is False. ``check(X, leaves)`` compares what a
    library says of such rows beyond margins, at leaves that have been compared already, and raises
    :class:`~knothole.errors.ReaderMismatch`.
    """

    ensemble: Ensemble
    replay: Callable[[Floats], Replay]
    takes_nan: bool = True
    check: Callable[[Floats, Integers], None] | None = None


def library_of(model: Any) -> str:
    """The library that a model is of, by its class, or a file, by how it begins."""
    if isinstance(model, (str, os.PathLike)):
        return _library_of_file(Path(model))
    if isinstance(model, dict):
        return "own"
    for package, name in class_names(model):
        if name in CLASSES.get(package, ()):
            return package
    raise UnsupportedModel(
        f"cannot read a {type(model).__module__}.{type(model).__qualname__}: knothole reads fitted "
        f"tree models of {', '.join(sorted(CLASSES))}; with their training table (knothole.wrap) "
        f"also pipelines, votes and calibrated classifiers of them."
    )


def _library_of_file(path: Path) -> str:
    try:
        check_regular(path)
        with path.open("rb") as file:
            head = file.read(4096)
    except OSError as error:
        raise DamagedFile(f"{path}: cannot be opened ({error.strerror}).") from error
    for library in WITH_FILES:
        if reader_of(library).begins(head):
            return library
    raise DamagedFile(
        f"{path}: not a model file knothole knows. It reads XGBoost's JSON and UBJ, LightGBM's "
        f"text, CatBoost's cbm and JSON, and trees of your own (docs/libraries.md); scikit-learn "
        f"models are read from the live object."
    )


def reader_of(library: str) -> Any:
    """The module of a library (:mod:`knothole.trees.readers`)."""
    return import_module(f"knothole.trees.readers.{library}")


def require_fitted(model: Any) -> None:
    """Refuse a model of scikit-learn that has not been fitted."""
    from sklearn.exceptions import NotFittedError
    from sklearn.utils.validation import check_is_fitted

    try:
        check_is_fitted(model)
    except NotFittedError as error:
        raise not_fitted(model) from error


def not_fitted(model: Any) -> NotFitted:
    """The exception for a model that has no trees yet."""
    return NotFitted(
        f"this {type(model).__name__} has not been fitted, so it has no trees to read. Call its "
        f"fit first."
    )


# What CatBoost is told, if anything, of what it should tell.
_TELLING = {"verbose", "silent", "logging_level", "verbose_eval"}


def unfitted(estimator: Any, quiet: bool = False) -> Any:
    """An estimator with the same parameters, as scikit-learn clones it.

    CatBoost's do not allow that where they were told which columns are categories. They are made
    anew, also with the categories that ``fit`` was told of; and ``quiet`` where that was left open.
    """
    from sklearn.base import clone

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
