"""How large a density should be and how strong its prior, by the log p of held-out rows.

A *learner* trains one kind of density, with a given size and strength. What to try, and what to
believe of it, is decided here, for all densities alike:

- Of many rows a part is held out; of few, folds are held out in turn: the first, and as long as it
  is not clear which of two is better, the others.
- Sizes grow until two in a row have not helped, or one has done harm. Then a stronger prior is
  tried for the best of them, and larger sizes with it; or else a weaker one.
- Of all that is as good as the best within a standard error, the simplest is taken: the smallest
  size, with the strongest prior. For more than the smallest size, more is asked.
- The best of many looks better than it is. So, where rows are few, what was chosen is trained once
  more, as it will be, on folds that had no say, and must be better than the smallest size there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from typing import Any, Generic, TypeVar

import numpy as np
from threadpoolctl import threadpool_limits

from knothole.arrays import Floats
from knothole.densities.em import STRENGTH, Learner, Run, Training, WeightedRows
from knothole.densities.held_out import (
    FEW_ROWS_TO_SEARCH,
    TOO_FEW_TO_HOLD_OUT,
    folds,
    mean_and_error,
)

# Standard errors by which more than independent variables must be better than those: they cannot
# overfit, and what is held against them is the best of many.
SURE = 3.0
# No choice needs more held-out rows than this, nor more to learn from.
MOST_HELD_OUT = 20_000
ROWS_TO_CHOOSE = 20_000
# So many times the margin of error that was asked for, and there is no doubt.
DOUBT = 2.0
# Standard errors at which two need no further folds to be told apart.
CLEAR = 4.0
# Sizes are tried upwards until this many in a row have not helped.
MISSES = 2


L = TypeVar("L", bound=Learner)


@dataclass(frozen=True)
class Wanted:
    """What is to be found.

    Attributes
    ----------
    sizes : sequence of int
        To choose from, ascending.
    strength : float or None
        Of the prior; None: to be chosen, too.
    """

    sizes: Sequence[int]
    strength: float | None


def learn(learners: Sequence[L], wanted: Wanted) -> tuple[L, Run[Any]]:
    """The learner to keep, and its run.

    Several learners differ in how they read columns. The first searches; the others are tried
    with what it found.
    """
    # On matrices this small, threads of BLAS wait for one another most of the time.
    with threadpool_limits(1, "blas"):
        return _learned(learners, wanted)


def _learned(learners: Sequence[L], wanted: Wanted) -> tuple[L, Run[Any]]:
    learner, sizes = learners[0], wanted.sizes
    if sizes[-1] == 1 and learner.one_is_independent:
        return fit_all(learner, 1, wanted)
    if not can_hold_out(learner.training, len(learner.rows)):
        return fit_all(learner, sizes[0], wanted)
    strength = learner.default_strength if wanted.strength is None else wanted.strength
    tune = wanted.strength is None and learner.few_rows_for(sizes[-1])
    if len(sizes) == len(learners) == 1 and not tune:
        return learner, fit_and_refine(learner, sizes[0], strength)
    search = Search(learners, wanted)
    search.try_sizes(sizes, strength)
    if tune:
        search.try_strengths(sizes)
    small, best = search.smallest, search.simplest()
    for other in range(1, len(learners)):
        best = search.better(search.attempt(best.size, best.strength, other), best)
    if best.size > small.size and not search.confirms(best, small):
        best = small
    return search.finished(best)


def fit_all(learner: L, size: int, wanted: Wanted) -> tuple[L, Run[Any]]:
    """With nothing held out."""
    learner = learner.alone() if size == 1 else learner
    return learner, learner.fit(size, STRENGTH if wanted.strength is None else wanted.strength)


def fit_and_refine(learner: Learner, size: int, strength: float) -> Run[Any]:
    """Training that held-out rows stop in time, then a few steps on all rows."""
    run = split(learner, learner.training.fraction).attempt(size, strength)[0]
    return learner.refined(run)


# ---- rows held out ------------------------------------------------------------------------------


def can_hold_out(training: Training, n_rows: int) -> bool:
    """Whether rows may and can be spared."""
    return training.fraction > 0 and n_rows >= TOO_FEW_TO_HOLD_OUT


@dataclass(frozen=True, eq=False)
class Fold:
    """The first rows of a learner to train on, and rows held out."""

    learner: Learner
    n_rows: int
    held: WeightedRows

    @cached_property
    def usual(self) -> tuple[Learner, Any]:
        """The learner, on its first rows, and the held-out rows in its terms."""
        return self.learner.first(self.n_rows), self.learner.encode(self.held)

    @property
    def alone(self) -> tuple[Learner, Any]:
        """The same for size 1, which is tried once; independent variables need no more rows."""
        learner = self.learner.first(min(self.n_rows, ROWS_TO_CHOOSE)).alone()
        return learner, learner.encode(self.held)

    def attempt(self, size: int, strength: float) -> tuple[Run[Any], Floats, Floats]:
        """Train; with log p of the rows held out, and their weights."""
        learner, held = self.alone if size == 1 else self.usual
        run = learner.fit(size, strength, held)
        return run, learner.log_densities(run.parameters, held), held.weight


def split(learner: Learner, fraction: float, most: int | None = None) -> Fold:
    """The last of the rows held out, at ``most`` so many of the others to train on.

    Marginals have seen them all; many rows make up for it.
    """
    rows = learner.rows
    cut = len(rows) - min(max(1, round(fraction * len(rows))), MOST_HELD_OUT)
    return Fold(learner, cut if most is None else min(cut, most), masked(learner, rows[cut:]))


def folds_of(learner: Learner, rows: WeightedRows) -> list[Fold]:
    """Each part of the rows held out once, from marginals too."""
    return [
        Fold(learner.on(rows[train]), len(train), masked(learner, rows[held]))
        for train, held in folds(len(rows))
    ]


def masked(learner: Learner, rows: WeightedRows) -> WeightedRows:
    """Rows to hold out, with holes."""
    return rows.with_holes(learner.training.seed) if learner.training.may_mask else rows


# ---- sizes and strengths ------------------------------------------------------------------------


@dataclass(eq=False)
class Tried(Generic[L]):
    """A learner's runs with one size and strength, on the first of its folds or on all.

    ``log_p`` and ``weight`` are of the rows that each of them holds out.
    """

    learner: L
    folds: list[Fold]
    size: int
    strength: float
    runs: list[Run[Any]] = field(default_factory=list)
    log_p: list[Floats] = field(default_factory=list)
    weight: list[Floats] = field(default_factory=list)

    def on(self, n_folds: int) -> None:
        """Train on so many folds' rows, score those they hold out."""
        for fold in self.folds[len(self.runs) : n_folds]:
            run, log_p, weight = fold.attempt(self.size, self.strength)
            self.runs.append(run)
            self.log_p.append(log_p)
            self.weight.append(weight)

    def gain_over(self, other: Tried[L], clear: float = CLEAR) -> tuple[float, float]:
        """How much better it is on the same rows, and the standard error of that.

        Both are tried on further folds as long as that is less than ``clear`` standard errors.
        """
        n = min(len(self.runs), len(other.runs))
        difference = np.concatenate(self.log_p[:n]) - np.concatenate(other.log_p[:n])
        gain, error = mean_and_error(difference, np.concatenate(self.weight[:n]))
        if abs(gain) > clear * error or n == len(self.folds):
            return gain, error
        for each in (self, other):
            each.on(n + 1)
        return self.gain_over(other, clear)


