"""Held-out rows: the one splitter, the number of folds, and when rows are too few.

It is used wherever models are compared on rows that they were not fitted to: the choice of a
density, the search for its size, leaf refitting, corrections, intervals.

Rows by which densities are compared are masked like the user's own rows: each gets the missing
values of another row in addition to its own, and in variables without missing values
:data:`RATE` of the entries are hidden at random.
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

# Number of folds.
FOLDS = 3
# With fewer rows nothing is held out.
TOO_FEW_TO_HOLD_OUT = 20
# With fewer held-out rows a comparison says too little.
TOO_FEW_TO_JUDGE = 100
# With fewer rows, there are folds; with more, a single split.
FEW_ROWS = 1000
# Rows that candidates of a first comparison are fitted to (or this many per variable) and scored
# on; a second comparison, if the first is not clear, uses a multiple of both.
ROWS_TO_SCREEN, ROWS_PER_VARIABLE = FEW_ROWS, 20
ROWS_TO_JUDGE = 400
SECOND_LOOK = 2
# Fraction of the rows that is held out.
HELD_OUT = 0.25
# The most rows for comparisons of other things than densities.
MOST_ROWS = 4000
# Rate of hidden entries in variables without missing values.
RATE = 0.3


def rows_to_screen(n_variables: int) -> int:
    """The number of rows for a first comparison of candidates."""
    return max(ROWS_TO_SCREEN, ROWS_PER_VARIABLE * n_variables)


def sample_rows(n_rows: int, seed: Any = 0, most: int | None = MOST_ROWS) -> Rows:
    """At most ``most`` rows in random order."""
    return np.random.default_rng(seed).permutation(n_rows)[:most]


def fold_numbers(n_rows: int, labels: NDArray[Any] | None = None) -> Rows:
    """The fold of each row; the rows of each label are spread evenly over the folds.

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
    """Training rows and held-out rows of each fold."""
    number = fold_numbers(n_rows, labels)
    for fold in range(FOLDS):
        yield np.flatnonzero(number != fold), np.flatnonzero(number == fold)


@dataclass(frozen=True, eq=False)
class HeldOut:
    """A split for comparisons: training rows, and held-out rows that are masked.

    Attributes
    ----------
    train, held : int arrays
        Positions of the rows.
    matrix : float64 (held, columns)
        The held-out rows, NaN where an entry was masked.
    missing_mask : bool (held, columns)
        True at missing values of the held-out rows: their own, and added ones.
    """

    train: Rows
    held: Rows
    matrix: Floats
    missing_mask: Mask

    def first(self, learned: int, judged: int) -> HeldOut:
        """The same split with only so many training and held-out rows."""
        return HeldOut(
            self.train[:learned],
            self.held[:judged],
            self.matrix[:judged],
            self.missing_mask[:judged],
        )


def hold_out(
    matrix: Floats, columns: Columns, random_state: Any = 0, eligible: Mask | None = None
) -> list[HeldOut]:
    """Splits of the rows: one, or folds if rows are few; none if nothing can be held out.

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
        # An entry whose NaN is a value of the model stays NaN, unless a missing value is added
        # there.
        masked = np.where(added, np.nan, matrix[held])
        out.append(HeldOut(train, held, masked, missing_mask[held] | added))
    return out


def _all_observed(train: Rows, held: Rows, matrix: Floats) -> tuple[Rows, Rows]:
    """The split, changed so that each column has an observed value among the training rows."""
    known = ~np.isnan(matrix)
    lost = known.any(axis=0) & ~known[train].any(axis=0)
    if not lost.any():
        return train, held
    needed = known[:, lost].argmax(axis=0)
    added = np.setdiff1d(needed, train)
    return np.concatenate([added, train]), held[~np.isin(held, needed)]


def hidden_at_random(name: str, rows: int, seed: int) -> Mask:
    """Rows in which to hide a variable, :data:`RATE` of them; independent of the order of columns.

    Examples
    --------
    >>> hidden_at_random("age", 6, seed=0).tolist()
    [False, True, False, False, True, False]
    """
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    return rng.random(rows) < RATE


def mean_and_error(difference: Floats, weight: Floats) -> tuple[float, float]:
    """Weighted mean of paired differences, and its standard error.

    Examples
    --------
    >>> mean_and_error(np.array([1.0, 3.0]), np.array([1.0, 1.0]))
    (2.0, 0.7071067811865476)
    """
    share = weight / weight.sum()
    mean = float(share @ difference)
    return mean, float(np.sqrt(np.sum((share * (difference - mean)) ** 2)))
