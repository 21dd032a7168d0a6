"""Holes to learn a correction from: put into rows whose output is known.

Many rates, whole columns and small groups of them, the holes that other rows of the table have, and
what the user says of how holes come.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats, Mask
from knothole.errors import InvalidInput
from knothole.tables.columns import Columns

#: Patterns of holes (patterns, columns), or what draws a mask for a table: ``patterns(X, seed)``.
Patterns = Mask | Callable[[Any, int], Any]

# The largest rate; shares of copies in which few variables are gone, which take over the holes of
# another row, and which have patterns that the user has given.
HIGHEST_RATE = 0.7
FEW = 0.4
NATURAL = 0.3
GIVEN = 0.5
# How many variables are gone where few are.
NUMBERS = (1, 1, 2, 3)


def masks(
    columns: Columns, matrix: Floats, rows: NDArray[np.intp], rng: np.random.Generator
) -> Mask:
    """Entries to hide in copies of some rows of a table, (copies, columns); one in each at least.

    Examples
    --------
    >>> from knothole.tables.columns import Column
    >>> columns = Columns((Column("a"), Column("b")))
    >>> found = masks(columns, np.zeros((4, 2)), np.arange(4), np.random.default_rng(0))
    >>> found.shape, bool(found.any(axis=1).all())
    ((4, 2), True)
    """
    copies, n_variables = len(rows), len(columns.variables)
    gone = rng.random((copies, n_variables)) < HIGHEST_RATE * rng.random((copies, 1))
    rank = rng.permuted(np.tile(np.arange(n_variables), (copies, 1)), axis=1)
    few = rng.random(copies) < FEW
    gone[few] = (rank < rng.choice(NUMBERS, (copies, 1)))[few]
    nothing = ~gone.any(axis=1)
    gone[nothing] = (rank == 0)[nothing]
    hidden = on_columns(columns, gone)
    others = np.isnan(matrix[rng.integers(len(matrix), size=copies)])
    return np.asarray(hidden | (others & (rng.random((copies, 1)) < NATURAL)))


def on_columns(columns: Columns, of_variables: Mask) -> Mask:
    """From variables to columns: the dummies of a block go together."""
    out = np.empty((len(of_variables), len(columns)), dtype=np.bool_)
    for number, variable in enumerate(columns.variables):
        out[:, list(variable.columns)] = of_variables[:, [number]]
    return out


def given_masks(
    patterns: Patterns, table: Any, rows: NDArray[np.intp], shape: tuple[int, int], seed: int
) -> Mask:
    """Masks for rows of the user's table (``shape``), as the user has it."""
    rng = np.random.default_rng(seed)
    if not callable(patterns):
        known = np.asarray(patterns)
        if (
            known.dtype != np.bool_
            or known.ndim != 2
            or known.shape[1] != shape[1]
            or not len(known)
        ):
            raise InvalidInput(
                f"patterns must be booleans of shape (patterns, {shape[1]}), True where an entry "
                f"is a hole, or a function of a table and a seed; got {known.dtype} of shape "
                f"{known.shape}."
            )
        return known[rng.integers(len(known), size=len(rows))]
    drawn = []
    for copy in range(int(np.bincount(rows).max(initial=0))):
        mask = np.asarray(patterns(table, seed + copy))
        if mask.dtype != np.bool_ or mask.shape != shape:
            raise InvalidInput(
                f"patterns(X, seed) must return booleans of the table's shape {shape}, as "
                f"knothole.missingness.mar_mask does; got {mask.dtype} of shape {mask.shape}."
            )
        drawn.append(mask)
    # The first copy of a row has its mask of the first draw, and so on.
    order = np.argsort(rows, kind="stable")
    sorted_rows = rows[order]
    number = np.empty(len(rows), dtype=np.intp)
    number[order] = np.arange(len(rows)) - np.searchsorted(sorted_rows, sorted_rows)
    return np.stack(drawn)[number, rows] if drawn else np.empty((0, shape[1]), dtype=np.bool_)
