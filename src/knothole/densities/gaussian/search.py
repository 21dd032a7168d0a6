"""Training a Gaussian mixture: starts, held-out stopping, the choice of its size and prior."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np

from knothole.arrays import Floats
from knothole.densities.emissions.base import Emission
from knothole.densities.gaussian.em import Components, Prior, Rows, Run, train
from knothole.densities.gaussian.normal_scores import NormalScores
from knothole.densities.gaussian.variables import Layout
from knothole.densities.mixture.start import CLIP, assign
from knothole.densities.selection.held_out import mean_and_error
from knothole.tables.columns import Evidence

# Fewer rows than this cannot spare any to be held out.
TOO_FEW_TO_HOLD_OUT = 20
# Rows for starts and for the choice of a size, and how many times as many each stage after has.
FIRST_ROWS = 8192
GROWTH = 4
# Steps of each start, of each stage before the last, and on all rows at the end.
SHORT = 10
REFINE = 5
# Below so many rows, several folds are held out in turn.
FEW_ROWS = 3000
FOLDS = 3
# Sizes are tried until this many in a row have not helped.
SIZES = (1, 2, 4, 8, 16, 32)
MISSES = 2
# A component needs so many rows on average to be worth trying.
ROWS_PER_COMPONENT = 5
# Strengths of the prior that are tried where rows are few for the number of parameters.
STRENGTHS = (1.0, 10.0, 100.0)
ROWS_PER_PARAMETER = 20
# Held-out rows of a table without holes are masked at this rate.
MASKED = 0.3
COMPLETE = 0.01


@dataclass(frozen=True, eq=False)
class Plan:
    """Everything that training needs but rows, size and strength.

    Attributes
    ----------
    emissions : tuple of Emission
        The discrete variables' marginals: one state each.
    keys : tuple of int
        A number of each numeric and each discrete variable, the same whatever their order.
    tied : bool
    rank : int or None
        Of a low-rank covariance.
    max_iter, tol, n_init
        As in :class:`~knothole.densities.gaussian.density.GaussianMixture`.
    seed : int
    report : callable
        Told of progress.
    """

    emissions: tuple[Emission, ...]
    keys: tuple[int, ...]
    tied: bool
    rank: int | None
    max_iter: int
    tol: float
    n_init: int
    seed: int
    report: Callable[[str], None]

    def fit(self, rows: Rows, size: int, strength: float, held: Rows | None = None) -> Run:
        """The best of several starts, trained on more and more of the rows."""
        few = rows[:FIRST_ROWS]
        prior = Prior.of(rows, strength, self.tied)
        starts = [self.start(few, size, prior, i) for i in range(self.n_init if size > 1 else 1)]
        few = few.by_pattern()
        runs = [train(few, components, prior, SHORT, self.tol) for components in starts]
        components = max(runs, key=lambda run: float(run.objective[-1])).components
        part = FIRST_ROWS * GROWTH
        while part < len(rows):
            some = rows[:part].by_pattern()
            components = train(some, components, prior, SHORT, self.tol).components
            part *= GROWTH
        score = None if held is None else lambda trained: mean_score(held, trained)
        return train(rows.by_pattern(), components, prior, self.max_iter, self.tol, score)

    def refined(self, rows: Rows, run: Run, strength: float) -> Components:
        """A few more steps on all rows."""
        prior = Prior.of(rows, strength, self.tied)
        return train(rows.by_pattern(), run.components, prior, REFINE, self.tol).components

    def start(self, rows: Rows, size: int, prior: Prior, number: int) -> Components:
        """Components around rows that are far from each other, as in k-means++."""
        rng = np.random.default_rng([self.seed, size, number])
        d = rows.z.shape[1]
        value = np.clip(rows.z, -CLIP, CLIP)
        category = np.zeros(d, dtype=np.bool_)
        if rows.discrete is not None:
            code = rows.discrete.code
            value = np.hstack([value, np.where(code < 0, np.nan, code)])
            category = np.arange(value.shape[1]) >= d
        nearest = assign(value, category, rows.weight, size, rng)
        share = np.zeros((len(rows), size))
        share[np.arange(len(rows)), nearest] = rows.weight
        known = ~np.isnan(rows.z)
        mean = (share.T @ np.where(known, rows.z, 0.0)) / (share.T @ known + 1)
        covariance = np.tile(np.diag(prior.variance) / (1 if size == 1 else 2), (size, 1, 1))
        weight = share.sum(axis=0) + 1
        emissions = tuple(
            emission.take(np.zeros(size, dtype=np.int64)) for emission in self.emissions
        )
        loading = None
        if self.rank is not None and d:
            loading = np.zeros((size, d, min(self.rank, d)))
        return Components(weight / weight.sum(), mean, covariance, emissions, loading)

    def with_holes(self, rows: Rows) -> Rows:
        """Rows to score: with the holes they have, or some at random where they have hardly any.

        What is asked of a density is what it says of rows with holes.
        """
        d = rows.z.shape[1]
        if d == 0 or np.isnan(rows.z).mean() > COMPLETE:
            return rows.by_pattern()
        streams = [np.random.default_rng([self.seed, key]) for key in self.keys]
        hole = np.stack([rng.random(len(rows)) < MASKED for rng in streams], axis=1)
        discrete = rows.discrete
        if discrete is not None:
            code = np.where(hole[:, d:], -1, discrete.code).astype(np.int32)
            discrete = replace(discrete, code=code)
        return replace(
            rows,
            z=np.where(hole[:, :d], np.nan, rows.z),
            variance=np.where(hole[:, :d], 0.0, rows.variance),
            base=np.where(hole[:, :d], 0.0, rows.base),
            discrete=discrete,
        ).by_pattern()


def mean_score(rows: Rows, components: Components) -> float:
    """Weighted mean of log p."""
    return float(np.average(components.log_density(rows), weights=rows.weight))


@dataclass(frozen=True, eq=False)
class Tried:
    """One size and strength: the run of the first fold, and log p of all rows held out."""

    size: int
    strength: float
    run: Run
    log_p: Floats
    weight: Floats
    score: float

    def beats(self, other: Tried) -> bool:
        """Whether it is better by more than a standard error."""
        gain, error = mean_and_error(self.log_p - other.log_p, self.weight)
        return gain > error


class Search:
    """Sizes and strengths by the log p of held-out rows with holes."""

    def __init__(self, plan: Plan, rows: Rows, fraction: float) -> None:
        self.plan = plan
        self.folds = [(part, plan.with_holes(held)) for part, held in folds_of(rows, fraction)]

    def attempt(self, size: int, strength: float) -> Tried:
        """Train on each fold's rows, score those it holds out."""
        runs = [self.plan.fit(part, size, strength, held) for part, held in self.folds]
        pairs = zip(runs, self.folds, strict=True)
        log_p = np.concatenate([run.components.log_density(held) for run, (_, held) in pairs])
        weight = np.concatenate([held.weight for _, held in self.folds])
        score = float(np.average(log_p, weights=weight))
        self.plan.report(f"{size} components, strength {strength:g}: held-out log p {score:.4f}")
        return Tried(size, strength, runs[0], log_p, weight, score)

    def best_size(self, sizes: Iterable[int], strength: float) -> Tried:
        """The smallest size that no larger one beats, tried until several have not helped."""
        best: Tried | None = None
        misses = 0
        for size in sizes:
            tried = self.attempt(size, strength)
            if best is None or tried.beats(best):
                best, misses = tried, 0
            else:
                misses += 1
                if misses == MISSES:
                    break
        if best is None:
            raise ValueError("sizes must not be empty")
        return best

    def best(self, sizes: list[int], strengths: Iterable[float]) -> Tried:
        """Stronger priors as long as they help."""
        best: Tried | None = None
        for strength in strengths:
            tried = self.best_size(sizes, strength)
            if best is not None and tried.score <= best.score:
                break
            best = tried
            d = self.folds[0][0].z.shape[1]
            parameters = tried.size * d * (d + 3) / 2
            if len(self.folds[0][0]) > ROWS_PER_PARAMETER * parameters:
                break
        if best is None:
            raise ValueError("strengths must not be empty")
        return best


