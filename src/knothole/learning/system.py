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

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from knothole.compiled import over_blocks
from knothole.evidence import Evidence
from knothole.learning.sums import LeafSums, check_ridge
from knothole.reach.engine import Engine
from knothole.trees.ensemble import Ensemble

Floats = NDArray[np.float64]


@dataclass(eq=False)
class LeafSystem:
    """M (its upper part) and B, summed over rows.

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
        n = ensemble.n_leaves
        return cls(np.zeros((n, n)), LeafSums.empty(ensemble))

    def accumulate(
        self,
        engine: Engine,
        evidence: Evidence,
        y: Floats,
        row_weight: Floats,
        first_row: int = 0,
        threads: int | None = None,
    ) -> LeafSystem:
        """Add rows; ``y`` is (rows, outputs). Returns itself."""
        self.sums.accumulate(engine, evidence, y, row_weight, first_row, threads)
        n_rows = len(y)
        # One matrix for each of a fixed number of parts, whatever the threads: the same bits.
        part = max(engine.block, -(-n_rows // PARTS))

        def work(start: int, stop: int) -> Floats:
            pairs = np.zeros_like(self.pairs)
            for first in range(start, stop, engine.block):
                rows = slice(first, min(first + engine.block, stop))
                engine.add_pairs(evidence[rows], row_weight[rows], first_row + first, pairs)
            return pairs

        for pairs in over_blocks(work, n_rows, part, threads):
            self.pairs += pairs
        return self

    def merge(self, other: LeafSystem) -> LeafSystem:
        """Add the system of other rows. Returns itself."""
        self.pairs += other.pairs
        self.sums.merge(other.sums)
        return self

    def solve(self, ridge: float, outputs: Outputs) -> Floats:
        """Prop. 3: theta of all leaves at once, (leaves, width); of least norm where M is singular."""
        check_ridge(ridge)
        theta = np.zeros_like(self.sums.target)
        for leaves in outputs.groups:
            matrix = self._symmetric(leaves)
            matrix[np.diag_indices_from(matrix)] += ridge
            theta[leaves] = solve_symmetric(matrix, self.sums.target[leaves])
        return theta

    def solve_in_turn(self, ridge: float, outputs: Outputs) -> Floats:
        """Prop. 4: theta tree by tree, (leaves, width); 0 where no row comes and ridge is 0."""
        check_ridge(ridge)
        theta = np.zeros_like(self.sums.target)
        for leaves in outputs.groups:
            matrix = self._symmetric(leaves)
            trees = outputs.tree[leaves]
            for tree in np.unique(trees):
                here, before = trees == tree, trees < tree
                given = matrix[np.ix_(here, before)] @ theta[leaves[before]]
                total = np.diag(matrix)[here] + ridge
                rest = self.sums.target[leaves[here]] - given
                theta[leaves[here]] = np.where(
                    total[:, None] > 0, rest / np.where(total > 0, total, 1.0)[:, None], 0.0
                )
        return theta

    def _symmetric(self, leaves: NDArray[np.intp]) -> Floats:
        upper = np.triu(self.pairs[np.ix_(leaves, leaves)])
        return np.asarray(upper + np.triu(upper, 1).T)


# Matrices of pair reach that are summed in the end.
PARTS = 4


@dataclass(frozen=True, eq=False)
class Outputs:
    """Leaves grouped by the output that their trees serve; groups do not meet in any equation."""

    groups: tuple[NDArray[np.intp], ...]
    tree: NDArray[np.int32]

    @classmethod
    def of(cls, ensemble: Ensemble) -> Outputs:
        """The groups of an ensemble."""
        output = ensemble.tree_output[ensemble.leaf_tree]
        groups = tuple(np.flatnonzero(output == o) for o in np.unique(output))
        return cls(groups, ensemble.leaf_tree)


def solve_symmetric(matrix: Floats, right: Floats) -> Floats:
    """Solve a symmetric positive semidefinite system; minimum norm where it is singular.

    Cholesky where the matrix is safely definite. Otherwise the eigenvectors of eigenvalues that
    rounding alone could have made are left out.
    """
    try:
        factor = linalg.cho_factor(matrix, lower=True, check_finite=False)
        pivots = np.abs(np.diag(factor[0]))
        if pivots.min(initial=1.0) > np.sqrt(EPSILON * len(matrix)) * pivots.max(initial=1.0):
            return np.asarray(linalg.cho_solve(factor, right, check_finite=False))
    except linalg.LinAlgError:
        pass
    values, vectors = linalg.eigh(matrix, check_finite=False)
    keep = values > EPSILON * len(matrix) * max(float(values[-1]), 0.0)
    part = vectors[:, keep]
    return np.asarray(part @ ((part.T @ right) / values[keep][:, None]))


EPSILON = 1e-13
