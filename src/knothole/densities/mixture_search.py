"""Training a mixture of products: several starts, held-out stopping, the choice of its size."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from knothole.densities.em import Components, Run, log_densities, train
from knothole.densities.leaves.base import Floats, Leaf
from knothole.densities.mixture_start import start
from knothole.densities.packed_rows import Packed

# Rows for the first steps, and how many times as many each further stage has.
FIRST_ROWS = 8192
GROWTH = 4
# Steps of each start, and of each stage before the last.
SHORT = 10
# Steps on all rows, those held out included, after training has stopped.
REFINE = 5
# Below so many rows, several folds are held out in turn.
FEW_ROWS = 3000
FOLDS = 3
# Sizes are tried in doubling order until this many in a row have not helped.
MISSES = 2
MAX_COMPONENTS = 128
# A component needs so many rows on average to be worth trying.
ROWS_PER_COMPONENT = 5
# The strength of the prior to begin with, and the factor between those tried.
STRENGTH = 1.0
STRENGTH_FACTOR = 10.0
MAX_STRENGTH = 1000.0
# With more rows than this for each component, the strength makes no difference.
MANY_ROWS = 1000


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows to learn from: encoded, their weights, and the first of them on one scale."""

    packed: Packed
    weight: Floats
    value: Floats

    def __len__(self) -> int:
        return len(self.packed)

    def __getitem__(self, rows: slice | NDArray[np.intp]) -> Rows:
        return Rows(self.packed[rows], self.weight[rows], self.value[rows])


@dataclass(frozen=True, eq=False)
class Trainer:
    """Everything that training needs but the size of the mixture and the prior's strength.

    Attributes
    ----------
    rows : Rows
        In random order.
    leaves : tuple of Leaf
        With one state: the marginals.
    category : bool (variables,)
        Which variables are categorical.
    report : callable
        Told of progress.
    """

    rows: Rows
    leaves: tuple[Leaf, ...]
    category: NDArray[np.bool_]
    max_iter: int
    tol: float
    n_init: int
    seed: int
    report: Callable[[str], None]

    def fit(self, n_components: int, strength: float, rows: Rows, held: Rows | None) -> Run:
        """The best of several starts, trained on more and more of the rows."""
        few = rows[:FIRST_ROWS]
        starts = range(self.n_init if n_components > 1 else 1)
        runs = [self._short_run(n_components, strength, few, number) for number in starts]
        components = max(runs, key=lambda run: float(run.objective[-1])).components
        size = FIRST_ROWS * GROWTH
        while size < len(rows):
            part = rows[:size]
            components = train(
                part.packed, part.weight, components, strength, SHORT, self.tol
            ).components
            size *= GROWTH
        score = None if held is None else lambda components: mean_score(held, components)
        return train(rows.packed, rows.weight, components, strength, self.max_iter, self.tol, score)

    def _short_run(self, n_components: int, strength: float, few: Rows, number: int) -> Run:
        rng = np.random.default_rng([self.seed, n_components, number])
        components = start(
            few.packed, few.weight, few.value, self.category, self.leaves, n_components,
            strength, rng,
        )  # fmt: skip
        return train(few.packed, few.weight, components, strength, SHORT, self.tol)

    def refined(self, run: Run, strength: float) -> Components:
        """A few more steps on all rows."""
        rows = self.rows
        return train(
            rows.packed, rows.weight, run.components, strength, REFINE, self.tol
        ).components


def mean_score(rows: Rows, components: Components) -> float:
    """Weighted mean of log p."""
    return float(np.average(log_densities(rows.packed, components), weights=rows.weight))


@dataclass(frozen=True, eq=False)
class Tried:
    """One size and strength: the run of the first fold, and log p of all rows held out."""

    n_components: int
    strength: float
    run: Run
    held_out: Floats
    score: float


class Search:
    """Sizes and strengths by held-out score; each is tried once."""

    def __init__(self, trainer: Trainer, fraction: float) -> None:
        self.trainer = trainer
        self.folds = folds_of(trainer.rows, fraction)
        self.tried: dict[tuple[int, float], Tried] = {}

    def attempt(self, n_components: int, strength: float) -> Tried:
        """Train on each fold's rows, score those it holds out."""
        key = (n_components, strength)
        if key not in self.tried:
            runs = [self.trainer.fit(*key, rows, held) for rows, held in self.folds]
            scores = [
                log_densities(held.packed, run.components)
                for run, (_, held) in zip(runs, self.folds, strict=True)
            ]
            weight = np.concatenate([held.weight for _, held in self.folds])
            log_p = np.concatenate(scores)
            score = float(np.average(log_p, weights=weight))
            self.tried[key] = Tried(*key, runs[0], log_p, score)
            self.trainer.report(
                f"{n_components} components, strength {strength:g}: held-out log p {score:.4f}"
            )
        return self.tried[key]

    def best_size(self, strength: float, sizes: Iterable[int]) -> Tried:
        """The best of the sizes, which are tried until several in a row have not helped."""
        best: Tried | None = None
        misses = 0
        for n_components in sizes:
            tried = self.attempt(n_components, strength)
            if best is None or tried.score > best.score:
                best, misses = tried, 0
            else:
                misses += 1
                if misses == MISSES:
                    break
        if best is None:
            raise ValueError("sizes must not be empty")
        return best

    def best_strength(self, sizes: Iterable[int]) -> Tried:
        """Sizes under stronger priors as long as that helps, else the best one under weaker."""
        best = self.best_size(STRENGTH, sizes)
        for factor in (STRENGTH_FACTOR, 1 / STRENGTH_FACTOR):
            strength = STRENGTH * factor
            while 1 / MAX_STRENGTH <= strength <= MAX_STRENGTH:
                tried = self.best_size(strength, sizes if factor > 1 else [best.n_components])
                if tried.score <= best.score:
                    break
                best = tried
                strength *= factor
            if best.strength > STRENGTH:
                break
        return best

    def guarded(self, best: Tried) -> Tried:
        """The best, unless one component is as good within a standard error."""
        single = self.attempt(1, best.strength)
        gain = best.held_out - single.held_out
        error = gain.std() / np.sqrt(len(gain))
        return best if gain.mean() > error else single


def split(rows: Rows, fraction: float) -> tuple[Rows, Rows]:
    """Rows to train on, and the last of them, held out."""
    cut = len(rows) - max(1, round(fraction * len(rows)))
    return rows[:cut], rows[cut:]


def folds_of(rows: Rows, fraction: float) -> list[tuple[Rows, Rows]]:
    """(rows to train on, rows held out): one pair, or of a small table several."""
    if len(rows) >= FEW_ROWS:
        return [split(rows, fraction)]
    number = np.arange(len(rows)) % FOLDS
    return [
        (rows[np.flatnonzero(number != fold)], rows[np.flatnonzero(number == fold)])
        for fold in range(FOLDS)
    ]


def sizes_for(n_rows: int) -> list[int]:
    """1, 2, 4, ... as far as there are rows for them."""
    sizes = [1]
    while 2 * sizes[-1] <= min(MAX_COMPONENTS, n_rows // ROWS_PER_COMPONENT):
        sizes.append(2 * sizes[-1])
    return sizes
