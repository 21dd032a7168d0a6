"""How large a density should be and how strong its prior, by the log p of held-out rows.

A *learner* trains one kind of density, with a given size and strength. What to try, and what to
believe of it, is decided here, for all densities alike:

- Of many rows a part is held out; of few, folds are held out in turn.
- Sizes grow until two in a row have not helped, or one has done harm. Then a stronger prior is
  tried for the best of them, and larger sizes with it; or else a weaker one.
- Of all that is as good as the best within a standard error, the simplest is taken: the smallest
  size, with the strongest prior. For more than the smallest size, more is asked.
- The best of many looks better than it is. So, where rows are few, what was chosen is trained once
  more, as it will be, on folds that had no say, and must be better than the smallest size there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Generic, TypeVar

import numpy as np

from knothole.arrays import Floats
from knothole.densities.em import Run, Training
from knothole.densities.learner import FOLDS, STRENGTH, Learner
from knothole.densities.rows import WeightedRows
from knothole.densities.selection.held_out import mean_and_error

# Standard errors by which more than independent variables must be better than those: they cannot
# overfit, and what is held against them is the best of many.
SURE = 3.0
# Fewer rows than this cannot spare any to be held out.
TOO_FEW_TO_HOLD_OUT = 20
# Below so many rows, folds are held out in turn.
FEW_ROWS = 3000
# No choice needs more held-out rows than this, nor more to learn from.
MOST_HELD_OUT = 20_000
ROWS_TO_CHOOSE = 20_000
# So many times the margin of error that was asked for, and there is no doubt.
DOUBT = 2.0
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
    fixed : bool
        Whether the last size was asked for. Then size 1 is there only to fall back on.
    """

    sizes: Sequence[int]
    strength: float | None
    fixed: bool = False


def learn(learners: Sequence[L], wanted: Wanted) -> tuple[L, Run[Any]]:
    """The learner to keep, and its run.

    Several learners differ in how they read columns. The first searches; the others are tried
    with what it found.
    """
    learner, sizes = learners[0], wanted.sizes
    if sizes[-1] == 1 and learner.one_is_independent:
        return fit_all(learner, 1, wanted)
    if not can_hold_out(learner.training, len(learner.rows)):
        return fit_all(learner, sizes[-1] if wanted.fixed else sizes[0], wanted)
    strength = learner.default_strength if wanted.strength is None else wanted.strength
    tune = wanted.strength is None and strength is not None and learner.few_rows_for(sizes[-1])
    if len(sizes) == len(learners) == 1 and not tune:
        return learner, fit_and_refine(learner, sizes[0], strength)
    search = Search(learner, wanted)
    search.try_sizes(sizes, strength)
    if tune:
        search.try_strengths(sizes)
    small, best = search.smallest, search.simplest()
    for other in learners[1:]:
        again = Search(other, wanted)
        tried = again.attempt(best.size, best.strength)
        if tried.score > best.score:
            search, best = again, tried
    if best.size > small.size and not wanted.fixed and not search.confirms(best, small):
        best = small
    return search.finished(best)


def fit_all(learner: L, size: int, wanted: Wanted) -> tuple[L, Run[Any]]:
    """With nothing held out."""
    learner = learner.alone() if size == 1 else learner
    return learner, learner.fit(size, STRENGTH if wanted.strength is None else wanted.strength)


def fit_and_refine(learner: Learner, size: int, strength: float | None) -> Run[Any]:
    """Training that held-out rows stop in time, then a few steps on all rows."""
    fold = split(learner, learner.training.fraction)
    return learner.refined(fold.attempt(size, strength)[0])


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

    def attempt(self, size: int, strength: float | None) -> tuple[Run[Any], Floats, Floats]:
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
    number = np.arange(len(rows)) % FOLDS
    folds = []
    for part in range(FOLDS):
        train = rows[number != part]
        held = masked(learner, rows[number == part])
        folds.append(Fold(learner.on(train), len(train), held))
    return folds


def masked(learner: Learner, rows: WeightedRows) -> WeightedRows:
    """Rows to hold out, with holes."""
    return rows.with_holes(learner.training.seed) if learner.training.may_mask else rows


