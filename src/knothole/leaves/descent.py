"""Leaves from completions: the forest system for any loss, and boosting tree by tree.

The draws are fixed, so the expected loss is a plain sum, convex in theta. All leaves at once
(Prop. 3): the loss is bounded by a quadratic with the curvature c, and theta goes to its minimum,

    (c M + lambda I) step = -gradient,

again and again; for the squared error the bound is the loss, and one step arrives. Tree by tree
(Prop. 4): each tree takes a Newton step given the trees before it, which for the squared error is
the formula of the proposition and on complete rows what boosting libraries do; for quantiles its
leaves go to the quantiles of what the trees before it leave of y, as libraries' do, too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats
from knothole.leaves.draw_matrix import DRAWS, Chunk, DrawMatrix
from knothole.leaves.losses.base import Location
from knothole.leaves.losses.pinball import Pinball
from knothole.leaves.problem import Problem
from knothole.leaves.sums import LeafSums
from knothole.leaves.system import Symmetric
from knothole.progress import Advance, silent

Solve = Callable[[Floats], Floats]

# Groups of more leaves than this are solved by conjugate gradients, without the matrix.
DENSE_LEAVES = 4096
# Conjugate gradients stop when the last few products together have lowered the objective by less
# than this part of what all of them have, when the residual is rounding, or after so many.
CG_GAIN = 1e-5
CG_LAST = 8
CG_RESIDUAL = 1e-11
CG_PRODUCTS = 1000
# Steps on a bound stop when one gains less than this part of the objective, or after so many.
GAIN = 1e-6
STEPS = 200
# A rise of the objective by less than this part of it is rounding.
ROUNDING = 1e-12


@dataclass(frozen=True, eq=False)
class Descent:
    """Where a descent arrived, (leaves, width), and how systems were solved on the way.

    ``objective`` is the expected loss, plus half the ridge times |theta - start|^2, before and
    after each step.
    """

    theta: Floats
    objective: Floats
    solver: str


def forest(problem: Problem, drawn: DrawMatrix, ridge: float, dense: int = DENSE_LEAVES) -> Descent:
    """All leaves at once (Prop. 3)."""
    start = problem.leaf_start
    one_step = problem.loss.name == "squared error"
    theta = start if one_step else problem.theta
    solver = dense_solver if fits(problem, dense) else free_solver
    solve, name = solver(problem, drawn, ridge)

    def objective_at(theta: Floats) -> tuple[float, Floats]:
        value, gradient = evaluate(problem, drawn, theta)
        pull = theta - start
        return value + 0.5 * ridge * float((pull**2).sum()), gradient + ridge * pull

    value, gradient = objective_at(theta)
    values = [value]
    for _ in range(1 if one_step else STEPS):
        trial = theta + solve(-gradient)
        value, gradient = objective_at(trial)
        if value > values[-1] + ROUNDING * abs(values[-1]):
            break
        theta = trial
        values.append(value)
        if values[-2] - values[-1] <= GAIN * abs(values[-2]):
            break
    return Descent(theta, np.array(values), name)


def evaluate(problem: Problem, drawn: DrawMatrix, theta: Floats) -> tuple[float, Floats]:
    """Expected loss at theta, summed over rows, and its gradient (leaves, width)."""
    base, loss = problem.ensemble.base[:, None], problem.loss
    n_leaves = len(theta)

    def work(chunk: Chunk, out: Floats) -> None:
        margin = base + drawn.margins(chunk, theta)
        y = problem.y[chunk.rows, :, None]
        drawn.gather(chunk, loss.derivatives(margin, y)[0], out[:n_leaves])
        out[n_leaves] += problem.row_weight[chunk.rows] @ loss.value(margin, y).mean(axis=1)

    found = drawn.total(work, (n_leaves + 1, theta.shape[1]))
    return float(found[n_leaves, 0]), found[:n_leaves]


def fits(problem: Problem, dense: int) -> bool:
    """Whether every group's system is small enough for a matrix."""
    counts = np.diff(problem.ensemble.leaf_start)
    return max(int(counts[trees].sum()) for trees in problem.groups()) <= dense


