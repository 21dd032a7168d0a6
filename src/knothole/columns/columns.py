"""Descriptions of a table's columns, and their encoding as one float64 matrix.

A **column** is what the tree model splits on, in the model's own order. A **variable** is what a
density is over: a column, or a one-hot group of columns taken as one categorical. In a matrix,
NaN is a missing value; a categorical entry is the position of its level.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from itertools import accumulate, pairwise
from os.path import commonprefix
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats, Mask
from knothole.cached import cached_property
from knothole.checks import check_choice, check_type, require
from knothole.columns import read
from knothole.columns.evidence import (
    NOT_RECORDED,
    Evidence,
    Variables,
    checked_mask,
    decode_points,
    missing_in,
    read_evidence,
)
from knothole.columns.read import (
    HandleUnknown,
    RawColumn,
    check_same_encoding,
    codes_of,
    is_whole,
    numbers_of,
    observed_levels,
    position_of,
)
from knothole.errors import DamagedFile, InvalidInput

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "BASELINE",
    "NOT_RECORDED",
    "Column",
    "Columns",
    "Evidence",
    "HashedLevel",
    "Kind",
    "OneHotGroup",
    "Variable",
]  # fmt: skip

#: One-hot groups: detected, or given as a mapping from a name to the names (or positions) of
#: the group's columns.
OneHotGroups = Literal["auto"] | Mapping[str, Sequence[str | int]]

# A numeric column is drawn from the numbers in training where these are at most so many, and each
# comes in so many rows on average. A plain rule, not tuned: draws between them are of no harm to
# predictions, but look wrong in a table.
FEW_VALUES, ROWS_OF_A_VALUE = 100, 5

# --- columns, one-hot groups and variables -------------------------------------------------------


class Kind(StrEnum):
    """The kind of values that a column has."""

    CONTINUOUS = "continuous"
    INTEGER = "integer"
    CATEGORICAL = "categorical"


@dataclass(frozen=True)
class Column:
    """One column: its name, its kind and, if categorical, its levels in the order of their codes.

    ``nullable`` says that NaN can be the model's own value here: "not recorded" is a state of the
    variable, which a density gives a probability of its own. An ``auxiliary`` column is no feature
    of the model: it tells of the features, and tables may lack it.
    ``values`` are the numbers that occur in training where they are few: see
    :meth:`Columns.with_values`.
    """

    name: str
    kind: Kind = Kind.CONTINUOUS
    levels: tuple[Hashable, ...] = ()
    nullable: bool = False
    auxiliary: bool = False
    values: tuple[float, ...] = field(default=(), compare=False, repr=False)

    def variable(self, position: int) -> Variable:
        """The variable of this column alone, in this position."""
        levels = self.levels
        if self.nullable and self.kind is Kind.CATEGORICAL and None not in levels:
            levels += (None,)
        return Variable(self.name, self.kind, levels, (position,), self.nullable)

    def seen_in(self, source: RawColumn) -> Column:
        """The column with the kind and levels found in a table."""
        if self.kind is not Kind.CATEGORICAL:
            whole = is_whole(numbers_of(source))
            return replace(self, kind=Kind.INTEGER if whole else Kind.CONTINUOUS)
        if not self.levels and source.levels is not None:
            return replace(self, levels=source.levels)  # includes declared levels that do not occur
        observed = observed_levels(source)
        check_same_encoding(self.name, self.levels, observed)
        known = set(self.levels)
        further = [level for level in observed if level not in known]
        return replace(self, levels=(*self.levels, *further))


#: Level of a one-hot group in which no dummy is 1.
BASELINE = "(none of them)"


@dataclass(frozen=True)
class Variable:
    """What a density is over: a column, or a one-hot group of columns, given by position.

    The levels of a one-hot group are the names of its dummies, then :data:`BASELINE` if a row of
    zeros is a category. A nullable categorical variable has None as its last level, "not recorded";
    the same state of a numeric one is the point :data:`NOT_RECORDED`.
    """

    name: str
    kind: Kind = Kind.CONTINUOUS
    levels: tuple[Hashable, ...] = ()
    columns: tuple[int, ...] = ()
    nullable: bool = False


def variable_of(
    column: str | int, names: Sequence[str], variables: Sequence[Variable], parameter: str
) -> int:
    """The variable of a column given by name or position in a parameter, or of a one-hot group."""
    variable_names = [variable.name for variable in variables]
    if column in variable_names and column not in names:
        return variable_names.index(str(column))
    position = position_of(column, names, parameter)
    return next(v for v, variable in enumerate(variables) if position in variable.columns)


@dataclass(frozen=True)
class OneHotGroup:
    """Dummy columns (by position) that together encode one categorical variable.

    If ``baseline``, a row of zeros is a category too, as after
    ``pd.get_dummies(drop_first=True)``; its code comes after those of the dummies.
    """

    name: str
    columns: tuple[int, ...]
    baseline: bool = False

    def variable(self, members: Sequence[Column]) -> Variable:
        """The one-hot group as a variable, given all columns."""
        levels: tuple[Hashable, ...] = tuple(member.name for member in members)
        if self.baseline:
            levels += (BASELINE,)
        nullable = any(member.nullable for member in members)
        if nullable:
            levels += (None,)
        return Variable(self.name, Kind.CATEGORICAL, levels, self.columns, nullable)


@dataclass(frozen=True)
class Columns:
    """The columns of a table, in order, and the one-hot groups among them.

    ``named`` is False where the names were made up (a numpy array, a model without feature
    names); then only the number of columns is checked. Auxiliary columns come after the features.

    Examples
    --------
    >>> import pandas as pd
    >>> table = pd.DataFrame({"age": [31, None, 50], "city": ["Graz", "Linz", None]})
    >>> columns = Columns.infer(table)
    >>> [(column.name, column.kind.value, column.levels) for column in columns]
    [('age', 'integer', ()), ('city', 'categorical', ('Graz', 'Linz'))]
    >>> columns.matrix(table).tolist()
    [[31.0, 0.0], [nan, 1.0], [50.0, nan]]
    """

    columns: tuple[Column, ...]
    one_hot: tuple[OneHotGroup, ...] = ()
    named: bool = True

    def __post_init__(self) -> None:
        taken: dict[int, str] = {}
        for group in self.one_hot:
            for position in group.columns:
                if not 0 <= position < len(self.columns):
                    raise InvalidInput(f"one-hot group {group.name!r} has no column at {position}.")
                if position in taken:
                    raise InvalidInput(
                        f"column {self.columns[position].name!r} must be in one one-hot group "
                        f"only; it is in {taken[position]!r} and {group.name!r}."
                    )
                taken[position] = group.name
            if not group.columns:
                raise InvalidInput(f"one-hot group {group.name!r} must have at least one column.")
        others = [c.name for i, c in enumerate(self.columns) if i not in taken]
        names = Counter(others + [group.name for group in self.one_hot])
        for group in self.one_hot:
            if names[group.name] > 1:
                raise InvalidInput(
                    f"one-hot group {group.name!r} must have a name of its own; another column or "
                    f"group has it too."
                )

    def __len__(self) -> int:
        return len(self.columns)

    def __iter__(self) -> Iterator[Column]:
        return iter(self.columns)

    def __getitem__(self, index: int) -> Column:
        return self.columns[index]

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names in order."""
        return tuple(column.name for column in self.columns)

    # --- from tables -----------------------------------------------------------------------------

    @classmethod
    def infer(
        cls,
        table: Any,
        categorical: Sequence[str | int] | None = None,
        one_hot: OneHotGroups | None = None,
    ) -> Columns:
        """Describe a table's columns by their contents.

        Text and pandas' ``category`` are categorical, with the declared levels or, without any, the
        sorted distinct entries. Numbers are integer if every observed one is whole, else
        continuous.

        Parameters
        ----------
        table : numpy array, pandas or polars DataFrame, Arrow table
        categorical : sequence of names or positions, optional
            Numeric columns whose numbers are codes of categories.
        one_hot : "auto" or mapping from a name to column names or positions, optional
            One-hot groups: detected by names of the form ``prefix_level``, as ``pd.get_dummies``
            and ``OneHotEncoder`` make them, or declared. The data must agree in either case.

        Examples
        --------
        >>> import pandas as pd
        >>> table = pd.get_dummies(pd.DataFrame({"size": [1.5, 2], "city": ["Graz", "Linz"]}))
        >>> Columns.infer(table, one_hot="auto").one_hot
        (OneHotGroup(name='city', columns=(1, 2), baseline=False),)
        """
        table = read.read_table(table)
        read.check_rows(table)
        names, named = read.names_of(table)
        coded = {position_of(column, names, "categorical") for column in categorical or ()}
        columns = [
            Column(source.name, Kind.CATEGORICAL)
            if i in coded or source.levels is not None
            else Column(source.name)
            for i, source in enumerate(read.raw_columns(table, names))
        ]
        return cls(tuple(columns), named=named)._refined(table, one_hot)

    def describe(self, table: Any, one_hot: OneHotGroups | None = None) -> Columns:
        """These columns (a model's), completed with what the training table shows.

        Numeric columns become integer if all observed values are whole. Levels keep their order;
        levels found only in the table come last. Columns without names take the table's.

        Parameters
        ----------
        table : numpy array, pandas or polars DataFrame, Arrow table
            The columns described here; in any order if both have names.
        one_hot : "auto" or mapping, optional
            As in :meth:`infer`; None keeps the existing one-hot groups.

        Examples
        --------
        >>> model = Columns((Column("age"), Column("city", Kind.CATEGORICAL, ("Linz",))))
        >>> import pandas as pd
        >>> table = pd.DataFrame({"age": [31, 50], "city": ["Graz", "Linz"]})
        >>> [(column.kind.value, column.levels) for column in model.describe(table)]
        [('integer', ()), ('categorical', ('Linz', 'Graz'))]
        """
        table = self.read(table)
        read.check_rows(table)
        return self._refined(table, one_hot)

    def matrix(
        self,
        table: Any,
        handle_unknown: HandleUnknown | None = None,
        absent: read.Absent | None = None,
    ) -> Floats:
        """Encode a table: numbers, codes of levels, NaN for missing values.

        Parameters
        ----------
        table : numpy array, pandas or polars DataFrame, Arrow table
            With these columns: by name, in any order, where both have names, otherwise in this
            order. A float64 array that needs no encoding and is contiguous is returned as it is,
            not copied.
        handle_unknown : {"error", "missing"}, optional
            What a category that is none of the column's levels is. "error" and None both refuse it;
            None leaves the argument out of the message, for callers that do not have it.
        absent : {"error", "missing"}, optional
            What a column is that the table does not have; None likewise.

        Returns
        -------
        float64 (rows, columns), C-contiguous

        Raises
        ------
        ColumnMismatch
            Where a column is missing and ``absent`` is not "missing", or, without names, one is
            added.
        UnseenCategory
            Where a category is none of its column's levels, and ``handle_unknown`` is not
            "missing".

        Examples
        --------
        >>> columns = Columns((Column("size"), Column("city", Kind.CATEGORICAL, ("Graz", "Linz"))))
        >>> columns.matrix([[1.5, "Linz"], [None, "Wien"]], handle_unknown="missing").tolist()
        [[1.5, 1.0], [nan, nan]]
        """
        if handle_unknown is not None:
            check_choice("handle_unknown", handle_unknown, ("error", "missing"))
        if absent is not None:
            check_choice("absent", absent, ("error", "missing"))
        table = self.read(table, absent)
        X = read.plain_floats(table) if self._are_numbers else None
        if X is None:
            return self._encoded(table, handle_unknown)
        if np.isinf(X).any():
            for column, values in zip(self, X.T, strict=True):
                read.check_finite(values, column.name)
        return X

    def read(self, table: Any, absent: read.Absent | None = None) -> Any:
        """These columns of a table, in this order, as an array or a pandas DataFrame.

        Auxiliary columns that the table lacks are missing; an array may lack all of them.
        """
        optional = int(self.auxiliary.sum())
        if self.named:
            return read.read_table(table, self.names, absent, optional)
        return read.as_many_as(read.read_table(table), self.names, optional)

    def called_as_in(self, table: Any) -> Columns:
        """The columns under the names that they have in a table (:func:`found_as`)."""
        if not self.named or read.is_lazy_frame(table):  # naming its columns would compute it
            return self
        labels = [str(label) for label in read.labels_of(read.as_table(table))]
        pairs = zip(self.names, found_as(self.names, labels), strict=True)
        names = [found or name for name, found in pairs]
        columns = (replace(column, name=name) for column, name in zip(self, names, strict=True))
        return replace(self, columns=tuple(columns))

    def absent(self, table: Any) -> list[int]:
        """Positions of the columns that a table does not have."""
        return [number for number, place in enumerate(self._places(table)) if place is None]

    def _places(self, table: Any) -> list[int | None]:
        """Position of each column in a table or in a mask of it; None where it is absent."""
        table = table if hasattr(table, "shape") else read.as_table(table)
        places = read.places_of(table, self.names) if self.named else range(len(self))
        width = len(read.labels_of(table)) or table.shape[1]
        return [None if place is None or place >= width else place for place in places]

    def mask(self, mask: Any, table: Any) -> Any:
        """A mask of a table's entries, as a mask of these columns.

        Examples
        --------
        >>> import pandas as pd
        >>> table = pd.DataFrame({"b": [None], "a": [1.0]})
        >>> Columns((Column("a"), Column("b"))).mask(table.isna(), table).tolist()
        [[False, True]]
        """
        by_name, given = hasattr(mask, "columns"), np.asarray(mask)
        same = getattr(getattr(mask, "index", None), "equals", None)
        index = getattr(table, "index", None)
        if same is not None and hasattr(index, "equals") and not same(index):
            raise InvalidInput(
                "lost: the mask has another index than X. Put its rows in the order of X, with "
                "lost.loc[X.index], or pass lost.to_numpy() if only the labels differ."
            )
        places = self._places(mask if by_name else table)
        if places == list(range(len(self))) or given.ndim != 2:
            return given
        there = [number for number, place in enumerate(places) if place is not None]
        order = [place for place in places if place is not None]
        lacks_features = any(
            place is None and not column.auxiliary
            for column, place in zip(self, places, strict=True)
        )
        if not by_name and (lacks_features or order != list(range(given.shape[1]))):
            raise InvalidInput(
                "lost: the columns of X are not those of the model in their order, and the mask "
                "does not name its columns. Pass a DataFrame of booleans that does."
            )
        if not there:
            raise InvalidInput("lost: the mask names none of the model's columns.")
        out = np.zeros((len(given), len(self)), dtype=given.dtype)
        out[:, there] = given[:, order]
        return out

    @cached_property
    def _are_numbers(self) -> bool:
        return all(column.kind is not Kind.CATEGORICAL for column in self)

    def _encoded(
        self, table: NDArray[Any] | pd.DataFrame, handle_unknown: HandleUnknown | None
    ) -> Floats:
        """Encode a table that has been read, column by column."""
        X = np.empty((len(table), len(self)))
        for i, (column, source) in enumerate(
            zip(self, read.raw_columns(table, self.names), strict=True)
        ):
            if column.kind is Kind.CATEGORICAL:
                X[:, i] = codes_of(source, column.levels, handle_unknown)
            else:
                X[:, i] = numbers_of(source)
        return X

    def _refined(self, table: NDArray[Any] | pd.DataFrame, one_hot: OneHotGroups | None) -> Columns:
        """These columns with the kinds, levels and one-hot groups found in a converted table."""
        names, named = (self.names, True) if self.named else read.names_of(table)
        columns = tuple(
            replace(column.seen_in(source), name=source.name)
            for column, source in zip(self, read.raw_columns(table, names), strict=True)
        )
        described = Columns(columns, self.one_hot, named)
        if one_hot is None:
            return described
        return replace(
            described,
            one_hot=described._one_hot_groups(described._encoded(table, "missing"), one_hot),
        )

    def _one_hot_groups(self, X: Floats, one_hot: OneHotGroups) -> tuple[OneHotGroup, ...]:
        if isinstance(one_hot, str):
            if one_hot != "auto":
                raise InvalidInput(f"one_hot must be None, 'auto' or a mapping; got {one_hot!r}.")
            members = find_one_hot_groups(self.names, X)
        else:
            members = {
                name: tuple(
                    position_of(column, self.names, f"one_hot[{name!r}]") for column in dummies
                )
                for name, dummies in one_hot.items()
            }
            for name, dummies in members.items():
                check_one_hot_group(name, dummies, X)
        return tuple(
            OneHotGroup(name, dummies, has_baseline(dummies, X))
            for name, dummies in members.items()
        )

    # --- to variables ----------------------------------------------------------------------------

    def with_nullable(self, nullable: Mask | Sequence[bool]) -> Columns:
        """The same columns, nullable where the mask says so; a group is as its dummies are.

        Examples
        --------
        >>> columns = Columns((Column("a"), Column("b"))).with_nullable([False, True])
        >>> [column.nullable for column in columns]
        [False, True]
        """
        mask = np.asarray(nullable)
        if mask.shape != (len(self),) or mask.dtype != np.bool_:
            raise InvalidInput(
                f"nullable must be {len(self)} booleans, one for each column; got {mask.dtype} of "
                f"shape {mask.shape}."
            )
        for group in self.one_hot:
            members = mask[list(group.columns)]
            if members.any() != members.all():
                raise InvalidInput(
                    f"the dummies of one-hot group {group.name!r} must all be nullable, or none; "
                    f"got {members.tolist()}."
                )
        columns = [
            replace(column, nullable=bool(flag)) for column, flag in zip(self, mask, strict=True)
        ]
        return replace(self, columns=tuple(columns))

    @cached_property
    def auxiliary(self) -> Mask:
        """Which columns are auxiliary, (columns,)."""
        return np.array([column.auxiliary for column in self.columns], dtype=np.bool_)

    def with_auxiliary(self, count: int) -> Columns:
        """The same columns, of which the last ``count`` are auxiliary."""
        first = len(self) - count
        columns = [replace(column, auxiliary=i >= first) for i, column in enumerate(self)]
        return replace(self, columns=tuple(columns))

    @cached_property
    def nullable(self) -> Mask:
        """Which columns are nullable, (columns,)."""
        return np.array([column.nullable for column in self.columns], dtype=np.bool_)

    @cached_property
    def variables(self) -> tuple[Variable, ...]:
        """The variables that a density is over; a one-hot group is in its first dummy's place.

        Examples
        --------
        >>> columns = Columns(
        ...     (Column("a"), Column("c_x"), Column("b"), Column("c_y")),
        ...     (OneHotGroup("c", (1, 3)),),
        ... )
        >>> [(v.name, v.kind.value, v.levels, v.columns) for v in columns.variables][:2]
        [('a', 'continuous', (), (0,)), ('c', 'categorical', ('c_x', 'c_y'), (1, 3))]
        """
        first = {min(group.columns): group for group in self.one_hot}
        dummies = {position for group in self.one_hot for position in group.columns}
        return tuple(
            first[i].variable([self[j] for j in first[i].columns])
            if i in first
            else column.variable(i)
            for i, column in enumerate(self)
            if i in first or i not in dummies
        )

    def as_variables(self) -> Columns:
        """The columns of a table of variables: one for each variable, without one-hot groups."""
        return Columns(
            tuple(Column(v.name, v.kind, v.levels, v.nullable) for v in self.variables),
            named=self.named,
        )

    def evidence(self, X: Floats, missing_mask: Mask | None = None) -> Evidence:
        """What is known of each variable in rows of these columns.

        Parameters
        ----------
        X : float64 (rows, columns)
            As :meth:`matrix` returns it.
        missing_mask : bool (rows, columns), optional
            True where an entry is missing. A NaN elsewhere is "not recorded", which its variable
            must have as a state. By default :func:`knothole.columns.evidence.missing_in`.

        Returns
        -------
        Evidence
            Its points are ``X`` itself if all variables are numeric and every NaN is missing.

        Raises
        ------
        InvalidInput
            A one-hot group contradicts itself: two ones, or a value that is neither 0 nor 1.

        Examples
        --------
        >>> columns = Columns(
        ...     (Column("red"), Column("green"), Column("blue")), (OneHotGroup("hue", (0, 1, 2)),)
        ... )
        >>> nan = np.nan
        >>> X = np.array([[0, 1, 0], [nan, nan, nan], [0, 0, nan], [0, nan, nan]])
        >>> known = columns.evidence(X)
        >>> known.points.ravel().tolist()
        [1.0, nan, 2.0, nan]
        >>> [f"{word:03b}" for word in known.allowed.ravel()]  # blue is the highest bit
        ['010', '111', '100', '110']
        """
        if X.ndim != 2 or X.shape[1] != len(self):
            raise InvalidInput(f"X must have shape (rows, {len(self)}); got {X.shape}.")
        if missing_mask is not None:
            missing_mask = checked_mask(missing_mask, X.shape, "missing_mask")
        elif self.nullable.any():
            missing_mask = missing_in(self, X)
        return read_evidence(self._arrays, self.variables, X, missing_mask)

    def decode(self, points: Floats) -> Floats:
        """A matrix of the columns, from points of the variables.

        Missing values and "not recorded" both become NaN.

        Examples
        --------
        >>> columns = Columns((Column("red"), Column("green")), (OneHotGroup("hue", (0, 1)),))
        >>> columns.decode(np.array([[1.0], [np.nan]])).tolist()
        [[0.0, 1.0], [nan, nan]]
        """
        return decode_points(self._arrays, np.asarray(points, dtype=np.float64))

    def with_values(self, matrix: Floats) -> Columns:
        """These columns with the numbers that a training matrix has, in columns of few numbers.

        Few are at most ``FEW_VALUES``, each in ``ROWS_OF_A_VALUE`` rows on average.

        Examples
        --------
        >>> rooms = Columns((Column("rooms"),)).with_values(np.array([[1.0], [2.0], [5.0]] * 10))
        >>> rooms[0].values
        (1.0, 2.0, 5.0)
        """
        columns = []
        for column, x in zip(self, matrix.T, strict=True):
            values: tuple[float, ...] = ()
            if column.kind is not Kind.CATEGORICAL:
                known = x[~np.isnan(x)] + 0.0  # -0.0 becomes 0.0
                distinct = np.unique(known)
                if len(distinct) <= min(FEW_VALUES, len(known) / ROWS_OF_A_VALUE):
                    values = tuple(distinct.tolist())
            columns.append(replace(column, values=values))
        return replace(self, columns=tuple(columns))

    def to_known_values(self, matrix: Floats) -> Floats:
        """A matrix of draws with each number moved to the nearest one of the column's ``values``.

        Examples
        --------
        >>> rooms = Columns((Column("rooms", values=(1.0, 2.0, 5.0)), Column("size")))
        >>> rooms.to_known_values(np.array([[3.0, 3.1], [4.0, -0.0], [np.nan, 7.0]])).tolist()
        [[2.0, 3.1], [5.0, 0.0], [nan, 7.0]]
        """
        out = matrix + 0.0  # -0.0 becomes 0.0
        for place, column in enumerate(self):
            if column.values:
                values, x = np.array(column.values), out[:, place]
                middle = (values[:-1] + values[1:]) / 2
                nearest = values[np.searchsorted(middle, x)] if len(middle) else values[0]
                out[:, place] = np.where(np.isnan(x), np.nan, nearest)
        return out

    @cached_property
    def _arrays(self) -> Variables:
        variables = self.variables
        one_hot = {group.columns for group in self.one_hot}
        return Variables(
            start=np.cumsum([0, *(len(v.columns) for v in variables)], dtype=np.int64),
            members=np.array([i for v in variables for i in v.columns], dtype=np.int64),
            n_levels=np.array([len(v.levels) for v in variables], dtype=np.int64),
            one_hot=np.array([v.columns in one_hot for v in variables], dtype=np.bool_),
            nullable=np.array([v.nullable for v in variables], dtype=np.bool_),
        )


