"""Results as the caller's kind of table, and copies of tables with missing values filled in.

:func:`filled` is the inverse of :mod:`knothole.columns.read` for entries that were missing. It
changes no other entry, nor the table's class, types, levels or order of columns.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats, Ints, Mask
from knothole.columns.columns import Column, Columns, Kind
from knothole.columns.read import (
    as_table,
    class_of,
    is_lazy_frame,
    labels_of,
    missing_objects,
    places_of,
)
from knothole.errors import InvalidInput

#: The column of a long table that numbers the draws.
DRAW = "draw"


# --- answers -------------------------------------------------------------------------------------


def like(table: Any, values: NDArray[Any], names: Sequence[Any] | None = None) -> Any:
    """Values as a Series or table of the library that ``table`` comes from, else as an array.

    A pandas result has the table's index. Values of more than two dimensions stay an array.
    """
    package = "polars" if is_lazy_frame(table) else (class_of(table) or ("numpy",))[0]
    if package == "numpy" or values.ndim > 2:
        return values
    names = list(range(values.shape[-1]) if names is None else names)
    if package == "pandas":
        import pandas as pd

        index = pandas_index(table)
        return pd.Series(values, index) if values.ndim == 1 else pd.DataFrame(values, index, names)
    library = sys.modules[package]
    if values.ndim == 1:
        return library.Series(values) if package == "polars" else library.array(values)
    columns = {str(name): values[:, i] for i, name in enumerate(names)}
    return library.DataFrame(columns) if package == "polars" else library.table(columns)


def pandas_index(table: Any) -> Any:
    """The index of a pandas table; None for any other table."""
    return table.index if class_of(table) == ("pandas", "DataFrame") else None


# --- tables with values filled in ----------------------------------------------------------------


def filled(table: Any, columns: Columns, matrix: Floats, missing_mask: Mask) -> Any:
    """A copy of a table with the values of ``matrix`` where the mask is True.

    An entry that is NaN in ``matrix`` as well stays missing.

    Examples
    --------
    >>> import pandas as pd
    >>> table = pd.DataFrame({"age": pd.array([31, None], "Int64"), "city": ["Graz", None]})
    >>> columns = Columns.infer(table)
    >>> mask = np.array([[False, False], [True, True]])
    >>> filled(table, columns, np.array([[31.0, 0.0], [40.0, 0.0]]), mask).to_numpy().tolist()
    [[31, 'Graz'], [40, 'Graz']]
    """
    if is_lazy_frame(table):
        table = table.collect()
    package, _ = class_of(table) or ("", "")
    if package not in ("polars", "pyarrow"):
        table = as_table(table)
    places = places_of(table, columns.names) if columns.named else range(len(columns))
    changes = {
        place: (column, np.flatnonzero(missing_mask[:, i]), matrix[missing_mask[:, i], i])
        for i, (column, place) in enumerate(zip(columns, places, strict=True))
        if missing_mask[:, i].any() and place is not None
    }
    if isinstance(table, np.ndarray):
        return _filled_array(table, changes)
    if package not in ("polars", "pyarrow"):
        out = table.copy()
        for place, change in changes.items():
            out.isetitem(place, _filled_series(table.iloc[:, place].copy(), *change))
        return out
    if package == "polars":
        series = table.get_columns()
        return table.with_columns([_filled_polars(series[i], *c) for i, c in changes.items()])
    arrays = [
        _filled_arrow(array, *changes[i]) if i in changes else array
        for i, array in enumerate(table.columns)
    ]
    return type(table).from_arrays(arrays, names=table.schema.names)


def _entries(column: Column, values: Floats) -> list[Any]:
    """Matrix values as a table's entries: numbers or levels, None for what stays missing."""
    if column.kind is Kind.CATEGORICAL:
        return [None if x != x else column.levels[int(x)] for x in values.tolist()]
    whole = column.kind is Kind.INTEGER
    return [None if x != x else int(x) if whole else x for x in values.tolist()]


def _takes_floats(column: Column, dtype: Any) -> bool:
    """Whether a column of this type can hold the values of a matrix unchanged."""
    return isinstance(dtype, np.dtype) and dtype.kind == "f" and not column.levels


def _as_booleans(entries: list[Any]) -> list[Any]:
    return [None if entry is None else bool(entry) for entry in entries]


def _has_floats(entries: list[Any]) -> bool:
    return any(isinstance(entry, float) for entry in entries)


