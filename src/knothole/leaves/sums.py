"""Best leaves of one tree under the expected squared loss (Prop. 2).

With R the reach matrix of a tree's leaves, y the targets and lambda the ridge,

    theta_l = sum_n y_n R_nl / (lambda + sum_n R_nl).

Both sums run over rows, so they are gathered in chunks and added up: in memory, from files, or by
workers. In an averaged forest every tree predicts y by itself, and the sums of all trees are
gathered at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats
from knothole.columns.evidence import Evidence
from knothole.compiled.threads import over_chunks
from knothole.expectation.engine import Engine
from knothole.progress import Advance, silent
from knothole.trees.ensemble import Ensemble

# Shares of classes below this part of a leaf's weight are rounding.
ROUNDING = 1e-12


@dataclass(frozen=True, eq=False)
class Summands:
    """Rows to add up: what they say, their targets (rows, outputs), and their weights."""

    evidence: Evidence
    y: Floats
    weight: Floats

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, part: slice) -> Summands:
        """Some of the rows, next to each other."""
        return Summands(self.evidence[part], self.y[part], self.weight[part])


@dataclass(eq=False)
class LeafSums:
    """Reach of every leaf, and reach-weighted targets, summed over rows.

    Attributes
    ----------
    leaf_start : int64 (trees + 1,)
        Leaves ``leaf_start[t]`` to ``leaf_start[t + 1]`` belong to tree ``t``.
    weight : float64 (leaves,)
        sum_n w_n R_nl.
    target : float64 (leaves, width)
        sum_n w_n y_n R_nl, of the outputs that the leaf's tree serves.
    square : float64 (trees,)
        sum_n w_n |y_n|^2 over the outputs that the tree serves.
    total : float64 (trees,)
        sum_n w_n, of the rows that the tree was given.

    Examples
    --------
    >>> from sklearn.tree import DecisionTreeRegressor
    >>> from knothole.densities.mixture.density import Factorized
    >>> from knothole.expectation.expectation import Expectation
    >>> from knothole.trees.read import read
    >>> X, y = np.array([[0.0], [1.0], [np.nan]]), np.array([[1.0], [3.0], [2.5]])
    >>> tree = read(DecisionTreeRegressor(max_depth=1).fit(X[:2], y[:2]))
    >>> expectation = Expectation.of(tree, Factorized().fit(X))
    >>> known = expectation.evidence(X)
    >>> sums = LeafSums.empty(tree).accumulate(expectation.engine, Summands(known, y, np.ones(3)))
    >>> sums.weight.round(2).tolist(), sums.solve(0.0).round(2).ravel().tolist()
    ([1.5, 1.5], [1.5, 2.83])
    """

    leaf_start: NDArray[np.int64]
    weight: Floats
    target: Floats
    square: Floats
    total: Floats

    @classmethod
    def empty(cls, ensemble: Ensemble) -> LeafSums:
        """Sums over no rows."""
        return cls(
            ensemble.leaf_start,
            np.zeros(ensemble.n_leaves),
            np.zeros(ensemble.value.shape),
            np.zeros(ensemble.n_trees),
            np.zeros(ensemble.n_trees),
        )

    @classmethod
    def of_trees(cls, parts: Sequence[LeafSums]) -> LeafSums:
        """Sums of trees that were gathered by themselves, one after the other."""
        sizes = np.concatenate([np.diff(part.leaf_start) for part in parts])
        arrays = [(part.weight, part.target, part.square, part.total) for part in parts]
        return cls(np.append(0, np.cumsum(sizes)), *map(np.concatenate, zip(*arrays, strict=True)))

    def accumulate(
        self, engine: Engine, rows: Summands, threads: int | None = None, advance: Advance = silent
    ) -> LeafSums:
        """Add rows, and tell ``advance`` how many. Returns itself."""

        def work(start: int, stop: int) -> LeafSums:
            sums, part = LeafSums.empty(engine.ensemble), rows[start:stop]
            engine.add_sums(part.evidence, part.y, part.weight, sums.weight, sums.target)
            advance(amount=stop - start)
            return sums

        for part in over_chunks(work, len(rows), engine.chunk, threads):
            self.merge(part)
        self.add_squares(engine.ensemble, rows.y, rows.weight)
        return self

    def add_squares(self, ensemble: Ensemble, y: Floats, row_weight: Floats) -> None:
        """Add rows to the sums that no leaf takes part in."""
        squares = np.append(0.0, np.cumsum(row_weight @ y**2))
        width = ensemble.value.shape[1]
        self.square += squares[ensemble.tree_output + width] - squares[ensemble.tree_output]
        self.total += row_weight.sum()

    def merge(self, other: LeafSums) -> LeafSums:
        """Add the sums of other rows. Returns itself."""
        self.weight += other.weight
        self.target += other.target
        self.square += other.square
        self.total += other.total
        return self

    def solve(self, ridge: float) -> Floats:
        """The minimiser, (leaves, width); 0 where no row comes and ``ridge`` is 0."""
        total = self.weight + ridge
        return np.asarray(self.target / np.where(total > 0, total, 1.0)[:, None])

    @property
    def unreached(self) -> NDArray[np.intp]:
        """Leaves that no row reaches."""
        return np.flatnonzero(self.weight <= 0)

    def loss(self, value: Floats) -> Floats:
        """Expected squared error of each tree by itself, summed over rows, (trees,)."""
        terms = (self.weight[:, None] * value**2 - 2 * self.target * value).sum(axis=1)
        return np.asarray(self.square + np.add.reduceat(terms, self.leaf_start[:-1]))

    def cross_entropy(self, value: Floats, mean: Floats) -> Floats:
        """Expected cross-entropy of each tree by itself, summed over rows, (trees,).

        Targets are classes as ones and zeros, and probabilities of leaves, less their ``mean``.
        """
        share = self.target + self.weight[:, None] * mean
        # What rounding leaves of a class that never reaches a leaf is not compared with log 0.
        share[share <= ROUNDING * self.weight[:, None]] = 0.0
        with np.errstate(divide="ignore"):
            logs = np.where(share > 0, np.log(np.maximum(value + mean, 0.0)), 0.0)
        terms = -(share * logs).sum(axis=1)
        return np.asarray(np.add.reduceat(terms, self.leaf_start[:-1]))
