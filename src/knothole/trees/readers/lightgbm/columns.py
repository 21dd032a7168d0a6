"""Which columns of a LightGBM model are categorical, and what their codes stand for.

LightGBM splits on integer codes. What a code stands for depends on the table it was trained on:

- a pandas ``category`` column: code ``c`` is the column's category ``c``. The model text lists the
  categories of all such columns in order, but not which columns they are;
- integers declared by ``categorical_feature``: a code is the integer itself. The levels are 0 to
  the largest code the model knows; from ``SPARSE`` on, only the codes it knows;
- an *ordered* pandas ``category`` column is a number to LightGBM, but still a category in the
  table: its splits become sets of its categories.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from knothole.arrays import Ints
from knothole.columns.columns import Column, Columns, Kind
from knothole.errors import UnsupportedModel
from knothole.trees.readers.lightgbm.text import ModelText, strict

Levels = tuple[Hashable, ...]
Ranges = dict[int, tuple[float, float]]

# Integer categories up to here are taken to count from 0 without gaps.
SPARSE = 4096

_NUMBER = r"(-?(?:[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?|inf))"
_RANGE = re.compile(rf"\[{_NUMBER}:{_NUMBER}\]")
_CODES = re.compile(r"-?[0-9]{1,10}(:-?[0-9]{1,10})*")


@dataclass(frozen=True)
class Categories:
    """A categorical column: native code and level for each of our codes.

    ``unseen`` is what the library makes of a category it does not know: a NaN where the column
    was pandas', an integer that is in no set otherwise.
    """

    codes: Ints
    levels: Levels
    unseen: float


def find_categories(text: ModelText, in_sets: dict[int, set[int]]) -> dict[int, Categories]:
    """Categorical columns by position; ``in_sets`` has the codes in the sets of splits on each."""
    ranges, known = _seen_values(text)
    categorical = known.keys() | in_sets.keys() | text.declared_categorical
    for column in categorical:
        known[column] = known.get(column, set()) | in_sets.get(column, set())
    matched = _match_pandas(text, sorted(categorical), ranges, known)
    categories = {}
    for column in sorted(categorical | matched.keys()):
        if column in matched:
            levels = matched[column]
            strict.require(len(set(levels)) == len(levels), f"column {column} has a category twice")
            if levels:  # none at all: the column was empty in training
                categories[column] = Categories(np.arange(len(levels)), levels, np.nan)
        elif known[column]:
            categories[column] = _integer_categories(known[column])
    return categories


def describe(text: ModelText, categories: dict[int, Categories]) -> Columns:
    """The model's columns with the levels found."""
    columns = tuple(
        Column(name, Kind.CATEGORICAL, categories[i].levels) if i in categories else Column(name)
        for i, name in enumerate(text.feature_names)
    )
    made_up = all(name == f"Column_{i}" for i, name in enumerate(text.feature_names))
    return Columns(columns, named=not made_up)


def _integer_categories(known: set[int]) -> Categories:
    largest = max(known)
    codes = list(range(largest + 1)) if largest < SPARSE else sorted(known)
    taken = set(codes)
    absent = next(code for code in range(len(codes) + 1) if code not in taken)
    return Categories(np.array(codes), tuple(codes), float(absent))


def _seen_values(text: ModelText) -> tuple[Ranges, dict[int, set[int]]]:
    """What feature_infos says of each column: the range of numbers, or the known categories."""
    ranges = {}
    known = {}
    for column, info in enumerate(text.feature_infos):
        if found := _RANGE.fullmatch(info):
            ranges[column] = (float(found[1]), float(found[2]))
        elif _CODES.fullmatch(info):
            known[column] = {int(code) for code in info.split(":")} - {-1}  # -1 stands for NaN
            possible = all(0 <= code < 2**31 for code in known[column])
            strict.require(possible, f"column {column} has impossible categories: {info}")
        else:
            strict.require(info == "none", f"feature_infos of column {column} is {info[:60]!r}")
    return ranges, known


def _match_pandas(
    text: ModelText, categorical: list[int], ranges: Ranges, known: dict[int, set[int]]
) -> dict[int, Levels]:
    """Which column each list of pandas categories belongs to, in order.

    As many lists as categorical columns: each its own, which is what LightGBM does unless told
    otherwise. More lists: the others belong to ordered columns; fewer: some categorical columns
    hold declared integers. Then the codes seen in training must leave one choice only.
    """
    lists = text.pandas_levels
    largest = {column: max(codes, default=-1) for column, codes in known.items()}

    def fits(levels: Levels, column: int) -> bool:
        if column in ranges:
            low, high = ranges[column]
            return low >= 0 and high < len(levels) and low.is_integer() and high.is_integer()
        return largest.get(column, -1) < len(levels)

    more = len(lists) > len(categorical)
    candidates = list(range(len(text.feature_names))) if more else categorical
    required = set(categorical) if len(lists) >= len(categorical) else set()
    ways = _ways_to_match(lists, candidates, required, fits)
    if len(ways) != 1:
        raise UnsupportedModel(
            f"LightGBM: the model has the categories of {len(lists)} pandas columns and "
            f"{len(categorical)} categorical features, and does not say which belong together. "
            f"Train with categorical_feature='auto' on unordered categories, and pass other "
            f"columns as numbers (an ordered column as its .cat.codes)."
        )
    return ways[0]


def _ways_to_match(
    lists: Sequence[Levels],
    columns: Sequence[int],
    required: set[int],
    fits: Callable[[Levels, int], bool],
) -> list[dict[int, Levels]]:
    """At most two of the ways to give the lists, in order, to columns that they fit.

    From the last column to the first, ``ways[i]`` gives the lists from ``i`` on to the columns
    handled so far, all required ones among them; a way is a chain (column, rest of the way).
    """
    if len(lists) > len(columns):
        return []
    ways: list[list[Any]] = [[] for _ in lists] + [[()]]
    for column in reversed(columns):
        for i in range(len(lists) + 1):
            without = [] if column in required else ways[i]
            take = i < len(lists) and ways[i + 1] and fits(lists[i], column)
            ways[i] = ([(column, rest) for rest in ways[i + 1]] if take else []) + without
            del ways[i][2:]
    return [dict(zip(_chain(way), lists, strict=True)) for way in ways[0]]


def _chain(way: Any) -> Iterator[int]:
    while way:
        column, way = way
        yield column