def found_as(names: Sequence[str], labels: Sequence[str]) -> list[str | None]:
    """What a model's columns are called in a table; None where a column is absent.

    >>> found_as(["blood_pressure", "size"], ["age", "blood pressure"])
    ['blood pressure', None]
    """
    there = set(labels)
    # LightGBM replaces spaces in names by underscores.
    written = [label.replace(" ", "_") for label in labels]
    alike, counts = dict(zip(written, labels, strict=True)), Counter(written)
    return [name if name in there else alike[name] if counts[name] == 1 else None for name in names]


# --- one-hot groups ------------------------------------------------------------------------------

SEPARATOR = "_"


def find_one_hot_groups(names: Sequence[str], X: Floats) -> dict[str, tuple[int, ...]]:
    """Adjacent columns named ``prefix_level``, as encoders make them, that form one-hot groups.

    The data must agree: every value is 0 or 1, and no fully observed row has two ones. The longest
    run of columns for which this holds is the group, so that prefixes and levels may contain the
    separator.

    Examples
    --------
    >>> X = np.array([[30.0, 1, 0, 0], [41, 0, 1, 1], [28, 0, 1, 0]])
    >>> find_one_hot_groups(["age", "city_Graz", "city_Linz", "city_size"], X)
    {}
    >>> find_one_hot_groups(["age", "city_Graz", "city_Linz", "size"], X)
    {'city': (1, 2)}
    """
    taken = set(names)
    dummy = [problem_of((column,), X) is None for column in range(len(names))]
    one_hot: dict[str, tuple[int, ...]] = {}
    position = 0
    while position < len(names):
        parts = names[position].split(SEPARATOR)[:-1] if dummy[position] else []
        for prefix in accumulate(parts, "{}_{}".format):  # shortest first
            stop = position
            while stop < len(names) and dummy[stop] and names[stop].startswith(prefix + SEPARATOR):
                stop += 1
            columns = tuple(range(position, stop))
            group, _, _ = commonprefix(names[position:stop]).rpartition(SEPARATOR)  # noqa: RUF071
            is_new = group != "" and group not in one_hot and group not in taken
            if len(columns) > 1 and is_new and problem_of(columns, X) is None:
                one_hot[group] = columns
                position = stop - 1
                break
        position += 1
    return one_hot


