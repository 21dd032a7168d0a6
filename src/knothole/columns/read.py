"""Reading tables: anything tabular becomes one numpy array or one pandas DataFrame.

:func:`as_table` converts a table once, when it comes in: polars tables, Arrow tables and lists of
dictionaries become pandas, lists of rows an array. A library is recognised by the *name* of the
table's class, so that one that is not installed is never imported. :func:`read_column` then reads
a column: numbers keep their values, anything else becomes positions among the column's levels, and
every kind of missing entry (None, NaN, pd.NA, null) becomes NaN. Where both sides have column
names, a table may have its columns in any order, and further columns.
"""

from __future__ import annotations

import datetime
import decimal
import math
import numbers
import re
import sys
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats, Mask
from knothole.checks import check_choice
from knothole.errors import ColumnMismatch, InvalidInput, MissingExtra, UnseenCategory

if TYPE_CHECKING:
    import pandas as pd

#: What becomes of a column that a table does not have. Where None is the default it is an error,
#: and the caller has no such argument that the message could name.
Absent = Literal["error", "missing"]
#: What becomes of a category that is none of its column's levels; None as for :data:`Absent`.
HandleUnknown = Literal["error", "missing"]

# Larger integers are not all exact in float64.
WHOLE_LIMIT = 2.0**53

# Classes of tables, by package.
_TABLES = {
    ("numpy", "ndarray"),
    ("pandas", "DataFrame"),
    ("polars", "DataFrame"),
    ("pyarrow", "Table"),
    ("pyarrow", "RecordBatch"),
}


# --- which table it is ---------------------------------------------------------------------------


def class_names(thing: Any) -> Iterator[tuple[str, str]]:
    """Package and name of the class of a thing and of each base class; imports nothing."""
    return ((base.__module__.partition(".")[0], base.__name__) for base in type(thing).__mro__)


def class_of(table: Any) -> tuple[str, str] | None:
    """Package and name of the class that makes something a table; None if it is not one.

    Examples
    --------
    >>> class_of(np.zeros((2, 2))), class_of("text")
    (('numpy', 'ndarray'), None)
    """
    return next((name for name in class_names(table) if name in _TABLES), None)


def is_lazy_frame(table: Any) -> bool:
    """Whether it is a polars LazyFrame, which has no rows before it is collected."""
    return ("polars", "LazyFrame") in class_names(table)


def labels_of(table: Any) -> list[Any]:
    """The labels of a table's columns; empty if they have no names."""
    arrow = (class_of(table) or ("",))[0] == "pyarrow"
    return list(table.schema.names if arrow else getattr(table, "columns", ()))


def places_of(table: Any, names: Sequence[str]) -> list[int | None]:
    """Positions of these columns in a table; a table without names has them in its own order.

    Examples
    --------
    >>> import pandas as pd
    >>> places_of(pd.DataFrame({"b": [1], "a": [2]}), ["a", "b", "c"])
    [1, 0, None]
    """
    labels = labels_of(table)
    if not labels or (class_of(table) == ("pandas", "DataFrame") and _are_positions(labels)):
        return list(range(len(names)))
    places = {str(label): place for place, label in reversed(list(enumerate(labels)))}
    return [places.get(name) for name in names]


@cache
def made_up_names(n_columns: int) -> tuple[str, ...]:
    """Names for columns without any, in scikit-learn's form."""
    return tuple(f"x{position}" for position in range(n_columns))


def names_of(table: Any) -> tuple[tuple[str, ...], bool]:
    """Names of the columns of an array or DataFrame, and whether they are the table's own."""
    if isinstance(table, np.ndarray):
        return made_up_names(table.shape[1]), False
    labels = table.columns.tolist()
    if _are_positions(labels):
        return made_up_names(len(labels)), False
    return tuple(map(str, labels)), True


def _are_positions(labels: list[Any]) -> bool:
    return labels == list(range(len(labels)))


# --- one table -----------------------------------------------------------------------------------


