"""Solve a problem: tree by tree, all leaves at once, or each tree after the others.

Exactly where the density allows, from sums and systems that are gathered in blocks of rows; by
completions otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats
from knothole.compiled.sobol import GROUPS
from knothole.densities.base import Density
from knothole.errors import InvalidInput
from knothole.learning import descent
from knothole.learning.conditioning import Conditioned
from knothole.learning.draw_matrix import Block, DrawMatrix
from knothole.learning.problem import Problem
from knothole.learning.sums import LeafSums
from knothole.learning.system import LeafSystem
from knothole.progress import Advance, bar, silent
from knothole.reach.expectation import Expectation
from knothole.tables.evidence import Evidence
from knothole.tables.holes import Holes
from knothole.trees.ensemble import Ensemble
from knothole.trees.subset import some_trees

# Pair reach is exact by default up to so many rows times pairs of trees.
EXACT_WORK = 2_000_000
# A learning rate that leaves the expected loss above the old leaves' is raised by this factor; a
# loss above it by less than this part is not, because leaves are only known so well.
RAISE = 1.25
NO_RISE = 1e-3


@dataclass(frozen=True, eq=False)
class Settings:
    """How to solve; see :func:`knothole.learning.tune.tune`.

    ``raise_rate`` says that the learning rate may be raised until the loss does not rise.
    ``integrate`` is what ``holes="auto"`` stands for, as in
    :meth:`knothole.reach.expectation.Expectation.of`.
    """

    ridge: float
    learning_rate: float = 1.0
    raise_rate: bool = False
    reach: Literal["auto", "exact", "completions"] = "auto"
    words: int = 1
    seed: int = 0
    threads: int | None = None
    verbose: bool = False
    integrate: NDArray[np.bool_] | None = None

    def expectation(self, ensemble: Ensemble, density: Density) -> Expectation:
        """A model under a density."""
        return Expectation.of(
            ensemble, density, self.reach, seed=self.seed, integrate=self.integrate
        )

    def rates(self) -> Iterator[float]:
        """Learning rates to boost with, one after the other until the loss does not rise."""
        rate = self.learning_rate
        yield rate
        while self.raise_rate and rate < 1:
            rate = min(1.0, RAISE * rate)
            yield rate


@dataclass(frozen=True, eq=False)
class Solution:
    """Theta of all leaves, and how it was found; see :class:`knothole.learning.tune.TuningSummary`.

    ``rates`` are the learning rates of the trees, (trees,).
    """

    theta: Floats
    unreached: NDArray[np.intp]
    loss: str
    before: float
    after: float
    error: float
    exact: bool
    solver: str
    steps: int
    rates: Floats
    moved: int = 0


# ---- one tree (Prop. 2) ----------------------------------------------------------------------


def by_tree(
    problem: Problem, expectation: Expectation, evidence: Evidence, settings: Settings
) -> Solution:
    """Each tree by itself (Prop. 2)."""
    y = problem.y - problem.offset
    with bar("rows", len(y), verbose=settings.verbose) as advance:
        sums, fresh = _sums(expectation, evidence, y, problem.row_weight, settings, advance)
    return _trees_solved(problem, sums, fresh, settings.ridge)


def by_sample(
    problem: Problem,
    known: Conditioned,
    matrix: Floats,
    holes: Holes,
    counts: NDArray[np.integer[Any]],
    settings: Settings,
) -> Solution:
    """Each tree by itself, on its own sample and under a density learned there."""
    y = problem.y - problem.offset
    parts: list[LeafSums] = []
    fresh: list[list[LeafSums]] = []
    with bar("trees", len(counts), verbose=settings.verbose) as advance:
        for tree, count in enumerate(counts):
            weight = count * problem.row_weight
            rows = np.flatnonzero(weight)
            own = some_trees(problem.ensemble, np.array([tree]))[0]
            expectation = settings.expectation(own, known.refitted(weight))
            evidence = expectation.evidence_of(
                matrix[rows],
                holes if isinstance(holes, str) else holes[rows],
                None if known.target is None else known.target[rows],
            )
            found = _sums(expectation, evidence, y[rows], weight[rows], settings)
            parts.append(found[0])
            fresh.append(found[1])
            advance()
    joined = [LeafSums.of_trees(group) for group in zip(*fresh, strict=True)]
    return _trees_solved(problem, LeafSums.of_trees(parts), joined, settings.ridge)


def _sums(
    expectation: Expectation,
    evidence: Evidence,
    y: Floats,
    weight: Floats,
    settings: Settings,
    advance: Advance = silent,
) -> tuple[LeafSums, list[LeafSums]]:
    """Sums of the rows and, where they come from completions, sums of groups of other draws."""
    threads = settings.threads
    if expectation.exact:
        sums = LeafSums.empty(expectation.ensemble)
        return sums.accumulate(
            expectation.engine, evidence, y, weight, threads=threads, advance=advance
        ), []
    words = settings.words
    drawn = DrawMatrix(expectation.completions, evidence, weight, words, threads=threads)
    other = DrawMatrix(expectation.completions, evidence, weight, first_word=words, threads=threads)
    return drawn.sums(y)[0], other.sums(y, GROUPS)


def _trees_solved(
    problem: Problem, sums: LeafSums, fresh: list[LeafSums], ridge: float
) -> Solution:
    """Leaves from their sums, and what each tree's loss was and is."""
    unit = problem.tree_unit
    change = sums.solve(ridge)
    old = (problem.theta - problem.leaf_start) / unit
    if ridge == 0:
        change[sums.unreached] = old[sums.unreached]
    after = np.array([problem.tree_loss(part, change) for part in fresh or [sums]])
    before = np.mean([problem.tree_loss(part, old) for part in fresh or [sums]])
    return Solution(
        theta=problem.leaf_start + unit * change,
        unreached=sums.unreached,
        loss="cross-entropy" if problem.probabilities else "squared error",
        before=float(before),
        after=float(after.mean()),
        error=_standard_error(after),
        exact=not fresh,
        solver="closed form",
        steps=1,
        rates=np.ones(problem.ensemble.n_trees),
    )