def one_hot_groups(X: Floats) -> list[tuple[int, ...]]:
    """Adjacent columns of which exactly one is 1 and the others are 0, in every row.

    Examples
    --------
    >>> one_hot_groups(np.array([[0.5, 1, 0, 0], [0.1, 0, 0, 1], [0.2, 0, 1, 0]]))
    [(1, 2, 3)]
    """
    flags = ((X == 0) | (X == 1)).all(axis=0)
    groups: list[tuple[int, ...]] = []
    start = 0
    while start < X.shape[1]:
        total = np.zeros(len(X))
        for stop in range(start, X.shape[1]):
            total += X[:, stop]
            if not flags[stop] or (total > 1).any():
                break
            if (total == 1).all():
                if stop > start:
                    groups.append(tuple(range(start, stop + 1)))
                start = stop
                break
        start += 1
    return groups


def problem_of(columns: Sequence[int], X: Floats) -> tuple[int, str] | None:
    """The first row that rules these columns out as a one-hot group, and the rule it breaks."""
    part = X[:, list(columns)]
    strange = (~np.isnan(part) & (part != 0) & (part != 1)).any(axis=1)
    if strange.any():
        return int(np.argmax(strange)), "every value must be 0 or 1"
    crowded = (part == 1).sum(axis=1) > 1
    if crowded.any():
        return int(np.argmax(crowded)), "at most one dummy may be 1"
    return None


