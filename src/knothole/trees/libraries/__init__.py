"""Libraries: a fitted model in, an ensemble out, and new leaf values into a copy of the model.

A library has a folder here. It is found by the *name* of the model's class, so that a library
that is not installed is never imported, and one that is installed is imported by its own model.
Its module ``read`` has

``read(model) -> Reading``
    from a live object,

and, where the library saves files that need no unpickling,

``read_file(path) -> Ensemble``
    by our own parser, which refuses whatever is damaged,
``load(path) -> model``
    by the library itself, in a process of its own for the self-check (:mod:`.quarantine`).

Its module ``write`` has

``write(model, value) -> model``
    a copy of ``model`` whose leaves hold ``value`` (leaves, width), numbered as in the ensemble
    that the reader makes of ``model``. The user's object is never changed.
``NOTHING``
    where the library keeps values this close to zero as 0 (optional).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from knothole.errors import DamagedFile, KnotholeError, UnsupportedModel
from knothole.trees.ensemble import Ensemble

# (top-level package, class name) -> folder of this package.
BY_CLASS = {
    ("xgboost", "Booster"): "xgboost",
    ("xgboost", "XGBModel"): "xgboost",
    ("lightgbm", "Booster"): "lightgbm",
    ("lightgbm", "LGBMModel"): "lightgbm",
    ("catboost", "CatBoost"): "catboost",
    ("sklearn", "BaseDecisionTree"): "sklearn.forests",
    ("sklearn", "BaseForest"): "sklearn.forests",
    ("sklearn", "BaseBagging"): "sklearn.forests",
    ("sklearn", "BaseGradientBoosting"): "sklearn.forests",
    ("sklearn", "BaseHistGradientBoosting"): "sklearn.hist",
}


@dataclass(frozen=True)
class Replay:
    """The native answer to rows of codes: margins (rows, outputs), leaves (rows, trees) or None.

    Leaves are numbered as in ``Ensemble.native_leaf``; None where the library cannot tell.
    """

    margin: NDArray[np.float64]
    leaves: NDArray[np.int64] | None = None


@dataclass(frozen=True)
class Reading:
    """What a reader found, and how to ask the library itself.

    ``replay(X)`` takes a float64 matrix encoded as ``ensemble.columns`` says (NaN for missing, the
    number of levels for a category never seen) and returns the library's own answer. Where the
    library itself refuses NaN or unseen categories, ``takes_nan`` or ``takes_unseen`` is False.
    """

    ensemble: Ensemble
    replay: Callable[[NDArray[np.float64]], Replay]
    takes_nan: bool = True
    takes_unseen: bool = True


def module_for(model: Any, part: Literal["read", "write"]) -> Any:
    """The reader or writer of a model, by the names of its class and base classes."""
    for base in type(model).__mro__:
        found = BY_CLASS.get((base.__module__.partition(".")[0], base.__name__))
        if found is not None:
            return import_module(f"{__name__}.{found}.{part}")
    supported = sorted({library for library, _ in BY_CLASS})
    raise UnsupportedModel(
        f"cannot read a {type(model).__module__}.{type(model).__qualname__}: knothole reads fitted "
        f"tree models of {', '.join(supported)}. Pass the tree model itself, not a pipeline "
        f"around it."
    )


def read_file(path: Any) -> Reading:
    """Read a saved model; the replay runs the library in a process of its own."""
    from knothole.trees.libraries import quarantine

    path = Path(path)
    try:
        with path.open("rb") as file:
            name = sniff(file.read(4096))
    except OSError as error:
        raise DamagedFile(f"{path}: cannot be opened ({error.strerror}).") from error
    if name is None:
        raise DamagedFile(
            f"{path}: not a model file knothole knows. It reads XGBoost's JSON and UBJ, LightGBM's "
            f"text, CatBoost's cbm and JSON; scikit-learn models are read from the live object."
        )
    module = import_module(f"{__name__}.{name}.read")
    try:
        ensemble: Ensemble = module.read_file(path)
    except KnotholeError:
        raise  # some of ours are ValueErrors and TypeErrors too, and say more
    except _SYMPTOMS as error:
        raise DamagedFile(
            f"{path}: the file is damaged or not of a format this version reads "
            f"({type(error).__name__}: {error}). Save the model again with its library."
        ) from error
    return Reading(ensemble, lambda X: quarantine.replay(name, path, X))


# What a parser that indexes, converts and reshapes runs into when a file is not what it says.
_SYMPTOMS = (
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
)


def sniff(head: bytes) -> str | None:
    """The library that saves files which begin like this."""
    if head.startswith(b"CBM1"):
        return "catboost"
    if head.startswith(b"tree\n") or head.startswith(b"tree\r\n"):
        return "lightgbm"
    if not head.startswith(b"{"):
        return None
    if b"learner" in head or b"Config" in head:
        return "xgboost"
    return "catboost"
