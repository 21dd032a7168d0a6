"""What an engine does: reach, margins and second moments of a chunk of rows.

There is one engine for each way to integrate over holes: exactly under a mixture of products, a
latent tree or a circuit, and by completions under anything that can draw them. All of them work on
evidence about variables and on an ensemble over variables; rows come in chunks.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats, Integers, Ints, Mask
from knothole.columns.evidence import Evidence
from knothole.compiled.policy import njit
from knothole.errors import ImpossibleRow
from knothole.trees.ensemble import Ensemble
from knothole.trees.traverse import tree_depths

# Entries of the reach matrix that are held at once (more only if one row has more leaves).
ENTRIES = 1 << 16


class Entries(NamedTuple):
    """A part of a chunk's reach matrix: rows (in the chunk), leaves, and the reach of each."""

    row: Integers
    leaf: Integers
    reach: Floats

    @classmethod
    def room(cls, ensemble: Ensemble) -> Entries:
        """Arrays to write entries to; at least for the leaves of one tree."""
        n = max(ENTRIES, int(np.diff(ensemble.leaf_start).max(initial=1)) + 1)
        return cls(np.empty(n, dtype=np.int32), np.empty(n, dtype=np.int32), np.empty(n))

    def first(self, n: int) -> Entries:
        """The first entries."""
        return Entries(self.row[:n], self.leaf[:n], self.reach[:n])


class TreeEntries(NamedTuple):
    """Parts of a chunk's reach matrix that are trees: their leaves, and the reach of each.

    Entries go tree by tree and row by row; ``first`` (trees, rows) is where those of each begin.
    """

    trees: Integers
    first: Ints
    leaf: Integers
    reach: Floats

    @classmethod
    def room(cls, trees: Integers, count: NDArray[np.integer[Any]]) -> TreeEntries:
        """Arrays for so many entries of each tree and row, with reach 0."""
        stop = np.cumsum(count, dtype=np.int64)
        first, n = stop - count.ravel(), int(stop[-1])
        return cls(trees, first.reshape(count.shape), np.empty(n, dtype=np.int32), np.zeros(n))

    def tree(self, i: int) -> tuple[Ints, Integers, Floats]:
        """How many entries each row has in a tree; their leaves, and their reach."""
        stop = self.first[i + 1, 0] if i + 1 < len(self.first) else len(self.leaf)
        own = slice(self.first[i, 0], stop)
        return np.diff(self.first[i], append=stop), self.leaf[own], self.reach[own]


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
    """Integrates an ensemble over the holes of rows, under one density."""

    ensemble: Ensemble
    value: Floats  # see `weighted_values`
    exact: bool
    chunk: int  # rows that are best handled together

    @abstractmethod
    def margin(self, evidence: Evidence) -> tuple[Floats, Floats]:
        """Expected margin of a chunk's rows and its standard error, (rows, outputs) each."""

    @abstractmethod
    def entries(self, evidence: Evidence) -> Iterator[Entries]:
        """The reach matrix of a chunk, part by part."""

    @abstractmethod
    def moments(self, evidence: Evidence) -> Moments:
        """Mean and variance of the margin (Lemmas 1 and 2)."""

    @abstractmethod
    def add_pairs(self, evidence: Evidence, row_weight: Floats, out: Floats) -> None:
        """Add the rows' weighted pair reach to ``out`` (leaves, leaves).

        Only entries (i, j) with i = j, or leaf i's tree before leaf j's, are written: the matrix
        is symmetric, and two leaves of one tree are never reached at once.
        """

    def tree_entries(self, evidence: Evidence) -> Iterator[TreeEntries]:
        """The reach matrix of a chunk tree by tree."""
        found = [(rows, own) for rows, some in evidence.parts() for own in self.entries(some)]
        tree = self.ensemble.leaf_tree
        count = np.zeros((self.ensemble.n_trees, len(evidence.points)), dtype=np.int64)
        for rows, entries in found:
            _count(rows, entries, tree, count)
        out = TreeEntries.room(np.arange(len(count), dtype=np.int32), count)
        place = out.first.copy()
        for rows, entries in found:
            _place(rows, entries, tree, place, out.leaf, out.reach)
        yield out

    def summed_entries(self, evidence: Evidence) -> Iterator[Entries]:
        """The reach matrix as learning adds it up over rows.

        Errors of single rows cancel out there, so that each may have draws of its own.
        """
        return self.entries(evidence)

    def add_sums(
        self,
        evidence: Evidence,
        y: Floats,
        row_weight: Floats,
        weight: Floats,
        target: Floats,
    ) -> None:
        """Add the rows' weighted reach, and reach times target, to the sums of leaves (Prop. 2).

        ``y`` is (rows, outputs), ``weight`` (leaves,) and ``target`` (leaves, width).
        """
        output = self.ensemble.tree_output[self.ensemble.leaf_tree]
        for entries in self.summed_entries(evidence):
            _add_sums(
                entries.row, entries.leaf, entries.reach, y, row_weight, output, weight, target
            )

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

    def moments(self, evidence: Evidence) -> Moments:
        """Lemmas 1 and 2, over all pairs of trees that serve the same output."""
        mean, error = self.margin(evidence)
        centred = copy(self)
        centred.value, taken = centred_values(self.ensemble, self.value)
        variance = centred.squares(evidence) - (mean - self.ensemble.base - taken) ** 2
        return Moments(mean, np.sqrt(np.maximum(variance, 0.0)), error, np.zeros_like(error))


