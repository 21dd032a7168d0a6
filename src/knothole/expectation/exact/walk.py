"""Exact engines: walks through the trees that branch where a value is missing.

A *position* goes from leaf to leaf of one tree, depth first, through the leaves that a row can
reach. If it keeps the region of every missing value, a second position can start inside a leaf of
the first and go through another tree there, which gives the probability of a pair of leaves (Lemma
2). Such a walk can also start from any region, such as a partly observed one-hot group.

The walks are in ``core/walk.hpp``. Families of densities differ in their record of the evidence
(``_given``); each kind of record has its own kernels.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from knothole._core import leaf_sets as kernels_of_sets
from knothole.arrays import Floats, Words, padded
from knothole.bits import word_offsets
from knothole.cached import cached_property
from knothole.columns.evidence import Evidence
from knothole.densities.univariate.base import Univariate
from knothole.expectation.engine import ENTRIES, Entries, ExactEngine, weighted_values
from knothole.expectation.tables import (
    LEAVES,
    Grid,
    LeafSets,
    leaf_sets,
    left_probabilities,
    node_arrays,
    not_recorded_mass,
    stack_size,
)
from knothole.trees.ensemble import Ensemble
from knothole.trees.in_variables import Merged


class WalkEngine(ExactEngine):
    """Exact expectations by walks, for one family of densities."""

    chunk = 512

    def __init__(self, merged: Merged, distributions: Sequence[Univariate | None]) -> None:
        self.merged = merged
        self.ensemble = ensemble = merged.ensemble
        self.value = weighted_values(ensemble)
        self.nodes = node_arrays(ensemble)
        self.grid = Grid.of(ensemble)
        mass = padded(self.grid.masses(distributions, merged))
        n_levels = ensemble.n_levels.astype(np.int64)
        set_offset = word_offsets(n_levels)
        self.tables = WalkTables(
            position=self.grid.position,
            offset=self.grid.offset,
            mass=mass,
            absent=padded(not_recorded_mass(distributions, ensemble.n_levels)),
            n_levels=n_levels,
            unrecorded=merged.not_recorded(),
            set_offset=set_offset,
            depth=stack_size(ensemble),
        )

    @abstractmethod
    def _given(self, evidence: Evidence, regions: bool) -> Any:
        """The evidence under the density; ``regions``: for walks that keep regions."""

    @cached_property
    def leaf_sets(self) -> list[LeafSets]:
        """Sets of leaves; empty if some tree is too large."""
        return leaf_sets(self.ensemble)

    @cached_property
    def _small_trees(self) -> tuple[Any, ...]:
        """Sets of leaves of all trees, in order: the fields of :class:`LeafWords`."""
        groups = self.leaf_sets
        order = np.argsort(np.concatenate([group.root for group in groups]))
        fields = ("parting", "right", "leaf")
        parts = ([getattr(group, field) for group in groups] for field in fields)
        return tuple(np.ascontiguousarray(np.concatenate(part)[order]) for part in parts)

    def _words(self, evidence: Evidence) -> LeafWords:
        """Leaves of small trees that are compatible with the observed values."""
        points = self._points(evidence)
        if not self.leaf_sets:
            none = np.empty((0, LEAVES, LEAVES), np.uint8), np.empty((0, 2 * LEAVES), np.uint64)
            words = np.empty((len(points), 0), np.uint64)
            return LeafWords(words, *none, np.empty((0, LEAVES), np.int64))
        words = np.empty((len(points), self.ensemble.n_trees), np.uint64)
        if len(self.leaf_sets) == 1:  # of all trees, in order
            kernels_of_sets.read_rows(points, self.leaf_sets[0], 0, words)
        else:
            for group in self.leaf_sets:
                found = np.empty((len(points), len(group.root)), np.uint64)
                kernels_of_sets.read_rows(points, group, 0, found)
                words[:, self.ensemble.leaf_tree[group.leaf[:, 0]]] = found
        return LeafWords(words, *self._small_trees)

    def _points(self, evidence: Evidence) -> Floats:
        """Values of rows in the form that the trees take."""
        return np.ascontiguousarray(self.merged.points(evidence.points))

    @property
    def go_left(self) -> Floats:
        """Probability of going left at each node where its variable is missing, (nodes, states)."""
        return self._at_nodes[0]

    @cached_property
    def _at_nodes(self) -> tuple[Floats, Floats]:
        """:attr:`go_left`, and the fraction of the arriving mass that is not recorded."""
        tables = self.tables
        found = left_probabilities(
            self.ensemble, self.grid, tables.mass, tables.absent, tables.unrecorded
        )
        return padded(found[0]), padded(found[1])

    def margin(self, evidence: Evidence) -> tuple[Floats, Floats]:
        """Prop. 1; the error is 0."""
        out = np.tile(self.ensemble.base, (len(evidence.points), 1))
        arguments = self._arguments(evidence)
        arguments[-1].kernels.add_margin(*arguments, out)
        return out, np.zeros_like(out)

    def entries(self, evidence: Evidence) -> Iterator[Entries]:
        """Leaf probabilities of a chunk, in parts."""
        arguments = self._arguments(evidence)
        emit = arguments[-1].kernels.emit
        # Two more than there are leaves: a full list means that the tree is not finished.
        size = max(ENTRIES, int(np.diff(self.ensemble.leaf_start).max(initial=0)) + 2)
        at = 0, 0, 0
        while at[0] < len(evidence.points):
            out = Entries(np.empty(size, np.int32), np.empty(size, np.int32), np.empty(size))
            n, *at = emit(*arguments, *at, out)
            yield Entries(out.row[:n], out.leaf[:n], out.probability[:n])

    def squares(self, evidence: Evidence) -> Floats:
        """E[margin^2] of each output, without the base, (rows, outputs): Lemma 2."""
        out = np.zeros((len(evidence.points), self.ensemble.n_outputs))
        self._add_pairs(evidence, None, None, out)
        return out

    def add_pairs(self, evidence: Evidence, row_weight: Floats, out: Floats) -> None:
        """Add the rows' weighted probabilities of pairs of leaves to ``out`` (leaves, leaves)."""
        self._add_pairs(evidence, np.ascontiguousarray(row_weight), out, None)

    def _add_pairs(self, evidence: Evidence, *weight_and_outputs: Any) -> None:
        arguments = self._arguments(evidence, regions=True)
        arguments[-1].kernels.add_pairs(*arguments, *weight_and_outputs)

    def _arguments(self, evidence: Evidence, regions: bool = False) -> tuple[Any, ...]:
        """The arguments common to all kernels."""
        regions = regions or evidence.allowed is not None or evidence.odds is not None
        leaves = Leaves(self.ensemble.leaf_start, self.value, self.ensemble.tree_output)
        given = self._given(evidence, regions)
        return self._points(evidence), self.nodes, leaves, self.tables, given

    def _known(self, evidence: Evidence) -> RegionRows:
        """What is known of missing values."""
        n_variables = len(self.tables.n_levels)
        odds = np.ones((len(evidence.points), n_variables))
        if evidence.odds is not None:
            odds = np.ascontiguousarray(evidence.odds[:, :n_variables])
        return RegionRows(np.ascontiguousarray(self._allowed(evidence)), odds)

    def _allowed(self, evidence: Evidence) -> Words:
        """The sets of the evidence, or full sets."""
        if evidence.allowed is not None and not self.merged.classes:
            return evidence.allowed[:, : self.tables.set_offset[-1]]
        everything = np.iinfo(np.uint64).max
        sets = np.full((len(evidence.points), self.tables.set_offset[-1]), everything, np.uint64)
        if evidence.allowed is not None:
            merged = [v in self.merged.classes for v in range(len(self.tables.n_levels))]
            words, given = np.diff(self.tables.set_offset), word_offsets(evidence.n_levels)
            of_merged = np.repeat(merged, np.diff(given)[: len(words)])
            allowed = evidence.allowed[:, : len(of_merged)]
            sets[:, ~np.repeat(merged, words)] = allowed[:, ~of_merged]
        return sets


