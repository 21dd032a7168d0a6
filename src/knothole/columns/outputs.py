"""Answers of the kind of table that was asked about."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import pandas as pd
from numpy.typing import NDArray

from knothole.columns.read import class_of, is_lazy_frame


def like(table: Any, values: NDArray[Any], names: Sequence[Any] | None = None) -> Any:
    """Values as a Series or a table of the library that a table is of, otherwise as they are.

    Those of pandas have its index. What has more than two dimensions is an array.
    """
    package = "polars" if is_lazy_frame(table) else (class_of(table) or ("numpy",))[0]
    if package == "numpy" or values.ndim > 2:
        return values
    names = list(range(values.shape[-1]) if names is None else names)
    if package == "pandas":
        index = pandas_index(table)
        return pd.Series(values, index) if values.ndim == 1 else pd.DataFrame(values, index, names)
    library = sys.modules[package]
    if values.ndim == 1:
        return library.Series(values) if package == "polars" else library.array(values)
    columns = {str(name): values[:, i] for i, name in enumerate(names)}
    return library.DataFrame(columns) if package == "polars" else library.table(columns)


def pandas_index(table: Any) -> Any:
    """The index of a pandas table, None for any other."""
    return table.index if class_of(table) == ("pandas", "DataFrame") else None


class _OfFrames(type):
    """Any DataFrame passes for one of such a class, as pandas' own comparisons ask."""

    def __instancecheck__(cls, other: Any) -> bool:
        return isinstance(other, pd.DataFrame)


class Shares(pd.DataFrame, metaclass=_OfFrames):
    """A DataFrame of which ``[:, i]`` is a column too, as scikit-learn takes it of probabilities.

    Examples
    --------
    >>> Shares([[0.25, 0.75]], columns=["no", "yes"])[:, 1].tolist()
    [0.75]
    """

    _constructor = pd.DataFrame  # what is made of it is nothing special

    def __getitem__(self, key: Any) -> Any:
        by_place = isinstance(key, tuple) and isinstance(key[0], slice)
        return self.to_numpy()[key] if by_place else super().__getitem__(key)

    def __reduce__(self) -> Any:
        return pd.DataFrame, (pd.DataFrame(self),)
