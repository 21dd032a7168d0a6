"""How many components a density has, and how its columns are read, by the log p of held-out rows.

From :data:`~knothole.densities.held_out.FEW_ROWS` rows on a rule gives the size (each density has
its own), and there is at most the way of reading columns to choose. Of fewer rows, all sizes are
compared by cross-validation: a fit takes milliseconds there. Every entry is tried, since a size
that is worse than the one before it says nothing of larger ones; those that are clearly behind
after a fold are not trained on the next one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
from threadpoolctl import threadpool_limits

from knothole.arrays import Floats
from knothole.densities.em import Learner, Run, Training, WeightedRows
from knothole.densities.held_out import (
    FEW_ROWS,
    ROWS_TO_JUDGE,
    TOO_FEW_TO_HOLD_OUT,
    folds,
    mean_and_error,
    rows_to_screen,
)

# Standard errors behind the best at which a size is dropped before the next fold.
CLEAR = 4.0
# Held-out rows that say when training stops, at most.
MOST_HELD_OUT = 20_000


L = TypeVar("L", bound=Learner)


def learn(
    learners: Sequence[L], sizes: Sequence[int], strength: float | None
) -> tuple[L, Run[Any]]:
    """The learner to keep, trained on all rows with the size to keep.

    Several learners differ in how they read columns. ``strength`` is that of the prior, None for
    the learner's own.
    """
    # On matrices this small, threads of BLAS wait for one another most of the time.
    with threadpool_limits(1, "blas"):
        learner, size = learners[0], sizes[0]
        strength = learner.strength if strength is None else strength
        if can_hold_out(learner.training, len(learner.rows)):
            learner, size = race([(one, n) for one in learners for n in sizes], strength)
            if size > 1 or not learner.one_is_independent:
                return learner, fit_and_refine(learner, size, strength)
        learner = learner.alone() if size == 1 else learner
        return learner, learner.fit(size, strength)


def race(entries: Sequence[tuple[L, int]], strength: float) -> tuple[L, int]:
    """The learner and size with the best log p of held-out rows; the first of equal ones."""
    if len(entries) == 1:
        return entries[0]
    left = list(range(len(entries)))
    best, log_p, weights = 0, [np.empty(0) for _ in entries], np.empty(0)
    for train, held in _folds(entries[0][0]):
        weights = np.concatenate([weights, held.own_weight()])
        on_fold: dict[int, Learner] = {}
        for number in left:
            learner, size = entries[number]
            if id(learner) not in on_fold:
                on_fold[id(learner)] = learner.on(train)
            some = on_fold[id(learner)]
            some = some.alone() if size == 1 else some
            judged = some.encode(held)
            found = some.log_densities(some.fit(size, strength, judged).parameters, judged)
            log_p[number] = np.concatenate([log_p[number], found])
        best = max(left, key=lambda number: float(np.average(log_p[number], weights=weights)))
        left = [number for number in left if not _behind(log_p[number], log_p[best], weights)]
    learner, size = entries[best]
    learner.training.report(f"{size} {learner.unit}: best held-out log p of {len(entries)}")
    return entries[best]


def _behind(log_p: Floats, best: Floats, weight: Floats) -> bool:
    loss, error = mean_and_error(best - log_p, weight)
    return loss > CLEAR * error


def fit_and_refine(learner: Learner, size: int, strength: float) -> Run[Any]:
    """Training that held-out rows stop in time, then a few steps on all rows."""
    some, held = split(learner, learner.training.fraction)
    return learner.refined(some.fit(size, strength, some.encode(held)))


# ---- rows held out ------------------------------------------------------------------------------


def can_hold_out(training: Training, n_rows: int) -> bool:
    """Whether rows may and can be spared."""
    return training.fraction > 0 and n_rows >= TOO_FEW_TO_HOLD_OUT


def split(learner: L, fraction: float) -> tuple[L, WeightedRows]:
    """A learner without the last of its rows, and those, masked.

    Marginals have seen them all; many rows make up for it.
    """
    rows = learner.rows
    cut = len(rows) - min(max(1, round(fraction * len(rows))), MOST_HELD_OUT)
    return learner.first(cut), masked(learner, rows[cut:])


def _folds(learner: Learner) -> Iterator[tuple[WeightedRows, WeightedRows]]:
    """Rows to learn from and masked rows to judge by: each part in turn, of many rows some."""
    rows = learner.rows
    if len(rows) < FEW_ROWS:
        for train, held in folds(len(rows)):
            yield rows[train], masked(learner, rows[held])
        return
    cut = min(rows_to_screen(len(rows.variables)), len(rows) - ROWS_TO_JUDGE)
    yield rows[:cut], masked(learner, rows[-ROWS_TO_JUDGE:])


def masked(learner: Learner, rows: WeightedRows) -> WeightedRows:
    """Rows to hold out, with missing values."""
    return rows.with_holes(learner.training.seed) if learner.training.may_mask else rows