def as_table(table: Any) -> Any:
    """A table as a two-dimensional numpy array or a pandas DataFrame.

    Parameters
    ----------
    table : table
        Also a list of rows, each of which may be a dictionary.

    Raises
    ------
    InvalidInput
        It is not a table.

    Examples
    --------
    >>> as_table([{"a": 1, "b": 2}, {"b": 3}]).shape
    (2, 2)
    """
    if isinstance(table, (list, tuple)):
        if _are_dictionaries(table):
            import pandas as pd

            keys = list(dict.fromkeys(key for row in table for key in row))
            columns = pd.Index(keys, tupleize_cols=False)
            return pd.DataFrame(_rows_of_dictionaries(table, keys), columns=columns, copy=False)
        table = np.array(table, dtype=object)
    elif is_lazy_frame(table):
        table = table.collect()
    package, _ = class_of(table) or ("", "")
    if package == "numpy":
        return _checked_array(table)
    if package == "pandas":
        return table
    if package == "polars":
        return _from_arrow(_polars_as_arrow(table))
    if package == "pyarrow":
        return _from_arrow(table)
    raise InvalidInput(
        f"X must be a table: a two-dimensional numpy array, a pandas or polars DataFrame or an "
        f"Arrow table; got {type(table).__module__}.{type(table).__qualname__}.{_hint(table)}"
    )


def _are_dictionaries(table: Any) -> bool:
    return bool(table) and all(isinstance(row, Mapping) for row in table)


def _rows_of_dictionaries(rows: Sequence[Mapping[Any, Any]], keys: Sequence[Any]) -> NDArray[Any]:
    """An object array: pandas would turn integers beyond 2^53 into floats."""
    values = np.empty((len(rows), len(keys)), dtype=object)
    for i, row in enumerate(rows):
        values[i] = [row.get(key) for key in keys]
    return values


def _checked_array(table: NDArray[Any]) -> NDArray[Any]:
    if isinstance(table, np.ma.MaskedArray):
        mask = np.ma.getmaskarray(table)
        table = table.data.astype(object)
        table[mask] = None
    table = np.asarray(table)  # the columns of an np.matrix would be matrices
    if table.ndim != 2:
        raise InvalidInput(
            f"X must have two dimensions, rows and columns; got {table.ndim}"
            + (" (a single row is X.reshape(1, -1))." if table.ndim == 1 else ".")
        )
    if table.dtype.kind not in "fiubOUST":
        raise InvalidInput(f"X must hold numbers or categories; got dtype {table.dtype}.")
    return table


def _polars_as_arrow(table: Any) -> Any:
    pl = sys.modules["polars"]
    columns = []
    for series in table.get_columns():
        if series.dtype == pl.Categorical:
            # Its codes depend on what else the process has read; its text does not.
            series = series.cast(pl.String)
        elif str(series.dtype) in ("Int128", "UInt128"):  # Arrow has no such type
            series = series.cast(pl.Float64)
        columns.append(series)
    try:
        return pl.DataFrame(columns).to_arrow()
    except ModuleNotFoundError as error:
        raise MissingExtra(
            "a polars table is read by way of pyarrow: pip install 'knothole[polars]'."
        ) from error


def _from_arrow(table: Any) -> pd.DataFrame:
    """A DataFrame of an Arrow table's contents; :func:`read_column` refuses unsuitable columns."""
    import pandas as pd

    pa = sys.modules["pyarrow"]
    columns, nullable = [], False
    for column in table.columns:
        if pa.types.is_dictionary(column.type) and not _are_categories(column):
            column = column.cast(column.type.value_type)
        kind = column.type
        if pa.types.is_decimal(kind) or pa.types.is_null(kind):
            column = column.cast(pa.float64(), safe=False)
        elif pa.types.is_integer(kind) or pa.types.is_boolean(kind):
            nullable |= column.null_count > 0
        columns.append(column)
    names = list(map(str, range(len(columns))))
    # Columns with nulls become pandas' Int64 etc.: floats would merge large integers.
    types = _nullable_types(pa).get if nullable else None
    frame: pd.DataFrame = pa.Table.from_arrays(columns, names=names).to_pandas(
        types_mapper=types, split_blocks=True, date_as_object=True
    )
    frame.columns = pd.Index(table.schema.names, dtype=object)
    return frame