def _holds_booleans(column: NDArray[Any]) -> bool:
    """Whether all observed entries of an object column are booleans."""
    known = column[~missing_objects(column)] if column.dtype.kind == "O" else column[:0]
    return bool(len(known)) and all(isinstance(value, (bool, np.bool_)) for value in known)


def _filled_array(
    table: NDArray[Any], changes: dict[int, tuple[Column, Ints, Floats]]
) -> NDArray[Any]:
    if all(_takes_floats(column, table.dtype) for column, _, _ in changes.values()):
        out = table.copy()
        for place, (_, rows, values) in changes.items():
            out[rows, place] = values
        return out
    entries = {place: _entries(column, values) for place, (column, _, values) in changes.items()}
    every = [entry for several in entries.values() for entry in several]
    if table.dtype.kind in "UST" or any(isinstance(entry, str) for entry in every):
        out = table.astype(object)  # object, since new text may be longer than the old
    elif table.dtype.kind in "iub" and _has_floats(every):
        out = table.astype(np.float64)
    else:
        out = table.copy()
    for place, (_, rows, values) in changes.items():
        new = entries[place]
        if _holds_booleans(out[:, place]):
            new = _as_booleans(new)
        known = ~np.isnan(values)
        out[rows[known], place] = [entry for entry in new if entry is not None]
    return out


def _filled_series(series: Any, column: Column, rows: Ints, values: Floats) -> Any:
    dtype = series.dtype
    if _takes_floats(column, dtype):
        series.iloc[rows] = values.astype(dtype)
        return series
    import pandas as pd

    entries = _entries(column, values)
    if isinstance(dtype, pd.CategoricalDtype):
        known = set(dtype.categories)
        further = [value for value in dict.fromkeys(entries) if value not in (None, *known)]
        series = series.cat.add_categories(further)
    elif pd.api.types.is_bool_dtype(dtype) or _holds_booleans(series.to_numpy()):
        entries = _as_booleans(entries)
    elif pd.api.types.is_integer_dtype(dtype) and _has_floats(entries):
        series = series.astype("Float64" if series.hasnans else "float64")
    series.iloc[rows] = pd.array(entries, dtype=series.dtype)
    return series


def _filled_polars(series: Any, column: Column, rows: Ints, values: Floats) -> Any:
    pl, dtype = sys.modules["polars"], series.dtype
    entries = _with_entries(series.to_list(), column, rows, values)
    if dtype == pl.Boolean:
        entries = _as_booleans(entries)
    elif dtype.is_integer() and _has_floats(entries):
        dtype = pl.Float64
    return pl.Series(series.name, entries, dtype=dtype)


def _filled_arrow(array: Any, column: Column, rows: Ints, values: Floats) -> Any:
    pa, kind = sys.modules["pyarrow"], array.type
    entries = _with_entries(array.to_pylist(), column, rows, values)
    if pa.types.is_boolean(kind):
        entries = _as_booleans(entries)
    elif pa.types.is_integer(kind) and _has_floats(entries):
        kind = pa.float64()
    return pa.array(entries, type=kind)


def _with_entries(held: list[Any], column: Column, rows: Ints, values: Floats) -> list[Any]:
    for row, entry in zip(rows.tolist(), _entries(column, values), strict=True):
        held[row] = entry
    return held


def long(draws: Sequence[Any]) -> Any:
    """Concatenate tables; a new first column numbers the table that each row comes from."""
    if DRAW in map(str, labels_of(draws[0])):
        raise InvalidInput(
            f"draws: the table has a column {DRAW!r} of its own, which would hold the draws' "
            f"numbers; rename it."
        )
    package, name = class_of(draws[0]) or ("numpy", "")
    if package == "numpy":
        return np.concatenate([np.insert(draw, 0, i, axis=1) for i, draw in enumerate(draws)])
    if package == "pandas":
        for number, draw in enumerate(draws):
            draw.insert(0, DRAW, number)
        import pandas as pd

        return pd.concat(draws)
    library = sys.modules[package]
    if package == "polars":
        numbered = [
            draw.insert_column(0, library.Series(DRAW, np.full(len(draw), number)))
            for number, draw in enumerate(draws)
        ]
        return library.concat(numbered)
    numbered = [
        draw.add_column(0, DRAW, library.array(np.full(draw.num_rows, number)))
        for number, draw in enumerate(draws)
    ]
    return (library.concat_batches if name == "RecordBatch" else library.concat_tables)(numbered)
