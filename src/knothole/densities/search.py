"""The size of a density, and how its columns are read, chosen by the log p of held-out rows.

From :data:`~knothole.densities.held_out.FEW_ROWS` rows on, a rule of each density gives the size,
unless variables turn out to be independent; at most the way of reading columns is left to choose.
With fewer rows, sizes and two strengths of the prior are compared by cross-validation, where a fit
takes milliseconds. Every entry is tried, since a size that is worse than the previous one says
nothing about larger ones; entries that are clearly worse after a fold are not fitted in the next.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from knothole.arrays import Floats
from knothole.densities.em import STRENGTH, Learner, Run, Training, WeightedRows
from knothole.densities.held_out import (
    FEW_ROWS,
    ROWS_TO_JUDGE,
    TOO_FEW_TO_HOLD_OUT,
    folds,
    mean_and_error,
    rows_to_screen,
)

# An entry that is worse than the best by so many standard errors is dropped before the next fold.
CLEAR = 4.0
# By how many standard errors a density must beat independent variables.
SURE = 3.0
# Factor of a stronger prior, for few rows with many missing values. (The prior of Gaussian
# components is centred on the table's correlations, and needs no other.)
STRONGER = 20.0
# The most held-out rows for early stopping.
MOST_HELD_OUT = 20_000


L = TypeVar("L", bound=Learner)


def learn(
    learners: Sequence[L], sizes: Sequence[int], strength: float | None
) -> tuple[L, Run[Any]]:
    """Choose a learner and a size; returns the learner and its training run.

    Held-out rows stop training early; the last steps are made on all rows. Several learners differ
    in how they read columns. ``strength`` is that of the prior, None for the learner's default.
    """
    from threadpoolctl import threadpool_limits

    # With matrices this small, threads of BLAS mostly wait for each other.
    with threadpool_limits(1, "blas"):
        first = learners[0]
        given = strength is not None
        strengths = [first.strength if strength is None else strength]
        if not can_hold_out(first.training, len(first.rows)):
            return _fit_all(first, sizes[0], strengths[0])
        many = len(first.rows) >= FEW_ROWS
        if not (given or many) and first.one_is_independent and sizes[-1] > 1:
            strengths.append(STRONGER * strengths[0])
        tried = sizes[-1:] if many else sizes
        learner, size, strength = race(
            [Entry(one, n, prior) for one in learners for n in tried for prior in strengths]
        )
        some, rows = split(learner, learner.training.fraction)
        if size > 1 or not learner.one_is_independent:
            held = some.encode(rows)
            run = some.fit(size, strength, held)
            doubt = many and sizes[0] < size and learner.one_is_independent
            if not doubt or _beats_independence(some, run, held, rows):
                return learner, learner.refined(run, len(rows))
        return _fit_all(learner, 1, strength if given else STRENGTH)


def _fit_all(learner: L, size: int, strength: float) -> tuple[L, Run[Any]]:
    """Fit to all rows, without holding any out."""
    learner = learner.alone() if size == 1 else learner
    return learner, learner.fit(size, strength)


class Entry(NamedTuple, Generic[L]):
    """A learner, with a size and a strength of the prior."""

    learner: L
    size: int
    strength: float


def race(entries: Sequence[Entry[L]]) -> Entry[L]:
    """The smallest size, with the stronger prior, within a standard error of the best.

    Entries are compared by the log p of held-out rows.

    Independent variables cannot overfit, while the best score is the maximum of many: they are
    chosen unless it is better by more than :data:`SURE` standard errors.
    """
    if len(entries) == 1:
        return entries[0]
    left = list(range(len(entries)))
    best, log_p, weights = 0, [np.empty(0) for _ in entries], np.empty(0)
    for train, held in _folds(entries[0].learner):
        weights = np.concatenate([weights, held.own_weight()])
        on_fold: dict[int, Learner] = {}
        for number in left:
            learner, size, strength = entries[number]
            if id(learner) not in on_fold:
                on_fold[id(learner)] = learner.on(train)
            some = on_fold[id(learner)]
            some = some.alone() if size == 1 else some
            judged = some.encode(held)
            found = some.log_densities(some.fit(size, strength, judged).parameters, judged)
            log_p[number] = np.concatenate([log_p[number], found])
        best = max(left, key=lambda number: float(np.average(log_p[number], weights=weights)))
        left = [n for n in left if not _behind(log_p[n], log_p[best], weights, CLEAR)]
    chosen = best
    for number in left:
        learner, size, strength = entries[number]
        errors = SURE if size == 1 and learner.one_is_independent else 1.0
        simpler = (size, -strength) < (entries[chosen].size, -entries[chosen].strength)
        if simpler and not _behind(log_p[number], log_p[best], weights, errors):
            chosen = number
    learner, size, strength = entries[chosen]
    learner.training.report(
        f"{size} {learner.unit}, strength {strength:g}: best held-out log p of {len(entries)}"
    )
    return entries[chosen]


def _behind(log_p: Floats, best: Floats, weight: Floats, errors: float) -> bool:
    """Whether log p is below the best by more than this number of standard errors."""
    loss, error = mean_and_error(best - log_p, weight)
    return loss > errors * error


def _beats_independence(learner: Learner, run: Run[Any], held: Any, rows: WeightedRows) -> bool:
    """Whether held-out rows are significantly more likely than under independent variables."""
    alone = learner.alone()
    encoded = alone.encode(rows)
    apart = alone.log_densities(alone.fit(1, STRENGTH).parameters, encoded)
    return _behind(apart, learner.log_densities(run.parameters, held), rows.own_weight(), SURE)


# ---- rows held out ------------------------------------------------------------------------------


def can_hold_out(training: Training, n_rows: int) -> bool:
    """Whether rows may be held out, and are enough."""
    return training.fraction > 0 and n_rows >= TOO_FEW_TO_HOLD_OUT


def split(learner: L, fraction: float) -> tuple[L, WeightedRows]:
    """A learner without the last of its rows, and these rows, masked.

    The marginals were computed from all rows; with many rows that makes no difference.
    """
    rows = learner.rows
    cut = len(rows) - min(max(1, round(fraction * len(rows))), MOST_HELD_OUT)
    return learner.first(cut), masked(learner, rows[cut:])


def _folds(learner: Learner) -> Iterator[tuple[WeightedRows, WeightedRows]]:
    """Training rows and masked held-out rows: each fold in turn; a part if there are many rows."""
    rows = learner.rows
    if len(rows) < FEW_ROWS:
        for train, held in folds(len(rows)):
            yield rows[train], masked(learner, rows[held])
        return
    cut = min(rows_to_screen(len(rows.variables)), len(rows) - ROWS_TO_JUDGE)
    yield rows[:cut], masked(learner, rows[-ROWS_TO_JUDGE:])


def masked(learner: Learner, rows: WeightedRows) -> WeightedRows:
    """Held-out rows with missing values added."""
    return rows.with_missing(learner.training.seed) if learner.training.may_mask else rows
