"""Leaves for the error of the predictions that are deployed.

Whoever asks about a row with holes gets the expected prediction, and meets its squared error. The
expected loss is that error and more:

    E[(y - f(X))^2 | x_o] = (y - E[f(X) | x_o])^2 + Var[f(X) | x_o].

So the leaves that minimise it (Props. 2 and 4) also pay for a spread that nobody will see, the more
the less is observed. Here they move on. With theta the leaves of a tree that minimise the expected
loss, r_n the reach of these leaves by row n under the deployed p(X), and e_n what the model leaves
of y_n, the move is the d that minimises

    sum_n w_n (e_n - r_n' d)^2 + lambda |theta + d|^2 + kappa |d|^2,

which with G = sum_n w_n r_n r_n' is

    d = (G + (lambda + kappa) I)^-1 (sum_n w_n e_n r_n - lambda theta).

Kappa is the trust in theta, in rows of weight (sum w^2) / (sum w). It goes by generalised
cross-validation: of a few values, the one with the least squared error over (1 - tr H / n)^2, H
being what takes e to r' d, and n = (sum w)^2 / (sum w^2) how many rows the weights amount to. That
needs no more than the same sums. No move at all is one of the choices.

Trees that are averaged all move by what the average of all of them leaves; trees that are added up
move in turn, each by what those before it and its own best values leave, and take on a part of the
move, their learning rate. On complete rows there is no spread, and a single tree, or trees that
were tuned in turn, do not move.

Under a loss that is not a square, e_n is the step from there to the minimum of a quadratic, minus
the slope of the loss over its curvature (:meth:`~knothole.leaves.losses.base.Loss.aim`). That of
quantiles is nearly right only: they do not move at all where every row is complete.

The error that goes down is that of theta, for rows like these. Nothing is said about the model's
old leaves: their error may well be lower on the rows that they were trained on.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from knothole.arrays import Floats
from knothole.columns.evidence import Evidence
from knothole.compiled.pointers import pointers, shift
from knothole.compiled.policy import njit
from knothole.compiled.threads import summed
from knothole.expectation.expectation import Expectation
from knothole.leaves.defaults import Settings, can_move
from knothole.leaves.leafwise import reach_by_tree
from knothole.leaves.problem import Problem
from knothole.leaves.solvers import Solution
from knothole.progress import bar

# Choices of kappa, beside infinity.
KAPPAS = np.geomspace(1.0, 1000.0, 7)
# The least rows of a block, and the most blocks that sums are gathered in.
BLOCKS = (4096, 8)


@dataclass(frozen=True, eq=False)
class DeployedSums:
    """What a move of one tree's leaves is computed from, summed over rows.

    Attributes
    ----------
    gram : float64 (leaves, leaves)
        G; its upper part, zeros below.
    target : float64 (leaves, width)
        Sum of w_n e_n r_n.
    square : float
        Sum of w_n |e_n|^2.
    weight, weight_square : float
        Sums of w_n and of w_n^2.

    Examples
    --------
    A row that may be in either of two leaves, and one that is known to be in the second:

    >>> reach = sparse.csr_matrix([[0.5, 0.5], [0.0, 1.0]])
    >>> sums = DeployedSums.of(reach, np.array([[3.0], [2.0]]), np.ones(2))
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
        cls, reach: sparse.csr_matrix, rest: Floats, row_weight: Floats, first: int = 0
    ) -> DeployedSums:
        """Sums over rows, given e (rows, width), and reach (rows, leaves) from a first row on."""
        leaves, square = reach.shape[1], float(row_weight @ (rest**2).sum(axis=1))
        gram, target = np.zeros((leaves, leaves)), np.zeros((leaves, rest.shape[1]))
        places = reach.indptr[first : first + len(rest) + 1]
        _add_products(places, reach.indices, reach.data, rest, row_weight, gram, target)
        return cls(gram, target, square, float(row_weight.sum()), float(row_weight @ row_weight))

    def solve(self, ridge: float, theta: Floats, kappas: Floats = KAPPAS) -> tuple[Floats, float]:
        """The move (leaves, width), and the kappa of the choices that it was made with."""
        move, trust = np.zeros_like(self.target), np.inf
        if self.weight == 0:
            return move, trust
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
                move, trust, least = vectors @ step, float(kappa), score
        return move, trust


