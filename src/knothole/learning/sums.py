"""Best leaves of one tree under the expected squared loss (Prop. 2).

With R the reach matrix of a tree's leaves, y the targets and lambda the ridge,

    theta_l = sum_n y_n R_nl / (lambda + sum_n R_nl).

Both sums run over rows, so they are gathered in blocks and added up: in memory, from files, or by
workers.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from knothole.compiled import njit, over_blocks
from knothole.errors import InvalidInput
from knothole.evidence import Evidence
from knothole.reach.engine import Engine
from knothole.trees.ensemble import Ensemble

Floats = NDArray[np.float64]


@dataclass(eq=False)
class LeafSums:
    """Reach of every leaf, and reach-weighted targets, summed over rows.

    Attributes
    ----------
    weight : float64 (leaves,)
        sum_n w_n R_nl.
    target : float64 (leaves, width)
        sum_n w_n y_n R_nl, of the outputs that the leaf's tree serves.
    """

    weight: Floats
    target: Floats

    @classmethod
    def empty(cls, ensemble: Ensemble) -> LeafSums:
        """Sums over no rows."""
        return cls(np.zeros(ensemble.n_leaves), np.zeros(ensemble.value.shape))

    def accumulate(
        self,
        engine: Engine,
        evidence: Evidence,
        y: Floats,
        row_weight: Floats,
        first_row: int = 0,
        threads: int | None = None,
    ) -> LeafSums:
        """Add rows; ``y`` is (rows, outputs). Returns itself."""
        ensemble = engine.ensemble
        output = ensemble.tree_output[ensemble.leaf_tree]

        def work(start: int, stop: int) -> LeafSums:
            sums = LeafSums.empty(ensemble)
            for entries in engine.entries(evidence[start:stop], first_row + start):
                add_entries(
                    entries.row, entries.leaf, entries.reach, y[start:stop],
                    row_weight[start:stop], output, sums.weight, sums.target,
                )  # fmt: skip
            return sums

        for part in over_blocks(work, len(y), engine.block, threads):
            self.merge(part)
        return self

    def merge(self, other: LeafSums) -> LeafSums:
        """Add the sums of other rows. Returns itself."""
        self.weight += other.weight
        self.target += other.target
        return self

    def solve(self, ridge: float, old: Floats, prior: Floats | None = None) -> Solution:
        """The minimiser, (leaves, width).

        Parameters
        ----------
        ridge : float
            Lambda: this many rows with the target ``prior`` in every leaf.
        old : float64 (leaves, width)
            Values that leaves keep which no row reaches, where ``ridge`` is 0.
        prior : float64 (width,), optional
            What leaves shrink to; 0 by default.
        """
        check_ridge(ridge)
        prior = np.zeros(old.shape[1]) if prior is None else prior
        total = self.weight + ridge
        unreached = total <= 0
        value = (self.target + ridge * prior) / np.where(unreached, 1.0, total)[:, None]
        return Solution(np.where(unreached[:, None], old, value), np.flatnonzero(self.weight <= 0))


@dataclass(frozen=True, eq=False)
class Solution:
    """New leaf values, and the leaves that no row reached."""

    value: Floats
    unreached: NDArray[np.intp] = field(repr=False)


def check_ridge(ridge: float) -> None:
    """A ridge is a finite number that is not negative."""
    if not (np.isfinite(ridge) and ridge >= 0):
        raise InvalidInput(f"ridge must be a finite number, at least 0; got {ridge!r}.")


@njit
def add_entries(row, leaf, reach, y, row_weight, output, weight, target):  # type: ignore[no-untyped-def]
    """Add reach, and reach times target, to the sums of leaves."""
    for i in range(len(row)):
        share = reach[i] * row_weight[row[i]]
        weight[leaf[i]] += share
        for j in range(target.shape[1]):
            target[leaf[i], j] += share * y[row[i], output[leaf[i]] + j]
