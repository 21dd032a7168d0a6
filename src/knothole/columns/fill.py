"""Tables with their holes filled: of the class, the types, the levels and the order they came in.

The inverse of :mod:`knothole.columns.read` for the entries that were holes; all others are not
touched.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats, Mask
from knothole.columns.columns import Column, Columns, Kind
from knothole.columns.read import as_table, class_of, labels_of, places_of
from knothole.errors import InvalidInput

#: The column of a long table that tells its draws apart.
DRAW = "draw"


def filled(table: Any, columns: Columns, matrix: Floats, holes: Mask) -> Any:
    """A copy of a table with ``matrix``, as ``columns.matrix`` has it, where there are ``holes``.

    An entry that is NaN in ``matrix`` as well stays a hole.

    Examples
    --------
    >>> import pandas as pd
    >>> table = pd.DataFrame({"age": pd.array([31, None], "Int64"), "city": ["Graz", None]})
    >>> columns = Columns.infer(table)
    >>> holes = np.array([[False, False], [True, True]])
    >>> filled(table, columns, np.array([[31.0, 0.0], [40.0, 0.0]]), holes).to_numpy().tolist()
    [[31, 'Graz'], [40, 'Graz']]
    """
    table = as_table(table)
    places = places_of(table, columns.names) if columns.named else range(len(columns))
    parts = {
        place: _Part(np.flatnonzero(holes[:, i]), column, matrix[holes[:, i], i])
        for i, (column, place) in enumerate(zip(columns, places, strict=True))
        if holes[:, i].any() and place is not None
    }
    package, _ = class_of(table) or ("numpy", "")
    return _FILLERS[package](table, parts)


def long(draws: Sequence[Any]) -> Any:
    """Tables under one another, with a first column that says which one a row is of, from 0."""
    package, _ = class_of(draws[0]) or ("numpy", "")
    if DRAW in map(str, labels_of(draws[0])):
        raise InvalidInput(
            f"draws: the table has a column {DRAW!r} of its own, which would hold the draws' "
            f"numbers; rename it."
        )
    return _STACKERS[package](list(draws))


class _Part(NamedTuple):
    """Which rows of a column are to be filled, and with what, as a matrix has it."""

    rows: NDArray[np.intp]
    column: Column
    numbers: Floats

    def fits(self, dtype: Any) -> bool:
        """Whether a column of this type takes the numbers as they are: what is NaN stays so."""
        return isinstance(dtype, np.dtype) and dtype.kind == "f" and not self.column.levels

    @property
    def entries(self) -> list[Any]:
        """Numbers or levels; None for what stays a hole."""
        column, numbers = self.column, self.numbers.tolist()
        if column.kind is Kind.CATEGORICAL:
            return [None if x != x else column.levels[int(x)] for x in numbers]
        whole = column.kind is Kind.INTEGER
        return [None if x != x else int(x) if whole else x for x in numbers]


_Parts = dict[int, _Part]


def _numpy(table: NDArray[Any], parts: _Parts) -> NDArray[Any]:
    if all(part.fits(table.dtype) for part in parts.values()):
        out = table.copy()
        for i, part in parts.items():
            out[part.rows, i] = part.numbers
        return out
    values = [value for part in parts.values() for value in part.entries]
    if table.dtype.kind in "UST" or any(isinstance(value, str) for value in values):
        table = table.astype(object)  # text of any length
    elif table.dtype.kind in "iub" and any(isinstance(value, float) for value in values):
        table = table.astype(np.float64)
    out = table.copy()
    for i, part in parts.items():
        known = [
            (row, value)
            for row, value in zip(part.rows, part.entries, strict=True)
            if value is not None
        ]
        if known:
            at, new = zip(*known, strict=True)
            out[list(at), i] = _like_booleans(list(new), table[:, i])
    return out


def _like_booleans(entries: list[Any], column: Any) -> list[Any]:
    """Entries as booleans where all that is known of a column of objects are."""
    import pandas as pd

    known = column[~pd.isna(column)] if column.dtype.kind == "O" else column[:0]
    if len(known) and all(isinstance(value, (bool, np.bool_)) for value in known):
        return [None if value is None else bool(value) for value in entries]
    return entries


def _pandas(table: Any, parts: _Parts) -> Any:
    out = table.copy()
    for i, part in parts.items():
        series = table.iloc[:, i]
        out.isetitem(i, _pandas_column(series.copy(), part))
    return out


def _pandas_column(series: Any, part: _Part) -> Any:
    import pandas as pd

    dtype = series.dtype
    if part.fits(dtype):
        series.iloc[part.rows] = part.numbers.astype(dtype)
        return series
    entries = part.entries
    if isinstance(dtype, pd.CategoricalDtype):
        known = set(dtype.categories)
        further = [value for value in dict.fromkeys(entries) if value not in (None, *known)]
        series = series.cat.add_categories(further)
    elif dtype.kind == "O":
        entries = _like_booleans(entries, series.to_numpy())
    elif pd.api.types.is_bool_dtype(dtype):
        entries = [None if value is None else bool(value) for value in entries]
    elif pd.api.types.is_integer_dtype(dtype) and any(isinstance(x, float) for x in entries):
        series = series.astype("Float64" if series.hasnans else "float64")
    series.iloc[part.rows] = pd.array(entries, dtype=series.dtype)
    return series


def _as_lists(
    entries_of: Callable[[Any], list[Any]], rebuilt: Callable[[Any, list[Any]], Any]
) -> Callable[[Any, _Part], Any]:
    """How a column of a library whose columns do not change is filled: by way of a list."""

    def fill(column: Any, part: _Part) -> Any:
        values = entries_of(column)
        for row, value in zip(part.rows.tolist(), part.entries, strict=True):
            values[row] = value
        return rebuilt(column, values)

    return fill


def _polars(table: Any, parts: _Parts) -> Any:
    pl = sys.modules["polars"]

    def rebuilt(series: Any, values: list[Any]) -> Any:
        dtype = series.dtype
        if dtype == pl.Boolean:
            values = [None if value is None else bool(value) for value in values]
        elif dtype.is_integer() and any(isinstance(value, float) for value in values):
            dtype = pl.Float64
        return pl.Series(series.name, values, dtype=dtype)

    fill = _as_lists(lambda series: series.to_list(), rebuilt)
    columns = table.get_columns()
    return table.with_columns([fill(columns[i], part) for i, part in parts.items()])


def _arrow(table: Any, parts: _Parts) -> Any:
    pa = sys.modules["pyarrow"]

    def rebuilt(column: Any, values: list[Any]) -> Any:
        kind = column.type
        if pa.types.is_boolean(kind):
            values = [None if value is None else bool(value) for value in values]
        elif pa.types.is_integer(kind) and any(isinstance(value, float) for value in values):
            kind = pa.float64()
        return pa.array(values, type=kind)

    fill = _as_lists(lambda column: column.to_pylist(), rebuilt)
    columns = [
        fill(table.column(i), parts[i]) if i in parts else table.column(i)
        for i in range(table.num_columns)
    ]
    return type(table).from_arrays(columns, names=table.schema.names)


def _stack_numpy(draws: list[Any]) -> Any:
    numbered = [np.insert(draw, 0, number, axis=1) for number, draw in enumerate(draws)]
    return np.concatenate(numbered)


def _stack_pandas(draws: list[Any]) -> Any:
    import pandas as pd

    for number, draw in enumerate(draws):
        draw.insert(0, DRAW, number)
    return pd.concat(draws)


def _stack_polars(draws: list[Any]) -> Any:
    pl = sys.modules["polars"]
    numbered = [
        draw.insert_column(0, pl.repeat(number, len(draw), dtype=pl.Int64, eager=True).alias(DRAW))
        for number, draw in enumerate(draws)
    ]
    return pl.concat(numbered)


def _stack_arrow(draws: list[Any]) -> Any:
    pa = sys.modules["pyarrow"]
    batches = isinstance(draws[0], pa.RecordBatch)
    numbered = [
        draw.add_column(0, DRAW, pa.array(np.full(draw.num_rows, number)))
        for number, draw in enumerate(draws)
    ]
    return pa.concat_batches(numbered) if batches else pa.concat_tables(numbered)


_FILLERS: dict[str, Callable[[Any, _Parts], Any]] = {
    "numpy": _numpy,
    "pandas": _pandas,
    "polars": _polars,
    "pyarrow": _arrow,
}
_STACKERS: dict[str, Callable[[list[Any]], Any]] = {
    "numpy": _stack_numpy,
    "pandas": _stack_pandas,
    "polars": _stack_polars,
    "pyarrow": _stack_arrow,
}
