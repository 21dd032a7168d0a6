"""Training a mixture of products: several starts, held-out stopping, the choice of its size."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from knothole.columns import Evidence, Kind, Variable
from knothole.densities.em import Components, Run, log_densities, train
from knothole.densities.leaves import start_leaf, with_continuous
from knothole.densities.leaves.base import Floats, Leaf
from knothole.densities.leaves.choice import prefers_histogram
from knothole.densities.mixture_start import comparable, start
from knothole.densities.packed_rows import Packed, pack

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
# Where rows have fewer holes than this, those held out are given this many.
HARDLY_ANY_HOLES = 0.1
HELD_OUT_HOLES = 0.3
# Sizes are tried in doubling order until this many in a row have not helped.
MISSES = 2
MAX_COMPONENTS = 128
# A component needs so many rows on average to be worth trying.
ROWS_PER_COMPONENT = 5
# The strength of the prior to begin with, and the factor between those tried.
STRENGTH = 1.0
STRENGTH_FACTOR = 10.0
MAX_STRENGTH = 100.0
# Families are compared with a component for so many rows, at most so many components, on this
# part of the rows, if there are enough.
COMPARED_ROWS = 100
COMPARED_WITH = 32
COMPARED_ON = 0.25
COMPARED_GAIN = 0.01
TOO_FEW_TO_COMPARE = 300
# With more rows than this for each component, the strength makes no difference.
MANY_ROWS = 1000


@dataclass(frozen=True)
class Settings:
    """How to train, whatever the rows.

    ``may_mask`` allows to make holes in rows held out: not where holes themselves are variables.
    """

    families: Mapping[str, str]
    max_iter: int
    tol: float
    n_init: int
    seed: int
    may_mask: bool
    report: Callable[[str], None]


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows to learn from: encoded, their weights, and the first of them on one scale."""

    packed: Packed
    weight: Floats
    value: Floats

    def __len__(self) -> int:
        return len(self.packed)

    def __getitem__(self, rows: slice) -> Rows:
        return Rows(self.packed[rows], self.weight[rows], self.value[rows])

    def score(self, components: Components) -> float:
        """Weighted mean of log p."""
        return float(np.average(log_densities(self.packed, components), weights=self.weight))


@dataclass(frozen=True, eq=False)
class Trainer:
    """Everything that training needs but the size of the mixture and the prior's strength.

    Attributes
    ----------
    rows : Rows
        In random order.
    leaves : tuple of Leaf
        With one state: the marginals, on which priors are centred.
    variables : sequence of Variable
    """

    rows: Rows
    leaves: tuple[Leaf, ...]
    variables: Sequence[Variable]
    settings: Settings

    def fit(
        self,
        n_components: int,
        strength: float,
        rows: Rows,
        held: Rows | None = None,
        max_iter: int | None = None,
    ) -> Run:
        """The best of several starts, trained on more and more of the rows."""
        few = rows[:FIRST_ROWS]
        starts = range(self.settings.n_init if n_components > 1 else 1)
        runs = [self._short_run(n_components, strength, few, number) for number in starts]
        components = max(runs, key=lambda run: float(run.objective[-1])).components
        size = FIRST_ROWS * GROWTH
        while size < len(rows):
            components = self._train(rows[:size], components, strength, SHORT).components
            size *= GROWTH
        steps = self.settings.max_iter if max_iter is None else max_iter
        return self._train(rows, components, strength, steps, None if held is None else held.score)

    def refined(self, run: Run, strength: float) -> Run:
        """A few more steps on all rows; what is told of the training stays."""
        again = self._train(self.rows, run.components, strength, REFINE)
        return Run(again.components, run.objective, run.steps, run.converged)

    def _short_run(self, n_components: int, strength: float, few: Rows, number: int) -> Run:
        rng = np.random.default_rng([self.settings.seed, n_components, number])
        category = np.array([v.kind is Kind.CATEGORICAL for v in self.variables], dtype=np.bool_)
        components = start(
            few.packed, few.weight, few.value, category, self.leaves, n_components, strength, rng
        )
        return self._train(few, components, strength, SHORT)

    def _train(
        self,
        rows: Rows,
        components: Components,
        strength: float,
        max_iter: int,
        score: Callable[[Components], float] | None = None,
    ) -> Run:
        tol = self.settings.tol
        return train(rows.packed, rows.weight, components, strength, max_iter, tol, score)


