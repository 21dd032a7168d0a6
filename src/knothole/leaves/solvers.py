"""Solve a problem: tree by tree, all leaves at once, or each tree after the others.

Exactly where the density allows, from sums and systems that are gathered in chunks of rows; by
completions otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats
from knothole.columns.evidence import Evidence
from knothole.compiled.sobol import GROUPS
from knothole.errors import InvalidInput
from knothole.expectation.expectation import Expectation
from knothole.leaves import descent, leafwise
from knothole.leaves.conditioning import Conditioned, TrainingTable
from knothole.leaves.defaults import Settings
from knothole.leaves.draw_matrix import DRAWS, Chunk, DrawMatrix
from knothole.leaves.in_parts import leaf_sums, leaf_system
from knothole.leaves.leafwise import LeafFit, reach_of_trees
from knothole.leaves.losses.base import Location
from knothole.leaves.problem import Problem
from knothole.leaves.sums import LeafSums, Summands
from knothole.leaves.system import LeafSystem
from knothole.out_of_core.partitions import Partitions
from knothole.progress import Advance, bar, silent
from knothole.trees.ensemble import Ensemble, some_trees

T = TypeVar("T")

# Pair reach is exact by default up to so many rows times pairs of trees.
EXACT_WORK = 2_000_000
# Leaves are known only so well: a rise of the expected loss by less than this part does not count.
NO_RISE = 1e-3


@dataclass(frozen=True, eq=False, kw_only=True)
class TuningSummary:
    """What tuning did.

    Attributes
    ----------
    method : {"tree", "forest", "boosting"}
    loss : {"squared error", "cross-entropy", "log loss", "pinball loss", "Huber loss", \
"pseudo-Huber loss"}
        The pinball loss of a median is half the absolute error.
    before, after : float
        The loss of a row, of the old and the new leaves, without the ridge: that of expected
        predictions where the ``objective`` is "deployed"; otherwise the expected loss
        under the density, of the whole model or (mean over trees) of each by itself. The deployed
        error of old leaves on the rows that they were trained on may be the lower one. Without a
        ridge "tree" and "forest" never raise the expected loss (a ridge may: what they minimise
        is the loss and the ridge together). "boosting" may, above all at a learning rate that was
        given, because it does not go on from the old leaves: each tree is fitted anew, given only
        those before it, and is not looked at again.
    error : float
        Standard error of ``after``, 0 where it is exact: from draws that took no part, or from
        the standard errors of the deployed predictions.
    exact : bool
        Whether holes were integrated exactly all the way, not by completions.
    unreached : int array
        Leaves that no row reaches. They keep their value if the ridge is 0.
    conditioned : {"none", "given", "labels", "values", "scores"}
        How the density knew y: not at all; the density passed in had a target; as classes; as
        values; as normal scores.
    samples : {"whole table", "bootstrap samples"}
        Rows that trees and their densities were given.
    solver : str
        How systems of equations were solved.
    steps : int
        Steps of the solver that each lower the expected loss (1 for closed forms).
    learning_rate : float
        Part of its best values that each tree took on, the largest if outputs differ; always 1
        except for "boosting".
    objective : {"expected", "deployed"}
        Which loss was lowered in the end.
    moved : int
        Trees whose leaves have moved on from the least expected loss.
    """

    method: str
    loss: str
    before: float
    after: float
    error: float = 0.0
    exact: bool
    unreached: NDArray[np.intp] = field(repr=False)
    conditioned: str = "none"
    samples: str = "whole table"
    solver: str
    steps: int = 1
    learning_rate: float = 1.0
    objective: str = "expected"
    moved: int = 0


@dataclass(frozen=True, eq=False)
class Solution:
    """Theta of all leaves, the learning rates of the trees (trees,), and how they were found."""

    theta: Floats
    rates: Floats
    summary: TuningSummary

    @classmethod
    def of(cls, settings: Settings, theta: Floats, rates: Floats, **found: Any) -> Solution:
        """A solution; ``found`` is the rest of its summary."""
        rate = float(rates.max())
        summary = TuningSummary(method=settings.method, learning_rate=rate, **found)
        return cls(theta, rates, summary)


def solve(
    problem: Problem,
    expectation: Expectation,
    evidence: Evidence,
    settings: Settings,
    everything: Partitions | None = None,
) -> Solution:
    """The leaves with the least expected loss, by the method of the settings.

    ``everything`` has the summands of all rows, where those in memory are a sample of them.
    """
    if settings.method == "tree":
        closed = expectation.exact and not isinstance(problem.loss, Location)
        if closed or everything is None:
            return _by_tree(problem, expectation, evidence, settings, everything)
    elif _pairs_exactly(problem, expectation, settings):
        return _by_systems(problem, expectation, evidence, settings, everything)
    if everything is None:
        return _by_draws(problem, expectation, evidence, settings)
    raise InvalidInput(
        f"X: tables in parts are tuned by sums, which method={settings.method!r} under the "
        f"{problem.loss.name} and this density does not come to. Tune on a sample of the rows in "
        f"memory; for squared errors use a Mixture or LatentTree and reach='exact'."
    )


# ---- one tree (Prop. 2) ----------------------------------------------------------------------


def _by_tree(
    problem: Problem,
    expectation: Expectation,
    evidence: Evidence,
    settings: Settings,
    everything: Partitions | None,
) -> Solution:
    """Each tree by itself (Prop. 2)."""
    if isinstance(problem.loss, Location):
        with bar("trees", problem.ensemble.n_trees, verbose=settings.options.verbose) as advance:
            weight, ensemble = problem.row_weight, problem.ensemble
            reach = reach_of_trees(ensemble, expectation, evidence, weight, settings)
            return _fitted(problem, leafwise.fit(problem, reach, settings.ridge, advance), settings)
    if everything is not None:
        return _trees_solved(problem, leaf_sums(everything, expectation), [], settings)
    rows = Summands(evidence, problem.y - problem.offset, problem.row_weight)
    with bar("rows", len(rows), verbose=settings.options.verbose) as advance:
        sums, fresh = _sums(expectation, rows, settings, advance)
    return _trees_solved(problem, sums, fresh, settings)


def by_sample(
    problem: Problem,
    known: Conditioned,
    training: TrainingTable,
    matrix: Floats,
    counts: NDArray[np.integer[Any]],
    settings: Settings,
) -> Solution:
    """Each tree by itself, on its own sample and under a density learned there."""
    y, holes = problem.y - problem.offset, settings.options.holes

    def samples() -> Iterator[tuple[Ensemble, Expectation, NDArray[np.intp], Summands]]:
        for tree, count in enumerate(counts):
            weight = count * problem.row_weight
            density = replace(training, weight=weight).fit(known.density, known.target)
            own = some_trees(problem.ensemble, np.array([tree]))[0]
            expectation = settings.expectation(own, density)
            drawn = np.flatnonzero(weight)
            evidence = expectation.evidence_of(
                matrix[drawn],
                holes if isinstance(holes, str) else holes[drawn],
                None if known.target is None else known.target[drawn],
            )
            yield own, expectation, drawn, Summands(evidence, y[drawn], weight[drawn])

    def reaches() -> Iterator[leafwise.TreeReach]:
        for tree, (own, expectation, drawn, rows) in enumerate(samples()):
            (found,) = reach_of_trees(own, expectation, rows.evidence, rows.weight, settings)
            yield replace(found, tree=tree, rows=drawn)

    with bar("trees", len(counts), verbose=settings.options.verbose) as advance:
        if isinstance(problem.loss, Location):
            found = leafwise.fit(problem, reaches(), settings.ridge, advance)
            return _fitted(problem, found, settings)
        parts: list[LeafSums] = []
        fresh: list[list[LeafSums]] = []
        for _, expectation, _, rows in samples():
            sums, others = _sums(expectation, rows, settings)
            parts.append(sums)
            fresh.append(others)
            advance()
    joined = [LeafSums.of_trees(group) for group in zip(*fresh, strict=True)]
    return _trees_solved(problem, LeafSums.of_trees(parts), joined, settings)


def _sums(
    expectation: Expectation, rows: Summands, settings: Settings, advance: Advance = silent
) -> tuple[LeafSums, list[LeafSums]]:
    """Sums of the rows and, where they come from completions, sums of groups of other draws."""
    threads = settings.options.threads
    if expectation.exact:
        empty = LeafSums.empty(expectation.ensemble)
        return empty.accumulate(expectation.engine, rows, threads, advance), []
    engine, words = expectation.completions, settings.options.draws // DRAWS
    drawn = DrawMatrix(engine, rows.evidence, rows.weight, words, threads=threads)
    other = DrawMatrix(engine, rows.evidence, rows.weight, first_word=words, threads=threads)
    return drawn.sums(rows.y)[0], other.sums(rows.y, GROUPS)


def _trees_solved(
    problem: Problem, sums: LeafSums, fresh: list[LeafSums], settings: Settings
) -> Solution:
    """Leaves from their sums, and what each tree's loss was and is."""
    change = sums.solve(settings.ridge)
    old = (problem.theta - problem.leaf_start) / problem.tree_unit
    if settings.ridge == 0:
        change[sums.unreached] = old[sums.unreached]
    before, after = (
        np.array([problem.tree_loss(part, value) for part in fresh or [sums]])
        for value in (old, change)
    )
    return _fitted(problem, LeafFit(change, sums.unreached, before, after, not fresh), settings)