def check_one_hot_group(name: str, columns: Sequence[int], X: Floats) -> None:
    """Refuse a one-hot group that the data contradict."""
    problem = problem_of(columns, X)
    if problem is not None:
        row, rule = problem
        raise InvalidInput(
            f"the columns of one-hot group {name!r} do not encode one category: {rule}; row {row} "
            f"has {X[row, list(columns)].tolist()}. Leave the one-hot group out, or correct it."
        )


def has_baseline(columns: Sequence[int], X: Floats) -> bool:
    """Whether a fully observed row of zeros occurs: then it is a category of its own."""
    return bool((X[:, list(columns)] == 0).all(axis=1).any())


# --- levels that are known by a hash alone, until a table says what they are called --------------


@dataclass(frozen=True)
class HashedLevel:
    """A category of which the model stores only a hash (and some files the text).

    It does not compare equal to the category itself: a lookup among hashed levels would find
    nothing and treat every category as unseen. Hashing it therefore raises an error, until
    :func:`named_by` has replaced such levels by the names found in a table.
    """

    hash: int
    text: str | None = None
    searched: bool = False

    def __hash__(self) -> int:
        if not self.searched:
            raise InvalidInput(
                "the model knows its categories only by hash; first name them with the training "
                "table (knothole.trees.read.name_levels)."
            )
        return self.hash

    def __str__(self) -> str:
        return f"category {self.hash:#010x}" if self.text is None else self.text