# ---- sizes and strengths ------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Tried:
    """One size and strength: the runs of all folds, and log p of all rows held out."""

    size: int
    strength: float | None
    runs: list[Run[Any]]
    log_p: Floats
    weight: Floats

    @property
    def prior(self) -> float:
        """The strength; 0 where the learner finds it."""
        return self.strength or 0.0

    @property
    def score(self) -> float:
        """Mean log p of the rows held out."""
        return float(np.average(self.log_p, weights=self.weight))

    def gain_over(self, other: Tried) -> tuple[float, float]:
        """How much better it is on the same rows, and the standard error of that."""
        return mean_and_error(self.log_p - other.log_p, self.weight)


class Search(Generic[L]):
    """Sizes and strengths of one learner by held-out log p; each is tried once."""

    def __init__(self, learner: L, wanted: Wanted) -> None:
        self.learner, self.wanted = learner, wanted
        # Standard errors by which more than size 1 must be better than that.
        self.margin = SURE if learner.one_is_independent else 1.0
        if wanted.fixed:
            self.margin = 0.0
        if len(learner.rows) < FEW_ROWS:
            self.folds = folds_of(learner, learner.rows)
        else:
            # One size that was asked for is trained once, on all rows.
            most = ROWS_TO_CHOOSE if len(wanted.sizes) > 1 and not wanted.fixed else None
            self.folds = [split(learner, learner.training.fraction, most)]
        self.tried: dict[tuple[int, float | None], Tried] = {}

    def attempt(self, size: int, strength: float | None) -> Tried:
        """Train on each fold's rows, score those it holds out."""
        key = (size, strength)
        if key not in self.tried:
            runs, log_p, weight = zip(*(fold.attempt(*key) for fold in self.folds), strict=True)
            tried = Tried(*key, list(runs), np.concatenate(log_p), np.concatenate(weight))
            self.tried[key] = tried
            prior = "" if strength is None else f", strength {strength:g}"
            self.report(f"{size} {self.learner.unit}{prior}: held-out log p {tried.score:.4f}")
        return self.tried[key]

    def report(self, line: str) -> None:
        """Tell of progress."""
        self.learner.training.report(line)

    def try_sizes(self, sizes: Sequence[int], strength: float | None) -> Tried:
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
        for strength in (s for s in self.learner.strengths if s > first.prior):
            if self.attempt(best.size, strength).score <= best.score:
                break
            best = self.try_sizes([size for size in sizes if size >= best.size], strength)
        if best is first and best.score > self.smallest.score:
            for strength in [s for s in self.learner.strengths if s < first.prior][-1:]:
                self.attempt(best.size, strength)

    @property
    def sizes(self) -> list[int]:
        """All sizes tried."""
        return sorted({size for size, _ in self.tried})

    def best_of(self, sizes: Sequence[int]) -> Tried:
        """What has the best score of what was tried with some sizes."""
        return max((t for t in self.tried.values() if t.size in sizes), key=lambda t: t.score)

    @property
    def smallest(self) -> Tried:
        """The smallest size, with the prior that suits it best."""
        return self.best_of(self.sizes[:1])

    def simplest(self) -> Tried:
        """The smallest size (with the strongest prior) that is as good within a standard error.

        Independent variables within a few of them.
        """
        best = self.best_of(self.sizes)
        ordered = sorted(self.tried.values(), key=lambda t: (t.size, -t.prior))
        for tried in ordered:
            loss, error = best.gain_over(tried)
            margin = self.margin if tried.size == 1 else 1.0
            if loss <= margin * error:
                return tried
        return best

    def confirms(self, best: Tried, small: Tried) -> bool:
        """Whether what was chosen beats the smallest size on folds that had no say in it.

        Only asked of few rows. Both are trained as they will be, with nothing left to choose.
        """
        gain, error = best.gain_over(small)
        if len(self.folds) == 1 or gain > DOUBT * self.margin * error:
            return True
        rows = self.learner.rows
        shuffled = np.random.default_rng(self.learner.training.seed).permutation(rows.order)
        gains, weights = [], []
        for fold in folds_of(self.learner, replace(rows, order=shuffled)):
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

    def finished(self, best: Tried) -> tuple[L, Run[Any]]:
        """What was chosen, trained on all rows."""
        size, strength = best.size, best.strength
        if size == 1 and self.learner.one_is_independent:
            return fit_all(self.learner, 1, self.wanted)
        if len(self.folds) > 1:
            # What the folds learned is in the terms of their own rows: train again on all.
            return self.learner, self.learner.fit_like(size, strength, best.runs)
        if self.folds[0].n_rows + len(self.folds[0].held) < len(self.learner.rows):
            return self.learner, fit_and_refine(self.learner, size, strength)
        return self.learner, self.learner.refined(best.runs[0])