def _are_categories(column: Any) -> bool:
    """Whether a dictionary's values can be pandas categories: all different, none null."""
    chunks = getattr(column, "chunks", [column])
    levels = [chunk.dictionary for chunk in chunks]
    return all(not one.null_count and len(one.unique()) == len(one) for one in levels)


@cache
def _nullable_types(pa: Any) -> dict[Any, Any]:
    import pandas as pd

    integers = {
        getattr(pa, name.lower())(): getattr(pd, f"{name}Dtype")()
        for name in ("Int8", "Int16", "Int32", "Int64", "UInt8", "UInt16", "UInt32", "UInt64")
    }
    return {**integers, pa.bool_(): pd.BooleanDtype()}


def _hint(table: Any) -> str:
    if hasattr(table, "collect"):
        return " Call .collect() on it first."
    if hasattr(table, "compute"):
        return " Call .compute() on it first."
    if hasattr(table, "to_frame"):
        row = ".to_frame().T" if hasattr(table, "iloc") else ".to_frame().transpose()"
        return f" One row is {row} of it, one column .to_frame()."
    if hasattr(table, "toarray"):
        return (
            " Call .toarray() on it first. An entry that a sparse matrix omits is a zero; only "
            "XGBoost takes it for NaN: there, make it NaN in the array."
        )
    if isinstance(table, Mapping):
        return " A row is a dictionary in a list, [row]; columns make a pandas.DataFrame(columns)."
    return ""


# --- the columns that are asked for --------------------------------------------------------------


def read_table(
    table: Any,
    names: Sequence[str] | None = None,
    absent: Absent | None = None,
    optional: int = 0,
) -> Any:
    """Convert a table (:func:`as_table`) and select the columns of these names.

    Parameters
    ----------
    table : table
    names : sequence of str, optional
        The columns to pick, in this order, where the table has names; otherwise it must have as
        many. Others are not looked at.
    absent : {"error", "missing"}, optional
        What one of them is that the table does not have.
    optional : int
        Number of last columns that may be absent whatever ``absent`` says.

    Raises
    ------
    InvalidInput
        It is not a table, has no columns, or has two columns of one name.
    ColumnMismatch
        It does not have these columns.

    Examples
    --------
    >>> read_table([{"a": 1, "b": 2}, {"b": 3}], ["b", "a"]).tolist()
    [[2, 1], [3, None]]
    """
    if names is not None and isinstance(table, list) and _are_dictionaries(table):
        keys = dict.fromkeys(key for row in table for key in row)
        if set(map(type, keys)) == {str}:
            if not keys.keys() >= set(names):
                check_absent(names, list(keys), absent, optional)
            return _rows_of_dictionaries(table, names)
    elif is_lazy_frame(table):
        table = table.collect()
    package, _ = class_of(table) or ("", "")
    if package in ("polars", "pyarrow"):
        if names is not None:
            labels = labels_of(table)
            check_absent(names, labels, absent, optional)
            wanted = set(names)
            places = [place for place, label in enumerate(labels) if label in wanted]
            table = table[:, places] if package == "polars" else table.select(places)
        _check_types(table)
    table = as_table(table)
    table_names, named = names_of(table)
    if not table_names:
        raise InvalidInput("X must have at least one row and one column; got 0 columns.")
    if len(set(table_names)) < len(table_names):
        picked = table_names if names is None or not named else names
        counts = Counter(table_names)
        twice = sorted(name for name in set(picked) if counts[name] > 1)
        if twice:
            raise InvalidInput(f"columns must have different names; {twice[0]!r} occurs twice.")
    if names is None or table_names == tuple(names):
        return table
    if not named:
        return as_many_as(table, names, optional)
    place_of = {name: place for place, name in enumerate(table_names)}
    if place_of.keys() >= set(names):
        return table.iloc[:, [place_of[name] for name in names]]
    check_absent(names, table_names, absent, optional)
    present = [name for name in names if name in place_of]
    return (
        table.iloc[:, [place_of[name] for name in present]]
        .set_axis(present, axis=1)
        .reindex(columns=list(names))
    )


