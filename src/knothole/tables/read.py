"""Tables in, plain float64 columns out: numpy, pandas, polars and Arrow alike.

A library is recognised by the *name* of the table's class, so that one that is absent is never
imported. Every kind of hole (None, NaN, pd.NA, null) becomes NaN. A column of numbers keeps its
values; a column of anything else becomes the positions of its entries among its levels.
"""

from __future__ import annotations

import datetime
import decimal
import numbers
import sys
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats
from knothole.errors import InvalidInput

# Beyond it all float64 numbers are whole, and not all whole numbers are float64 numbers.
WHOLE_LIMIT = 2.0**53


@dataclass(frozen=True, eq=False)
class RawColumn:
    """One column of a table: numbers, or (where ``levels`` is not None) codes of levels.

    ``integers`` are whole numbers, of which some are too large to be told apart in ``values``: as
    categories they are different ones.
    """

    name: str
    values: Floats
    levels: tuple[Hashable, ...] | None = None
    integers: NDArray[Any] | None = None


@dataclass(frozen=True, eq=False)
class RawTable:
    """The columns of a table; ``named`` is False where their names were made up.

    ``plain`` is the table itself where it was a plain float64 array.
    """

    columns: tuple[RawColumn, ...]
    named: bool
    plain: Floats | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Names in order."""
        return tuple(column.name for column in self.columns)


def read_table(table: Any) -> RawTable:
    """Read a table of any supported library; one that has been read comes back as it is.

    Raises
    ------
    InvalidInput
        Where it is no table, has no rows or columns, has two columns of one name, or holds
        infinite values, dates or anything else that is neither a number nor a category.

    Examples
    --------
    >>> raw = read_table([[1.5, "red"], [None, "blue"]])
    >>> raw.columns[0].values.tolist(), raw.columns[1].values.tolist(), raw.columns[1].levels
    ([1.5, nan], [1.0, 0.0], ('blue', 'red'))
    """
    if isinstance(table, RawTable):
        return table
    if isinstance(table, (list, tuple)):
        table = np.array(table, dtype=object)
    kind = class_of(table)
    if kind is None:
        raise InvalidInput(
            f"X must be a table: a two-dimensional numpy array, a pandas or polars DataFrame or an "
            f"Arrow table; got {type(table).__module__}.{type(table).__qualname__}.{_hint(table)}"
        )
    raw = _READERS[kind](table)
    _check(raw)
    return raw


def class_of(table: Any) -> tuple[str, str] | None:
    """The package and the class by which a table is known; None where it is no table.

    Examples
    --------
    >>> class_of(np.zeros((2, 2))), class_of("text")
    (('numpy', 'ndarray'), None)
    """
    names = ((base.__module__.partition(".")[0], base.__name__) for base in type(table).__mro__)
    return next((name for name in names if name in _READERS), None)


@cache
def made_up_names(n_columns: int) -> tuple[str, ...]:
    """Names for columns that have none, as scikit-learn makes them up."""
    return tuple(f"x{position}" for position in range(n_columns))


def plain_floats(table: Any) -> Floats | None:
    """The table itself where it is a plain two-dimensional float64 array, else None."""
    if isinstance(table, RawTable):
        return table.plain
    if type(table) is np.ndarray and table.dtype == np.float64 and table.ndim == 2 and table.size:
        return table
    return None


def check_finite(values: Floats, name: str) -> None:
    """Refuse infinite values in a column."""
    infinite = np.isinf(values)
    if infinite.any():
        row = int(np.argmax(infinite))
        raise InvalidInput(
            f"column {name!r} must hold finite numbers; got {values[row]} in row {row}. Replace "
            f"infinite values, by NaN where the number is not known."
        )


def _check(raw: RawTable) -> None:
    if not raw.columns or not len(raw.columns[0].values):
        raise InvalidInput(
            f"X must have at least one row and one column; got {len(raw.columns)} columns"
            + (" and no rows." if raw.columns else ".")
        )
    twice = sorted({name for name in raw.names if raw.names.count(name) > 1})
    if twice:
        raise InvalidInput(f"columns must have different names; {twice[0]!r} occurs twice.")
    for column in raw.columns:
        if column.levels is None:
            check_finite(column.values, column.name)


def _hint(table: Any) -> str:
    if hasattr(table, "collect"):
        return " Call .collect() on it first."
    if hasattr(table, "to_frame"):
        return " Call .to_frame() on it first."
    if hasattr(table, "toarray"):
        return " Call .toarray() on it first; an entry that a sparse matrix omits is a zero."
    return ""


# --- numpy ---------------------------------------------------------------------------------------


def _from_numpy(table: NDArray[Any]) -> RawTable:
    if not isinstance(table, np.ma.MaskedArray):
        table = np.asarray(table)  # columns of a np.matrix would be matrices
    if table.ndim != 2:
        raise InvalidInput(
            f"X must have two dimensions, rows and columns; got {table.ndim}"
            + (" (a single row is X.reshape(1, -1))." if table.ndim == 1 else ".")
        )
    names = made_up_names(table.shape[1])
    if isinstance(table, np.ma.MaskedArray):
        mask = np.ma.getmaskarray(table)
        table = table.data.astype(object)
        table[mask] = None
    if table.dtype.kind in "OUST":
        columns = [_objects(name, table[:, i]) for i, name in enumerate(names)]
    else:
        if table.dtype.kind not in "fiub":
            raise InvalidInput(f"X must hold numbers or categories; got dtype {table.dtype}.")
        values = table.astype(np.float64, copy=False)
        columns = [_numbers(name, values[:, i], table[:, i]) for i, name in enumerate(names)]
    return RawTable(tuple(columns), named=False, plain=plain_floats(table))


def _objects(name: str, values: Any) -> RawColumn:
    """A column of Python objects: numbers where all entries are, levels otherwise."""
    import pandas as pd  # only tables of objects pay for it

    values = np.asarray(values, dtype=object)
    try:
        hole = np.asarray(pd.isna(values), dtype=np.bool_)
    except decimal.InvalidOperation as error:
        raise _no_number(name, decimal.Decimal("sNaN")) from error
    observed = values[~hole]
    kinds = {type(value) for value in observed}
    out = np.full(len(values), np.nan)
    if all(issubclass(kind, (numbers.Real, np.bool_, decimal.Decimal)) for kind in kinds):
        out[~hole] = _as_floats(name, observed)
        return _numbers(name, out, np.where(hole, 0, values))
    for kind in kinds:
        if issubclass(kind, (datetime.date, datetime.time, datetime.timedelta, np.datetime64)):
            raise _refused(name, kind.__name__)
        if kind.__hash__ is None:
            raise InvalidInput(
                f"column {name!r} must hold numbers or categories; got {kind.__name__} objects."
            )
    levels = _sorted(dict.fromkeys(observed.tolist()))
    codes = {level: code for code, level in enumerate(levels)}
    out[~hole] = [codes[value] for value in observed.tolist()]
    return RawColumn(name, out, levels)


def _as_floats(name: str, values: NDArray[Any]) -> Floats:
    """Numbers of any type; what is a number to Python may be none to a machine."""
    try:
        return values.astype(np.float64)
    except (ValueError, OverflowError, TypeError) as error:
        for value in values:
            try:
                float(value)
            except (ValueError, OverflowError, TypeError):
                raise _no_number(name, value) from error
        raise


def _no_number(name: str, value: Any) -> InvalidInput:
    """The error of a value that is too much for Python to print, perhaps."""
    shown = f"one of {value.bit_length()} bits" if isinstance(value, int) else repr(value)
    return InvalidInput(
        f"column {name!r} must hold numbers that float64 has; got {shown}. Replace it, by NaN "
        f"where the number is not known."
    )


def _numbers(name: str, values: Floats, exact: NDArray[Any]) -> RawColumn:
    """A column of numbers, with what it holds ``exact`` where floats would not tell it apart."""
    large = exact.dtype.kind in "iuO" and bool((np.abs(values) >= WHOLE_LIMIT).any())
    whole = large and all(isinstance(value, int) for value in exact.tolist())
    return RawColumn(name, values, integers=exact if whole else None)


def _sorted(levels: Iterable[Any]) -> tuple[Hashable, ...]:
    """In their own order where they have one, else as they come."""
    levels = tuple(levels)
    try:
        return tuple(sorted(levels))
    except TypeError:
        return levels


def _refused(name: str, dtype: Any) -> InvalidInput:
    return InvalidInput(
        f"column {name!r} must hold numbers or categories; got {dtype}. Convert it to numbers, "
        f"such as days since a date, the way it was for the model."
    )


def _codes(name: str, codes: Any, levels: Iterable[Hashable]) -> RawColumn:
    """A column from codes in which a negative one is a hole."""
    values = np.asarray(codes).astype(np.float64)
    values[values < 0] = np.nan
    return RawColumn(name, values, tuple(levels))


# --- pandas --------------------------------------------------------------------------------------


def _from_pandas(table: Any) -> RawTable:
    labels = list(table.columns)
    named = labels != list(range(len(labels)))
    names = [str(label) for label in labels] if named else made_up_names(len(labels))
    columns = [_pandas_column(name, table.iloc[:, i]) for i, name in enumerate(names)]
    return RawTable(tuple(columns), named)


def _pandas_column(name: str, series: Any) -> RawColumn:
    import pandas as pd

    dtype = series.dtype
    if isinstance(dtype, pd.CategoricalDtype):
        return _codes(name, series.cat.codes, series.cat.categories.tolist())
    if pd.api.types.is_complex_dtype(dtype):
        raise _refused(name, dtype)
    if pd.api.types.is_numeric_dtype(dtype) or pd.api.types.is_bool_dtype(dtype):
        values = series.to_numpy(dtype=np.float64, na_value=np.nan)
        whole = pd.api.types.is_integer_dtype(dtype)
        return _numbers(name, values, series.fillna(0).to_numpy() if whole else values)
    if isinstance(dtype, (pd.PeriodDtype, pd.IntervalDtype)) or dtype.kind in "mM":
        raise _refused(name, dtype)
    return _objects(name, series.to_numpy(dtype=object))


# --- polars --------------------------------------------------------------------------------------


def _from_polars(table: Any) -> RawTable:
    columns = [_polars_column(series.name, series) for series in table.get_columns()]
    return RawTable(tuple(columns), named=True)


def _polars_column(name: str, series: Any) -> RawColumn:
    pl = sys.modules["polars"]
    dtype = series.dtype
    if dtype.is_numeric() or dtype in (pl.Boolean, pl.Null):
        values = series.cast(pl.Float64).fill_null(np.nan).to_numpy()
        whole = series.fill_null(0).to_numpy() if dtype.is_integer() else values
        return _numbers(name, np.asarray(values, dtype=np.float64), whole)
    if dtype == pl.Enum:
        codes = series.to_physical().cast(pl.Float64).fill_null(-1.0).to_numpy()
        return _codes(name, codes, dtype.categories.to_list())
    if dtype in (pl.String, pl.Categorical):
        # The codes of a Categorical depend on what else the process has read: its text does not.
        return _objects(name, series.cast(pl.String).to_list())
    raise _refused(name, dtype)


# --- Arrow ---------------------------------------------------------------------------------------


def _from_arrow(table: Any) -> RawTable:
    names = list(table.schema.names)
    columns = [_arrow_column(name, table.column(i)) for i, name in enumerate(names)]
    return RawTable(tuple(columns), named=True)


def _arrow_column(name: str, column: Any) -> RawColumn:
    pa = sys.modules["pyarrow"]
    chunked = column if isinstance(column, pa.ChunkedArray) else pa.chunked_array([column])
    kind = chunked.type
    if pa.types.is_dictionary(kind):
        whole = chunked.unify_dictionaries().combine_chunks()
        codes = whole.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        return _codes(name, codes, whole.dictionary.to_pylist())
    number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    if number or pa.types.is_boolean(kind) or pa.types.is_null(kind):
        if pa.types.is_boolean(kind):
            chunked = chunked.cast(pa.int8())
        values = np.asarray(chunked.cast(pa.float64(), safe=False).to_numpy(), dtype=np.float64)
        whole = chunked.fill_null(0).to_numpy() if pa.types.is_integer(kind) else values
        return _numbers(name, values, whole)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return _objects(name, chunked.to_pylist())
    raise _refused(name, kind)


# (top-level package, class name) -> how to read it.
_READERS: dict[tuple[str, str], Callable[[Any], RawTable]] = {
    ("numpy", "ndarray"): _from_numpy,
    ("pandas", "DataFrame"): _from_pandas,
    ("polars", "DataFrame"): _from_polars,
    ("pyarrow", "Table"): _from_arrow,
    ("pyarrow", "RecordBatch"): _from_arrow,
}
