"""Sums over rows from which leaves are computed under the expected squared loss.

With r_i(n) the probability of leaf i given row n, and r_ij(n) that of leaves i and j together,

    M_ij = sum_n r_ij(n),    B_i = sum_n y_n r_i(n).

A single tree (Prop. 2) needs only the diagonal of M: theta_l = B_l / (lambda + M_ll). In an
averaged forest every tree predicts y by itself, and the sums of all trees are gathered at once. All
leaves of a forest at once (Prop. 3) solve (M + lambda I) theta = B. Boosting (Prop. 4) solves the
same system one tree at a time, given the trees before:

    theta_l = (B_l - sum_{j in earlier trees} theta_j M_lj) / (lambda + M_ll),

because no row is in two leaves of one tree. Here theta is what a leaf adds to the margin: its value
times its tree's weight.

The sums are gathered in chunks and added up: in memory, from files, or by workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, sparse

from knothole.arrays import Floats, Ints, joined
from knothole.columns.evidence import Evidence
from knothole.expectation.engine import Engine, ExactEngine
from knothole.expectation.expectation import Expectation
from knothole.out_of_core.partitions import Partitions
from knothole.progress import Advance, silent
from knothole.threads import over_chunks
from knothole.trees.ensemble import Ensemble, some_trees

# A class with a smaller share of a leaf's weight is a rounding error.
ROUNDING = 1e-12
# Number of partial matrices of pairs of leaves.
PARTS = 4
# Smaller eigenvalues, relative to the largest times the size, are rounding errors.
EPSILON = 1e-13
# The most leaf probabilities in memory at once; a sample of rows shows how many trees that is.
ENTRIES = 1 << 25
SAMPLE = 512


@dataclass(frozen=True, eq=False)
class Summands:
    """Rows to sum over: their evidence, targets (rows, outputs) and weights."""

    evidence: Evidence
    y: Floats
    weight: Floats

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, part: slice) -> Summands:
        """Some consecutive rows."""
        return Summands(self.evidence[part], self.y[part], self.weight[part])


@dataclass(frozen=True, eq=False)
class LeafSums:
    """Weighted sums over rows for every leaf; they can be added (:func:`knothole.arrays.joined`).

    Attributes
    ----------
    weight : float64 (leaves,)
        sum_n w_n r_l(n).
    target : float64 (leaves, width)
        sum_n w_n y_n r_l(n), for the outputs that the leaf's tree serves.
    square : float64 (trees,)
        sum_n w_n |y_n|^2 over the outputs that the tree serves.
    total : float64 (trees,)
        sum_n w_n.

    Examples
    --------
    >>> from sklearn.tree import DecisionTreeRegressor
    >>> from knothole.densities.mixture.density import Factorized
    >>> from knothole.trees.read import read
    >>> X, y = np.array([[0.0], [1.0], [np.nan]]), np.array([[1.0], [3.0], [2.5]])
    >>> tree = read(DecisionTreeRegressor(max_depth=1).fit(X[:2], y[:2]))
    >>> expectation = Expectation.of(tree, Factorized().fit(X))
    >>> known = expectation.evidence(X)
    >>> sums = LeafSums.gathered(expectation.engine, Summands(known, y, np.ones(3)))
    >>> sums.weight.round(2).tolist(), sums.solve(0.0).round(2).ravel().tolist()
    ([1.5, 1.5], [1.5, 2.83])
    """

    weight: Floats
    target: Floats
    square: Floats
    total: Floats

    @classmethod
    def gathered(
        cls, engine: Engine, rows: Summands, threads: int | None = None, advance: Advance = silent
    ) -> Self:
        """Sums over rows; ``advance`` is called with the number of finished rows."""

        def work(start: int, stop: int) -> LeafSums:
            advance(amount=stop - start)
            return LeafSums(*_sums_of(engine, rows[start:stop]))

        found: Self = reduce(joined, over_chunks(work, len(rows), engine.chunk, threads))
        return found

    @property
    def unreached(self) -> NDArray[np.intp]:
        """Leaves that no row reaches."""
        return np.flatnonzero(self.weight <= 0)

    def solve(self, ridge: float) -> Floats:
        """Prop. 2: theta (leaves, width); 0 if no row reaches the leaf and ``ridge`` is 0."""
        total = self.weight + ridge
        return np.asarray(self.target / np.where(total > 0, total, 1.0)[:, None])

    def tree_losses(self, value: Floats, leaf_start: Ints) -> Floats:
        """Expected squared error of each tree on its own, summed over rows, (trees,)."""
        terms = (self.weight[:, None] * value**2 - 2 * self.target * value).sum(axis=1)
        return np.asarray(self.square + np.add.reduceat(terms, leaf_start[:-1]))

    def cross_entropy(self, value: Floats, mean: Floats, leaf_start: Ints) -> Floats:
        """Expected cross-entropy of each tree on its own, summed over rows, (trees,).

        Targets are 0 or 1 for each class, and leaves probabilities, both minus ``mean``.
        """
        share = self.target + self.weight[:, None] * mean
        # The rounded share of a class that never reaches a leaf is not compared with log 0.
        share[share <= ROUNDING * self.weight[:, None]] = 0.0
        with np.errstate(divide="ignore"):
            logs = np.where(share > 0, np.log(np.maximum(value + mean, 0.0)), 0.0)
        terms = -(share * logs).sum(axis=1)
        return np.asarray(np.add.reduceat(terms, leaf_start[:-1]))


@dataclass(frozen=True, eq=False)
class LeafSystem(LeafSums):
    """The sums for trees that serve the same outputs, with M.

    Attributes
    ----------
    pairs : float64 (leaves, leaves)
        M if leaf i's tree comes before leaf j's, and its diagonal; zeros below.
    """

    pairs: Floats

    @classmethod
    def gathered(
        cls, engine: Engine, rows: Summands, threads: int | None = None, advance: Advance = silent
    ) -> Self:
        """The sums over rows; ``advance`` is called with the number of finished rows."""
        assert isinstance(engine, ExactEngine)
        # A fixed number of partial matrices, for the same bits with any number of threads.
        chunks = -(-len(rows) // engine.chunk)
        size = engine.chunk * max(1, -(-chunks // PARTS))

        def work(start: int, stop: int) -> Floats:
            pairs = np.zeros((engine.ensemble.n_leaves,) * 2)
            for first in range(start, stop, engine.chunk):
                part = rows[first : min(first + engine.chunk, stop)]
                engine.add_pairs(part.evidence, part.weight, pairs)
                advance(amount=len(part))
            return pairs

        pairs: Floats = sum(over_chunks(work, len(rows), size, threads))
        sums = LeafSums.gathered(engine, rows, threads)
        return cls(sums.weight, sums.target, sums.square, sums.total, pairs)

    def solve(self, ridge: float) -> Floats:
        """Prop. 3: theta of all leaves at once, (leaves, width); of least norm if M is singular."""
        return symmetric_solver(self.pairs, ridge)(self.target)

    def solve_in_turn(self, leaf_start: Ints, ridge: float, learning_rate: float = 1.0) -> Floats:
        """Prop. 4: theta tree by tree, (leaves, width); 0 if no row reaches the leaf and ridge is
        0.

        ``learning_rate``: the fraction of its best values that each tree is given.
        """
        theta = np.zeros_like(self.target)
        for first, stop in pairwise(leaf_start.tolist()):
            here, before = slice(first, stop), slice(0, first)
            rest = self.target[here] - self.pairs[before, here].T @ theta[before]
            total = self.weight[here] + ridge
            theta[here] = learning_rate * rest / np.where(total > 0, total, 1.0)[:, None]
        return theta

    def loss(self, theta: Floats) -> float:
        """Expected squared error of the sum of all trees, summed over rows."""
        product = self.pairs @ theta + self.pairs.T @ theta - np.diag(self.pairs)[:, None] * theta
        return float(self.square[0] + (theta * (product - 2 * self.target)).sum())


def symmetric_solver(upper: Floats, ridge: float) -> Callable[[Floats], Floats]:
    """Solve systems with a symmetric positive semidefinite matrix plus ``ridge`` on its diagonal.

    ``upper`` is the matrix with zeros below its diagonal. Without a ridge, the solution has the
    least norm: eigenvectors whose eigenvalues are rounding errors are left out.
    """
    matrix = upper + np.triu(upper, 1).T
    if ridge > 0:
        matrix[np.diag_indices_from(matrix)] += ridge
        factor = linalg.cho_factor(matrix, check_finite=False)
        return lambda right: np.asarray(linalg.cho_solve(factor, right, check_finite=False))
    inverse = linalg.pinvh(matrix, rtol=EPSILON * len(matrix))
    return lambda right: np.asarray(inverse @ right)


def gathered_in_parts(
    kind: type[LeafSums], rows: Partitions, expectation: Expectation
) -> Any:  # of this kind
    """The sum over all partitions of a table, which hold :class:`Summands`."""
    return rows.summed(_gathered, kind, expectation)


def _gathered(rows: Summands, kind: type[LeafSums], expectation: Expectation) -> LeafSums:
    return kind.gathered(expectation.engine, rows)


def _sums_of(engine: Engine, rows: Summands) -> tuple[Floats, Floats, Floats, Floats]:
    ensemble, by_leaf = engine.ensemble, engine.leaf_probabilities(rows.evidence).T
    outputs = ensemble.tree_output[ensemble.leaf_tree][:, None] + np.arange(ensemble.value.shape[1])
    target = np.take_along_axis(by_leaf @ (rows.weight[:, None] * rows.y), outputs, axis=1)
    return by_leaf @ rows.weight, target, *squares_of(ensemble, rows.y, rows.weight)


def squares_of(ensemble: Ensemble, y: Floats, row_weight: Floats) -> tuple[Floats, Floats]:
    """Sums that do not depend on leaves: of w |y|^2 and of w, (trees,) each."""
    squares = np.append(0.0, np.cumsum(row_weight @ y**2))
    width = ensemble.value.shape[1]
    served = squares[ensemble.tree_output + width] - squares[ensemble.tree_output]
    return served, np.full(ensemble.n_trees, row_weight.sum())


def probabilities_by_tree(
    expectation: Expectation, evidence: Evidence, threads: int | None
) -> Iterator[tuple[int, sparse.csr_matrix]]:
    """Each tree and its leaf probabilities, (rows, leaves of the tree).

    Computed for as many trees at a time as have about :data:`ENTRIES` entries.
    """
    n_rows, n_trees = len(evidence.points), expectation.ensemble.n_trees
    some = evidence[np.arange(0, n_rows, -(-n_rows // SAMPLE))]
    entries = expectation.engine.leaf_probabilities(some).nnz
    n_parts = min(n_trees, max(1, round(entries / len(some.points) * n_rows / ENTRIES)))
    for trees in np.array_split(np.arange(n_trees), n_parts):
        part = expectation
        if n_parts > 1:
            part = Expectation.of(
                some_trees(expectation.original, trees)[0],
                expectation.density,
                "exact" if expectation.exact else "monte-carlo",
                seed=expectation.seed,
            )
        for tree, probability in part.leaf_probabilities_by_tree(evidence, threads=threads):
            yield int(trees[tree]), probability