def _check_types(table: Any) -> None:
    """Refuse, by name, polars and Arrow types that are neither numbers nor categories."""
    if hasattr(table, "get_columns"):
        pl = sys.modules["polars"]
        for name, dtype in table.schema.items():
            if not dtype.is_numeric() and dtype not in (
                pl.Boolean, pl.Null, pl.Enum, pl.Categorical, pl.String
            ):  # fmt: skip
                raise _refused(name, dtype)
        return
    is_type = sys.modules["pyarrow"].types
    for field in table.schema:
        if not any(
            test(field.type)
            for test in (
                is_type.is_integer, is_type.is_floating, is_type.is_decimal, is_type.is_boolean,
                is_type.is_null, is_type.is_dictionary, is_type.is_string, is_type.is_large_string,
                is_type.is_string_view,
            )
        ):  # fmt: skip
            raise _refused(field.name, field.type)


def as_many_as(table: Any, names: Sequence[str], optional: int = 0) -> Any:
    """A table with this number of columns; the last ``optional`` ones are appended if absent.

    Examples
    --------
    >>> as_many_as(np.array([[1.0], [2.0]]), ["a", "b"], optional=1).tolist()
    [[1.0, nan], [2.0, nan]]
    """
    lacking = len(names) - table.shape[1]
    if optional and lacking == optional:
        if not isinstance(table, np.ndarray):
            return table.set_axis(range(table.shape[1]), axis=1).reindex(columns=range(len(names)))
        plain = table.dtype.kind in "fb" or (table.dtype.kind in "iu" and table.itemsize < 8)
        nothing = np.full((len(table), optional), np.nan)
        # Objects: large integers, which floats would merge, keep their values.
        return np.hstack([table if plain else table.astype(object), nothing])
    if lacking:
        without = f", or {len(names) - optional} without the auxiliary ones" if optional else ""
        raise ColumnMismatch(
            f"the table must have {len(names)} columns ({listed(names)}){without}; got "
            f"{table.shape[1]}."
        )
    return table


def check_absent(
    expected: Sequence[str], got: Sequence[str], absent: Absent | None = None, optional: int = 0
) -> None:
    """Refuse columns that lack some expected ones or, where absent ones are allowed, all of them.

    The last ``optional`` ones may always be absent.

    Examples
    --------
    >>> check_absent(["a", "b"], ["c", "b"], "missing")
    """
    there, wanted = set(got), set(expected)
    required = expected[: len(expected) - optional]
    missing = [name for name in required if name not in there]
    if absent is not None:
        check_choice("absent", absent, ("error", "missing"))
    if missing and (absent != "missing" or not there & wanted):
        further = [name for name in got if name not in wanted]
        beside = f"; {listed(further)} not expected" if further else ""
        way_out = "Pass the columns that the model was trained on, in any order."
        if absent == "error" and there & wanted:
            way_out = (
                f"{way_out[:-1]}; with absent='missing' all values of a column that X does not "
                f"have are missing."
            )
        raise ColumnMismatch(
            f"the table's columns are not the ones expected: {listed(missing)} missing{beside}. "
            f"{way_out}"
        )


def check_rows(table: Any) -> None:
    """Refuse a table without rows."""
    if not len(table):
        raise InvalidInput(
            f"X must have at least one row and one column; got {table.shape[1]} columns and no "
            f"rows."
        )


def position_of(column: str | int, names: Sequence[str], parameter: str) -> int:
    """Position of a column given by name or position in a parameter."""
    if isinstance(column, str):
        if column in names:
            return names.index(column)
    elif -len(names) <= column < len(names):
        return int(column) % len(names)
    raise ColumnMismatch(
        f"{parameter} names column {column!r}, which the table does not have. It has "
        f"{listed(names)}."
    )


def listed(names: Iterable[Hashable]) -> str:
    """Names for a message; only the first few if there are many."""
    names = list(names)
    shown = [shortened(name) for name in names[:8]]
    if len(names) > 8:
        shown.append(f"and {len(names) - 8} more")
    return ", ".join(shown) if shown else "none"


def shortened(value: Any) -> str:
    """A value as a message shows it: shortened if long.

    >>> shortened("a" * 2_000_000)
    "'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa..."
    """
    text = repr(value[:60] if isinstance(value, str) else value)
    return text if len(text) <= 60 else f"{text[:57]}..."


