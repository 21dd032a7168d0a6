"""Best leaves of a whole forest at once (Prop. 3), and of each tree after the others (Prop. 4).

With r_i(n) the reach of leaf i and r_ij(n) the pair reach of leaves i and j by row n,

    M_ij = sum_n r_ij(n),    B_i = sum_n y_n r_i(n).

The forest's best leaves solve (M + lambda I) Theta = B. Boosting solves the same system one tree
at a time, each given the ones before it:

    theta_l = (B_l - sum_{j in earlier trees} theta_j M_lj) / (lambda + M_ll),

since two leaves of one tree are never reached at once. Here theta is what a leaf adds to the
margin: its value times its tree's weight.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from scipy import linalg

from knothole.arrays import Floats
from knothole.compiled.threads import over_chunks
from knothole.errors import InvalidInput
from knothole.expectation.engine import Engine
from knothole.leaves.sums import LeafSums, Summands
from knothole.progress import Advance, silent
from knothole.trees.ensemble import Ensemble

# Matrices of pair reach that are summed in the end.
PARTS = 4
# Eigenvalues below this part of the largest, times the size, are rounding.
EPSILON = 1e-13


@dataclass(eq=False)
class LeafSystem:
    """M (its upper part) and B, summed over rows, for trees that serve the same outputs.

    Attributes
    ----------
    pairs : float64 (leaves, leaves)
        M where leaf i's tree comes before leaf j's, and its diagonal.
    sums : LeafSums
        B, and the diagonal once more.
    """

    pairs: Floats
    sums: LeafSums

    @classmethod
    def empty(cls, ensemble: Ensemble) -> LeafSystem:
        """The system of no rows."""
        if len(np.unique(ensemble.tree_output)) > 1:
            raise InvalidInput("ensemble: the trees of one system must serve the same outputs.")
        n = ensemble.n_leaves
        return cls(np.zeros((n, n)), LeafSums.empty(ensemble))

    def accumulate(
        self, engine: Engine, rows: Summands, threads: int | None = None, advance: Advance = silent
    ) -> LeafSystem:
        """Add rows, and tell ``advance`` how many. Returns itself."""
        self.sums.accumulate(engine, rows, threads)
        # One matrix for each of a fixed number of parts, whatever the threads: the same bits.
        chunks = -(-len(rows) // engine.chunk)
        size = engine.chunk * max(1, -(-chunks // PARTS))

        def work(start: int, stop: int) -> Floats:
            pairs = np.zeros_like(self.pairs)
            for first in range(start, stop, engine.chunk):
                part = rows[first : min(first + engine.chunk, stop)]
                engine.add_pairs(part.evidence, part.weight, pairs)
                advance(amount=len(part))
            return pairs

        for pairs in over_chunks(work, len(rows), size, threads):
            self.pairs += pairs
        return self

    def merge(self, other: LeafSystem) -> LeafSystem:
        """Add the system of other rows. Returns itself."""
        self.pairs += other.pairs
        self.sums.merge(other.sums)
        return self

    def solve(self, ridge: float) -> Floats:
        """Prop. 3: theta of all leaves at once, (leaves, width); the shortest if M is singular."""
        return Symmetric(self.pairs, ridge).solve(self.sums.target)

    def solve_in_turn(self, ridge: float, learning_rate: float = 1.0) -> Floats:
        """Prop. 4: theta tree by tree, (leaves, width); 0 where no row comes and ridge is 0.

        ``learning_rate`` is the part of its best values that each tree takes on.
        """
        theta = np.zeros_like(self.sums.target)
        start = self.sums.leaf_start
        for first, stop in pairwise(start.tolist()):
            here, before = slice(first, stop), slice(0, first)
            rest = self.sums.target[here] - self.pairs[before, here].T @ theta[before]
            total = self.sums.weight[here] + ridge
            theta[here] = learning_rate * rest / np.where(total > 0, total, 1.0)[:, None]
        return theta

    def loss(self, theta: Floats) -> float:
        """Expected squared error of the sum of all trees, summed over rows."""
        if not len(theta):
            return 0.0
        product = self.pairs @ theta + self.pairs.T @ theta - np.diag(self.pairs)[:, None] * theta
        return float(self.sums.square[0] + (theta * (product - 2 * self.sums.target)).sum())


class Symmetric:
    """A symmetric positive semidefinite matrix and a ridge, made ready to solve.

    ``upper`` is the matrix with zeros below its diagonal. Cholesky where the sum is safely
    definite. Otherwise the eigenvectors of eigenvalues that rounding alone could have made are
    left out: solutions are of least norm.
    """

    def __init__(self, upper: Floats, ridge: float) -> None:
        matrix = np.asarray(upper + upper.T)
        matrix[np.diag_indices_from(matrix)] -= np.diag(upper)
        matrix[np.diag_indices_from(matrix)] += ridge
        self.factor = _cholesky(matrix)
        if self.factor is None:
            values, vectors = linalg.eigh(matrix, check_finite=False)
            largest = max(float(values[-1]), 0.0) if len(values) else 0.0
            keep = values > EPSILON * len(matrix) * largest
            self.values, self.vectors = values[keep], vectors[:, keep]

    @property
    def definite(self) -> bool:
        """Whether the solution is the only one."""
        return self.factor is not None

    def solve(self, right: Floats) -> Floats:
        """The solution for each column of ``right``."""
        if self.factor is not None:
            return np.asarray(linalg.cho_solve(self.factor, right, check_finite=False))
        return np.asarray(self.vectors @ ((self.vectors.T @ right) / self.values[:, None]))


def _cholesky(matrix: Floats) -> tuple[Floats, bool] | None:
    """The factor, or None where the matrix is not safely definite."""
    try:
        factor: tuple[Floats, bool] = linalg.cho_factor(matrix, lower=True, check_finite=False)
    except linalg.LinAlgError:
        return None
    pivots = np.diag(factor[0])
    least = np.sqrt(EPSILON * len(matrix)) * pivots.max(initial=0.0)
    return factor if pivots.min(initial=1.0) > least else None
