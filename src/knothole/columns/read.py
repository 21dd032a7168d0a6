"""Tables in, plain float64 columns out: numpy, pandas, polars and Arrow alike.

A library is recognised by the *name* of the table's class, so that one that is absent is never
imported. Every kind of hole (None, NaN, pd.NA, null) becomes NaN. A column of numbers keeps its
values; a column of anything else becomes the positions of its entries among its levels. Where the
names of columns are known on both sides, a table may have them in any order, and others too.
"""

from __future__ import annotations

import datetime
import decimal
import numbers
import sys
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats
from knothole.checks import check_choice
from knothole.errors import ColumnMismatch, InvalidInput

#: What becomes of a column that a table does not have.
Absent = Literal["error", "hole"]

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

    ``plain`` is the table itself where it was a plain float64 array, ``others`` are the names of
    columns that it has but that were not read.
    """

    columns: tuple[RawColumn, ...]
    named: bool
    plain: Floats | None = None
    others: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Names in order."""
        return tuple(column.name for column in self.columns)

    @property
    def n_rows(self) -> int:
        """How many rows."""
        return len(self.columns[0].values)

    def picked(self, names: Sequence[str], absent: Absent = "error") -> RawTable:
        """The columns of these names, where names are known; otherwise all, which must be as many.

        A column that is not there is an error, or a column of holes.
        """
        if not self.named:
            return self.as_many_as(names)
        check_absent(names, (*self.names, *self.others), absent)
        own = {column.name: column for column in self.columns}
        holes = np.full(self.n_rows, np.nan)
        return replace(
            self,
            columns=tuple(own.get(name) or RawColumn(name, holes) for name in names),
            plain=None,
        )

    def as_many_as(self, names: Sequence[str]) -> RawTable:
        """The table itself, which must have as many columns."""
        if len(self.columns) != len(names):
            raise ColumnMismatch(
                f"the table must have {len(names)} columns ({listed(names)}); got "
                f"{len(self.columns)}."
            )
        return self


def check_absent(expected: Sequence[str], got: Sequence[str], absent: Absent = "error") -> None:
    """Refuse columns that lack some of the expected ones, or all where some may be absent.

    Examples
    --------
    >>> check_absent(["a", "b"], ["c", "b"], "hole")
    """
    missing = [name for name in expected if name not in set(got)]
    check_choice("absent", absent, ("error", "hole"))
    if missing and (absent == "error" or len(missing) == len(expected)):
        further = [name for name in got if name not in set(expected)]
        beside = f"; {listed(further)} not expected" if further else ""
        raise ColumnMismatch(
            f"the table's columns are not the ones expected: {listed(missing)} missing{beside}. "
            f"Pass the columns of training, in any order; one that is not known now is a column of "
            f"NaN, or pass absent='hole'."
        )


def listed(names: Iterable[Hashable]) -> str:
    """Names for a message: the first few of many."""
    shown = [repr(name) for name in names]
    if len(shown) > 8:
        shown = [*shown[:8], f"and {len(shown) - 8} more"]
    return ", ".join(shown) if shown else "none"


def read_table(
    table: Any, names: Sequence[str] | None = None, absent: Absent = "error"
) -> RawTable:
    """Read a table of any supported library; one that has been read comes back as it is.

    Parameters
    ----------
    table : table
        Also a list of rows, of which each may be a dictionary.
    names : sequence of str, optional
        The columns to read, where the table has names; others are not looked at.
    absent : {"error", "hole"}
        What one of them is that the table does not have.

    Raises
    ------
    InvalidInput
        Where it is no table, has no columns, has two columns of one name, or holds infinite
        values, dates or anything else that is neither a number nor a category.

    Examples
    --------
    >>> raw = read_table([[1.5, "red"], [None, "blue"]])
    >>> raw.columns[0].values.tolist(), raw.columns[1].values.tolist(), raw.columns[1].levels
    ([1.5, nan], [1.0, 0.0], ('blue', 'red'))
    >>> read_table([{"a": 1, "b": 2}, {"b": 3}], ["b", "a"]).columns[1].values.tolist()
    [1.0, nan]
    """
    raw = table if isinstance(table, RawTable) else _read(as_table(table), names)
    return raw if names is None else raw.picked(names, absent)


def as_table(table: Any) -> Any:
    """Lists of rows as an array or a DataFrame; what is not computed yet, computed."""
    if isinstance(table, (list, tuple)):
        if table and all(isinstance(row, Mapping) for row in table):
            import pandas as pd

            return pd.DataFrame(table)
        return np.array(table, dtype=object)
    return table.collect() if is_lazy_frame(table) else table


