"""What restored arrays must be like: files are not to be trusted, and kernels check nothing.

Every class that files hold has a ``check`` made of these few, called before anything runs. A
problem is a :class:`~knothole.errors.DamagedFile`, which names the array and what is wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from knothole.errors import DamagedFile

# What probabilities may differ by from 1 in all: numpy draws from none that differ by more.
ROUNDING = 1e-8
# Each kind of array has one dtype, so that kernels are never compiled for another.
DTYPES = {"f": np.float64, "i": np.int64, "b": np.bool_}


def require(holds: Any, problem: str) -> None:
    """Refuse a file unless something holds.

    Examples
    --------
    >>> require(2 < 1, "two is no less than one")
    Traceback (most recent call last):
    knothole.errors.DamagedFile: two is no less than one
    """
    if not holds:
        raise DamagedFile(problem)


def check_array(
    name: str, array: Any, shape: Sequence[int | None], kind: str = "f", finite: bool = True
) -> None:
    """Refuse what is not an array of this shape (None: any length) and kind of numbers.

    Examples
    --------
    >>> check_array("means", np.zeros((2, 3)), (2, None))
    >>> check_array("means", np.zeros((2, 3)), (2, 4))
    Traceback (most recent call last):
    knothole.errors.DamagedFile: means must be float64 of shape (2, 4); found float64 of (2, 3)
    """
    found = np.asarray(array)
    fits = found.ndim == len(shape) and found.dtype == DTYPES[kind]
    fits = fits and all(n in (None, m) for n, m in zip(shape, found.shape, strict=True))
    wanted = f"{np.dtype(DTYPES[kind])} of shape {tuple(shape)}"
    require(fits, f"{name} must be {wanted}; found {found.dtype} of {found.shape}")
    if kind == "f":
        unusable = ~np.isfinite(found) if finite else np.isnan(found)
        require(not unusable.any(), f"{name} must be {'finite' if finite else 'no NaN'} everywhere")


def check_positive(name: str, array: Any, shape: Sequence[int | None] = ()) -> None:
    """Refuse what is not an array of positive, finite numbers; a number, without a shape."""
    check_array(name, array, shape)
    require(np.all(np.asarray(array) > 0), f"{name} must be positive everywhere")


def check_chances(name: str, array: Any, shape: Sequence[int | None]) -> None:
    """Refuse what are not probabilities that add up to 1 over the first axis."""
    check_array(name, array, shape)
    require(np.all(array >= 0), f"{name} must not be negative anywhere")
    total = np.asarray(array).sum(axis=0)
    require(np.all(np.abs(total - 1) <= ROUNDING), f"{name} must add up to 1")


def check_log_chances(name: str, array: Any, shape: Sequence[int | None]) -> None:
    """The same of their logarithms."""
    check_array(name, array, shape, finite=False)
    require(np.all(array <= ROUNDING), f"{name} must be logarithms of probabilities")
    check_chances(f"exp({name})", np.exp(array), shape)


def check_type(name: str, value: Any, *types: type) -> None:
    """Refuse a value of the header that is of no such type; a bool is no number."""
    kinds = " or ".join(kind.__name__ for kind in types)
    require(type(value) in types, f"{name} must be {kinds}; found {type(value).__name__}")
