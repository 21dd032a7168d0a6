"""The expected loss over fixed draws of incomplete rows, and its minimum.

With fixed draws, the expected loss is a weighted sum over them, convex in theta. Tree by tree
(Prop. 4), each tree takes a Newton step given the trees before it. For the squared error that is
the formula of the proposition, and on complete rows it is what boosting libraries do; the leaves of
quantile models are set to quantiles of the residuals of the trees before, as in those libraries.
All leaves at once (Prop. 3) go to the minimum of a quadratic bound, repeatedly; for the squared
error the bound is the loss itself, and one step suffices.

The loss on given draws is minimised exactly. The error due to the draws is estimated on other draws
that took no part.
"""

from __future__ import annotations

from collections.abc import Callable
from tempfile import TemporaryFile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from knothole._core import drawn_leaves as kernels
from knothole.arrays import Floats
from knothole.cached import cached_property
from knothole.columns.evidence import Evidence
from knothole.expectation.monte_carlo.engine import MonteCarloEngine
from knothole.leaves.losses import Pinball
from knothole.leaves.problem import Problem
from knothole.leaves.sums import LeafSums, squares_of, symmetric_solver
from knothole.progress import Advance, silent
from knothole.sobol import GROUPS, SIZE, WORD
from knothole.threads import over_chunks

#: Words of 64 draws for each incomplete row.
WORDS = 1
# Bytes of leaf numbers that are held in memory; larger arrays go to a temporary file.
MEMORY = 1 << 31
# Steps on a bound end when one gains less than this fraction of the objective, or after so many.
GAIN, STEPS = 1e-6, 200
# An increase of the objective by less than this fraction of it is a rounding error.
ROUNDING = 1e-12