def named_by(columns: Columns, table: Any, hash_of: Callable[[Hashable], int]) -> Columns:
    """The columns, with hashed levels replaced by the matching entries of a table.

    ``hash_of`` is the model's hash of a category.

    Examples
    --------
    >>> city = Column("city", Kind.CATEGORICAL, (HashedLevel(4), HashedLevel(6)))
    >>> named_by(Columns((city,)), [["Graz"], ["Vienna"]], len)[0].levels
    ('Graz', 'Vienna')
    """
    sources = read.raw_columns(columns.read(table), columns.names)
    named = [
        _named(column, source, hash_of) if column.kind is Kind.CATEGORICAL else column
        for column, source in zip(columns, sources, strict=True)
    ]
    return replace(columns, columns=tuple(named))


def _named(column: Column, source: RawColumn, hash_of: Callable[[Hashable], int]) -> Column:
    values = source.levels if source.levels is not None else observed_levels(source)
    names: dict[int, Hashable] = {}
    for value in values:
        other = names.setdefault(hash_of(value), value)
        if other is not value:
            raise InvalidInput(
                f"column {column.name!r} holds {other!r} and {value!r}, which are one category to "
                f"the model. Write it in one way."
            )
    levels = (
        names.get(level.hash, replace(level, searched=True))
        if isinstance(level, HashedLevel)
        else level
        for level in column.levels
    )
    return replace(column, levels=tuple(levels))