def warn_impossible(log_p: Floats) -> None:
    """Say so where the density gives what is observed no probability at all."""
    n = int(np.isneginf(log_p).sum())
    if n:
        warnings.warn(
            f"{n} row(s) have values that the density holds impossible; their holes are answered "
            f"as if those values were unknown. Fit the density on data that has such values.",
            ImpossibleRow,
            stacklevel=2,
        )


class NodeArrays(NamedTuple):
    """The trees as kernels take them, in the ensemble's own names.

    Whatever is ``Any`` is an array, or a pointer to one once a kernel has made it so.
    """

    roots: Any
    feature: Any
    cut: Any
    left: Any
    missing_left: Any
    set_start: Any
    sets: Any
    twins: Any  # whether a node's children are both leaves


def node_arrays(ensemble: Ensemble) -> NodeArrays:
    """The trees as kernels take them."""
    leaf = ensemble.feature < 0
    child = np.where(leaf, 0, ensemble.left)
    twins = ~leaf & leaf[child] & leaf[child + ~leaf]
    return NodeArrays(
        ensemble.roots,
        ensemble.feature,
        ensemble.cut,
        ensemble.left,
        ensemble.missing_left,
        ensemble.set_start,
        ensemble.sets,
        twins,
    )


class Leaves(NamedTuple):
    """The leaves as kernels take them."""

    start: Any  # (trees + 1,) first leaf of each tree
    value: Any  # (leaves, width) times the tree's weight
    output: Any  # (trees,) first output that each tree serves

    @classmethod
    def of(cls, ensemble: Ensemble, value: Floats) -> Leaves:
        """The leaves of an ensemble with these weighted values."""
        return cls(ensemble.leaf_start, value, ensemble.tree_output)


def used_variables(ensemble: Ensemble) -> Mask:
    """Variables that some tree splits on, (variables,)."""
    used = np.zeros(len(ensemble.columns), dtype=np.bool_)
    used[ensemble.feature[ensemble.feature >= 0]] = True
    return used


def plain(ensemble: Ensemble, points: Floats) -> bool:
    """Whether every split is numeric and no value is "not recorded": a shorter test at splits."""
    return len(ensemble.sets) == 0 and not bool(np.isposinf(points).any())


def stack_size(ensemble: Ensemble) -> int:
    """Frames that a walk of the deepest tree can need."""
    depths = tree_depths(ensemble.roots, ensemble.feature, ensemble.left)
    return int(depths.max(initial=0)) + 2


def centred_values(ensemble: Ensemble, value: Floats) -> tuple[Floats, Floats]:
    """Leaf values less the mean of their tree's, and what that takes off each output.

    Squares of what is left do not lose the spread beside a large common value.
    """
    count = np.diff(ensemble.leaf_start)[:, None]
    mean = np.add.reduceat(value, ensemble.leaf_start[:-1], axis=0) / count
    taken = np.zeros(ensemble.n_outputs)
    for tree, first in enumerate(ensemble.tree_output.tolist()):
        taken[first : first + value.shape[1]] += mean[tree]
    return value - mean[ensemble.leaf_tree], taken


def weighted_values(ensemble: Ensemble) -> Floats:
    """Leaf values times the weight of their tree, (leaves, width)."""
    return np.asarray(ensemble.value * ensemble.tree_weight[ensemble.leaf_tree][:, None])


def add_margin(entries: Entries, ensemble: Ensemble, value: Floats, out: Floats) -> None:
    """Add what the leaves of entries bring to their rows' margins, ``out`` (rows, outputs)."""
    output = ensemble.tree_output[ensemble.leaf_tree]
    _add_margin(entries.row, entries.leaf, entries.reach, output, value, out)


@njit
def _add_margin(row, leaf, reach, output, value, out):  # type: ignore[no-untyped-def]
    for i in range(len(row)):
        for j in range(value.shape[1]):
            out[row[i], output[leaf[i]] + j] += reach[i] * value[leaf[i], j]


@njit
def _add_sums(row, leaf, reach, y, row_weight, output, weight, target):  # type: ignore[no-untyped-def]
    for i in range(len(row)):
        share = reach[i] * row_weight[row[i]]
        weight[leaf[i]] += share
        for j in range(target.shape[1]):
            target[leaf[i], j] += share * y[row[i], output[leaf[i]] + j]


@njit
def _count(rows, entries, tree, out):  # type: ignore[no-untyped-def]
    """Count entries that are not 0 by tree and row; ``rows`` are the rows' numbers."""
    for i in range(len(entries.row)):
        out[tree[entries.leaf[i]], rows[entries.row[i]]] += entries.reach[i] != 0


@njit
def _place(rows, entries, tree, place, leaf, reach):  # type: ignore[no-untyped-def]
    """Put them where ``place`` (trees, rows) says that those of a tree and row go on."""
    for i in range(len(entries.row)):
        own, row = tree[entries.leaf[i]], rows[entries.row[i]]
        if entries.reach[i] != 0:
            leaf[place[own, row]], reach[place[own, row]] = entries.leaf[i], entries.reach[i]
            place[own, row] += 1
