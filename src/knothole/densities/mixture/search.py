"""The size of a mixture, its prior's strength and its families, by held-out log p."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from knothole.arrays import Floats
from knothole.densities.emissions import with_continuous
from knothole.densities.emissions.choice import prefers_histogram
from knothole.densities.emissions.packed import pack
from knothole.densities.mixture.em import Run, log_densities
from knothole.densities.mixture.training import (
    FIRST_ROWS,
    SHORT,
    Rows,
    Settings,
    Table,
    Trainer,
    prepare,
)
from knothole.densities.selection.held_out import SURE, mean_and_error

# Fewer rows than this cannot spare any to be held out.
TOO_FEW_TO_HOLD_OUT = 20
# Below so many rows, several folds are held out in turn.
FEW_ROWS = 3000
FOLDS = 3
# Where rows have fewer holes than this, those held out are given this many.
HARDLY_ANY_HOLES = 0.1
HELD_OUT_HOLES = 0.3
# Sizes are tried in doubling order until this many in a row have not helped.
MISSES = 2
MAX_COMPONENTS = 128
# A component needs so many complete rows on average, or as many pairs of values, to be tried.
ROWS_PER_COMPONENT = 5
# Gain per row at which a single component stops, and its most steps.
TOL_OF_ONE = 1e-10
MAX_ITER_OF_ONE = 500
# The strength of the prior to begin with, and the factor between those tried.
STRENGTH = 1.0
STRENGTH_FACTOR = 10.0
MAX_STRENGTH = 100.0
# With more rows than this for each component, the strength makes no difference.
MANY_ROWS = 1000
# Families are compared with a component for so many rows, at most so many components, on this
# part of the rows, if there are enough; another than Gaussians must gain this much per column.
COMPARED_ROWS = 100
COMPARED_WITH = 32
COMPARED_ON = 0.25
TOO_FEW_TO_COMPARE = 300
COMPARED_GAIN = 0.01


def learn(
    table: Table,
    settings: Settings,
    components: int | Literal["auto"],
    strength: float | Literal["auto"],
    fraction: float,
) -> tuple[Run, float]:
    """The run to keep, and the strength of its prior.

    ``fraction`` of the rows are held out: to stop in time, and to choose what is "auto".
    """
    sizes = sizes_for(table) if components == "auto" else [components]
    if sizes[-1] == 1 or fraction == 0 or len(table) < TOO_FEW_TO_HOLD_OUT:
        return learn_plainly(table, settings, sizes[0], strength)
    chosen = choose_families(table, settings)
    own = settings
    settings = replace(settings, families={**chosen, **settings.families})
    trainer = prepare(table, settings)
    whole = split(trainer, fraction)
    few_rows = len(table) < MANY_ROWS * sizes[-1]
    if len(sizes) == 1 and not (strength == "auto" and few_rows):
        given = STRENGTH if strength == "auto" else strength
        run = trainer.fit(sizes[0], given, whole.rows, whole.held)
        return trainer.refined(run, given), given
    folds = folds_of(table, settings) if len(table) < FEW_ROWS else [whole]
    search = Search(folds, settings.report)
    if strength == "auto" and few_rows:
        search.try_strengths(sizes)
    else:
        search.try_sizes(STRENGTH if strength == "auto" else strength, sizes)
    best = search.simplest()
    if best.n_components == 1:
        return learn_plainly(table, own, 1, best.strength)
    if len(folds) == 1:
        return trainer.refined(best.runs[0], best.strength), best.strength
    # One training must come to what those of all folds came to: it has all their starts.
    settings = replace(settings, n_init=FOLDS * settings.n_init)
    if sizes[0] == 1 and not confirmed(best, table, settings, own):
        return learn_plainly(table, own, 1, STRENGTH)
    # What the folds learned is in the terms of their own rows: train again on all.
    trainer = replace(trainer, settings=settings)
    run = trainer.fit(best.n_components, best.strength, trainer.rows, max_iter=best.steps)
    return replace(run, converged=all(each.converged for each in best.runs)), best.strength


def confirmed(best: Tried, table: Table, settings: Settings, own: Settings) -> bool:
    """Whether what was chosen beats independent variables on folds that had no say in it.

    The best of many looks better than it is, and another training may come to less. So it is
    trained as it will be, with nothing left to choose, on other folds; ``own`` are the settings
    of independent variables, each with the family that fits it alone.
    """
    shuffled = np.random.default_rng(settings.seed).permutation(table.order)
    gains, weights = [], []
    for train, held in parts_of(replace(table, order=shuffled)):
        trainer = prepare(train, settings)
        run = trainer.fit(best.n_components, best.strength, trainer.rows, max_iter=best.steps)
        alone = prepare(train, with_families_alone(train, own))
        apart = learn_one(alone, STRENGTH)
        rows, rows_alone = held_out(trainer, held), held_out(alone, held)
        gains.append(
            log_densities(rows.packed, run.components)
            - log_densities(rows_alone.packed, apart.components)
        )
        weights.append(rows.weight)
    gain, error = mean_and_error(np.concatenate(gains), np.concatenate(weights))
    settings.report(f"on other folds: {gain:+.4f}, standard error {error:.4f}")
    return gain > SURE * error


def learn_plainly(
    table: Table, settings: Settings, n_components: int, strength: float | Literal["auto"]
) -> tuple[Run, float]:
    """With nothing held out."""
    given = STRENGTH if strength == "auto" else strength
    if n_components == 1:
        return learn_one(prepare(table, with_families_alone(table, settings)), given), given
    trainer = prepare(table, settings)
    return trainer.fit(n_components, given, trainer.rows), given


def learn_one(trainer: Trainer, strength: float) -> Run:
    """A single component, to its only maximum. It takes steps only where sets are known."""
    tight = replace(trainer.settings, tol=TOL_OF_ONE)
    run = replace(trainer, settings=tight).fit(1, strength, trainer.rows, max_iter=MAX_ITER_OF_ONE)
    gain = run.objective[-1] - run.objective[-2:][0]
    return replace(run, converged=gain < trainer.settings.tol * trainer.rows.weight.sum())


def sizes_for(table: Table) -> list[int]:
    """1, 2, 4, ... as far as there are rows for them.

    Components are learned from what variables say together, so a row counts by the part of the
    pairs of its variables that it has.
    """
    points = table.evidence.points
    known = points.shape[1] - np.isnan(points).sum(axis=1)[table.order]
    pairs = max(1, points.shape[1] * (points.shape[1] - 1))
    worth = float((known * (known - 1)).sum()) / pairs
    sizes = [1]
    while 2 * sizes[-1] <= min(MAX_COMPONENTS, worth / ROWS_PER_COMPONENT):
        sizes.append(2 * sizes[-1])
    return sizes


# ---- rows held out ------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Fold:
    """Rows to train on, with what their training needs, and rows held out."""

    trainer: Trainer
    rows: Rows
    held: Rows


def split(trainer: Trainer, fraction: float) -> Fold:
    """The last of the rows held out. Marginals have seen them; many rows make up for it."""
    cut = len(trainer.rows) - max(1, round(fraction * len(trainer.rows)))
    return Fold(trainer, trainer.rows[:cut], held_out(trainer, trainer.table[cut:]))


def folds_of(table: Table, settings: Settings) -> list[Fold]:
    """Each part of the rows held out once, from marginals too."""
    folds = []
    for train, held in parts_of(table):
        trainer = prepare(train, settings)
        folds.append(Fold(trainer, trainer.rows, held_out(trainer, held)))
    return folds


def parts_of(table: Table) -> Iterator[tuple[Table, Table]]:
    """Rows to train on and rows to hold out, for each fold."""
    for part in range(FOLDS):
        out = np.arange(len(table)) % FOLDS == part
        yield table[~out], table[out]


def held_out(trainer: Trainer, table: Table) -> Rows:
    """Rows to score: with holes as they are, or, if there are hardly any, some at random.

    What a density is for is rows with holes; how it does on complete ones says less.
    """
    held = table.evidence[table.order]
    own = [v for v, variable in enumerate(table.variables) if variable.columns]
    whole = held.allowed is None and np.isnan(held.points[:, own]).mean() < HARDLY_ANY_HOLES
    if whole and trainer.settings.may_mask:
        points = held.points.copy()
        for v in own:
            # By name, so that the order of columns does not matter.
            name = zlib.crc32(table.variables[v].name.encode())
            rng = np.random.default_rng([trainer.settings.seed, name])
            points[rng.random(len(points)) < HELD_OUT_HOLES, v] = np.nan
        held = replace(held, points=points)
    return Rows(pack(trainer.emissions, held), table.weight[table.order], np.empty(0))


# ---- families -----------------------------------------------------------------------------------


def continuous_families(table: Table, family: str) -> dict[str, str]:
    """The same family for all continuous variables, beside point masses where there are some."""
    few = table[:FIRST_ROWS]
    named = {
        variable.name: with_continuous(family, variable, few.evidence.points[few.order, v])
        for v, variable in enumerate(table.variables)
    }
    return {name: family for name, family in named.items() if family is not None}


def families_alone(table: Table) -> dict[str, str]:
    """The family that fits each continuous variable on its own."""
    gaussian = continuous_families(table, "gaussian")
    histogram = continuous_families(table, "histogram")
    few = table[:FIRST_ROWS]
    return {
        variable.name: histogram[variable.name]
        if prefers_histogram(few.evidence.points[few.order, v])
        else gaussian[variable.name]
        for v, variable in enumerate(table.variables)
        if variable.name in gaussian
    }


def with_families_alone(table: Table, settings: Settings) -> Settings:
    """Settings for independent variables."""
    return replace(settings, families={**families_alone(table), **settings.families})


def choose_families(table: Table, settings: Settings) -> dict[str, str]:
    """Families of the continuous variables, by held-out log p.

    A Gaussian follows neighbouring columns closely, a histogram follows the shape of its own:
    which one counts depends on all columns together. So a small mixture is trained with each,
    and with whichever fits each column alone.
    """
    table = table[:FIRST_ROWS]
    options = [continuous_families(table, family) for family in ("gaussian", "histogram")]
    options.append(families_alone(table))
    own = settings.families
    options = [{n: family for n, family in option.items() if n not in own} for option in options]
    distinct = [option for i, option in enumerate(options) if option not in options[:i]]
    if len(distinct) == 1 or len(table) < TOO_FEW_TO_COMPARE:
        return distinct[0]
    size = max(2, min(COMPARED_WITH, len(table) // COMPARED_ROWS))
    scores = []
    for option in distinct:
        quick = replace(settings, families={**own, **option}, n_init=1)
        fold = split(prepare(table, quick), COMPARED_ON)
        run = fold.trainer.fit(size, STRENGTH, fold.rows, fold.held, max_iter=SHORT)
        scores.append(fold.held.score(run.components))
        settings.report(f"{sorted(set(option.values()))}: held-out log p {scores[-1]:.4f}")
    # More components, as there may be in the end, help Gaussians more: others must be better.
    for number in range(1, len(scores)):
        scores[number] -= COMPARED_GAIN * len(distinct[0])
    return distinct[int(np.argmax(scores))]


# ---- sizes and strengths ------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Tried:
    """One size and strength: the runs of the folds, and log p of all rows held out."""

    n_components: int
    strength: float
    runs: list[Run]
    held_out: Floats
    weight: Floats
    score: float

    @property
    def steps(self) -> int:
        """How many steps of EM did best, on average."""
        return max(1, round(np.mean([run.steps for run in self.runs])))


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
            self.tried[key] = Tried(*key, runs, held_out, weight, score)
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

        A single component, which cannot overfit, within :data:`SURE` of them.
        """
        best = self.best
        ordered = sorted(self.tried.values(), key=lambda t: (t.n_components, -t.strength))
        for tried in ordered:
            loss, error = mean_and_error(best.held_out - tried.held_out, best.weight)
            if loss <= (SURE * error if tried.n_components == 1 else error):
                return tried
        return best
