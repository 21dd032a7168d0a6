"""Find the leaves with the least expected loss: tree by tree, all at once, or by boosting.

Exactly where the density allows it, from sums gathered in chunks of rows; otherwise by draws.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats
from knothole.columns.evidence import Evidence
from knothole.errors import InvalidInput
from knothole.expectation.expectation import Expectation
from knothole.leaves import draws
from knothole.leaves.draws import DrawnLeaves
from knothole.leaves.losses import Location
from knothole.leaves.options import RefitOptions, RefitSummary
from knothole.leaves.problem import Problem
from knothole.leaves.sums import (
    LeafSums,
    LeafSystem,
    Summands,
    gathered_in_parts,
    probabilities_by_tree,
)
from knothole.out_of_core.partitions import Partitions
from knothole.progress import bar
from knothole.trees.ensemble import some_trees

# Pairs of leaves are integrated exactly up to this number of rows times pairs of trees, and up to
# this number of leaves of trees that serve the same outputs.
EXACT_WORK, EXACT_LEAVES = 2_000_000, 4096
# Leaves are estimates: a relative increase of the expected loss by less than this is ignored.
NO_RISE = 1e-3


class Solution(NamedTuple):
    """Theta of all leaves, the learning rate of each tree (trees,), and a summary."""

    theta: Floats
    rates: Floats
    summary: RefitSummary


def solve(
    problem: Problem,
    expectation: Expectation,
    evidence: Evidence,
    options: RefitOptions,
    rates: tuple[float, ...],
    everything: Partitions | None = None,
) -> Solution:
    """Find the leaves with the least expected loss, by the method of the options (not "auto").

    ``rates`` are learning rates for boosting, tried one after the other until the loss does not
    increase. ``everything`` has the summands of all rows if those in memory are only a sample.
    """
    squared = problem.loss.name == "squared error"
    if options.method == "tree" and isinstance(problem.loss, Location) and everything is None:
        return _leaf_by_leaf(problem, expectation, evidence, options)
    if options.method == "tree" and squared and (expectation.exact or everything is None):
        return _by_sums(problem, expectation, evidence, options, everything)
    pairs = everything is not None or _few_pairs(problem)
    if options.method != "tree" and squared and expectation.exact and pairs:
        return _by_systems(problem, expectation, evidence, options, rates, everything)
    if everything is None:
        return _by_draws(problem, expectation, evidence, options, rates)
    raise InvalidInput(
        f"X: tables in parts are refitted by sums, which method={options.method!r} under the "
        f"{problem.loss.name} and this density does not come to. Refit on a sample of the rows in "
        f"memory; for squared errors use a Mixture or LatentTree."
    )


def _few_pairs(problem: Problem) -> bool:
    groups, counts = problem.groups(), np.diff(problem.ensemble.leaf_start)
    pairs = sum(len(trees) ** 2 for trees in groups)
    leaves = max(int(counts[trees].sum()) for trees in groups)
    return leaves <= EXACT_LEAVES and pairs * len(problem.y) <= EXACT_WORK


# ---- each tree by itself (Prop. 2) -----------------------------------------------------------


def _by_sums(
    problem: Problem,
    expectation: Expectation,
    evidence: Evidence,
    options: RefitOptions,
    everything: Partitions | None,
) -> Solution:
    """Prop. 2 from sums; if they are drawn, the loss is measured on draws that took no part."""
    y, weight, threads = problem.y - problem.offset, problem.row_weight, options.threads
    ridge = float(options.ridge)
    fresh: list[LeafSums] = []
    if everything is not None:
        sums = gathered_in_parts(LeafSums, everything, expectation)
    else:
        with bar("leaf probabilities of rows", len(y), verbose=options.verbose) as advance:
            if expectation.exact:
                rows = Summands(evidence, y, weight)
                sums = LeafSums.gathered(expectation.engine, rows, threads, advance)
            else:
                drawn, other = _drawn_twice(expectation, evidence, weight, options)
                sums = drawn.sums(y, weight)
                fresh = [other.sums(y, weight, group) for group in range(other.n_groups)]
    change, old = sums.solve(ridge), _tree_values(problem)
    if ridge == 0:
        change[sums.unreached] = old[sums.unreached]
    losses = [
        [problem.tree_loss(part, value) for value in (old, change)] for part in fresh or [sums]
    ]
    return _solution_of_trees(problem, change, sums.unreached, np.array(losses), not fresh)


def _leaf_by_leaf(
    problem: Problem, expectation: Expectation, evidence: Evidence, options: RefitOptions
) -> Solution:
    """The best value of each leaf under a loss whose best constant is not the mean.

    A leaf minimises sum_n w_n r_n(leaf) loss(y_n - v) over v: the weighted quantile of its rows, or
    the point where the derivative of a Huber loss is 0. That takes all rows of a leaf at once, so
    it cannot be gathered in chunks.
    """
    ensemble, ridge = problem.ensemble, float(options.ridge)
    change, rest = _tree_values(problem), problem.y - problem.offset
    reached, losses = np.zeros(len(change)), []
    with bar("refitting trees", ensemble.n_trees, verbose=options.verbose) as advance:
        for tree, entries, fresh in _entries_by_tree(problem, expectation, evidence, options):
            leaves = slice(*ensemble.leaf_start[tree : tree + 2].tolist())
            output, width = int(ensemble.tree_output[tree]), change.shape[1]
            loss = problem.loss.part(output, width)
            assert isinstance(loss, Location)
            left, old = rest[:, output : output + width], change[leaves].copy()
            leaf, row, weight = entries
            reached[leaves] = np.bincount(leaf, weight, len(old))
            best = loss.by_leaf(leaf, left[row], weight, len(old), ridge)
            if ridge == 0:
                best[reached[leaves] <= 0] = old[reached[leaves] <= 0]
            change[leaves] = best
            losses.append(
                [_losses(loss, value, left, tree, entries, fresh) for value in (old, best)]
            )
            advance()
    total = np.moveaxis(np.array(losses), 1, 2) / problem.row_weight.sum()
    combined = problem.combined(total)
    unreached = np.flatnonzero(reached <= 0)
    return _solution_of_trees(problem, change, unreached, combined, expectation.exact)


Entries = tuple[NDArray[Any], NDArray[Any], Floats]  # leaf (in its tree), row and weight of each


def _entries_by_tree(
    problem: Problem, expectation: Expectation, evidence: Evidence, options: RefitOptions
) -> Iterator[tuple[int, Entries, DrawnLeaves | None]]:
    """Weighted entries of each tree's leaves, and fresh draws if entries are drawn."""
    if expectation.exact:
        for tree, matrix in probabilities_by_tree(expectation, evidence, options.threads):
            flat = matrix.tocoo()
            weight = problem.row_weight[flat.row] * flat.data
            yield tree, (flat.col, flat.row, weight), None
        return
    drawn, other = _drawn_twice(expectation, evidence, problem.row_weight, options)
    for tree in range(problem.ensemble.n_trees):
        yield tree, (drawn.leaf[tree], drawn.row, drawn.weight), other


