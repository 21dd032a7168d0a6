"""One-hot blocks: which columns of a matrix are the dummies of one categorical variable."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from os.path import commonprefix

import numpy as np

from knothole.arrays import Floats
from knothole.errors import InvalidInput

SEPARATOR = "_"


def find_blocks(names: Sequence[str], X: Floats) -> dict[str, tuple[int, ...]]:
    """Blocks among columns named ``prefix_level`` next to each other, as encoders leave them.

    A prefix counts only where the data bear it out: every value is 0 or 1, and no fully observed
    row has two ones. The most columns for which this holds make a block, so both prefixes and
    levels may contain the separator.

    Examples
    --------
    >>> X = np.array([[30.0, 1, 0, 0], [41, 0, 1, 1], [28, 0, 1, 0]])
    >>> find_blocks(["age", "city_Graz", "city_Linz", "city_size"], X)
    {}
    >>> find_blocks(["age", "city_Graz", "city_Linz", "size"], X)
    {'city': (1, 2)}
    """
    dummy = [problem_of((column,), X) is None for column in range(len(names))]
    found: dict[str, tuple[int, ...]] = {}
    position = 0
    while position < len(names):
        parts = names[position].split(SEPARATOR)[:-1] if dummy[position] else []
        for prefix in accumulate(parts, "{}_{}".format):  # shortest first
            stop = position
            while stop < len(names) and dummy[stop] and names[stop].startswith(prefix + SEPARATOR):
                stop += 1
            columns = tuple(range(position, stop))
            block, _, _ = commonprefix(names[position:stop]).rpartition(SEPARATOR)  # noqa: RUF071
            is_new = block not in ("", *found, *names)
            if len(columns) > 1 and is_new and problem_of(columns, X) is None:
                found[block] = columns
                position = stop - 1
                break
        position += 1
    return found


def partitions(X: Floats) -> list[tuple[int, ...]]:
    """Columns next to each other of which one is 1 and the others are 0, in every row.

    Examples
    --------
    >>> partitions(np.array([[0.5, 1, 0, 0], [0.1, 0, 0, 1], [0.2, 0, 1, 0]]))
    [(1, 2, 3)]
    """
    flags = ((X == 0) | (X == 1)).all(axis=0)
    found: list[tuple[int, ...]] = []
    start = 0
    while start < X.shape[1]:
        total = np.zeros(len(X))
        for stop in range(start, X.shape[1]):
            total += X[:, stop]
            if not flags[stop] or (total > 1).any():
                break
            if (total == 1).all():
                if stop > start:
                    found.append(tuple(range(start, stop + 1)))
                start = stop
                break
        start += 1
    return found


def problem_of(columns: Sequence[int], X: Floats) -> tuple[int, str] | None:
    """The first row that shows that these columns are no block and the rule it breaks, or None."""
    part = X[:, list(columns)]
    strange = (~np.isnan(part) & (part != 0) & (part != 1)).any(axis=1)
    if strange.any():
        return int(np.argmax(strange)), "every value must be 0 or 1"
    crowded = (part == 1).sum(axis=1) > 1
    if crowded.any():
        return int(np.argmax(crowded)), "at most one dummy may be 1"
    return None


def check_block(name: str, columns: Sequence[int], X: Floats) -> None:
    """Refuse a block that the data do not bear out."""
    problem = problem_of(columns, X)
    if problem is not None:
        row, rule = problem
        raise InvalidInput(
            f"the columns of block {name!r} do not encode one category: {rule}; row {row} has "
            f"{X[row, list(columns)].tolist()}. Leave the block out, or correct it."
        )


def has_baseline(columns: Sequence[int], X: Floats) -> bool:
    """Whether a fully observed row of zeros occurs, so that it is a category of its own."""
    return bool((X[:, list(columns)] == 0).all(axis=1).any())