def prepare(
    variables: Sequence[Variable],
    evidence: Evidence,
    weight: Floats,
    order: NDArray[np.intp],
    settings: Settings,
) -> Trainer:
    """A trainer for the rows that ``order`` names."""
    chosen = np.zeros(len(weight))
    chosen[order] = weight[order]
    leaves = tuple(
        start_leaf(variable, evidence.points[:, v], chosen, 1, settings.families.get(variable.name))
        for v, variable in enumerate(variables)
    )
    value = comparable(evidence.points[order[:FIRST_ROWS]], variables)
    rows = Rows(pack(leaves, evidence, order), weight[order], value)
    return Trainer(rows, leaves, variables, settings)


@dataclass(frozen=True, eq=False)
class Fold:
    """Rows to train on, with what their training needs, and rows held out."""

    trainer: Trainer
    rows: Rows
    held: Rows


def split(
    trainer: Trainer,
    evidence: Evidence,
    weight: Floats,
    order: NDArray[np.intp],
    fraction: float,
) -> Fold:
    """The last of the rows held out. Marginals have seen them; many rows make up for it."""
    cut = len(order) - max(1, round(fraction * len(order)))
    held = held_out(trainer, evidence, weight, order[cut:])
    return Fold(trainer, trainer.rows[:cut], held)


def folds_of(
    variables: Sequence[Variable],
    evidence: Evidence,
    weight: Floats,
    order: NDArray[np.intp],
    settings: Settings,
) -> list[Fold]:
    """Each part of the rows held out once, marginals included."""
    folds = []
    for part in range(FOLDS):
        out = np.arange(len(order)) % FOLDS == part
        trainer = prepare(variables, evidence, weight, order[~out], settings)
        held = held_out(trainer, evidence, weight, order[out])
        folds.append(Fold(trainer, trainer.rows, held))
    return folds


def held_out(trainer: Trainer, evidence: Evidence, weight: Floats, rows: NDArray[np.intp]) -> Rows:
    """Rows to score: with holes as they are, or, if there are hardly any, some at random.

    What a density is for is rows with holes; how it does on complete ones says less.
    """
    held = evidence[rows]
    own = [v for v, variable in enumerate(trainer.variables) if variable.columns]
    whole = held.allowed is None and np.isnan(held.points[:, own]).mean() < HARDLY_ANY_HOLES
    if whole and trainer.settings.may_mask:
        points = held.points.copy()
        for v in own:
            # By name, so that the order of columns does not matter.
            name = zlib.crc32(trainer.variables[v].name.encode())
            rng = np.random.default_rng([trainer.settings.seed, name])
            points[rng.random(len(points)) < HELD_OUT_HOLES, v] = np.nan
        held = replace(held, points=points)
    return Rows(pack(trainer.leaves, held), weight[rows], np.empty(0))