def _fitted(problem: Problem, found: LeafFit, settings: Settings) -> Solution:
    """The solution with the best leaves of each tree by itself."""
    return Solution.of(
        settings,
        problem.leaf_start + problem.tree_unit * found.change,
        np.ones(problem.ensemble.n_trees),
        unreached=found.unreached,
        loss="cross-entropy" if problem.probabilities else problem.loss.name,
        before=float(found.before.mean()),
        after=float(found.after.mean()),
        error=_standard_error(found.after),
        exact=found.exact,
        solver="closed form",
    )


# ---- whole models (Props. 3 and 4) -----------------------------------------------------------


def _pairs_exactly(problem: Problem, expectation: Expectation, settings: Settings) -> bool:
    """Whether to integrate over pairs of trees exactly; refuses where that was asked in vain."""
    squared, reach = problem.loss.name == "squared error", settings.options.reach
    if reach == "exact":
        if not squared:
            raise InvalidInput(
                f"reach='exact': the expected {problem.loss.name} has no closed form; use "
                f"'completions'."
            )
        return True
    if reach == "completions" or not (squared and expectation.exact):
        return False
    pairs = sum(len(trees) ** 2 for trees in problem.groups())
    small = descent.fits(problem, descent.DENSE_LEAVES)
    return small and pairs * len(problem.y) <= EXACT_WORK