# ---- whole models (Props. 3 and 4) -----------------------------------------------------------


def forest(
    problem: Problem, expectation: Expectation, evidence: Evidence, settings: Settings
) -> Solution:
    """All leaves at once (Prop. 3)."""
    if _pairs_exactly(problem, expectation, settings):
        return _by_systems(problem, expectation, evidence, settings, in_turn=False)
    drawn = _drawn(problem, expectation, evidence, settings)
    return _by_draws(problem, drawn, descent.forest(problem, drawn, settings.ridge), settings)


def boosting(
    problem: Problem, expectation: Expectation, evidence: Evidence, settings: Settings
) -> Solution:
    """Each tree given the ones before it (Prop. 4)."""
    if _pairs_exactly(problem, expectation, settings):
        return _by_systems(problem, expectation, evidence, settings, in_turn=True)
    drawn = _drawn(problem, expectation, evidence, settings)
    old = descent.evaluate(problem, drawn, problem.theta)[0]
    for rate in settings.rates():
        with bar("trees", problem.ensemble.n_trees, verbose=settings.verbose) as advance:
            found = descent.boosting(problem, drawn, settings.ridge, rate, advance)
        if found.objective[-1] <= old * (1 + NO_RISE):
            break
    solution = _by_draws(problem, drawn, found, settings)
    return replace(solution, rates=np.full(problem.ensemble.n_trees, rate))


def _pairs_exactly(problem: Problem, expectation: Expectation, settings: Settings) -> bool:
    """Whether to integrate over pairs of trees exactly; refuses where that was asked in vain."""
    squared = problem.loss.name == "squared error"
    if settings.reach == "exact":
        if not squared:
            raise InvalidInput(
                "reach='exact': the expected log loss has no closed form; use 'completions'."
            )
        return True
    if settings.reach == "completions" or not (squared and expectation.exact):
        return False
    pairs = sum(len(trees) ** 2 for trees in problem.groups())
    small = descent.fits(problem, descent.DENSE_LEAVES)
    return small and pairs * len(problem.y) <= EXACT_WORK