class DrawnLeaves:
    """The leaf of every tree that each draw reaches.

    A complete row is one draw with the row's weight; the draws of an incomplete row share its
    weight.

    Parameters
    ----------
    engine : MonteCarloEngine
    evidence : Evidence
        Rows; their missing values are drawn.
    row_weight : float64 (rows,)
    first_word : int
        Different words are independent draws.
    threads : int, optional
    advance : callable, optional
        Called with the number of finished rows.

    Attributes
    ----------
    row : intp (draws,)
        The row of each draw; draws are sorted by row.
    weight : float64 (draws,)
    group : intp (draws,)
        Draws of different groups are independent. Complete rows have group -1.
    leaf : unsigned int (trees, draws)
        The number of the leaf within its tree.
    """

    def __init__(
        self,
        engine: MonteCarloEngine,
        evidence: Evidence,
        row_weight: Floats,
        first_word: int = 0,
        threads: int | None = None,
        advance: Advance = silent,
    ) -> None:
        self.ensemble, self.threads = engine.ensemble, threads
        self.n_groups, start = GROUPS * WORDS, self.ensemble.leaf_start
        n_rows, n_draws = len(evidence.points), WORD * WORDS
        known = ~np.isnan(evidence.points[:, np.flatnonzero(self.ensemble.used)])
        incomplete = np.asarray(~known.all(axis=1))
        count = np.where(incomplete, n_draws, 1)
        first = np.append(0, np.cumsum(count))
        self.row = np.repeat(np.arange(n_rows), count)
        self.weight = (row_weight / count)[self.row]
        self.group = np.full(len(self.row), -1)
        self.group[incomplete[self.row]] = np.tile(np.arange(n_draws) // SIZE, incomplete.sum())
        self.leaf = _array(
            (self.ensemble.n_trees, len(self.row)), np.min_scalar_type(np.diff(start).max())
        )
        self.bounds = [
            (int(first[a]), int(first[min(a + engine.chunk, n_rows)]))
            for a in range(0, n_rows, engine.chunk)
        ]

        def walk(begin: int, end: int) -> None:
            for word in range(WORDS):
                masks = engine.masks(evidence[begin:end], first_word + word)
                at = first[begin:end] + np.where(incomplete[begin:end], word * WORD, 0)
                kernels.place_leaves(*masks, start, at, incomplete[begin:end], self.leaf)
            advance(amount=end - begin)

        over_chunks(walk, n_rows, engine.chunk, threads)

    def by_block(self, work: Callable[[slice], Any]) -> list[Any]:
        """Results of ``work`` for consecutive blocks of draws, in order."""
        blocks = [slice(*bounds) for bounds in self.bounds]
        return over_chunks(lambda i, _: work(blocks[i]), len(blocks), 1, self.threads)

    def total(self, work: Callable[[slice], Any]) -> Any:
        """The sum over blocks of draws, the same for any number of threads."""
        return sum(self.by_block(work))

    def leaves_of(self, tree: int) -> slice:
        """The leaves of a tree, as a slice of all leaves."""
        return slice(*self.ensemble.leaf_start[tree : tree + 2].tolist())

    def outputs_of(self, tree: int) -> slice:
        """The outputs that a tree serves."""
        first = int(self.ensemble.tree_output[tree])
        return slice(first, first + self.ensemble.value.shape[1])

    def margins(self, theta: Floats, draws: slice) -> Floats:
        """Margins of a block without the base, (draws, outputs), given each leaf's contribution."""
        out = np.zeros((draws.stop - draws.start, self.ensemble.n_outputs))
        for tree in range(self.ensemble.n_trees):
            step = theta[self.leaves_of(tree)]
            kernels.add_step(self.leaf[tree, draws], step, self.outputs_of(tree).start, out)
        return out

    def by_leaf(self, tree: int, values: Floats, draws: slice) -> Floats:
        """Weighted values (draws, outputs) of a block, summed by leaf, (leaves, width)."""
        leaves, outputs = self.leaves_of(tree), self.outputs_of(tree)
        out = np.empty((leaves.stop - leaves.start, outputs.stop - outputs.start))
        leaf, values = self.leaf[tree, draws], np.ascontiguousarray(values)
        kernels.sum_by_leaf(leaf, self.weight[draws], values, outputs.start, out)
        return out

    def by_all_leaves(self, values: Floats, draws: slice) -> Floats:
        """The same for all trees, (all leaves, width)."""
        trees = range(self.ensemble.n_trees)
        return np.concatenate([self.by_leaf(tree, values, draws) for tree in trees])

    def sums(self, y: Floats, row_weight: Floats, group: int | None = None) -> LeafSums:
        """The sums of Prop. 2 for targets (rows, outputs), over all draws or over one group."""
        part = np.ones(len(self.row))
        if group is not None:
            part = np.where(self.group < 0, 1.0, self.n_groups * (self.group == group))

        n_outputs = self.ensemble.n_outputs

        def work(draws: slice) -> Floats:
            share = np.repeat(part[draws, None], n_outputs, axis=1)
            weight = self.by_all_leaves(share, draws)[:, :1]
            return np.hstack([weight, self.by_all_leaves(share * y[self.row[draws]], draws)])

        found = self.total(work)
        return LeafSums(found[:, 0], found[:, 1:], *squares_of(self.ensemble, y, row_weight))

    def pairs(self, trees: NDArray[np.intp]) -> Floats:
        """M for the leaves of some trees (:mod:`knothole.leaves.sums`); zeros below diagonal."""
        sizes = np.diff(self.ensemble.leaf_start)[trees]
        start = np.append(0, np.cumsum(sizes))
        out = np.zeros((start[-1], start[-1]))

        def work(place: int, _: int) -> None:
            for begin, end in self.bounds:
                weight = self.weight[begin:end]
                kernels.add_pairs(self.leaf, begin, weight, trees, place, start, out)

        over_chunks(work, len(trees), 1, self.threads)
        return out

    @cached_property
    def leaf_weight(self) -> Floats:
        """Weights of all draws summed by leaf, (leaves, width), the same for all outputs."""

        def work(draws: slice) -> Floats:
            ones = np.ones((draws.stop - draws.start, self.ensemble.n_outputs))
            return self.by_all_leaves(ones, draws)

        return np.asarray(self.total(work))

    @property
    def unreached(self) -> NDArray[np.intp]:
        """Leaves that no draw of a row with positive weight reaches."""
        return np.flatnonzero(self.leaf_weight[:, 0] <= 0)

    def group_sums(self, values: Floats) -> Floats:
        """Weighted values of all draws (draws,), summed over the rows by group, (groups,)."""
        weighted = self.weight * values
        mine = self.group >= 0
        sums = np.bincount(self.group[mine], weighted[mine], self.n_groups)
        return np.asarray(weighted[~mine].sum() + self.n_groups * sums)


def _array(shape: tuple[int, int], dtype: Any) -> NDArray[Any]:
    if int(np.prod(shape)) * np.dtype(dtype).itemsize <= MEMORY:
        return np.empty(shape, dtype)
    with TemporaryFile() as file:
        return np.memmap(file, dtype, "w+", shape=shape)


# ---- the expected loss ----------------------------------------------------------------------


def expected_loss(problem: Problem, drawn: DrawnLeaves, theta: Floats) -> float:
    """Expected loss at theta, summed over rows."""

    def work(draws: slice) -> float:
        margin = problem.ensemble.base + drawn.margins(theta, draws)
        return float(drawn.weight[draws] @ problem.loss.value(margin, problem.y[drawn.row[draws]]))

    return float(drawn.total(work))


def loss_by_group(problem: Problem, drawn: DrawnLeaves, theta: Floats) -> Floats:
    """Expected loss at theta by each independent group of draws, (groups,)."""

    def work(draws: slice) -> Floats:
        margin = problem.ensemble.base + drawn.margins(theta, draws)
        return problem.loss.value(margin, problem.y[drawn.row[draws]])

    return drawn.group_sums(np.concatenate(drawn.by_block(work)))


def boosting(
    problem: Problem,
    drawn: DrawnLeaves,
    ridge: float,
    learning_rate: float,
    advance: Advance = silent,
) -> tuple[Floats, float]:
    """Refit each tree given the ones before it (Prop. 4), starting from no trees.

    Returns theta (leaves, width) and the expected loss there, summed over rows.
    """
    loss, y = problem.loss, problem.y[drawn.row]
    margin = np.tile(problem.offset, (len(drawn.row), 1))

    def value() -> float:
        def work(draws: slice) -> float:
            return float(drawn.weight[draws] @ loss.value(margin[draws], y[draws]))

        return float(drawn.total(work))

    def add(tree: int, step: Floats) -> None:
        output = drawn.outputs_of(tree).start

        def work(draws: slice) -> None:
            kernels.add_step(drawn.leaf[tree, draws], step, output, margin[draws])

        drawn.by_block(work)

    def derivatives(tree: int, draws: slice) -> Floats:
        first, second = loss.derivatives(margin[draws], y[draws])
        several = [first, second] if loss.may_overshoot else [first]
        return np.stack([drawn.by_leaf(tree, each, draws) for each in several])

    theta, may_rise = problem.leaf_start.copy(), loss.may_overshoot
    before = value() if may_rise else np.inf
    for tree in range(problem.ensemble.n_trees):
        leaves, outputs = drawn.leaves_of(tree), drawn.outputs_of(tree)
        if isinstance(loss, Pinball):
            rest = y[:, outputs] - margin[:, outputs]
            level = loss.part(outputs.start, rest.shape[1])
            n_leaves = leaves.stop - leaves.start
            step = level.by_leaf(drawn.leaf[tree], rest, drawn.weight, n_leaves, ridge)
            step *= learning_rate
            add(tree, step)
        else:
            weight = drawn.leaf_weight[leaves]
            found = drawn.total(lambda draws: derivatives(tree, draws))  # noqa: B023
            gradient, hessian = found if may_rise else (found[0], weight)
            step = learning_rate * _newton(gradient, hessian, ridge)
            add(tree, step)
            if may_rise and (after := value()) > before:
                bound = learning_rate * _newton(gradient, loss.curvature * weight, ridge)
                add(tree, bound - step)
                step, after = bound, value()
            before = after if may_rise else before
        theta[leaves] += step
        advance()
    return theta, before if may_rise else value()


def _newton(gradient: Floats, hessian: Floats, ridge: float) -> Floats:
    """The step of each leaf on its own; 0 if no row reaches it and there is no ridge."""
    total = hessian + ridge
    return np.asarray(-gradient / np.where(total > 0, total, 1.0))


def forest(problem: Problem, drawn: DrawnLeaves, ridge: float) -> Floats:
    """Theta of all leaves at once (Prop. 3), (leaves, width).

    The loss is bounded by a quadratic with its curvature c. Theta moves to the minimum of the
    bound, (c M + lambda I) step = -gradient, repeatedly.
    """
    start, squared = problem.leaf_start, problem.loss.name == "squared error"
    solvers = []
    for trees in problem.groups():
        leaves = np.flatnonzero(np.isin(problem.ensemble.leaf_tree, trees))
        solver = symmetric_solver(problem.loss.curvature * drawn.pairs(trees), ridge)
        solvers.append((leaves, solver))

    def evaluate(theta: Floats) -> tuple[float, Floats]:
        """The objective and its gradient."""

        def work(draws: slice) -> tuple[float, Floats]:
            margin, y = problem.ensemble.base + drawn.margins(theta, draws), problem.y
            first, _ = problem.loss.derivatives(margin, y[drawn.row[draws]])
            value = problem.loss.value(margin, y[drawn.row[draws]])
            return float(drawn.weight[draws] @ value), drawn.by_all_leaves(first, draws)

        value, gradient = (sum(each) for each in zip(*drawn.by_block(work), strict=True))
        pull = theta - start
        return value + 0.5 * ridge * float((pull**2).sum()), gradient + ridge * pull

    theta = start if squared else problem.theta
    value, gradient = evaluate(theta)
    for _ in range(1 if squared else STEPS):
        trial = theta.copy()
        for leaves, solver in solvers:
            trial[leaves] -= solver(gradient[leaves])
        if squared:
            return trial
        after, gradient = evaluate(trial)
        if after > value + ROUNDING * abs(value):
            break
        theta, gain, value = trial, value - after, after
        if gain <= GAIN * abs(value):
            break
    return theta