def dense_solver(problem: Problem, drawn: DrawMatrix, ridge: float) -> tuple[Solve, str]:
    """Solves with c M + lambda I of each group of trees, factored once; and how it does."""
    tree, systems = problem.ensemble.leaf_tree, []
    for trees in problem.groups():
        leaves = np.flatnonzero(np.isin(tree, trees))
        pairs = problem.loss.curvature * drawn.pairs(leaves)
        systems.append((leaves, Symmetric(pairs, ridge)))

    def solve(right: Floats) -> Floats:
        out = np.zeros_like(right)
        for leaves, system in systems:
            out[leaves] = system.solve(right[leaves])
        return out

    definite = all(system.definite for _, system in systems)
    return solve, "Cholesky" if definite else "eigenvectors"


def free_solver(problem: Problem, drawn: DrawMatrix, ridge: float) -> tuple[Solve, str]:
    """The same without the matrices."""
    curvature = problem.loss.curvature
    # Without a ridge the solution of least norm is wanted, which a scaling would change.
    diagonal = (curvature * drawn.weight() + ridge)[:, None]
    scale = 1 / np.sqrt(diagonal) if ridge > 0 else np.ones_like(diagonal)

    def product(vector: Floats) -> Floats:
        theta = scale * vector
        return np.asarray(scale * (curvature * drawn.apply(theta) + ridge * theta))

    def solve(right: Floats) -> Floats:
        return np.asarray(scale * conjugate_gradients(product, scale * right))

    return solve, "conjugate gradients"


def conjugate_gradients(product: Callable[[Floats], Floats], right: Floats) -> Floats:
    """Solve a symmetric positive semidefinite system of which only products are known.

    Each step lowers the quadratic whose minimum is sought. The solution has the least norm where
    the system is singular, because the steps begin at 0.
    """
    found, residual = np.zeros_like(right), right.copy()
    direction, square = residual.copy(), float((right**2).sum())
    least = CG_RESIDUAL**2 * square
    gains: list[float] = []
    while square > least and len(gains) < CG_PRODUCTS:
        image = product(direction)
        step = square / float((direction * image).sum())
        found += step * direction
        residual -= step * image
        gains.append(step * square)
        if len(gains) > CG_LAST and sum(gains[-CG_LAST:]) <= CG_GAIN * sum(gains):
            break
        previous, square = square, float((residual**2).sum())
        direction = residual + square / previous * direction
    return found


def boosting(
    problem: Problem,
    drawn: DrawMatrix,
    ridge: float,
    learning_rate: float,
    advance: Advance = silent,
) -> Descent:
    """Each tree given the ones before it (Prop. 4), all of them from their start."""
    ensemble, turn = problem.ensemble, Turn(problem, drawn)
    theta, squared = problem.leaf_start, problem.loss.name == "squared error"
    values = [turn.value()]
    for tree in range(ensemble.n_trees):
        leaves = slice(*ensemble.leaf_start[tree : tree + 2])
        step = np.zeros_like(theta)
        if isinstance(problem.loss, Pinball):
            step[leaves] = learning_rate * turn.best(tree, problem.loss, ridge)
            turn.add(tree, step)
        else:
            gradient, hessian, weight = turn.derivatives(tree)
            step[leaves] = learning_rate * _newton(gradient, hessian, ridge)[leaves]
            turn.add(tree, step)
            if not squared and turn.value() > values[-1]:
                turn.add(tree, -step)
                bound = _newton(gradient, problem.loss.curvature * weight, ridge)
                step[leaves] = learning_rate * bound[leaves]
                turn.add(tree, step)
        theta = theta + step
        if squared:  # what a step gains is known: no draw is in two leaves of a tree
            values.append(values[-1] + float((step * (gradient + 0.5 * hessian * step)).sum()))
        else:
            values.append(turn.value())
        advance()
    return Descent(theta, np.array(values), "tree by tree")


