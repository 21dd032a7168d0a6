"""Tables in, one float64 matrix and a typed description of every column out.

A **column** is what the tree model splits on, in the model's own order. A **variable** is what a
density is over: a column, or a one-hot block of columns taken as one categorical. In a matrix,
NaN is a hole; a categorical entry is the position of its level.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """What the values of a column are."""

    CONTINUOUS = "continuous"
    INTEGER = "integer"
    CATEGORICAL = "categorical"


@dataclass(frozen=True)
class Column:
    """One column: its name, its kind, and for a categorical its levels in the order of codes."""

    name: str
    kind: Kind = Kind.CONTINUOUS
    levels: tuple[Hashable, ...] = ()


@dataclass(frozen=True)
class Block:
    """Dummy columns (by position) that together encode one categorical variable.

    ``baseline`` says that a row of zeros is a category of its own, as after
    ``pd.get_dummies(drop_first=True)``; its code comes after those of the dummies.
    """

    name: str
    columns: tuple[int, ...]
    baseline: bool = False


@dataclass(frozen=True)
class Columns:
    """The columns of a table, in order, and the one-hot blocks among them.

    ``named`` is False where the names were made up (a numpy array, a model without feature
    names): then only the number of columns is checked, not their names.
    """

    columns: tuple[Column, ...]
    blocks: tuple[Block, ...] = ()
    named: bool = True

    def __len__(self) -> int:
        return len(self.columns)

    def __iter__(self) -> Iterator[Column]:
        return iter(self.columns)

    def __getitem__(self, index: int) -> Column:
        return self.columns[index]

    @property
    def names(self) -> tuple[str, ...]:
        """Names in order."""
        return tuple(column.name for column in self.columns)
