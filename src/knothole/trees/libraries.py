"""Which library a model or a model file belongs to, and what its reader returns.

A library is recognised by the *name* of the model's class. So a library that is not installed is
never imported; one that is installed was imported by its own model.
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

# Names of model classes by top-level package; the package also names the reader module.
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
# Libraries whose files need no unpickling, in the order in which a file is tried.
WITH_FILES = ("own", "lightgbm", "xgboost", "catboost")


@dataclass(frozen=True)
class Replay:
    """The library's own answer to encoded rows: margins (rows, outputs), leaves (rows, trees).

    Leaves are numbered as in ``Ensemble.native_leaf``; None where the library cannot tell them.
    """

    margin: Floats
    leaves: Ints | None = None


@dataclass(frozen=True)
class ModelReading:
    """What a reader returns: the ensemble, and ways to ask the library itself.

    ``replay(X)`` takes a float64 matrix encoded as ``ensemble.columns`` says (NaN for missing, the
    number of levels for a category never seen) and returns the library's own answer. ``takes_nan``
    is False where the library itself refuses NaN. ``check(X, leaves)``, if any, compares further
    answers of the library (quantiles, for example) and raises
    :class:`~knothole.errors.ReaderMismatch`; the leaves have been compared before it is called.
    """

    ensemble: Ensemble
    replay: Callable[[Floats], Replay]
    takes_nan: bool = True
    check: Callable[[Floats, Integers], None] | None = None


def library_of(model: Any) -> str:
    """The library of a model, by its class, or of a file, by its first bytes."""
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
        f"text, CatBoost's cbm and JSON, and trees of your own (docs/libraries.md). scikit-learn "
        f"models are passed as objects; the command line reads .joblib files with --allow-pickle."
    )


def reader_of(library: str) -> Any:
    """The module of a library (:mod:`knothole.trees.readers`)."""
    return import_module(f"knothole.trees.readers.{library}")


def require_fitted(model: Any) -> None:
    """Refuse a scikit-learn model that has not been fitted."""
    from sklearn.exceptions import NotFittedError
    from sklearn.utils.validation import check_is_fitted

    try:
        check_is_fitted(model)
    except NotFittedError as error:
        raise not_fitted(model) from error


def not_fitted(model: Any) -> NotFitted:
    """The exception for a model that has not been fitted."""
    return NotFitted(
        f"this {type(model).__name__} has not been fitted, so it has no trees to read. Call its "
        f"fit first."
    )


# CatBoost's parameters for how much it prints.
_VERBOSITY = {"verbose", "silent", "logging_level", "verbose_eval"}


def unfitted(estimator: Any, quiet: bool = False) -> Any:
    """An unfitted estimator with the same parameters, like scikit-learn's ``clone``.

    CatBoost models with categorical features cannot be cloned: they are made anew, also with
    categories that were passed to ``fit``. With ``quiet`` they print nothing, unless their own
    parameters say how much to print.
    """
    from sklearn.base import clone

    if not hasattr(estimator, "get_cat_feature_indices"):
        return clone(estimator)
    parameters = estimator.get_params()
    if estimator.is_fitted():
        parameters["cat_features"] = estimator.get_cat_feature_indices()
    if quiet:
        silent = {} if parameters.keys() & _VERBOSITY else {"verbose": False}
        parameters = {"allow_writing_files": False, **silent, **parameters}
    return type(estimator)(**parameters)


def weight_name(estimator: Any) -> str:
    """The name of ``fit``'s argument for sample weights; a pipeline's is that of its last step.

    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.tree import DecisionTreeRegressor
    >>> weight_name(make_pipeline("passthrough", DecisionTreeRegressor()))
    'decisiontreeregressor__sample_weight'
    """
    steps = getattr(estimator, "steps", None)
    return f"{steps[-1][0]}__{weight_name(steps[-1][1])}" if steps else "sample_weight"