def is_lazy_frame(table: Any) -> bool:
    """Whether it is a LazyFrame of polars, which has no rows until it is collected."""
    return ("polars", "LazyFrame") in class_names(table)


def _read(table: Any, names: Sequence[str] | None) -> RawTable:
    kind = class_of(table)
    if kind is None:
        raise InvalidInput(
            f"X must be a table: a two-dimensional numpy array, a pandas or polars DataFrame or an "
            f"Arrow table; got {type(table).__module__}.{type(table).__qualname__}.{_hint(table)}"
        )
    raw = _READERS[kind](table, None if names is None else set(names))
    _check(raw)
    return raw


def class_names(thing: Any) -> Iterator[tuple[str, str]]:
    """The packages and names of its class and all bases: nothing is imported to recognise one."""
    return ((base.__module__.partition(".")[0], base.__name__) for base in type(thing).__mro__)


def class_of(table: Any) -> tuple[str, str] | None:
    """The package and the class by which a table is known; None where it is no table.

    Examples
    --------
    >>> class_of(np.zeros((2, 2))), class_of("text")
    (('numpy', 'ndarray'), None)
    """
    return next((name for name in class_names(table) if name in _READERS), None)


def labels_of(table: Any) -> list[Any]:
    """What the columns of a table are called; nothing where they have no names."""
    arrow = (class_of(table) or ("",))[0] == "pyarrow"
    return list(table.schema.names if arrow else getattr(table, "columns", ()))


def places_of(table: Any, names: Sequence[str]) -> list[int | None]:
    """Where the columns of these names are in a table; in its own order where it has no names.

    Examples
    --------
    >>> import pandas as pd
    >>> places_of(pd.DataFrame({"b": [1], "a": [2]}), ["a", "b", "c"])
    [1, 0, None]
    """
    labels = labels_of(table)
    positions = class_of(table) == ("pandas", "DataFrame") and labels == list(range(len(labels)))
    if not labels or positions:
        return list(range(len(names)))
    own = [str(label) for label in labels]
    return [own.index(name) if name in own else None for name in names]


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


def check_rows(raw: RawTable) -> None:
    """Refuse a table that nothing can be learned from."""
    if not raw.n_rows:
        raise InvalidInput(
            f"X must have at least one row and one column; got {len(raw.columns)} columns and no "
            f"rows."
        )


def _check(raw: RawTable) -> None:
    if not raw.columns:
        raise InvalidInput("X must have at least one row and one column; got 0 columns.")
    twice = sorted({name for name in raw.names if raw.names.count(name) > 1})
    if twice:
        raise InvalidInput(f"columns must have different names; {twice[0]!r} occurs twice.")
    for column in raw.columns:
        if column.levels is None:
            check_finite(column.values, column.name)


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


# --- numpy ---------------------------------------------------------------------------------------


def _from_numpy(table: NDArray[Any], wanted: set[str] | None = None) -> RawTable:
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


def _from_pandas(table: Any, wanted: set[str] | None = None) -> RawTable:
    labels = list(table.columns)
    named = labels != list(range(len(labels)))
    names = [str(label) for label in labels] if named else list(made_up_names(len(labels)))
    raw = _picked(
        names, wanted if named else None, lambda i: _pandas_column(names[i], table.iloc[:, i])
    )
    return replace(raw, named=named)


def _picked(
    names: Sequence[str], wanted: set[str] | None, read: Callable[[int], RawColumn]
) -> RawTable:
    """A table of the columns that are wanted; of all where it has none of these."""
    places = [i for i, name in enumerate(names) if wanted is None or name in wanted]
    places = places or list(range(len(names)))
    others = [name for i, name in enumerate(names) if i not in set(places)]
    return RawTable(tuple(map(read, places)), named=True, others=tuple(others))


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


def _from_polars(table: Any, wanted: set[str] | None = None) -> RawTable:
    series = table.get_columns()
    names = [one.name for one in series]
    return _picked(names, wanted, lambda i: _polars_column(names[i], series[i]))


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


def _from_arrow(table: Any, wanted: set[str] | None = None) -> RawTable:
    names = list(table.schema.names)
    return _picked(names, wanted, lambda i: _arrow_column(names[i], table.column(i)))


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
_READERS: dict[tuple[str, str], Callable[[Any, set[str] | None], RawTable]] = {
    ("numpy", "ndarray"): _from_numpy,
    ("pandas", "DataFrame"): _from_pandas,
    ("polars", "DataFrame"): _from_polars,
    ("pyarrow", "Table"): _from_arrow,
    ("pyarrow", "RecordBatch"): _from_arrow,
}