# --- one column ----------------------------------------------------------------------------------


class RawColumn(NamedTuple):
    """A column as read: numbers or, where ``levels`` is not None, codes of levels.

    ``integers`` holds the exact integers where some are too large for the floats in ``values`` to
    tell apart: as categories they differ.
    """

    name: str
    values: Floats
    levels: tuple[Hashable, ...] | None = None
    integers: NDArray[Any] | None = None


def raw_columns(table: NDArray[Any] | pd.DataFrame, names: Sequence[str]) -> Iterator[RawColumn]:
    """The columns of a table one by one, under these names.

    Examples
    --------
    >>> first, second = raw_columns(as_table([[1.5, "red"], [None, "blue"]]), ["a", "b"])
    >>> first.values.tolist(), second.values.tolist(), second.levels
    ([1.5, nan], [1.0, 0.0], ('blue', 'red'))
    """
    columns = table.T if isinstance(table, np.ndarray) else (one for _, one in table.items())
    return map(read_column, names, columns)


def read_column(name: str, column: Any) -> RawColumn:
    """Read a pandas Series, or a column of an array.

    Raises
    ------
    InvalidInput
        It holds infinite values, dates, or anything else that is neither a number nor a category.
    """
    dtype = column.dtype
    if isinstance(dtype, np.dtype) and dtype.kind in "fiub":
        exact = np.asarray(column)
        return _numbers(name, exact.astype(np.float64, copy=False), exact)
    if isinstance(dtype, np.dtype) and dtype.kind in "OUST":
        return _objects(name, np.asarray(column, dtype=object))
    import pandas as pd

    if isinstance(dtype, pd.CategoricalDtype):
        codes = column.cat.codes.to_numpy()
        values = np.where(codes < 0, np.nan, codes)
        return RawColumn(name, values, tuple(column.cat.categories.tolist()))
    kinds = pd.api.types
    if kinds.is_complex_dtype(dtype) or isinstance(dtype, (pd.PeriodDtype, pd.IntervalDtype)):
        raise _refused(name, dtype)
    if kinds.is_numeric_dtype(dtype) or kinds.is_bool_dtype(dtype):
        values = column.to_numpy(dtype=np.float64, na_value=np.nan)
        whole = kinds.is_integer_dtype(dtype)
        return _numbers(name, values, column.fillna(0).to_numpy() if whole else values)
    if dtype.kind in "mM":
        raise _refused(name, dtype)
    return _objects(name, column.to_numpy(dtype=object))


# Types of object entries that are certainly numbers or missing.
_PLAIN_OBJECTS = {float, int, bool, np.float64, type(None)}


def plain_floats(table: NDArray[Any] | pd.DataFrame) -> Floats | None:
    """All columns at once if all hold plain numbers: float64 (rows, columns), C-contiguous.

    None if some may not. A float64 array is not copied. Reading column by column
    (:func:`raw_columns`) makes the prediction of a single row take 1.6 times as long.

    Examples
    --------
    >>> plain_floats(as_table([[1, None], [True, 2.5]])).tolist()
    [[1.0, nan], [1.0, 2.5]]
    >>> plain_floats(as_table([[1, "red"]])) is None
    True
    """
    if not isinstance(table, np.ndarray):
        if not all(map(_is_plain, table.dtypes.tolist())):
            return None
        return np.array(table.to_numpy(dtype=np.float64), order="C")
    if table.dtype.kind == "O":
        if not set(map(type, table.flat)) <= _PLAIN_OBJECTS:
            return None
        try:
            return table.astype(np.float64, order="C")
        except OverflowError:
            return None
    return np.ascontiguousarray(table, dtype=np.float64) if _is_plain(table.dtype) else None


def _is_plain(dtype: Any) -> bool:
    return isinstance(dtype, np.dtype) and dtype.kind in "fiub" and dtype.itemsize <= 8


def check_finite(values: Floats, name: str) -> None:
    """Refuse infinite values."""
    infinite = np.isinf(values)
    if infinite.any():
        row = int(np.argmax(infinite))
        raise InvalidInput(
            f"column {name!r} must hold finite numbers; got {values[row]} in row {row}. Replace "
            f"infinite values, by NaN where the number is not known."
        )