@dataclass(frozen=True, eq=False)
class Deployed:
    """A problem of squared error as it is deployed: under p(X), its rows without their targets."""

    problem: Problem
    expectation: Expectation
    evidence: Evidence
    settings: Settings

    def moved(self, solution: Solution, counts: NDArray[np.integer[Any]] | None = None) -> Solution:
        """A solution whose leaves have moved, and the deployed error of the old and the new ones.

        ``counts`` (trees, rows) say how often each row is in each tree's own sample.
        """
        problem, ensemble, in_turn = self.problem, self.problem.ensemble, self.settings.in_turn
        before, unit = problem.theta, problem.tree_unit
        change = (solution.theta - problem.leaf_start) / unit
        width = change.shape[1]
        old, new = (np.tile(base, (len(problem.y), 1)) for base in (ensemble.base, problem.offset))
        rest = problem.y - (new if in_turn else self.margin(solution.theta)[0])
        movable, reached = can_move(ensemble), np.zeros(len(change), dtype=np.bool_)
        n_moved = 0
        verbose = self.settings.options.verbose
        with bar("deployed trees", ensemble.n_trees, verbose=verbose) as advance:
            for tree, reach in reach_by_tree(
                ensemble, self.expectation, self.evidence, self.settings
            ):
                leaves = slice(ensemble.leaf_start[tree], ensemble.leaf_start[tree + 1])
                outputs = slice(ensemble.tree_output[tree], ensemble.tree_output[tree] + width)
                rate, added = solution.rates[tree], reach @ change[leaves]
                if movable[tree]:
                    weight = problem.row_weight * (1.0 if counts is None else counts[tree])
                    left = rest[:, outputs] - (added / rate if in_turn else 0.0)
                    aim = problem.loss.part(outputs.start, width).aim(left, weight)
                    sums = _gathered(reach, aim, weight, self.settings.options.threads)
                    move, kappa = sums.solve(self.settings.ridge, change[leaves] / rate)
                    reached[leaves] = np.diag(sums.gram) > 0
                    if np.isfinite(kappa):
                        n_moved += 1
                        change[leaves] += rate * move
                        added = reach @ change[leaves]
                if in_turn:
                    rest[:, outputs] -= added
                old[:, outputs] += reach @ before[leaves]
                new[:, outputs] += added * unit[leaves.start]
                advance()
        theta = problem.leaf_start + unit * change
        margins = (old, np.zeros(1)), (new, np.zeros(1))
        if not self.expectation.exact:  # draws tell how far they may be off
            margins = self.margin(before), self.margin(theta)
        (before_error, _), (after, error) = (self.error(*each) for each in margins)
        found = solution.summary
        summary = replace(
            found,
            objective="deployed",
            unreached=found.unreached[~reached[found.unreached]],
            before=before_error,
            after=after,
            error=error,
            exact=self.expectation.exact and found.exact,
            moved=n_moved,
        )
        return replace(solution, theta=theta, summary=summary)

    def margin(self, theta: Floats) -> tuple[Floats, Floats]:
        """Deployed margins, (rows, outputs), and their standard errors."""
        new = self.expectation.with_values(self.problem.values(theta))
        return new.margin(self.evidence, threads=self.settings.options.threads)

    def error(self, margin: Floats, blur: Floats) -> tuple[float, float]:
        """Mean loss of deployed predictions, given their standard errors, and its own."""
        weight, loss = self.problem.row_weight / self.problem.row_weight.sum(), self.problem.loss
        margins, y = margin[:, :, None], self.problem.y[:, :, None]
        slope = loss.derivatives(margins, y)[0][:, :, 0]
        error = float(np.sqrt(((weight[:, None] * slope * blur) ** 2).sum()))
        mean = float(weight @ loss.value(margins, y)[:, 0])
        return loss.factor * mean, loss.factor * error


def _gathered(
    reach: sparse.csr_matrix, rest: Floats, row_weight: Floats, threads: int | None
) -> DeployedSums:
    """Sums over all rows."""

    def work(start: int, stop: int) -> DeployedSums:
        rows = slice(start, stop)
        return DeployedSums.of(reach, rest[rows], row_weight[rows], start)

    return summed(work, len(rest), BLOCKS, threads)


@njit
def _add_products(first, leaf, reach, rest, row_weight, gram, target):  # type: ignore[no-untyped-def]
    """Add weighted products of reach with itself (upper part) and with e."""
    n_rows, width = rest.shape
    n_leaves = len(gram)
    first_, leaf_, reach_, rest_, weight_ = pointers((first, leaf, reach, rest, row_weight))
    gram_, target_ = pointers((gram, target))
    for row in range(n_rows):
        for i in range(first_[row], first_[row + 1]):
            share, own = weight_[row] * reach_[i], shift(gram_, leaf_[i] * n_leaves)
            for j in range(i, first_[row + 1]):
                own[leaf_[j]] += share * reach_[j]
            for k in range(width):
                target_[leaf_[i] * width + k] += share * rest_[row * width + k]
    for i in range(n_leaves):  # a row's leaves come in any order
        for j in range(i):
            gram[j, i] += gram[i, j]
            gram[i, j] = 0.0