class Search(Generic[L]):
    """Sizes and strengths of some learners by held-out log p; each is tried once."""

    def __init__(self, learners: Sequence[L], wanted: Wanted) -> None:
        self.learners, self.wanted = learners, wanted
        self.learner = learner = learners[0]
        # Standard errors by which more than size 1 must be better than that.
        self.margin = SURE if learner.one_is_independent else 1.0
        self.folds = [self._folds(learner) for learner in learners]
        self.tried: dict[tuple[int, float, int], Tried[L]] = {}

    def _folds(self, learner: L) -> list[Fold]:
        if len(learner.rows) < FEW_ROWS_TO_SEARCH:
            return folds_of(learner, learner.rows)
        # One size that was asked for is trained once, on all rows.
        choosing = len(self.wanted.sizes) > 1
        return [split(learner, learner.training.fraction, ROWS_TO_CHOOSE if choosing else None)]

    def attempt(self, size: int, strength: float, number: int = 0) -> Tried[L]:
        """Train a learner, the first by default, and score held-out rows."""
        key = (size, strength, number)
        if key not in self.tried:
            tried = Tried(self.learners[number], self.folds[number], size, strength)
            tried.on(1)
            self.tried[key] = tried
            score = np.average(tried.log_p[0], weights=tried.weight[0])
            unit = self.learner.unit
            self.report(f"{size} {unit}, strength {strength:g}: held-out log p {score:.4f}")
        return self.tried[key]

    def report(self, line: str) -> None:
        """Tell of progress."""
        self.learner.training.report(line)

    def try_sizes(self, sizes: Sequence[int], strength: float) -> Tried[L]:
        """Sizes upwards until several in a row have not helped, or one has done harm.

        Returns the smallest that no larger one was better than by more than a standard error.
        """
        best, misses = self.attempt(sizes[0], strength), 0
        for size in sizes[1:]:
            tried = self.attempt(size, strength)
            gain, error = tried.gain_over(best)
            best, misses = (tried, 0) if gain > error else (best, misses + 1)
            if misses == MISSES or gain < -error:
                break
        return best

    def try_strengths(self, sizes: Sequence[int]) -> None:
        """Stronger priors as long as they help, larger sizes with them; or else a weaker one."""
        sizes = [size for size in sizes if size > 1 or not self.learner.one_is_independent]
        first = best = self.best_of(sizes)
        for strength in (s for s in self.learner.strengths if s > first.strength):
            if self.better(self.attempt(best.size, strength), best) is best:
                break
            best = self.try_sizes([size for size in sizes if size >= best.size], strength)
        if best is first and self.better(best, self.smallest) is best:
            for strength in [s for s in self.learner.strengths if s < first.strength][-1:]:
                self.attempt(best.size, strength)

    @property
    def sizes(self) -> list[int]:
        """All sizes tried."""
        return sorted({size for size, _, _ in self.tried})

    @staticmethod
    def better(one: Tried[L], other: Tried[L]) -> Tried[L]:
        """What has the better score; the second, where they are the same."""
        return one if one is not other and one.gain_over(other)[0] > 0 else other

    def best_of(self, sizes: Sequence[int]) -> Tried[L]:
        """What has the best score of what was tried with some sizes."""
        tried = [tried for tried in self.tried.values() if tried.size in sizes]
        return reduce(lambda best, new: self.better(new, best), tried)

    @property
    def smallest(self) -> Tried[L]:
        """The smallest size, with the prior that suits it best."""
        return self.best_of(self.sizes[:1])

    def simplest(self) -> Tried[L]:
        """The smallest size (with the strongest prior) that is as good within a standard error.

        Independent variables within a few of them.
        """
        best = self.best_of(self.sizes)
        ordered = sorted(self.tried.values(), key=lambda t: (t.size, -t.strength))
        for tried in ordered:
            loss, error = best.gain_over(tried)
            margin = self.margin if tried.size == 1 else 1.0
            if loss <= margin * error:
                return tried
        return best

    def confirms(self, best: Tried[L], small: Tried[L]) -> bool:
        """Whether what was chosen beats the smallest size on folds that had no say in it.

        Only asked of few rows. Both are trained as they will be, with nothing left to choose.
        """
        gain, error = best.gain_over(small, DOUBT * self.margin)
        if len(best.folds) == 1 or gain > DOUBT * self.margin * error:
            return True
        rows = best.learner.rows
        shuffled = np.random.default_rng(best.learner.training.seed).permutation(rows.order)
        gains, weights = [], []
        for fold in folds_of(best.learner, replace(rows, order=shuffled)):
            log_p = []
            for tried in (best, small):
                learner, held = fold.alone if tried.size == 1 else fold.usual
                run = learner.fit_like(tried.size, tried.strength, tried.runs)
                log_p.append(learner.log_densities(run.parameters, held))
            gains.append(log_p[0] - log_p[1])
            weights.append(held.weight)
        gain, error = mean_and_error(np.concatenate(gains), np.concatenate(weights))
        self.report(f"on other folds: {gain:+.4f}, standard error {error:.4f}")
        return gain > self.margin * error

    def finished(self, best: Tried[L]) -> tuple[L, Run[Any]]:
        """What was chosen, trained on all rows."""
        learner, size, strength = best.learner, best.size, best.strength
        if size == 1 and learner.one_is_independent:
            return fit_all(learner, 1, self.wanted)
        if len(best.folds) > 1:
            # What the folds learned is in the terms of their own rows: train again on all.
            return learner, learner.fit_like(size, strength, best.runs)
        if best.folds[0].n_rows + len(best.folds[0].held) < len(learner.rows):
            return learner, fit_and_refine(learner, size, strength)
        return learner, learner.refined(best.runs[0])