def choose_families(
    variables: Sequence[Variable],
    evidence: Evidence,
    weight: Floats,
    order: NDArray[np.intp],
    settings: Settings,
    n_components: int,
) -> dict[str, str]:
    """Families of the continuous variables that none is named for, by held-out log p.

    A Gaussian follows neighbouring columns closely, a histogram follows the shape of its own:
    which one counts depends on all columns together. So a small mixture is trained with each,
    and with whichever fits each column alone.
    """
    few = order[:FIRST_ROWS]
    options: list[dict[str, str]] = [{}, {}, {}]
    for v, variable in enumerate(variables):
        x = evidence.points[few, v]
        gaussian = with_continuous("gaussian", variable, x)
        histogram = with_continuous("histogram", variable, x)
        if gaussian is None or histogram is None or variable.name in settings.families:
            continue
        alone = histogram if prefers_histogram(x) else gaussian
        for option, family in zip(options, (gaussian, histogram, alone), strict=True):
            option[variable.name] = family
    if n_components == 1:
        return options[2]
    distinct = [option for i, option in enumerate(options) if option not in options[:i]]
    if len(distinct) == 1 or len(few) < TOO_FEW_TO_COMPARE:
        return distinct[0]
    size = max(2, min(n_components, COMPARED_WITH, len(few) // COMPARED_ROWS))
    scores = []
    for option in distinct:
        families = {**settings.families, **option}
        quick = replace(settings, families=families, n_init=1)
        trainer = prepare(variables, evidence, weight, few, quick)
        fold = split(trainer, evidence, weight, few, COMPARED_ON)
        run = fold.trainer.fit(size, STRENGTH, fold.rows, fold.held, max_iter=SHORT)
        scores.append(fold.held.score(run.components))
        settings.report(f"{sorted(set(option.values()))}: held-out log p {scores[-1]:.4f}")
    # More components, as there may be in the end, help Gaussians more: others must be better.
    for number in range(1, len(scores)):
        scores[number] -= COMPARED_GAIN * len(distinct[0])
    return distinct[int(np.argmax(scores))]


@dataclass(frozen=True, eq=False)
class Tried:
    """One size and strength: the runs of the folds, and log p of all rows held out."""

    n_components: int
    strength: float
    runs: list[Run]
    held_out: Floats
    score: float


class Search:
    """Sizes and strengths by held-out score; each is tried once."""

    def __init__(self, folds: Sequence[Fold], report: Callable[[str], None]) -> None:
        self.folds = folds
        self.report = report
        self.tried: dict[tuple[int, float], Tried] = {}

    def attempt(self, n_components: int, strength: float) -> Tried:
        """Train on each fold's rows, score those it holds out."""
        key = (n_components, strength)
        if key not in self.tried:
            runs = [fold.trainer.fit(*key, fold.rows, fold.held) for fold in self.folds]
            pairs = zip(self.folds, runs, strict=True)
            log_p = [log_densities(fold.held.packed, run.components) for fold, run in pairs]
            held_out = np.concatenate(log_p)
            weight = np.concatenate([fold.held.weight for fold in self.folds])
            score = float(np.average(held_out, weights=weight))
            self.tried[key] = Tried(*key, runs, held_out, score)
            self.report(
                f"{n_components} components, strength {strength:g}: held-out log p {score:.4f}"
            )
        return self.tried[key]

    def try_sizes(self, strength: float, sizes: Iterable[int]) -> float:
        """The best score of the sizes, tried until several in a row have not helped."""
        best, misses = -np.inf, 0
        for n_components in sizes:
            score = self.attempt(n_components, strength).score
            misses = 0 if score > best else misses + 1
            best = max(best, score)
            if misses == MISSES:
                break
        return best

    def try_strengths(self, sizes: Sequence[int]) -> None:
        """Stronger priors as long as they help; else weaker ones for the best size."""
        best = self.try_sizes(STRENGTH, sizes)
        strength = STRENGTH * STRENGTH_FACTOR
        # A single component is the prior's centre, whatever its strength.
        larger = [size for size in sizes if size > 1]
        while strength <= MAX_STRENGTH and self.try_sizes(strength, larger) > best:
            best = self.best.score
            strength *= STRENGTH_FACTOR
        if self.best.strength == STRENGTH and self.best.n_components > 1:
            self.attempt(self.best.n_components, STRENGTH / STRENGTH_FACTOR)

    @property
    def best(self) -> Tried:
        """What had the best score."""
        return max(self.tried.values(), key=lambda tried: tried.score)

    def simplest(self) -> Tried:
        """The smallest (with the strongest prior) that is as good within a standard error.

        A single component, which cannot overfit, within two: the best is the best of many.
        """
        best = self.best
        ordered = sorted(self.tried.values(), key=lambda t: (t.n_components, -t.strength))
        for tried in ordered:
            loss = best.held_out - tried.held_out
            error = loss.std() / np.sqrt(len(loss))
            if loss.mean() <= (2 * error if tried.n_components == 1 else error):
                return tried
        return best


def sizes_for(n_rows: int) -> list[int]:
    """1, 2, 4, ... as far as there are rows for them."""
    sizes = [1]
    while 2 * sizes[-1] <= min(MAX_COMPONENTS, n_rows // ROWS_PER_COMPONENT):
        sizes.append(2 * sizes[-1])
    return sizes