def folds_of(rows: Rows, fraction: float) -> list[tuple[Rows, Rows]]:
    """(rows to train on, rows held out): one pair, or of a small table several."""
    if len(rows) >= FEW_ROWS:
        cut = len(rows) - max(1, round(fraction * len(rows)))
        return [(rows[:cut], rows[cut:])]
    number = np.arange(len(rows)) % FOLDS
    return [(rows[number != fold], rows[number == fold]) for fold in range(FOLDS)]


def sizes_for(n_rows: int) -> list[int]:
    """Sizes worth trying with so many rows."""
    return [size for size in SIZES if size == 1 or size * ROWS_PER_COMPONENT <= n_rows]


@dataclass(frozen=True, eq=False)
class Learned:
    """What learning came to: components, maps, the run that was chosen, the prior's strength."""

    components: Components
    scores: NormalScores
    run: Run
    strength: float


def learn(
    layout: Layout,
    plan: Plan,
    evidence: Evidence,
    weight: Floats,
    maps: list[NormalScores],
    size: int | None,
    strength: float | None,
    fraction: float,
) -> Learned:
    """The best size, strength and maps by held-out score, trained on all rows in the end.

    Without rows to hold out (``fraction`` 0, or a tiny table), the first maps and one component,
    unless a size is given. What is best with the first maps is all that is tried with others.
    """
    strengths = STRENGTHS if strength is None else (strength,)
    if fraction == 0 or len(weight) < TOO_FEW_TO_HOLD_OUT:
        rows = layout.rows(evidence, weight, maps[0], plan.emissions)
        run = plan.fit(rows, size or 1, strengths[0])
        return Learned(run.components, maps[0], run, strengths[0])
    sizes = sizes_for(len(weight)) if size is None else [size]
    best: Tried | None = None
    for scores in maps:
        rows = layout.rows(evidence, weight, scores, plan.emissions)
        tried = Search(plan, rows, fraction).best(sizes, strengths)
        if best is None or tried.score > best.score:
            best, best_rows, best_scores = tried, rows, scores
        sizes, strengths = [best.size], (best.strength,)
    if best is None:
        raise ValueError("maps must not be empty")
    components = plan.refined(best_rows, best.run, best.strength)
    return Learned(components, best_scores, best.run, best.strength)