def _by_systems(
    problem: Problem,
    expectation: Expectation,
    evidence: Evidence,
    settings: Settings,
    *,
    in_turn: bool,
) -> Solution:
    """Exactly: one system of equations for each group of trees that serve the same outputs."""
    y = problem.y - problem.offset
    start, scale = problem.leaf_start, problem.loss.scale
    theta, reached = np.empty_like(start), np.empty(len(start))
    before = after = 0.0
    rates = np.ones(problem.ensemble.n_trees)
    groups = problem.groups()
    with bar("rows", len(y) * len(groups), verbose=settings.verbose) as advance:
        for trees in groups:
            part, leaves = some_trees(problem.ensemble, trees)
            engine = Expectation.of(part, expectation.density, "exact").engine
            system = LeafSystem.empty(part).accumulate(
                engine, evidence, y, problem.row_weight, settings.threads, advance
            )
            old = problem.theta[leaves] - start[leaves]
            if in_turn:
                change, rates[trees] = _in_turn(system, old, settings)
            else:
                change = system.solve(settings.ridge)
            theta[leaves], reached[leaves] = start[leaves] + change, system.sums.weight
            before += system.loss(old) * scale**2
            after += system.loss(change) * scale**2
    total, rest = problem.row_weight.sum(), problem.unserved_loss
    return Solution(
        theta=theta,
        unreached=np.flatnonzero(reached <= 0),
        loss=problem.loss.name,
        before=before / total + rest,
        after=after / total + rest,
        error=0.0,
        exact=True,
        solver="tree by tree" if in_turn else "matrix",
        steps=1,
        rates=rates,
    )


def _in_turn(system: LeafSystem, old: Floats, settings: Settings) -> tuple[Floats, float]:
    """Prop. 4 and the learning rate that it was solved with."""
    most = system.loss(old) * (1 + NO_RISE)
    for rate in settings.rates():
        change = system.solve_in_turn(settings.ridge, rate)
        if system.loss(change) <= most:
            break
    return change, rate


def _drawn(
    problem: Problem, expectation: Expectation, evidence: Evidence, settings: Settings
) -> DrawMatrix:
    engine, weight, words = expectation.completions, problem.row_weight, settings.words
    with bar("rows", len(weight) * words, verbose=settings.verbose) as advance:
        return DrawMatrix(
            engine, evidence, weight, words, threads=settings.threads, advance=advance
        )


def _by_draws(
    problem: Problem, drawn: DrawMatrix, found: descent.Descent, settings: Settings
) -> Solution:
    """A solution on draws, its loss measured on draws that took no part."""
    other = DrawMatrix(
        drawn.engine, drawn.evidence, drawn.row_weight, 1, drawn.words, settings.threads
    )

    def losses(theta: Floats) -> Floats:
        def work(block: Block) -> Floats:
            margin = problem.ensemble.base[:, None] + other.margins(block, theta)
            return problem.loss.value(margin, problem.y[block.rows, :, None])

        total = problem.row_weight.sum()
        return np.asarray(other.mean_by_group(work) * problem.loss.factor / total)

    after = losses(found.theta)
    return Solution(
        theta=found.theta,
        unreached=np.flatnonzero(drawn.weight() <= 0),
        loss=problem.loss.name,
        before=float(losses(problem.theta).mean()),
        after=float(after.mean()),
        error=_standard_error(after),
        exact=False,
        solver=found.solver,
        steps=len(found.objective) - 1,
        rates=np.ones(problem.ensemble.n_trees),
    )


def _standard_error(values: Floats) -> float:
    """Of the mean of independent values; 0 of a single, exact one."""
    if len(values) < 2 or not np.isfinite(values).all():
        return 0.0 if len(values) < 2 else float("nan")
    return float(values.std(ddof=1) / np.sqrt(len(values)))