# --- for JSON ------------------------------------------------------------------------------------


def describe_columns(columns: Columns) -> dict[str, Any]:
    """A description for JSON; the inverse of :func:`columns_from`."""
    return {
        "columns": [describe_column(column) for column in columns],
        "one_hot": [[group.name, list(group.columns), group.baseline] for group in columns.one_hot],
        "named": columns.named,
        "auxiliary": int(columns.auxiliary.sum()),
    }


def columns_from(description: dict[str, Any]) -> Columns:
    """From JSON."""
    columns = tuple(map(column_from, description["columns"]))
    for name, at, baseline in description["one_hot"]:
        check_type("the name of a one-hot group", name, str)
        check_type("the baseline of a one-hot group", baseline, bool)
        for position in at:
            check_type("a position of a one-hot group", position, int)
            numeric = not columns[position].levels
            require(numeric, f"{columns[position].name!r} has levels, and is no dummy")
    one_hot = tuple(
        OneHotGroup(name, tuple(at), baseline) for name, at, baseline in description["one_hot"]
    )
    check_type("named", description["named"], bool)
    count = description.get("auxiliary", 0)
    check_type("auxiliary", count, int)
    require(0 <= count < max(1, len(columns)), f"{count} of {len(columns)} columns are auxiliary")
    return Columns(columns, one_hot, description["named"]).with_auxiliary(count)


