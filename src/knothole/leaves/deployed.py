"""Leaves that minimise the error of the deployed predictions.

A row with missing values is answered with the expected prediction, and the squared error of that is
what counts. The expected loss contains more than that:

    E[(y - f(X))^2 | x_o] = (y - E[f(X) | x_o])^2 + Var[f(X) | x_o].

So the leaves that minimise it (Props. 2 and 4) also reduce a variance that does not matter, the
more, the less is observed. Here the leaves are moved on from there. Let theta be the leaves of a
tree that minimise the expected loss, r_n the probabilities of these leaves given row n under the
deployed p(X), and e_n the residual of the model for y_n. The move is the d that minimises

    sum_n w_n (e_n - r_n' d)^2 + lambda |theta + d|^2 + kappa |d|^2,

which with G = sum_n w_n r_n r_n' is

    d = (G + (lambda + kappa) I)^-1 (sum_n w_n e_n r_n - lambda theta).

Kappa, the confidence in theta, is measured in rows of weight (sum w^2) / (sum w). It is chosen by
generalised cross-validation: of a few values, the one with the least squared error over
(1 - tr H / n)^2, where H maps e to r' d and n = (sum w)^2 / (sum w^2) is the effective number of
rows. That takes the same sums only. Not to move at all is one of the choices.

Averaged trees all move by the residual of their average. Trees that are added up move in turn, each
by the residual of the trees before it and its own best values, and take only a part of the move,
their learning rate. On complete rows there is no variance, and a single tree, or trees that were
refitted in turn, do not move.

For a loss other than the squared error, e_n is the step to the minimum of a quadratic: minus the
slope of the loss over its curvature (:meth:`~knothole.leaves.losses.Loss.aim`). For quantiles that
is only nearly right: they do not move at all if every row is complete.

The error decreases relative to theta, for rows like these. The model's old leaves may still have a
lower error on the rows that they were trained on.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from knothole._core import leaf_probabilities as kernels
from knothole.arrays import Floats
from knothole.columns.evidence import Evidence
from knothole.expectation.expectation import Expectation
from knothole.leaves.options import RefitOptions
from knothole.leaves.problem import Problem
from knothole.leaves.solve import Solution
from knothole.leaves.sums import probabilities_by_tree
from knothole.progress import bar
from knothole.threads import summed
from knothole.trees.ensemble import Ensemble

if TYPE_CHECKING:
    from scipy import sparse

# Trees with more leaves do not move: the eigendecomposition of their matrices takes too long.
MOST_LEAVES = 1024
# Smaller leaf probabilities are rounding errors.
ROUNDING = 1e-12
# Values of kappa to choose from, besides infinity.
KAPPAS = np.geomspace(1.0, 1000.0, 7)
# The least rows of a block, and the most blocks, of sums.
BLOCKS = (4096, 8)


@dataclass(frozen=True, eq=False)
class DeployedSums:
    """Sums over rows from which the move of one tree's leaves is computed.

    Attributes
    ----------
    gram : float64 (leaves, leaves)
        G; zeros below the diagonal.
    target : float64 (leaves, width)
        Sum of w_n e_n r_n.
    square : float
        Sum of w_n |e_n|^2.
    weight, weight_square : float
        Sums of w_n and of w_n^2.

    Examples
    --------
    A row that may be in either of two leaves, and a row that is certainly in the second:

    >>> from scipy import sparse
    >>> probability = sparse.csr_matrix([[0.5, 0.5], [0.0, 1.0]])
    >>> sums = DeployedSums.of(probability, np.array([[3.0], [2.0]]), np.ones(2))
    >>> sums.gram.tolist(), sums.target.ravel().tolist()
    ([[0.25, 0.25], [0.0, 1.25]], [1.5, 3.5])
    """

    gram: Floats
    target: Floats
    square: float
    weight: float
    weight_square: float

    @classmethod
    def of(
        cls, probability: sparse.csr_matrix, rest: Floats, row_weight: Floats, first: int = 0
    ) -> DeployedSums:
        """Sums over rows, given e (rows, width) and r (rows, leaves), from row ``first`` on."""
        leaves, square = probability.shape[1], float(row_weight @ (rest**2).sum(axis=1))
        gram, target = np.zeros((leaves, leaves)), np.zeros((leaves, rest.shape[1]))
        places = probability.indptr[first : first + len(rest) + 1].astype(np.int64)
        leaf, rest = probability.indices.astype(np.int32, copy=False), np.ascontiguousarray(rest)
        kernels.add_products(places, leaf, probability.data, rest, row_weight, gram, target)
        return cls(gram, target, square, float(row_weight.sum()), float(row_weight @ row_weight))

    def solve(self, ridge: float, theta: Floats, kappas: Floats = KAPPAS) -> tuple[Floats, float]:
        """The move (leaves, width), and the chosen kappa."""
        best, trust = np.zeros_like(self.target), np.inf
        if self.weight == 0:
            return best, trust
        rows, unit = self.weight**2 / self.weight_square, self.weight_square / self.weight
        values, vectors = np.linalg.eigh(self.gram, UPLO="U")
        values = np.maximum(values, 0.0)
        target = vectors.T @ self.target
        right = target - ridge * (vectors.T @ theta)
        least = self.square
        for kappa in unit * kappas:
            step = right / (values + ridge + kappa)[:, None]
            error = self.square + (step * (values[:, None] * step - 2 * target)).sum()
            freedom = (values / (values + ridge + kappa)).sum() / rows
            score = error / (1 - freedom) ** 2 if freedom < 1 else np.inf
            if score < least:
                best, trust, least = vectors @ step, float(kappa), score
        return best, trust


def can_move(ensemble: Ensemble) -> NDArray[np.bool_]:
    """Which trees have few enough leaves to move, (trees,)."""
    return np.asarray(np.diff(ensemble.leaf_start) <= MOST_LEAVES)


def move(
    solution: Solution,
    problem: Problem,
    expectation: Expectation,
    evidence: Evidence,
    options: RefitOptions,
) -> Solution:
    """Move the leaves of a solution towards the least deployed loss.

    ``expectation`` is the deployed model, under p(X); ``evidence`` does not include the targets.
    The summary gets the deployed loss of the old and of the new leaves.
    """
    ensemble, in_turn = problem.ensemble, options.method == "boosting"
    ridge, threads = float(options.ridge), options.threads
    before, unit = problem.theta, problem.tree_unit
    change = (solution.theta - problem.leaf_start) / unit
    width = change.shape[1]

    def deployed_margin(theta: Floats) -> tuple[Floats, Floats]:
        """Deployed margins (rows, outputs) and their standard errors."""
        return expectation.with_values(problem.values(theta)).margin(evidence, threads=threads)

    old, new = (np.tile(base, (len(problem.y), 1)) for base in (ensemble.base, problem.offset))
    rest = problem.y - (new if in_turn else deployed_margin(solution.theta)[0])
    movable, reached = can_move(ensemble), np.zeros(len(change), dtype=np.bool_)
    n_moved = 0
    with bar(
        "moving trees towards the deployed error", ensemble.n_trees, verbose=options.verbose
    ) as advance:
        for tree, probability in probabilities_by_tree(expectation, evidence, threads):
            leaves = slice(ensemble.leaf_start[tree], ensemble.leaf_start[tree + 1])
            outputs = slice(ensemble.tree_output[tree], ensemble.tree_output[tree] + width)
            rate, added = solution.rates[tree], probability @ change[leaves]
            if movable[tree]:
                left = rest[:, outputs] - (added / rate if in_turn else 0.0)
                aim = problem.loss.part(outputs.start, width).aim(left, problem.row_weight)
                sums = _gathered(probability, aim, problem.row_weight, threads)
                step, kappa = sums.solve(ridge, change[leaves] / rate)
                reached[leaves] = np.diag(sums.gram) > ROUNDING**2 * sums.weight
                if np.isfinite(kappa):
                    n_moved += 1
                    change[leaves] += rate * step
                    added = probability @ change[leaves]
            if in_turn:
                rest[:, outputs] -= added
            old[:, outputs] += probability @ before[leaves]
            new[:, outputs] += added * unit[leaves.start]
            advance()
    theta = problem.leaf_start + unit * change
    margins = (old, np.zeros(1)), (new, np.zeros(1))
    if not expectation.exact:  # draws have standard errors
        margins = deployed_margin(before), deployed_margin(theta)
    (before_error, _), (after, error) = (_mean_loss(problem, *each) for each in margins)
    found = solution.summary
    summary = replace(
        found,
        objective="deployed",
        unreached=found.unreached[~reached[found.unreached]],
        before=before_error,
        after=after,
        error=error,
        exact=expectation.exact and found.exact,
        moved=n_moved,
    )
    return Solution(theta, solution.rates, summary)


def _mean_loss(problem: Problem, margin: Floats, margin_error: Floats) -> tuple[float, float]:
    """Mean loss of deployed predictions, and its standard error from those of the margins."""
    weight, loss = problem.row_weight / problem.row_weight.sum(), problem.loss
    slope = loss.derivatives(margin, problem.y)[0]
    error = float(np.sqrt(((weight[:, None] * slope * margin_error) ** 2).sum()))
    mean = float(weight @ loss.value(margin, problem.y))
    return loss.factor * mean, loss.factor * error


def _gathered(
    probability: sparse.csr_matrix, rest: Floats, row_weight: Floats, threads: int | None
) -> DeployedSums:
    """Sums over all rows."""

    def work(start: int, stop: int) -> DeployedSums:
        rows = slice(start, stop)
        return DeployedSums.of(probability, rest[rows], row_weight[rows], start)

    return summed(work, len(rest), BLOCKS, threads)
