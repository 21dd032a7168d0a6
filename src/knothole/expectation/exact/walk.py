"""Exact engines: walks through the trees that divide where a row has a missing value.

A *position* goes from leaf to leaf of one tree, through those that a row can reach, depth first.
Where it carries the region of every missing value, a second position can start inside a leaf of
the first and go through another tree there: that is the probability of a pair of leaves (Lemma 2).
It then also starts from any region, such as a one-hot group observed in part.

The walks are ``core/walk.hpp``. What differs between families of densities is what a density says
of rows given x_o (``given``); each kind of it has the kernels that take it.
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
    """Exact expectations by walks, for a family of densities."""

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
        """What the density says of rows; ``regions`` says that these must be in hand at leaves."""

    @cached_property
    def leaf_sets(self) -> list[LeafSets]:
        """Sets of leaves, where trees are small enough."""
        return leaf_sets(self.ensemble)

    @cached_property
    def _small_trees(self) -> tuple[Any, ...]:
        """Sets of leaves of all trees in their order: see the fields of :class:`LeafWords`."""
        groups = self.leaf_sets
        order = np.argsort(np.concatenate([group.root for group in groups]))
        fields = ("parting", "right", "leaf")
        parts = ([getattr(group, field) for group in groups] for field in fields)
        return tuple(np.ascontiguousarray(np.concatenate(part)[order]) for part in parts)

    def _words(self, evidence: Evidence) -> LeafWords:
        """What observed values leave of small trees."""
        points = self._points(evidence)
        if not self.leaf_sets:
            none = np.empty((0, LEAVES, LEAVES), np.uint8), np.empty((0, 2 * LEAVES), np.uint64)
            words = np.empty((len(points), 0), np.uint64)
            return LeafWords(words, *none, np.empty((0, LEAVES), np.int64))
        words = np.empty((len(points), self.ensemble.n_trees), np.uint64)
        if len(self.leaf_sets) == 1:  # of all trees, in their order
            kernels_of_sets.read_rows(points, self.leaf_sets[0], 0, words)
        else:
            for group in self.leaf_sets:
                found = np.empty((len(points), len(group.root)), np.uint64)
                kernels_of_sets.read_rows(points, group, 0, found)
                words[:, self.ensemble.leaf_tree[group.leaf[:, 0]]] = found
        return LeafWords(words, *self._small_trees)

    def _points(self, evidence: Evidence) -> Floats:
        """Values of rows as the trees take them."""
        return np.ascontiguousarray(self.merged.points(evidence.points))

    @property
    def go_left(self) -> Floats:
        """Probability of going left at each node where its variable is missing, (nodes, states)."""
        return self._at_nodes[0]

    @cached_property
    def _at_nodes(self) -> tuple[Floats, Floats]:
        """:attr:`go_left`, and the part of what arrives that is not recorded."""
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
        """Leaf probabilities of a chunk, part by part."""
        arguments = self._arguments(evidence)
        emit = arguments[-1].kernels.emit
        # Two places more than leaves: a list that is full means that a tree is not done.
        size = max(ENTRIES, int(np.diff(self.ensemble.leaf_start).max(initial=0)) + 2)
        at = 0, 0, 0
        while at[0] < len(evidence.points):
            out = Entries(np.empty(size, np.int32), np.empty(size, np.int32), np.empty(size))
            n, *at = emit(*arguments, *at, out)
            yield Entries(out.row[:n], out.leaf[:n], out.reach[:n])

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
        """What all kernels take."""
        regions = regions or evidence.allowed is not None or evidence.odds is not None
        leaves = Leaves(self.ensemble.leaf_start, self.value, self.ensemble.tree_output)
        given = self._given(evidence, regions)
        return self._points(evidence), self.nodes, leaves, self.tables, given

    def _known(self, evidence: Evidence) -> RegionRows:
        """What rows know of missing values."""
        n_variables = len(self.tables.n_levels)
        odds = np.ones((len(evidence.points), n_variables))
        if evidence.odds is not None:
            odds = np.ascontiguousarray(evidence.odds[:, :n_variables])
        return RegionRows(np.ascontiguousarray(self._allowed(evidence)), odds)

    def _allowed(self, evidence: Evidence) -> Words:
        """The evidence's sets, or sets of everything."""
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
    """The ensemble with levels that no split tells apart taken as one.

    But for one-hot groups, which may be observed in part: some of their levels alone are possible.
    """
    groups = [v for v, variable in enumerate(density.variables_) if len(variable.columns) > 1]
    return Merged.of(ensemble, but=groups)


# ---- records, for kernels ------------------------------------------------------------------------


class WalkTables(NamedTuple):
    """What trees and univariate distributions say together (:mod:`knothole.expectation.tables`)."""

    position: Any  # (nodes,) of the threshold, in its variable's grid
    offset: Any  # (variables + 1,) first row of each variable in ``mass``
    mass: Any  # (grid rows, states)
    absent: Any  # (variables, states) mass of "not recorded" of numeric variables
    n_levels: Any  # (variables,)
    unrecorded: Any  # (variables,) code of "not recorded" of categorical ones, else -1
    set_offset: Any  # (variables + 1,) first word of each variable in a region's sets
    depth: int  # frames that a walk of the deepest tree can need


class Leaves(NamedTuple):
    """The leaves."""

    start: Any  # (trees + 1,) first leaf of each tree
    value: Any  # (leaves, width) times the tree's weight
    output: Any  # (trees,) first output that each tree serves


class RegionRows(NamedTuple):
    """What rows know of missing values, for walks with their regions in hand."""

    allowed: Any  # (rows, words) the codes that are possible
    odds: Any  # (rows, variables) what missing values say (`Evidence.odds`)


class LeafWords(NamedTuple):
    """Which leaves of small trees observed values leave (:class:`.LeafSets`), for all trees.

    A walk without regions then goes from split to split where such a set divides in two, and from
    node to node elsewhere: then there are no trees here.
    """

    word: Any  # (rows, trees)
    parting: Any  # (trees, 64, 64)
    right: Any  # (trees, 128)
    leaf: Any  # (trees, 64)
