"""How many components a density has, and how its columns are read, by the log p of held-out rows.

From :data:`~knothole.densities.held_out.FEW_ROWS` rows on a rule gives the size (each density has
its own), unless variables turn out to be independent, and there is at most the way of reading
columns to choose. Of fewer rows, sizes and two
strengths of the prior are compared by cross-validation: a fit takes milliseconds there. Every entry
is tried, since a size that is worse than the one before it says nothing of larger ones; those that
are clearly behind after a fold are not trained on the next one.
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

# Standard errors behind the best at which an entry is dropped before the next fold.
CLEAR = 4.0
# Standard errors by which more than independent variables must be better than those.
SURE = 3.0
# A stronger prior, for few rows with many missing values: as many times the usual one. (That of
# Gaussian components has the table's correlations, and needs no other.)
STRONGER = 20.0
# Held-out rows that say when training stops, at most.
MOST_HELD_OUT = 20_000


L = TypeVar("L", bound=Learner)


def learn(
    learners: Sequence[L], sizes: Sequence[int], strength: float | None
) -> tuple[L, Run[Any]]:
    """The learner to keep, trained with the size to keep.

    Training is stopped in time by held-out rows; the last steps are made on all rows. Several
    learners differ in how they read columns. ``strength`` is that of the prior, None for the
    learner's own.
    """
    from threadpoolctl import threadpool_limits

    # On matrices this small, threads of BLAS wait for one another most of the time.
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
                return learner, learner.refined(run)
        return _fit_all(learner, 1, strength if given else STRENGTH)


def _fit_all(learner: L, size: int, strength: float) -> tuple[L, Run[Any]]:
    """With nothing held out."""
    learner = learner.alone() if size == 1 else learner
    return learner, learner.fit(size, strength)


class Entry(NamedTuple, Generic[L]):
    """A learner, with a size and a strength of the prior."""

    learner: L
    size: int
    strength: float


def race(entries: Sequence[Entry[L]]) -> Entry[L]:
    """The smallest size, with the stronger prior, that is within a standard error of the best.

    Entries are compared by the log p of held-out rows.

    Independent variables cannot overfit, and what is held against them is the best of many: they
    are kept unless it is better by more than :data:`SURE` standard errors.
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
    """Whether log p is less than another by more than so many standard errors."""
    loss, error = mean_and_error(best - log_p, weight)
    return loss > errors * error


def _beats_independence(learner: Learner, run: Run[Any], held: Any, rows: WeightedRows) -> bool:
    """Whether held-out rows are surely likelier than under independent variables."""
    alone = learner.alone()
    encoded = alone.encode(rows)
    apart = alone.log_densities(alone.fit(1, STRENGTH).parameters, encoded)
    return _behind(apart, learner.log_densities(run.parameters, held), rows.own_weight(), SURE)


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
    return rows.with_missing(learner.training.seed) if learner.training.may_mask else rows
