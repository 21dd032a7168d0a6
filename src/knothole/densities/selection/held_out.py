"""Rows to choose a density by: some to learn from, others held out with holes put into them.

Held-out rows are masked as the user's own rows are: each gets the holes of another row on top of
its own, and in variables that have none, :data:`RATE` of the entries go missing at random.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_random_state

from knothole.arrays import Floats, Mask
from knothole.columns.columns import Columns, Kind
from knothole.columns.holes import holes_in

# Rows that choosing uses at most, and the part of them that is held out.
ROWS = 4000
HELD_OUT = 0.25
# Below so many rows, folds are held out in turn; below the second number nothing can be.
FEW_ROWS = 500
FOLDS = 3
TOO_FEW_ROWS = 20
# Holes in variables that have none.
RATE = 0.3


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Rows to choose by: some to learn from, others held out and masked.

    Attributes
    ----------
    train, held : int arrays
        Positions of the rows.
    matrix : float64 (held, columns)
        The held-out rows, NaN where an entry was masked.
    holes : bool (held, columns)
        Their holes: those that were there, and those that were added.
    """

    train: NDArray[np.intp]
    held: NDArray[np.intp]
    matrix: Floats
    holes: Mask

    def some(self, rows: NDArray[np.intp]) -> HeldOut:
        """The same with some of the held-out rows."""
        return HeldOut(self.train, self.held[rows], self.matrix[rows], self.holes[rows])

    def with_fewer(self, count: int) -> HeldOut:
        """The same with so many of the rows to learn from, evenly."""
        chosen = np.linspace(0, len(self.train) - 1, count).round().astype(np.intp)
        return replace(self, train=self.train[chosen])


def hold_out(
    matrix: Floats, columns: Columns, random_state: Any = 0, eligible: Mask | None = None
) -> list[HeldOut]:
    """One split of the rows (folds, where they are few; none where nothing can be held out).

    Only rows that are ``eligible`` are held out; by default all are.
    """
    if len(matrix) < TOO_FEW_ROWS:
        return []
    rng = np.random.default_rng(check_random_state(random_state).randint(2**31 - 1))
    rows = rng.permutation(len(matrix))[:ROWS]
    candidates = rows if eligible is None else rows[eligible[rows]]
    holes = holes_in(columns, matrix)
    if len(matrix) < FEW_ROWS:
        parts = [part for part in np.array_split(candidates, FOLDS) if len(part)]
    else:
        parts = [candidates[: round(HELD_OUT * len(rows))]]
    out = []
    for own in parts:
        train, held = _all_observed(np.setdiff1d(rows, own, assume_unique=True), own, matrix)
        added = holes[rng.choice(train, size=len(held))]
        for variable in columns.variables:
            members = list(variable.columns)
            if not holes[:, members].any():
                added[:, members] = rng.random((len(held), 1)) < RATE
        # An entry that is NaN as the model's own value stays so where no hole is put on it.
        masked = np.where(added, np.nan, matrix[held])
        out.append(HeldOut(train, held, masked, holes[held] | added))
    return out


def _all_observed(
    train: NDArray[np.intp], held: NDArray[np.intp], matrix: Floats
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """The same, but that rows to learn from have a value of each column that has any."""
    known = ~np.isnan(matrix)
    lost = known.any(axis=0) & ~known[train].any(axis=0)
    if not lost.any():
        return train, held
    needed = known[:, lost].argmax(axis=0)
    return np.union1d(train, needed), held[~np.isin(held, needed)]


def mean_and_error(difference: Floats, weight: Floats) -> tuple[float, float]:
    """Weighted mean of what paired rows differ by, and its standard error.

    Examples
    --------
    >>> mean_and_error(np.array([1.0, 3.0]), np.array([1.0, 1.0]))
    (2.0, 0.7071067811865476)
    """
    share = weight / weight.sum()
    mean = float(share @ difference)
    return mean, float(np.sqrt(np.sum((share * (difference - mean)) ** 2)))


def resolution(matrix: Floats, columns: Columns) -> Floats:
    """The unit in which each column was recorded, as far as its values tell, (columns,).

    The median gap between distinct values; 1 for whole numbers, categories and dummies.

    Examples
    --------
    >>> from knothole.columns.columns import Column
    >>> resolution(np.array([[0.25], [0.5], [0.5], [1.75], [2.0]]), Columns((Column("x"),)))
    array([0.25])
    """
    unit = np.ones(len(columns))
    in_block = {member for block in columns.blocks for member in block.columns}
    for i, column in enumerate(columns):
        if column.kind is not Kind.CONTINUOUS or i in in_block:
            continue
        distinct = np.unique(matrix[~np.isnan(matrix[:, i]), i])
        if len(distinct) > 1:
            unit[i] = np.median(np.diff(distinct))
    return unit