def describe_column(column: Column | Variable) -> dict[str, Any]:
    """For JSON; the inverse of :func:`column_from`."""
    described = {
        "name": column.name,
        "kind": column.kind.value,
        "levels": [describe_level(level, column.name) for level in column.levels],
        "nullable": column.nullable,
    }
    values = getattr(column, "values", ())
    return {**described, "values": [value.hex() for value in values]} if values else described


def column_from(description: dict[str, Any]) -> Column:
    """From JSON."""
    name, kind, nullable = (description[key] for key in ("name", "kind", "nullable"))
    levels = tuple(level_from(level) for level in description["levels"])
    check_type("the name of a column", name, str)
    check_type(f"nullable of {name!r}", nullable, bool)
    distinct = len({(type(level), level) for level in levels}) == len(levels)
    require(distinct, f"{name!r} must have each of its levels once")
    fits = Kind(kind) is Kind.CATEGORICAL or not levels
    require(fits, f"{name!r} is {kind}, and must have no levels")
    values = tuple(map(float.fromhex, description.get("values", [])))
    increasing = all(np.isfinite(values)) and all(a < b for a, b in pairwise(values))
    require(increasing, f"the values of {name!r} must be finite and increasing")
    return Column(name, Kind(kind), levels, nullable, values=values)


def describe_level(level: Hashable, column: str) -> list[Any]:
    """A level with the name of its type: 1, 1.0, True and "1" are different levels."""
    if isinstance(level, np.generic):
        level = level.item()
    if level is None or type(level) in (bool, int, str):
        return [type(level).__name__, level]
    if type(level) is float:
        return ["float", level.hex()]
    if isinstance(level, HashedLevel):
        return [type(level).__name__, asdict(level)]
    raise InvalidInput(
        f"column {column!r} has a level of type {type(level).__name__}, {level!r}; only text, "
        f"numbers, booleans and None can be stored."
    )


def level_from(description: list[Any]) -> Hashable:
    """From JSON."""
    kind, value = description
    if kind == "float":
        return float.fromhex(value)
    if kind == HashedLevel.__name__:
        hashed = HashedLevel(**value)
        check_type("a hash", hashed.hash, int)
        check_type("text of a category", hashed.text, str, type(None))
        check_type("searched", hashed.searched, bool)
        return hashed
    level: Hashable = value
    if type(level).__name__ != kind:
        raise DamagedFile(f"level {value!r} is not of type {kind}.")
    return level