def _newton(gradient: Floats, hessian: Floats, ridge: float) -> Floats:
    """The step of each leaf by itself; 0 where no row comes and there is no ridge."""
    total = hessian + ridge
    return np.asarray(-gradient / np.where(total > 0, total, 1.0))


class Turn:
    """The margins of all draws, while trees are added to them one after the other."""

    def __init__(self, problem: Problem, drawn: DrawMatrix) -> None:
        self.problem, self.drawn = problem, drawn
        offset = problem.offset[:, None]
        self.margins: list[Floats] = drawn.map(
            lambda chunk: np.repeat(np.repeat(offset[None], len(chunk.bits.stop), 0), DRAWS, 2)
        )

    def value(self) -> float:
        """Expected loss, summed over rows."""
        problem = self.problem

        def work(chunk: Chunk, out: Floats) -> None:
            value = problem.loss.value(self.margins[chunk.index], problem.y[chunk.rows, :, None])
            out += problem.row_weight[chunk.rows] @ value.mean(axis=1)

        return float(self.drawn.total(work, ()))

    def derivatives(self, tree: int) -> tuple[Floats, Floats, Floats]:
        """Gradient and second derivative of a tree's leaves, and their reach, summed over rows.

        Only what is asked of the one tree is right.
        """
        problem, trees = self.problem, slice(tree, tree + 1)
        shape = problem.ensemble.value.shape
        if problem.loss.name == "squared error":
            sums = self.sums
            weight = np.repeat(sums.weight[:, None], shape[1], axis=1)

            def gather(chunk: Chunk, out: Floats) -> None:
                own = self.drawn.of_tree(chunk, tree)
                self.drawn.gather(own, self.margins[chunk.index], out, trees)

            return self.drawn.total(gather, shape) - sums.target, weight, weight

        def work(chunk: Chunk, out: Floats) -> None:
            y = problem.y[chunk.rows, :, None]
            first, second = problem.loss.derivatives(self.margins[chunk.index], y)
            own = self.drawn.of_tree(chunk, tree)
            self.drawn.gather(own, first, out[0], trees)
            self.drawn.gather(own, second, out[1], trees)
            self.drawn.gather(own, np.ones_like(first), out[2], trees)

        gradient, hessian, weight = self.drawn.total(work, (3, *shape))
        return gradient, hessian, weight

    @cached_property
    def sums(self) -> LeafSums:
        """Reach of all leaves, and reach times target."""
        return self.drawn.sums(self.problem.y)[0]

    def best(self, tree: int, loss: Location, ridge: float) -> Floats:
        """The best values of a tree's leaves given the trees before it, (leaves, width).

        All draws are sorted by leaf: some 30 bytes a draw for a while.
        """
        problem, ensemble = self.problem, self.problem.ensemble
        output, width = ensemble.tree_output[tree], ensemble.value.shape[1]

        def work(chunk: Chunk) -> tuple[NDArray[np.int32], Floats, Floats]:
            margin = self.margins[chunk.index][:, output : output + width]
            rest = problem.y[chunk.rows, output : output + width, None] - margin
            weight = np.repeat(problem.row_weight[chunk.rows], DRAWS)
            leaf = self.drawn.leaves(chunk, tree).ravel()
            return leaf, np.moveaxis(rest, 1, 2).reshape(-1, width), weight

        found = zip(*self.drawn.map(work), strict=True)
        leaf, rest, weight = (np.concatenate(each) for each in found)
        n_leaves = int(np.diff(ensemble.leaf_start)[tree])
        # The weight of a row is shared by its draws.
        share = DRAWS * self.drawn.words
        return loss.part(output, width).by_leaf(leaf, rest, weight / share, n_leaves, ridge)

    def add(self, tree: int, step: Floats) -> None:
        """Move a tree's leaves."""

        def work(chunk: Chunk) -> None:
            own = self.drawn.of_tree(chunk, tree)
            self.drawn.add_margins(own, step, self.margins[chunk.index], slice(tree, tree + 1))

        self.drawn.map(work)
