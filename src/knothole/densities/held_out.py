"""Held-out rows: which rows are held out, how many folds there are, and when rows are too few.

Everything that compares models on rows they have not seen asks here: the choice of a density, the
search for its size, leaf refitting, corrections, intervals.

Rows that densities are compared by are masked as the user's own rows are: each gets the missing
values of another row on top of its own, and in variables that have none, :data:`RATE` of the
entries are hidden at random.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats, Mask
from knothole.columns.columns import Columns
from knothole.columns.evidence import missing_in

Rows = NDArray[np.intp]

# Parts of the rows that are held out in turn.
FOLDS = 3
# From fewer rows nothing is held out.
TOO_FEW_TO_HOLD_OUT = 20
# Fewer held-out rows say too little to judge a model by.
TOO_FEW_TO_JUDGE = 100
# Below so many rows, folds are held out in turn; above, a part of the rows.
FEW_ROWS = 1000
# Rows that a first comparison learns from (or as many for each variable) and is judged by; a second
# look, where the first cannot tell, has so many times as many of both.
ROWS_TO_SCREEN, ROWS_PER_VARIABLE = FEW_ROWS, 20
ROWS_TO_JUDGE = 400
SECOND_LOOK = 2
# The part of the rows that is held out.
HELD_OUT = 0.25
# Rows that a comparison of other things than densities uses at most.
MOST_ROWS = 4000
# Missing values in variables that have none.
RATE = 0.3


def rows_to_screen(n_variables: int) -> int:
    """Rows that candidates are first compared by."""
    return max(ROWS_TO_SCREEN, ROWS_PER_VARIABLE * n_variables)


def sample_rows(n_rows: int, seed: Any = 0, most: int | None = MOST_ROWS) -> Rows:
    """Rows in random order, at ``most`` so many."""
    return np.random.default_rng(seed).permutation(n_rows)[:most]


def fold_numbers(n_rows: int, labels: NDArray[Any] | None = None) -> Rows:
    """The fold of each row, in turn; rows of each label are spread over the folds evenly.

    Examples
    --------
    >>> fold_numbers(4).tolist(), fold_numbers(6, np.array(list("bababa"))).tolist()
    ([0, 1, 2, 0], [0, 0, 1, 1, 2, 2])
    """
    number = np.arange(n_rows) % FOLDS
    if labels is not None:
        number[np.argsort(np.unique(labels, return_inverse=True)[1], kind="stable")] = number.copy()
    return number


def folds(n_rows: int, labels: NDArray[Any] | None = None) -> Iterator[tuple[Rows, Rows]]:
    """The rows to learn from and the rows held out, fold by fold."""
    number = fold_numbers(n_rows, labels)
    for fold in range(FOLDS):
        yield np.flatnonzero(number != fold), np.flatnonzero(number == fold)


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Rows to choose by: some to learn from, others held out and masked.

    Attributes
    ----------
    train, held : int arrays
        Positions of the rows.
    matrix : float64 (held, columns)
        The held-out rows, NaN where an entry was masked.
    missing_mask : bool (held, columns)
        True where they have missing values: those that were there, and those that were added.
    """

    train: Rows
    held: Rows
    matrix: Floats
    missing_mask: Mask

    def first(self, learned: int, judged: int) -> HeldOut:
        """The same with so many rows to learn from, and so many held out."""
        return HeldOut(
            self.train[:learned],
            self.held[:judged],
            self.matrix[:judged],
            self.missing_mask[:judged],
        )


def hold_out(
    matrix: Floats, columns: Columns, random_state: Any = 0, eligible: Mask | None = None
) -> list[HeldOut]:
    """One split of the rows (folds, where they are few; none where nothing can be held out).

    Only rows that are ``eligible`` are held out; by default all are.
    """
    from sklearn.utils import check_random_state

    if len(matrix) < TOO_FEW_TO_HOLD_OUT:
        return []
    seed = int(check_random_state(random_state).randint(2**31 - 1))
    rng = np.random.default_rng(seed)
    few = len(matrix) < FEW_ROWS
    learned = SECOND_LOOK * rows_to_screen(len(columns.variables))
    judged = min(SECOND_LOOK * ROWS_TO_JUDGE, round(HELD_OUT * len(matrix)))
    rows = rng.permutation(len(matrix))
    rows = rows if few else rows[: learned + judged]
    candidates = rows if eligible is None else rows[eligible[rows]]
    missing_mask = missing_in(columns, matrix)
    if few:
        parts = [candidates[held] for _, held in folds(len(candidates)) if len(held)]
    else:
        parts = [candidates[:judged]]
    out = []
    for number, own in enumerate(parts):
        train, held = _all_observed(rows[~np.isin(rows, own)], own, matrix)
        added = missing_mask[rng.choice(train, size=len(held))]
        for variable in columns.variables:
            members = list(variable.columns)
            if not missing_mask[:, members].any():
                hidden = hidden_at_random(variable.name, len(held), seed + number)
                added[:, members] = hidden[:, None]
        # An entry that is NaN as the model's own value stays so where no missing value is put on
        # it.
        masked = np.where(added, np.nan, matrix[held])
        out.append(HeldOut(train, held, masked, missing_mask[held] | added))
    return out


def _all_observed(train: Rows, held: Rows, matrix: Floats) -> tuple[Rows, Rows]:
    """The same, but that rows to learn from have a value of each column that has any."""
    known = ~np.isnan(matrix)
    lost = known.any(axis=0) & ~known[train].any(axis=0)
    if not lost.any():
        return train, held
    needed = known[:, lost].argmax(axis=0)
    added = np.setdiff1d(needed, train)
    return np.concatenate([added, train]), held[~np.isin(held, needed)]


def hidden_at_random(name: str, rows: int, seed: int) -> Mask:
    """Rows in which a variable is hidden, :data:`RATE` of them: the order of columns is no matter.

    Examples
    --------
    >>> hidden_at_random("age", 6, seed=0).tolist()
    [False, True, False, False, True, False]
    """
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    return rng.random(rows) < RATE


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