def _numbers(name: str, values: Floats, exact: NDArray[Any]) -> RawColumn:
    """A numeric column, with its ``exact`` integers where floats would merge some."""
    check_finite(values, name)
    large = exact.dtype.kind in "iuO" and bool((np.abs(values) >= WHOLE_LIMIT).any())
    whole = large and all(isinstance(value, int) for value in exact.tolist())
    return RawColumn(name, values, integers=exact if whole else None)


def _objects(name: str, values: NDArray[Any]) -> RawColumn:
    """A column of Python objects: numeric if all entries are numbers, otherwise levels."""
    try:
        missing = missing_objects(values)
    except decimal.InvalidOperation as error:
        raise _no_number(name, decimal.Decimal("sNaN")) from error
    observed = values[~missing]
    kinds = set(map(type, observed))
    out = np.full(len(values), np.nan)
    if all(issubclass(kind, (numbers.Real, np.bool_, decimal.Decimal)) for kind in kinds):
        out[~missing] = _as_floats(name, observed)
        return _numbers(name, out, np.where(missing, 0, values))
    for kind in kinds:
        if issubclass(kind, (datetime.date, datetime.time, datetime.timedelta, np.datetime64)):
            raise _refused(name, kind.__name__)
        if kind.__hash__ is None:
            raise InvalidInput(
                f"column {name!r} must hold numbers or categories; got {kind.__name__} objects."
            )
    levels = tuple(dict.fromkeys(observed.tolist()))
    with suppress(TypeError):  # levels that cannot be sorted stay in the order of occurrence
        levels = tuple(sorted(levels))
    codes = {level: code for code, level in enumerate(levels)}
    out[~missing] = [codes[value] for value in observed.tolist()]
    return RawColumn(name, out, levels)


def missing_objects(values: NDArray[Any]) -> Mask:
    """Which entries of an object array are missing, as :func:`pandas.isna` defines it.

    Without importing pandas: if it has not been imported, its own missing values cannot occur.

    Examples
    --------
    >>> missing_objects(np.array([None, "a", 1, float("nan")], dtype=object)).tolist()
    [True, False, False, True]
    """
    if "pandas" in sys.modules:
        import pandas as pd

        return np.asarray(pd.isna(values), dtype=np.bool_)
    missing = (
        value is None or (isinstance(value, _PERHAPS_NAN) and bool(value != value))
        for value in values.flat
    )
    return np.fromiter(missing, np.bool_, values.size).reshape(values.shape)


# Types of which a value may differ from itself.
_PERHAPS_NAN = (float, complex, np.inexact, np.datetime64, np.timedelta64, decimal.Decimal)


def _as_floats(name: str, values: NDArray[Any]) -> Floats:
    """Numbers of any type as float64; Python numbers that float64 cannot hold are refused."""
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
    """The error for a value, which may be too long for Python to print."""
    shown = f"one of {value.bit_length()} bits" if isinstance(value, int) else shortened(value)
    return InvalidInput(
        f"column {name!r} must hold numbers that float64 has; got {shown}. Replace it, by NaN "
        f"where the number is not known."
    )


def _refused(name: str, dtype: Any) -> InvalidInput:
    return InvalidInput(
        f"column {name!r} must hold numbers or categories; got {dtype}. Convert it to numbers, "
        f"such as days since a date, the way it was for the model."
    )


# --- its entries against a description -----------------------------------------------------------


def numbers_of(column: RawColumn) -> Floats:
    """Values of a column that must be numeric; categories that are numbers are accepted."""
    if column.levels is None:
        return column.values
    text = [level for level in column.levels if not _is_number(level)]
    if text:
        # Beside a single entry that is not a number, numbers are read as text too.
        wrong = next((level for level in text if not _spells_number(level)), text[0])
        row = int(np.argmax(column.values == column.levels.index(wrong)))
        raise InvalidInput(
            f"column {column.name!r} must hold numbers, as in training; got {shortened(wrong)} in "
            f"row {row}. Convert it to a number, or to NaN where the value is not known."
        )
    # A missing value has code -1, which picks the last entry.
    codes = np.where(np.isnan(column.values), -1, column.values).astype(np.intp)
    values = np.array([*column.levels, np.nan], dtype=np.float64)[codes]
    check_finite(values, column.name)
    return values