def _by_systems(
    problem: Problem,
    expectation: Expectation,
    evidence: Evidence,
    settings: Settings,
    everything: Partitions | None,
) -> Solution:
    """Exactly: one system of equations for each group of trees that serve the same outputs."""
    rows = Summands(evidence, problem.y - problem.offset, problem.row_weight)
    start, scale = problem.leaf_start, problem.loss.scale
    theta, reached = np.empty_like(start), np.empty(len(start))
    before = after = 0.0
    rates = np.ones(problem.ensemble.n_trees)
    groups, given, total = problem.groups(), settings.options, 1.0
    with bar("rows", len(rows) * len(groups), verbose=given.verbose) as advance:
        for trees in groups:
            part, leaves = some_trees(problem.ensemble, trees)
            own, threads = Expectation.of(part, expectation.density, "exact"), given.threads
            if everything is not None:
                system = leaf_system(everything, own)
            else:
                system = LeafSystem.empty(part).accumulate(own.engine, rows, threads, advance)
            old = problem.theta[leaves] - start[leaves]
            if settings.in_turn:
                change, rates[trees] = _without_a_rise(
                    lambda rate: system.solve_in_turn(settings.ridge, rate),  # noqa: B023
                    system.loss, lambda: system.loss(old), settings,  # noqa: B023
                )  # fmt: skip
            else:
                change = system.solve(settings.ridge)
            theta[leaves], reached[leaves] = start[leaves] + change, system.sums.weight
            total = float(system.sums.total[0])
            before += system.loss(old) * scale**2
            after += system.loss(change) * scale**2
    rest = problem.unserved_loss
    return Solution.of(
        settings,
        theta,
        rates,
        unreached=np.flatnonzero(reached <= 0),
        loss=problem.loss.name,
        before=before / total + rest,
        after=after / total + rest,
        exact=True,
        solver="tree by tree" if settings.in_turn else "matrix",
    )


