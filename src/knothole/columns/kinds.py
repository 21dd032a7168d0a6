"""What a table is made of: columns, one-hot blocks of them, and the variables that these are."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from knothole.columns import encoding
from knothole.columns.read import RawColumn


class Kind(StrEnum):
    """What the values of a column are."""

    CONTINUOUS = "continuous"
    INTEGER = "integer"
    CATEGORICAL = "categorical"


@dataclass(frozen=True)
class Column:
    """One column: its name, its kind, and for a categorical its levels in the order of codes.

    ``nullable`` says that NaN can be the model's own value here: "not recorded" is a state of the
    variable, which a density gives a probability of its own.
    """

    name: str
    kind: Kind = Kind.CONTINUOUS
    levels: tuple[Hashable, ...] = ()
    nullable: bool = False

    def variable(self, position: int) -> Variable:
        """The variable that a column in this position is by itself."""
        levels = self.levels
        if self.nullable and self.kind is Kind.CATEGORICAL and None not in levels:
            levels += (None,)
        return Variable(self.name, self.kind, levels, (position,), self.nullable)

    def seen_in(self, source: RawColumn) -> Column:
        """The column with the kind and levels that a table shows."""
        if self.kind is not Kind.CATEGORICAL:
            whole = encoding.is_whole(encoding.numbers_of(source))
            return replace(self, kind=Kind.INTEGER if whole else Kind.CONTINUOUS)
        if not self.levels and source.levels is not None:
            return replace(self, levels=source.levels)  # declared ones that do not occur included
        observed = encoding.observed_levels(source)
        encoding.check_same_encoding(self.name, self.levels, observed)
        known = set(self.levels)
        further = [level for level in observed if level not in known]
        return replace(self, levels=(*self.levels, *further))


#: Level of a block in which no dummy is 1.
BASELINE = "(none of them)"


@dataclass(frozen=True)
class Variable:
    """What a density is over: a column, or a block of columns, given by position.

    The levels of a block are the names of its dummies, then :data:`BASELINE` if a row of zeros is
    a category. A nullable categorical variable has None as its last level, "not recorded"; the
    same state of a numeric one is the point :data:`NOT_RECORDED`.
    """

    name: str
    kind: Kind = Kind.CONTINUOUS
    levels: tuple[Hashable, ...] = ()
    columns: tuple[int, ...] = ()
    nullable: bool = False


def variable_of(
    column: str | int, names: Sequence[str], variables: Sequence[Variable], parameter: str
) -> int:
    """Variable of a column that a parameter gives by name or position, or of a block, by name."""
    own = [variable.name for variable in variables]
    if column in own and column not in names:
        return own.index(str(column))
    position = encoding.position_of(column, names, parameter)
    return next(v for v, variable in enumerate(variables) if position in variable.columns)


@dataclass(frozen=True)
class Block:
    """Dummy columns (by position) that together encode one categorical variable.

    ``baseline`` says that a row of zeros is a category of its own, as after
    ``pd.get_dummies(drop_first=True)``; its code comes after those of the dummies.
    """

    name: str
    columns: tuple[int, ...]
    baseline: bool = False

    def variable(self, members: Sequence[Column]) -> Variable:
        """The variable that the block is, of these columns."""
        levels: tuple[Hashable, ...] = tuple(member.name for member in members)
        if self.baseline:
            levels += (BASELINE,)
        nullable = any(member.nullable for member in members)
        if nullable:
            levels += (None,)
        return Variable(self.name, Kind.CATEGORICAL, levels, self.columns, nullable)