def _losses(
    loss: Location,
    value: Floats,
    rest: Floats,
    tree: int,
    entries: Entries,
    fresh: DrawnLeaves | None,
) -> Floats:
    """Expected loss if a tree predicts by itself, summed over rows; one number, or one a group."""
    if fresh is None:
        leaf, row, weight = entries
        return np.array([weight @ loss.value(value[leaf], rest[row])]) * loss.factor
    each = loss.value(value[fresh.leaf[tree]], rest[fresh.row])
    return fresh.group_sums(each) * loss.factor


def _solution_of_trees(
    problem: Problem,
    change: Floats,
    unreached: NDArray[np.intp],
    losses: Floats,
    exact: bool,
) -> Solution:
    """The solution if each tree predicts y by itself, ``change`` above its start.

    ``losses``: mean loss with the old and with the new leaves, (1 or groups of draws, 2).
    """
    summary = RefitSummary(
        method="tree",
        loss="cross-entropy" if problem.probabilities else problem.loss.name,
        before=float(losses[:, 0].mean()),
        after=float(losses[:, 1].mean()),
        error=standard_error(losses[:, 1]),
        exact=exact,
        unreached=unreached,
    )
    theta = problem.leaf_start + problem.tree_unit * change
    return Solution(theta, np.ones(problem.ensemble.n_trees), summary)


def _tree_values(problem: Problem) -> Floats:
    """Predictions of each tree's old leaves by themselves, minus their start."""
    return np.asarray((problem.theta - problem.leaf_start) / problem.tree_unit)


def _drawn_twice(
    expectation: Expectation, evidence: Evidence, weight: Floats, options: RefitOptions
) -> tuple[DrawnLeaves, DrawnLeaves]:
    """Draws to learn from, and other draws to measure losses on."""
    engine, threads = expectation.monte_carlo, options.threads
    drawn = DrawnLeaves(engine, evidence, weight, threads=threads)
    return drawn, DrawnLeaves(engine, evidence, weight, draws.WORDS, threads=threads)


# ---- whole models (Props. 3 and 4) -----------------------------------------------------------