def codes_of(
    column: RawColumn, levels: Sequence[Hashable], handle_unknown: HandleUnknown | None
) -> Floats:
    """Positions of a column's entries among ``levels``; 1 equals 1.0, but not "1"."""
    codes = {level: code for code, level in enumerate(levels) if level is not None}
    column = _with_distinct_levels(column)
    distinct, inverse = np.unique(column.values, return_inverse=True)
    out = np.full(len(distinct), np.nan)
    for i, value in enumerate(distinct.tolist()):
        if np.isnan(value):
            continue
        level = _level(column, value)
        if level in codes:
            out[i] = codes[level]
        elif handle_unknown != "missing":
            or_pass = ", or pass handle_unknown='missing' to treat it as missing"
            raise UnseenCategory(
                f"column {column.name!r} holds the category {shortened(level)}, which was not "
                f"there in training; its categories are {listed(codes)}.",
                f"Correct it{or_pass if handle_unknown else ' or replace it by NaN'}.",
            )
    return out[inverse]


def observed_levels(column: RawColumn) -> list[Hashable]:
    """The distinct entries of a column: levels in their order, numbers ascending."""
    column = _with_distinct_levels(column)
    distinct = np.unique(column.values[~np.isnan(column.values)])
    return [_level(column, value) for value in distinct.tolist()]


def _with_distinct_levels(column: RawColumn) -> RawColumn:
    """The column with levels, if it has integers that floats would merge."""
    if column.integers is None:
        return column
    levels, codes = np.unique(column.integers, return_inverse=True)
    values = np.where(np.isnan(column.values), np.nan, codes)
    return RawColumn(column.name, values, tuple(levels.tolist()))


def check_same_encoding(name: str, known: Sequence[Hashable], observed: Sequence[Hashable]) -> None:
    """Refuse a text column where the model knows numbers, and the reverse, and unknown text.

    Otherwise all entries would silently become categories that the model has never seen.
    """
    numbered, worded = all(map(_is_number, known)), all(map(_is_text, known))
    strange = [
        level
        for level in observed
        if (numbered and _is_text(level)) or (worded and _is_number(level))
    ]
    if not strange and worded and not set(known) & set(observed):
        strange = list(observed)
    if known and strange:
        raise InvalidInput(
            f"column {name!r} holds the category {shortened(strange[0])}, but the categories the "
            f"model knows are {listed(known)}. Encode the column the way it was for the model."
        )


def row_weights(sample_weight: Any, rows: int) -> Floats:
    """The caller's ``sample_weight`` as checked row weights; 1 by default."""
    if sample_weight is None:
        return np.ones(rows)
    weight = np.asarray(sample_weight, dtype=np.float64)
    if weight.shape != (rows,) or not np.isfinite(weight).all() or (weight < 0).any():
        raise InvalidInput(f"sample_weight must be {rows} finite numbers, none negative.")
    if weight.sum() <= 0:
        raise InvalidInput("sample_weight must not be all zero.")
    return weight


def is_whole(values: Floats) -> bool:
    """Whether there are observed values and all of them are whole numbers."""
    values = values[~np.isnan(values)]
    return bool(
        len(values) and (np.abs(values) <= WHOLE_LIMIT).all() and (np.floor(values) == values).all()
    )


def _is_number(level: object) -> bool:
    return isinstance(level, numbers.Real)


# What files may hold for a number; Python's own float() takes "1_000" and digits of other scripts.
_NUMBER = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?\s*", re.ASCII | re.IGNORECASE)


def _spells_number(level: object) -> bool:
    text = str(level)
    return _NUMBER.fullmatch(text) is not None and math.isfinite(float(text))


def _is_text(level: object) -> bool:
    return isinstance(level, str)


def _level(column: RawColumn, value: float) -> Hashable:
    if column.levels is not None:
        return column.levels[int(value)]
    return int(value) if value.is_integer() else value
