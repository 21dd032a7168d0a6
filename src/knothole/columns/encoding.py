"""A table's columns against a description: are they the right ones, and what do entries become?"""

from __future__ import annotations

import numbers
from collections.abc import Hashable, Sequence
from typing import Any, Literal

import numpy as np

from knothole.arrays import Floats
from knothole.columns.read import WHOLE_LIMIT, RawColumn, check_finite, listed
from knothole.errors import ColumnMismatch, InvalidInput, UnseenCategory

#: What becomes of a category that is none of its column's levels.
Unseen = Literal["error", "hole"]


def position_of(column: str | int, names: Sequence[str], parameter: str) -> int:
    """Position of a column that a parameter gives by name or position."""
    if isinstance(column, str):
        if column in names:
            return names.index(column)
    elif -len(names) <= column < len(names):
        return int(column) % len(names)
    raise ColumnMismatch(
        f"{parameter} names column {column!r}, which the table does not have. It has "
        f"{listed(names)}."
    )


def numbers_of(column: RawColumn) -> Floats:
    """Values of a column that must be of numbers; categories that are numbers will do."""
    if column.levels is None:
        return column.values
    text = [level for level in column.levels if not _is_number(level)]
    if text:
        raise InvalidInput(
            f"column {column.name!r} must hold numbers, as in training; got the category "
            f"{text[0]!r}. Convert it to numbers the way it was for the model."
        )
    # A hole, with code -1, picks the last entry.
    codes = np.where(np.isnan(column.values), -1, column.values).astype(np.intp)
    values = np.array([*column.levels, np.nan], dtype=np.float64)[codes]
    check_finite(values, column.name)
    return values


def codes_of(column: RawColumn, levels: Sequence[Hashable], unseen: Unseen) -> Floats:
    """Positions of a column's entries among ``levels``, compared by value: 1 is 1.0, not "1"."""
    codes = {level: code for code, level in enumerate(levels) if level is not None}
    column = _told_apart(column)
    distinct, inverse = np.unique(column.values, return_inverse=True)
    out = np.full(len(distinct), np.nan)
    for i, value in enumerate(distinct.tolist()):
        if np.isnan(value):
            continue
        level = _level(column, value)
        if level in codes:
            out[i] = codes[level]
        elif unseen == "error":
            raise UnseenCategory(
                f"column {column.name!r} holds the category {level!r}, which was not there in "
                f"training; its categories are {listed(codes)}. Correct it, or pass "
                f"unseen='hole' to treat it as missing."
            )
    return out[inverse]


def observed_levels(column: RawColumn) -> list[Hashable]:
    """The distinct entries of a column: levels in their order, numbers ascending."""
    column = _told_apart(column)
    distinct = np.unique(column.values[~np.isnan(column.values)])
    return [_level(column, value) for value in distinct.tolist()]


def _told_apart(column: RawColumn) -> RawColumn:
    """The column as levels, where it has whole numbers that floats would take for one another."""
    if column.integers is None:
        return column
    levels, codes = np.unique(column.integers, return_inverse=True)
    values = np.where(np.isnan(column.values), np.nan, codes)
    return RawColumn(column.name, values, tuple(levels.tolist()))


def check_same_encoding(name: str, known: Sequence[Hashable], observed: Sequence[Hashable]) -> None:
    """Refuse text where a model knows codes, codes where it knows text, or none of its text.

    Taken for further levels, they would silently be categories that the model has never seen.
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
            f"column {name!r} holds the category {strange[0]!r}, but the categories the model "
            f"knows are {listed(known)}. Encode the column the way it was for the model."
        )


def row_weights(sample_weight: Any, rows: int) -> Floats:
    """Weights of rows that a caller gave as ``sample_weight``, checked; 1 by default."""
    if sample_weight is None:
        return np.ones(rows)
    weight = np.asarray(sample_weight, dtype=np.float64)
    if weight.shape != (rows,) or not np.isfinite(weight).all() or (weight < 0).any():
        raise InvalidInput(f"sample_weight must be {rows} finite numbers, none negative.")
    if weight.sum() <= 0:
        raise InvalidInput("sample_weight must not be all zero.")
    return weight


def is_whole(values: Floats) -> bool:
    """Whether there are observed values, and all of them are whole numbers."""
    values = values[~np.isnan(values)]
    return bool(
        len(values) and (np.abs(values) <= WHOLE_LIMIT).all() and (np.floor(values) == values).all()
    )


def _is_number(level: object) -> bool:
    return isinstance(level, numbers.Real)


def _is_text(level: object) -> bool:
    return isinstance(level, str)


def _level(column: RawColumn, value: float) -> Hashable:
    if column.levels is not None:
        return column.levels[int(value)]
    return int(value) if value.is_integer() else value