def _by_draws(
    problem: Problem, expectation: Expectation, evidence: Evidence, settings: Settings
) -> Solution:
    """By completions; the expected loss is measured on draws that took no part."""
    engine, weight, given = expectation.completions, problem.row_weight, settings.options
    words, n_trees = given.draws // DRAWS, problem.ensemble.n_trees
    with bar("rows", len(weight) * words, verbose=given.verbose) as advance:
        drawn = DrawMatrix(engine, evidence, weight, words, threads=given.threads, advance=advance)
    rate = 1.0
    if settings.in_turn:

        def boosted(rate: float) -> descent.Descent:
            with bar("trees", n_trees, verbose=given.verbose) as advance:
                return descent.boosting(problem, drawn, settings.ridge, rate, advance)

        found, rate = _without_a_rise(
            boosted,
            lambda found: found.objective[-1],
            lambda: descent.evaluate(problem, drawn, problem.theta)[0],
            settings,
        )
    else:
        found = descent.forest(problem, drawn, settings.ridge)
    summary = {"before": np.nan, "after": np.nan}
    if settings.objective == "expected":  # else what is deployed tells its own
        other = DrawMatrix(engine, evidence, weight, first_word=words, threads=given.threads)

        def losses(theta: Floats) -> Floats:
            def work(chunk: Chunk) -> Floats:
                margin = problem.ensemble.base[:, None] + other.margins(chunk, theta)
                return problem.loss.value(margin, problem.y[chunk.rows, :, None])

            return np.asarray(other.mean_by_group(work) * problem.loss.factor / weight.sum())

        before, after = losses(problem.theta), losses(found.theta)
        summary = {"before": float(before.mean()), "after": float(after.mean())}
        summary["error"] = _standard_error(after)
    return Solution.of(
        settings,
        found.theta,
        np.full(n_trees, rate),
        unreached=np.flatnonzero(drawn.weight() <= 0),
        loss=problem.loss.name,
        exact=False,
        solver=found.solver,
        steps=len(found.objective) - 1,
        **summary,
    )


def _without_a_rise(
    solved: Callable[[float], T],
    loss: Callable[[T], float],
    old: Callable[[], float],
    settings: Settings,
) -> tuple[T, float]:
    """What the first learning rate gives that does not raise the loss; and the rate.

    Where larger ones do not lower it any more, what the one before gives. ``old`` is the loss of
    the model's own leaves, which a rate that was given is not compared with.
    """
    best = solved(settings.rates[0]), settings.rates[0]
    enough = old() * (1 + NO_RISE) if len(settings.rates) > 1 else np.inf
    for rate in settings.rates[1:]:
        least = loss(best[0])
        if least <= enough:
            break
        found = solved(rate)
        if loss(found) > least:
            break
        best = found, rate
    return best


def _standard_error(values: Floats) -> float:
    """Standard error of the mean of independent values; 0 for a single, exact one."""
    if len(values) < 2 or not np.isfinite(values).all():
        return 0.0 if len(values) < 2 else float("nan")
    return float(values.std(ddof=1) / np.sqrt(len(values)))
