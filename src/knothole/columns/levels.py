"""Levels that are known by a hash alone, until a table says what they are called."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Any

from knothole.columns.columns import Column, Columns, Kind
from knothole.columns.encoding import observed_levels
from knothole.columns.read import RawColumn
from knothole.errors import InvalidInput


@dataclass(frozen=True)
class HashedLevel:
    """A category of which only a model's hash is known (and, from some files, its text).

    It is not equal to the value that it stands for; looking that up among such levels would find
    nothing and pass for an unseen category. So they refuse to be looked among (hashed, that is)
    until :func:`named_by` has searched a table for their names.
    """

    hash: int
    text: str | None = None
    searched: bool = False

    def __hash__(self) -> int:
        if not self.searched:
            raise InvalidInput(
                "the model knows its categories only by hash: name them by the training table "
                "first (knothole.trees.readers.catboost.categories.name_levels)."
            )
        return self.hash

    def __str__(self) -> str:
        return f"category {self.hash:#010x}" if self.text is None else self.text


def named_by(columns: Columns, table: Any, hash_of: Callable[[Hashable], int]) -> Columns:
    """The columns, with hashed levels called what they are called in a table of these columns.

    ``hash_of`` is the model's hash of a category.

    Examples
    --------
    >>> city = Column("city", Kind.CATEGORICAL, (HashedLevel(4), HashedLevel(6)))
    >>> named_by(Columns((city,)), [["Graz"], ["Vienna"]], len)[0].levels
    ('Graz', 'Vienna')
    """
    raw = columns.read(table)
    named = [
        _named(column, source, hash_of) if column.kind is Kind.CATEGORICAL else column
        for column, source in zip(columns, raw.columns, strict=True)
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