def merged_levels(ensemble: Ensemble, density: Any) -> Merged:
    """The ensemble with levels merged that no split tells apart.

    One-hot groups keep their levels, since in a partly observed group only some are possible.
    """
    groups = [v for v, variable in enumerate(density.variables_) if len(variable.columns) > 1]
    return Merged.of(ensemble, but=groups)


# ---- records, for kernels ------------------------------------------------------------------------


class WalkTables(NamedTuple):
    """Tables of trees and univariate distributions (:mod:`knothole.expectation.tables`)."""

    position: Any  # (nodes,) of the threshold, in its variable's grid
    offset: Any  # (variables + 1,) first row of each variable in ``mass``
    mass: Any  # (grid rows, states)
    absent: Any  # (variables, states) mass of "not recorded" of numeric variables
    n_levels: Any  # (variables,)
    unrecorded: Any  # (variables,) code of "not recorded" of categorical ones, else -1
    set_offset: Any  # (variables + 1,) first word of each variable in a region's sets
    depth: int  # frames that a walk of the deepest tree can need


class Leaves(NamedTuple):
    """The leaves of all trees."""

    start: Any  # (trees + 1,) first leaf of each tree
    value: Any  # (leaves, width) times the tree's weight
    output: Any  # (trees,) first output that each tree serves


class RegionRows(NamedTuple):
    """What rows know of missing values, for walks that keep regions."""

    allowed: Any  # (rows, words) the codes that are possible
    odds: Any  # (rows, variables) odds of missing values (`Evidence.odds`)


class LeafWords(NamedTuple):
    """Leaves of small trees compatible with observed values (:class:`.LeafSets`), for all trees.

    A walk without regions then visits only the splits where the set divides in two. Without such
    sets, if some tree is too large, it goes from node to node.
    """

    word: Any  # (rows, trees)
    parting: Any  # (trees, 64, 64)
    right: Any  # (trees, 128)
    leaf: Any  # (trees, 64)
