"""Tables that hold plain numbers alone, read in one go.

pandas and Python's own numbers, a column at a time, take longer than the answer about a row. What
is not as plain as that is None here: :mod:`knothole.columns.read` reads it, or says what is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from knothole.arrays import Floats
from knothole.columns.read import class_of

# Entries of lists that are numbers, or holes; others may be numbers, too.
_NUMBERS = {float, int, bool, np.float64, type(None)}


def plain_numbers(table: Any, names: Sequence[str], named: bool) -> Floats | None:
    """A new float64 array (rows, columns) of a table's columns, C-contiguous; None where in doubt.

    ``named`` says whether columns are known by their ``names``, or by their order alone.

    Examples
    --------
    >>> import pandas as pd
    >>> table = pd.DataFrame({"b": [1], "a": [2.5]})
    >>> plain_numbers(table, ("a", "b"), named=True).tolist()
    [[2.5, 1.0]]
    >>> plain_numbers([{"a": 1, "b": "red"}], ("a", "b"), named=True) is None
    True
    """
    values: Any = None
    if type(table) is np.ndarray and table.ndim == 2:
        values = table if _is_plain(table.dtype) else None
    elif isinstance(table, list):
        values = _from_rows(table, names, named)
    elif class_of(table) == ("pandas", "DataFrame"):
        values = _from_pandas(table, names, named)
    if values is None or not values.size or values.shape[1] != len(names):
        return None
    values = np.array(values, dtype=np.float64, order="C")
    return None if np.isinf(values).any() else values


def _is_plain(dtype: Any) -> bool:
    return isinstance(dtype, np.dtype) and dtype.kind in "fiub" and dtype.itemsize <= 8


def _from_rows(table: list[Any], names: Sequence[str], named: bool) -> Floats | None:
    """Rows that are lists of numbers, or dictionaries with these names and no others."""
    if named and table and all(isinstance(row, Mapping) for row in table):
        if any(len(row) != len(names) for row in table):
            return None
        rows = [[row.get(name, "") for name in names] for row in table]
    elif all(isinstance(row, (list, tuple)) and len(row) == len(names) for row in table):
        rows = table
    else:
        return None
    if not {type(value) for row in rows for value in row} <= _NUMBERS:
        return None
    try:
        return np.array(rows, dtype=np.float64)
    except OverflowError:
        return None


def _from_pandas(table: Any, names: Sequence[str], named: bool) -> Any:
    labels = table.columns.tolist()
    if named and labels != list(names) and labels != list(range(len(labels))):
        places = {str(label): place for place, label in enumerate(labels)}
        if len(places) < len(labels) or not places.keys() >= set(names):
            return None
        table = table.iloc[:, [places[name] for name in names]]
    elif len(set(map(str, labels))) < len(labels):
        return None
    if not all(map(_is_plain, table.dtypes.tolist())):
        return None
    return table.to_numpy(dtype=np.float64)
