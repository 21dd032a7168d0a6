"""What an engine does: leaf probabilities, margins and second moments of a chunk of rows.

There is one engine for each way to integrate over missing values: exactly under a mixture, a
latent tree or a circuit, and by Monte Carlo under anything that can be drawn from. All of them
work on evidence about variables and on an ensemble over variables; rows come in chunks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np

from knothole._core import leaf_probabilities as kernels
from knothole.arrays import Floats, Integers
from knothole.columns.evidence import Evidence
from knothole.trees.ensemble import Ensemble

if TYPE_CHECKING:
    from scipy import sparse

# Leaf probabilities that are held at once (more only if one row has more leaves).
ENTRIES = 1 << 16


class Entries(NamedTuple):
    """Leaf probabilities of a chunk: rows (in the chunk), leaves, and the probability of each."""

    row: Integers
    leaf: Integers
    reach: Floats


@dataclass(frozen=True, eq=False)
class Moments:
    """Mean and standard deviation of the margin given what is observed, (rows, outputs) each.

    ``error`` and ``std_error`` are the standard errors of both, 0 where the engine is exact.
    """

    mean: Floats
    std: Floats
    error: Floats
    std_error: Floats

    @property
    def variance(self) -> Floats:
        """The square of the standard deviation."""
        return self.std**2


class Engine(ABC):
    """Integrates an ensemble over the missing values of rows, under one density.

    Evidence is either without sets, or of rows that all have some (:meth:`.Evidence.parts`).
    """

    ensemble: Ensemble
    value: Floats  # see `weighted_values`
    exact: bool
    chunk: int  # rows that are best handled together

    @abstractmethod
    def margin(self, evidence: Evidence) -> tuple[Floats, Floats]:
        """Expected margin of a chunk's rows and its standard error, (rows, outputs) each."""

    @abstractmethod
    def entries(self, evidence: Evidence) -> Iterator[Entries]:
        """Leaf probabilities of a chunk, part by part; those of a leaf may come in several."""

    @abstractmethod
    def moments(self, evidence: Evidence) -> Moments:
        """Mean and variance of the margin (Lemmas 1 and 2)."""

    def leaf_probabilities(self, evidence: Evidence, by_tree: bool = False) -> sparse.csr_matrix:
        """Leaf probabilities of a chunk, (rows, leaves), without zeros, in no order of leaves.

        ``by_tree`` puts the rows of each tree together, (trees * rows, leaves).
        """
        from scipy import sparse

        parts = [
            (rows, *entries) for rows, part in evidence.parts() for entries in self.entries(part)
        ]
        n_rows = len(evidence.points)
        # The first row of the matrix that each leaf's probabilities go to.
        first = self.ensemble.leaf_tree * np.int64(n_rows if by_tree else 0)
        n_trees = self.ensemble.n_trees if by_tree else 1
        count = np.zeros(n_trees * n_rows, dtype=np.int64)
        for entries in parts:
            kernels.count_entries(*entries, first, count)
        start = np.append(0, np.cumsum(count))
        place, n = start[:-1].copy(), int(start[-1])
        leaf, probability = np.empty(n, dtype=np.int32), np.empty(n)
        for entries in parts:
            kernels.place_entries(*entries, first, place, leaf, probability)
        shape = len(place), self.ensemble.n_leaves
        matrix = sparse.csr_matrix((probability, leaf, start), shape=shape)
        if not self.exact:  # there are entries of each word of draws
            matrix.sum_duplicates()
        return matrix

    def with_values(self, ensemble: Ensemble) -> Self:
        """The engine for the same trees with other leaf values; all else is shared."""
        other = copy(self)
        other.ensemble, other.value = ensemble, weighted_values(ensemble)
        return other


class ExactEngine(Engine):
    """An engine whose answers have no error."""

    exact = True

    @abstractmethod
    def squares(self, evidence: Evidence) -> Floats:
        """E[margin^2] of each output, without the base, (rows, outputs): Lemma 2."""

    @abstractmethod
    def add_pairs(self, evidence: Evidence, row_weight: Floats, out: Floats) -> None:
        """Add the rows' weighted probabilities of pairs of leaves to ``out`` (leaves, leaves).

        Only entries (i, j) with i = j, or leaf i's tree before leaf j's, are written: the matrix
        is symmetric, and two leaves of one tree are never reached at once.
        """

    def moments(self, evidence: Evidence) -> Moments:
        """Lemmas 1 and 2, over all pairs of trees that serve the same output.

        Squares are of leaf values less the mean of their tree's: otherwise a large common value
        would drown the spread. Where it drowns all the same, because leaves that the row cannot
        reach have large values, it is found again from those that it can.
        """
        ensemble = self.ensemble
        mean, error = self.margin(evidence)
        count = np.diff(ensemble.leaf_start)[:, None]
        centre = np.add.reduceat(self.value, ensemble.leaf_start[:-1], axis=0) / count
        centred, taken = copy(self), ensemble.base.copy()
        centred.value = self.value - centre[ensemble.leaf_tree]
        for tree, first in enumerate(ensemble.tree_output.tolist()):
            taken[first : first + self.value.shape[1]] += centre[tree]
        variance = centred.squares(evidence) - (mean - taken) ** 2
        largest = np.maximum.reduceat(np.abs(centred.value), ensemble.leaf_start[:-1], axis=0)
        scale = np.zeros(ensemble.n_outputs)
        np.add.at(scale, ensemble.tree_output[:, None] + np.arange(largest.shape[1]), largest)
        drowned = np.flatnonzero((variance < DROWNED * scale**2).any(axis=1))
        if len(drowned):
            variance[drowned] = self._variance_of_reached(evidence[drowned])
        return Moments(mean, np.sqrt(np.maximum(variance, 0.0)), error, np.zeros_like(error))

    def _variance_of_reached(self, evidence: Evidence) -> Floats:
        """Variances of the margin, from leaf values less the mean of their tree's for the row."""
        ensemble, one = self.ensemble, copy(self)
        out = np.empty((len(evidence.points), ensemble.n_outputs))
        probabilities = self.leaf_probabilities(evidence)
        for row in range(len(out)):
            part = slice(*probabilities.indptr[row : row + 2])
            leaf, probability = probabilities.indices[part], probabilities.data[part, None]
            tree = ensemble.leaf_tree[leaf]
            # A mean of differences from a value of the tree, which may be large.
            first = np.zeros((ensemble.n_trees, self.value.shape[1]))
            first[tree] = self.value[leaf]
            apart, away, total = self.value[leaf] - first[tree], np.zeros_like(first), 0.0 * first
            np.add.at(away, tree, probability * apart)
            np.add.at(total, tree, np.broadcast_to(probability, apart.shape))
            one.value = np.zeros_like(self.value)
            one.value[leaf] = apart - (away / np.where(total > 0, total, 1.0))[tree]
            out[row] = one.squares(evidence[row : row + 1])[0]
        return out


# Variances that are a smaller part of the square of the largest margin (about the trees' means)
# have rounding errors of more than a millionth of themselves.
DROWNED = 1e-9


def weighted_values(ensemble: Ensemble) -> Floats:
    """Leaf values times the weight of their tree, (leaves, width)."""
    return np.asarray(ensemble.value * ensemble.tree_weight[ensemble.leaf_tree][:, None])