def _by_systems(
    problem: Problem,
    expectation: Expectation,
    evidence: Evidence,
    options: RefitOptions,
    rates: tuple[float, ...],
    everything: Partitions | None,
) -> Solution:
    """Exact solution: one linear system for each group of trees that serve the same outputs."""
    rows = Summands(evidence, problem.y - problem.offset, problem.row_weight)
    start, ridge = problem.leaf_start, float(options.ridge)
    theta, reached = np.empty_like(start), np.empty(len(start))
    rate, groups = np.ones(problem.ensemble.n_trees), problem.groups()
    before = after = problem.unserved_loss
    with bar(
        "leaf probabilities of rows", len(rows) * len(groups), verbose=options.verbose
    ) as advance:
        for trees in groups:
            part, leaves = some_trees(problem.ensemble, trees)
            exact = Expectation.of(part, expectation.density, "exact")
            if everything is not None:
                system = gathered_in_parts(LeafSystem, everything, exact)
            else:
                system = LeafSystem.gathered(exact.engine, rows, options.threads, advance)
            old = problem.theta[leaves] - start[leaves]
            if options.method == "boosting":

                def boosted(rate: float) -> tuple[Floats, float]:
                    theta = system.solve_in_turn(part.leaf_start, ridge, rate)  # noqa: B023
                    return theta, system.loss(theta)  # noqa: B023

                change, rate[trees] = _without_a_rise(boosted, lambda: system.loss(old), rates)  # noqa: B023
            else:
                change = system.solve(ridge)
            theta[leaves], reached[leaves] = start[leaves] + change, system.weight
            unit = problem.loss.scale**2 / float(system.total[0])
            before += system.loss(old) * unit
            after += system.loss(change) * unit
    summary = RefitSummary(
        method=options.method,
        loss=problem.loss.name,
        before=before,
        after=after,
        exact=True,
        unreached=np.flatnonzero(reached <= 0),
        learning_rate=float(rate.max()),
    )
    return Solution(theta, rate, summary)


def _by_draws(
    problem: Problem,
    expectation: Expectation,
    evidence: Evidence,
    options: RefitOptions,
    rates: tuple[float, ...],
) -> Solution:
    """Solution by draws; the expected loss is measured on draws that took no part."""
    engine, weight, threads = expectation.monte_carlo, problem.row_weight, options.threads
    ridge, n_trees, rate = float(options.ridge), problem.ensemble.n_trees, 1.0
    with bar("leaf probabilities of rows", len(weight), verbose=options.verbose) as advance:
        drawn = DrawnLeaves(engine, evidence, weight, threads=threads, advance=advance)
    if options.method == "boosting":

        def boosted(rate: float) -> tuple[Floats, float]:
            with bar("refitting trees", n_trees, verbose=options.verbose) as advance:
                return draws.boosting(problem, drawn, ridge, rate, advance)

        theta, rate = _without_a_rise(
            boosted, lambda: draws.expected_loss(problem, drawn, problem.theta), rates
        )
    else:
        theta = draws.forest(problem, drawn, ridge)
    before = after = np.array([np.nan])
    if options.objective == "expected":  # otherwise the deployed loss is reported
        other = DrawnLeaves(engine, evidence, weight, draws.WORDS, threads)
        before, after = (
            draws.loss_by_group(problem, other, each) * problem.loss.factor / weight.sum()
            for each in (problem.theta, theta)
        )
    summary = RefitSummary(
        method=options.method,
        loss=problem.loss.name,
        before=float(before.mean()),
        after=float(after.mean()),
        error=standard_error(after),
        exact=False,
        unreached=drawn.unreached,
        learning_rate=rate,
    )
    return Solution(theta, np.full(n_trees, rate), summary)


def _without_a_rise(
    solved: Callable[[float], tuple[Floats, float]],
    old_loss: Callable[[], float],
    rates: tuple[float, ...],
) -> tuple[Floats, float]:
    """Theta and rate, for the first learning rate that does not increase the loss.

    If larger rates stop reducing it, the last rate that did. ``solved`` returns theta and its loss.
    A rate given by the caller is not compared with the old leaves.
    """
    (theta, loss), best = solved(rates[0]), rates[0]
    enough = old_loss() * (1 + NO_RISE) if len(rates) > 1 else np.inf
    for rate in rates[1:]:
        if loss <= enough:
            break
        other, other_loss = solved(rate)
        if other_loss > loss:
            break
        theta, loss, best = other, other_loss, rate
    return theta, best


def standard_error(values: Floats) -> float:
    """Standard error of the mean of independent values; 0 for a single value."""
    if len(values) < 2 or not np.isfinite(values).all():
        return 0.0 if len(values) < 2 else float("nan")
    return float(values.std(ddof=1) / np.sqrt(len(values)))
