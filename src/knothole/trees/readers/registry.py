"""Which library a model or a file is of, and how it is read.

A library is found by the *name* of the model's class: one that is not installed is never imported,
and one that is installed has been imported by its own model.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from knothole.arrays import Floats, Ints
from knothole.columns.read import class_names
from knothole.errors import DamagedFile, KnotholeError, NotFitted, UnsupportedModel
from knothole.files import check_regular
from knothole.trees.ensemble import Ensemble

# Classes of models by the top-level package that they come from, which is the folder's name too.
CLASSES = {
    "xgboost": ("Booster", "XGBModel"),
    "lightgbm": ("Booster", "LGBMModel"),
    "catboost": ("CatBoost",),
    "sklearn": (
        *("BaseDecisionTree", "BaseForest", "BaseBagging"),
        *("BaseGradientBoosting", "BaseHistGradientBoosting"),
    ),
}
# Those with a module ``files``, in the order in which they are asked about a file.
WITH_FILES = ("own", "lightgbm", "xgboost", "catboost")


@dataclass(frozen=True)
class Replay:
    """The native answer to rows of codes: margins (rows, outputs), leaves (rows, trees) or None.

    Leaves are numbered as in ``Ensemble.native_leaf``; None where the library cannot tell.
    """

    margin: Floats
    leaves: Ints | None = None


@dataclass(frozen=True)
class Reading:
    """What a reader found, and how to ask the library itself.

    ``replay(X)`` takes a float64 matrix encoded as ``ensemble.columns`` says (NaN for missing, the
    number of levels for a category never seen) and returns the library's own answer. Where the
    library itself refuses NaN, ``takes_nan`` is False.
    """

    ensemble: Ensemble
    replay: Callable[[Floats], Replay]
    takes_nan: bool = True


def library_of(model: Any) -> str:
    """The folder of the library that a model or a file is of: by class, or by how it begins."""
    if isinstance(model, (str, os.PathLike)):
        return _library_of_file(Path(model))
    if isinstance(model, dict):
        return "own"
    for folder, name in class_names(model):
        if name in CLASSES.get(folder, ()):
            return folder
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
    for folder in WITH_FILES:
        if module_of(folder, "files").begins(head):
            return folder
    raise DamagedFile(
        f"{path}: not a model file knothole knows. It reads XGBoost's JSON and UBJ, LightGBM's "
        f"text, CatBoost's cbm and JSON, and trees of your own (docs/libraries.md); scikit-learn "
        f"models are read from the live object."
    )


def module_of(folder: str, name: Literal["read", "write", "files"]) -> Any:
    """One of a library's modules."""
    return import_module(f"{__package__}.{folder}.{name}")


def files_of(model: Any) -> Any:
    """The module ``files`` for a model or a file; None where the library has no such files."""
    folder = library_of(model)
    return module_of(folder, "files") if folder in WITH_FILES else None


def not_fitted(model: Any) -> NotFitted:
    """The exception for a model that has no trees yet."""
    return NotFitted(
        f"this {type(model).__name__} has not been fitted, so it has no trees to read. Call its "
        f"fit first."
    )


def reading_of(model: Any) -> Reading:
    """What a live model, or a file at a path, is once read; not checked yet.

    The replay of a file runs the library in a process of its own.
    """
    folder = library_of(model)
    if not isinstance(model, (str, os.PathLike)):
        reading: Reading = module_of(folder, "read").read(model)
        return reading
    from knothole.trees.readers import quarantine

    path = Path(model)
    files = module_of(folder, "files")
    try:
        if folder == "own":  # no library that a file could crash
            checked: Reading = module_of(folder, "read").read(files.load(path))
            return checked
        ensemble: Ensemble = files.read(path)
    except KnotholeError:
        raise  # some of ours are ValueErrors and TypeErrors too, and say more
    except _SYMPTOMS as error:
        raise DamagedFile(
            f"{path}: the file is damaged or not of a format this version reads "
            f"({type(error).__name__}: {error}). Save the model again with its library."
        ) from error
    return Reading(ensemble, lambda X: quarantine.replay(folder, path, X))


# What a parser that indexes, converts and reshapes runs into when a file is not what it says.
_SYMPTOMS = (
    ArithmeticError, AttributeError, EOFError, LookupError, MemoryError, RecursionError, TypeError,
    ValueError,
)  # fmt: skip
