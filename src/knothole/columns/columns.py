"""Tables in, one float64 matrix and a typed description of every column out.

A **column** is what the tree model splits on, in the model's own order. A **variable** is what a
density is over: a column, or a one-hot block of columns taken as one categorical. In a matrix,
NaN is a hole; a categorical entry is the position of its level.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np

from knothole.arrays import Floats, Mask
from knothole.checks import check_choice
from knothole.columns import encoding, onehot, read
from knothole.columns.evidence import NOT_RECORDED, Evidence, Plan
from knothole.columns.holes import checked_mask, holes_in
from knothole.columns.kinds import BASELINE, Block, Column, Kind, Variable
from knothole.columns.plain import plain_numbers
from knothole.columns.read import RawTable
from knothole.errors import InvalidInput

__all__ = [
    "BASELINE", "NOT_RECORDED", "Block", "Column", "Columns", "Evidence", "Kind", "Variable",
]  # fmt: skip

#: How blocks are given: looked for, or by name with the names (or positions) of their columns.
Blocks = Literal["auto"] | Mapping[str, Sequence[str | int]]


@dataclass(frozen=True)
class Columns:
    """The columns of a table, in order, and the one-hot blocks among them.

    ``named`` is False where the names were made up (a numpy array, a model without feature
    names): then only the number of columns is checked, not their names.

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
    blocks: tuple[Block, ...] = ()
    named: bool = True

    def __post_init__(self) -> None:
        taken: dict[int, str] = {}
        for block in self.blocks:
            for position in block.columns:
                if not 0 <= position < len(self.columns):
                    raise InvalidInput(f"block {block.name!r} has no column at {position}.")
                if position in taken:
                    raise InvalidInput(
                        f"column {self.columns[position].name!r} must be in one block; it is in "
                        f"{taken[position]!r} and {block.name!r}."
                    )
                taken[position] = block.name
            if not block.columns:
                raise InvalidInput(f"block {block.name!r} must have at least one column.")
        others = [c.name for i, c in enumerate(self.columns) if i not in taken]
        names = others + [block.name for block in self.blocks]
        for block in self.blocks:
            if names.count(block.name) > 1:
                raise InvalidInput(
                    f"block {block.name!r} must have a name of its own; another column or block "
                    f"has it too."
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
        blocks: Blocks | None = None,
    ) -> Columns:
        """Describe a table's columns by what they hold.

        Text and pandas' ``category`` are categorical, with the declared levels or else those that
        occur, sorted. Numbers are integer where every observed one is whole, else continuous.

        Parameters
        ----------
        table : numpy array, pandas or polars DataFrame, Arrow table
        categorical : sequence of names or positions, optional
            Columns of numbers that are codes of categories.
        blocks : "auto" or mapping from a name to column names or positions, optional
            One-hot blocks: looked for by the naming ``prefix_level`` of ``pd.get_dummies`` and
            ``OneHotEncoder``, or declared. Either way the data must bear them out.

        Examples
        --------
        >>> import pandas as pd
        >>> table = pd.get_dummies(pd.DataFrame({"size": [1.5, 2], "city": ["Graz", "Linz"]}))
        >>> Columns.infer(table, blocks="auto").blocks
        (Block(name='city', columns=(1, 2), baseline=False),)
        """
        raw = read.read_table(table)
        read.check_rows(raw)
        coded = {
            encoding.position_of(column, raw.names, "categorical") for column in categorical or ()
        }
        columns = [
            Column(source.name, Kind.CATEGORICAL)
            if i in coded or source.levels is not None
            else Column(source.name)
            for i, source in enumerate(raw.columns)
        ]
        return cls(tuple(columns), named=raw.named)._refined(raw, blocks)

    def describe(self, table: Any, blocks: Blocks | None = None) -> Columns:
        """These columns (a model's), completed by what the training table shows.

        Numbers become integer where all observed ones are whole. Levels keep their order; those
        that only the table has come after them. Columns without names take the table's.

        Parameters
        ----------
        table : numpy array, pandas or polars DataFrame, Arrow table
            With the columns described here; where both have names, in any order.
        blocks : "auto" or mapping, optional
            As in :meth:`infer`; None keeps the blocks there are.

        Examples
        --------
        >>> model = Columns((Column("age"), Column("city", Kind.CATEGORICAL, ("Linz",))))
        >>> import pandas as pd
        >>> table = pd.DataFrame({"age": [31, 50], "city": ["Graz", "Linz"]})
        >>> [(column.kind.value, column.levels) for column in model.describe(table)]
        [('integer', ()), ('categorical', ('Linz', 'Graz'))]
        """
        raw = self.read(table)
        read.check_rows(raw)
        return self._refined(raw, blocks)

    def matrix(
        self, table: Any, unseen: encoding.Unseen = "error", absent: read.Absent = "error"
    ) -> Floats:
        """Encode a table: numbers, codes of levels, NaN for holes.

        Parameters
        ----------
        table : numpy array, pandas or polars DataFrame, Arrow table
            With these columns: by name, in any order, where both have names, otherwise in this
            order. A float64 array that needs no encoding and is contiguous is returned as it is,
            not copied.
        unseen : {"error", "hole"}
            What a category that is none of the column's levels is.
        absent : {"error", "hole"}
            What a column is that the table does not have.

        Returns
        -------
        float64 (rows, columns), C-contiguous

        Raises
        ------
        ColumnMismatch
            Where a column is missing and ``absent`` is "error", or, without names, one is added.
        UnseenCategory
            Where a category is none of its column's levels, and ``unseen`` is "error".

        Examples
        --------
        >>> columns = Columns((Column("size"), Column("city", Kind.CATEGORICAL, ("Graz", "Linz"))))
        >>> columns.matrix([[1.5, "Linz"], [None, "Wien"]], unseen="hole").tolist()
        [[1.5, 1.0], [nan, nan]]
        """
        check_choice("unseen", unseen, ("error", "hole"))
        check_choice("absent", absent, ("error", "hole"))
        plain = read.plain_floats(table) if self._are_numbers else None
        if plain is not None:
            if plain.shape[1] != len(self):
                self.read(plain)  # says so
            if np.isinf(plain).any():
                for position, column in enumerate(self):
                    read.check_finite(plain[:, position], column.name)
            return np.ascontiguousarray(plain)
        numbers = plain_numbers(table, self.names, self.named) if self._are_numbers else None
        if numbers is not None:
            return numbers
        return self._encoded(self.read(table, absent), unseen)

    def read(self, table: Any, absent: read.Absent = "error") -> RawTable:
        """These columns of a table, as they are there."""
        if self.named:
            return read.read_table(table, self.names, absent)
        return read.read_table(table).as_many_as(self.names)

    def called_as_in(self, table: Any) -> Columns:
        """The columns under the names that they have in a table (:func:`found_as`)."""
        if not self.named or read.is_lazy_frame(table):  # which would have to be computed for it
            return self
        labels = [str(label) for label in read.labels_of(read.as_table(table))]
        names = [found_as(name, labels) or name for name in self.names]
        columns = (replace(own, name=name) for own, name in zip(self, names, strict=True))
        return replace(self, columns=tuple(columns))

    def absent(self, table: Any) -> list[int]:
        """Which of these columns a table does not have."""
        places = read.places_of(read.as_table(table), self.names) if self.named else []
        return [number for number, place in enumerate(places) if place is None]

    def mask(self, holes: Any, table: Any) -> Any:
        """A mask of a table's entries as one of these columns; what is no mask, as it is.

        Examples
        --------
        >>> import pandas as pd
        >>> table = pd.DataFrame({"b": [None], "a": [1.0]})
        >>> Columns((Column("a"), Column("b"))).mask(table.isna(), table).tolist()
        [[False, True]]
        """
        if isinstance(holes, str) or not self.named:
            return holes
        by_name = hasattr(holes, "columns")
        places = read.places_of(holes if by_name else read.as_table(table), self.names)
        if places == list(range(len(self))):
            return np.asarray(holes)
        order = [place for place in places if place is not None]
        if not by_name or len(order) < len(self):
            raise InvalidInput(
                "holes: X has other columns than the model or another order of them, and the mask "
                "does not name each of the model's. Pass a DataFrame of booleans with their names."
            )
        return np.asarray(holes)[:, order]

    @cached_property
    def _are_numbers(self) -> bool:
        return all(column.kind is not Kind.CATEGORICAL for column in self)

    def _encoded(self, raw: RawTable, unseen: encoding.Unseen) -> Floats:
        X = np.empty((raw.n_rows, len(self)))
        for i, (column, source) in enumerate(zip(self, raw.columns, strict=True)):
            if column.kind is Kind.CATEGORICAL:
                X[:, i] = encoding.codes_of(source, column.levels, unseen)
            else:
                X[:, i] = encoding.numbers_of(source)
        return X

    def _refined(self, raw: RawTable, blocks: Blocks | None) -> Columns:
        """These columns with the kinds, levels and blocks of a table that has been read."""
        names = self.names if self.named else raw.names
        columns = tuple(
            replace(column.seen_in(source), name=name)
            for column, source, name in zip(self, raw.columns, names, strict=True)
        )
        described = Columns(columns, self.blocks, self.named or raw.named)
        if blocks is None:
            return described
        return replace(described, blocks=described._blocks(described._encoded(raw, "hole"), blocks))

    def _blocks(self, X: Floats, blocks: Blocks) -> tuple[Block, ...]:
        if isinstance(blocks, str):
            if blocks != "auto":
                raise InvalidInput(f"blocks must be None, 'auto' or a mapping; got {blocks!r}.")
            found = onehot.find_blocks(self.names, X)
        else:
            found = {
                name: tuple(
                    encoding.position_of(column, self.names, f"blocks[{name!r}]")
                    for column in members
                )
                for name, members in blocks.items()
            }
            for name, columns in found.items():
                onehot.check_block(name, columns, X)
        return tuple(
            Block(name, columns, onehot.has_baseline(columns, X)) for name, columns in found.items()
        )

    # --- to variables ----------------------------------------------------------------------------

    def with_nullable(self, nullable: Mask | Sequence[bool]) -> Columns:
        """The same columns, nullable where the mask says so; a block is as its dummies are.

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
        for block in self.blocks:
            members = mask[list(block.columns)]
            if members.any() != members.all():
                raise InvalidInput(
                    f"the dummies of block {block.name!r} must all be nullable, or none; got "
                    f"{members.tolist()}."
                )
        columns = [
            replace(column, nullable=bool(flag)) for column, flag in zip(self, mask, strict=True)
        ]
        return replace(self, columns=tuple(columns))

    @cached_property
    def nullable(self) -> Mask:
        """Which columns are, (columns,)."""
        return np.array([column.nullable for column in self.columns], dtype=np.bool_)

    @cached_property
    def variables(self) -> tuple[Variable, ...]:
        """What a density is over: a block stands in the place of its first dummy.

        Examples
        --------
        >>> columns = Columns(
        ...     (Column("a"), Column("c_x"), Column("b"), Column("c_y")), (Block("c", (1, 3)),)
        ... )
        >>> [(v.name, v.kind.value, v.levels, v.columns) for v in columns.variables][:2]
        [('a', 'continuous', (), (0,)), ('c', 'categorical', ('c_x', 'c_y'), (1, 3))]
        """
        first = {min(block.columns): block for block in self.blocks}
        dummies = {position for block in self.blocks for position in block.columns}
        return tuple(
            first[i].variable([self[j] for j in first[i].columns])
            if i in first
            else column.variable(i)
            for i, column in enumerate(self)
            if i in first or i not in dummies
        )

    def as_variables(self) -> Columns:
        """A description in which every variable is a column, and blocks are no more."""
        return Columns(
            tuple(Column(v.name, v.kind, v.levels, v.nullable) for v in self.variables),
            named=self.named,
        )

    def evidence(self, X: Floats, holes: Mask | None = None) -> Evidence:
        """What rows of columns say about each variable.

        Parameters
        ----------
        X : float64 (rows, columns)
            As :meth:`matrix` gives it.
        holes : bool (rows, columns), optional
            True where an entry is a hole. A NaN that is none is the model's own value, "not
            recorded", which the variable must have as a state. By default as
            :func:`knothole.columns.holes.holes_in` has it.

        Returns
        -------
        Evidence
            Where all variables are numeric and every NaN is a hole, its points are ``X`` itself.

        Raises
        ------
        InvalidInput
            Where a block contradicts itself: two ones, or a value that is neither 0 nor 1.

        Examples
        --------
        >>> columns = Columns(
        ...     (Column("red"), Column("green"), Column("blue")), (Block("hue", (0, 1, 2)),)
        ... )
        >>> hole = np.nan
        >>> X = np.array([[0, 1, 0], [hole, hole, hole], [0, 0, hole], [0, hole, hole]])
        >>> known = columns.evidence(X)
        >>> known.points.ravel().tolist()
        [1.0, nan, 2.0, nan]
        >>> [f"{word:03b}" for word in known.allowed.ravel()]  # blue is the highest bit
        ['010', '111', '100', '110']
        """
        if X.ndim != 2 or X.shape[1] != len(self):
            raise InvalidInput(f"X must have shape (rows, {len(self)}); got {X.shape}.")
        if holes is not None:
            holes = checked_mask(holes, X.shape)
        elif self.nullable.any():
            holes = holes_in(self, X)
        return self._plan.read(X, holes)

    def decode(self, points: Floats) -> Floats:
        """From points of the variables back to a matrix of the columns.

        A hole and the state "not recorded" are both NaN there.

        Examples
        --------
        >>> columns = Columns((Column("red"), Column("green")), (Block("hue", (0, 1)),))
        >>> columns.decode(np.array([[1.0], [np.nan]])).tolist()
        [[0.0, 1.0], [nan, nan]]
        """
        return self._plan.decode(np.asarray(points, dtype=np.float64))

    @cached_property
    def _plan(self) -> Plan:
        variables = self.variables
        blocks = {block.columns for block in self.blocks}
        return Plan(
            names=tuple(v.name for v in variables),
            start=np.cumsum([0, *(len(v.columns) for v in variables)], dtype=np.int64),
            members=np.array([i for v in variables for i in v.columns], dtype=np.int64),
            n_levels=np.array([len(v.levels) for v in variables], dtype=np.int64),
            block=np.array([v.columns in blocks for v in variables], dtype=np.bool_),
            nullable=np.array([v.nullable for v in variables], dtype=np.bool_),
        )


def found_as(name: str, names: Sequence[str]) -> str | None:
    """What a model's column is called in a table; None where it is not there.

    >>> found_as("blood_pressure", ["age", "blood pressure"])
    'blood pressure'
    """
    if name in names:
        return name
    # LightGBM writes underscores for the spaces of names.
    alike = [other for other in names if "_".join(other.split(" ")) == name]
    return alike[0] if len(alike) == 1 else None
