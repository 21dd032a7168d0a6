"""Reach under a mixture of products (and its one-component case), exactly.

Given the component, holes are independent, so the probability q of going left at a node does not
depend on the row (:class:`~knothole.expectation.tables.Tables`). A row carries a weight for each
component, at first its responsibilities p(k | x_o). It follows observed splits; at a hole the
weights divide into ``w * q`` and ``w * (1 - q)``; at a leaf their sum is the leaf's reach.

Two cases need more than q: a one-hot block observed in part, and two trees at once (Lemma 2). There
the row carries the region of every hole too, and masses are read off the tables on the way
(:mod:`knothole.expectation.exact.product_position`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats
from knothole.columns.evidence import Evidence
from knothole.compiled.simd import padded
from knothole.densities.univariate.base import Univariate
from knothole.expectation.engine import Entries, Leaves, TreeEntries, plain, warn_impossible
from knothole.expectation.exact import product_kernels
from knothole.expectation.exact.base import WalkEngine
from knothole.expectation.exact.product_kernels import ROWS, SPLITS, Room, Slots, Trees
from knothole.expectation.exact.product_position import ProductGiven, ProductPosition
from knothole.expectation.leaf_sets import LEAVES, TREES, LeafSets, leaf_sets, read_rows
from knothole.expectation.tables import left_probabilities
from knothole.trees.ensemble import Ensemble


class Product(Protocol):
    """A density whose holes are independent given a component."""

    distributions_: tuple[Univariate, ...]

    def responsibilities(self, evidence: Evidence) -> tuple[Floats, Floats]:
        """Log p(x_o) (rows,) and p(component | x_o) (rows, components)."""
        ...


class ProductEngine(WalkEngine):
    """Exact expectations under a mixture of products."""

    chunk = 4096  # values are encoded a variable at a time, with some overhead for each

    def __init__(self, ensemble: Ensemble, density: Product) -> None:
        super().__init__(ensemble, density)
        self.density = density
        self.n_components = self.walk_tables.states
        self.go_left = padded(left_probabilities(self.ensemble, self.tables))
        self.below = self._values_below()

    @cached_property
    def leaf_sets(self) -> list[LeafSets]:
        """Sets of leaves, where trees are small enough."""
        return leaf_sets(self.ensemble)

    def with_values(self, ensemble: Ensemble) -> Self:
        """The engine for the same trees with other leaf values; all else is shared."""
        other = super().with_values(ensemble)
        other.below = other._values_below()
        return other

    def margin(self, evidence: Evidence) -> tuple[Floats, Floats]:
        """Prop. 1; the error is 0."""
        out = np.tile(self.ensemble.base, (len(evidence.points), 1))
        if evidence.allowed is not None:
            whole, partly = _whole_and_partly(evidence)
            out[whole] = self.margin(replace(evidence[whole], allowed=None))[0]
            out[partly] = super().margin(evidence[partly])[0]
        elif self.leaf_sets:
            points, weights = self.merged.points(evidence.points), self._given(evidence).weights
            room = self.memory.once(self._room)
            for trees in self.leaf_sets:
                product_kernels.add_expected(
                    points, weights, trees, self.go_left, self.value, room, out
                )
        else:
            product_kernels.add_margin(*self._walk(evidence), out)
        return out, np.zeros_like(out)

    def entries(self, evidence: Evidence) -> Iterator[Entries]:
        """The reach matrix of a chunk, part by part."""
        whole, partly = _whole_and_partly(evidence)
        if len(whole):
            walk, at = self._walk(evidence[whole]), (0, 0)
            while at[0] < self.ensemble.n_trees:
                out = Entries.room(self.ensemble)
                count, at = product_kernels.emit_reach(*walk, at, out)
                row, leaf, reach = out.first(count)
                yield Entries(whole[row].astype(np.int32), leaf, reach)
        if len(partly):
            for part in super().entries(evidence[partly]):
                yield Entries(partly[part.row].astype(np.int32), part.leaf, part.reach)

    def add_sums(
        self, evidence: Evidence, y: Floats, row_weight: Floats, weight: Floats, target: Floats
    ) -> None:
        """Prop. 2, without the reach matrix where sets of leaves tell it."""
        if not self.leaf_sets:
            super().add_sums(evidence, y, row_weight, weight, target)
            return
        if evidence.allowed is not None:
            whole, partly = _whole_and_partly(evidence)
            rest = replace(evidence[whole], allowed=None)
            super().add_sums(evidence[partly], y[partly], row_weight[partly], weight, target)
            self.add_sums(rest, y[whole], row_weight[whole], weight, target)
            return
        points, weights = self.merged.points(evidence.points), self._given(evidence).weights
        out = np.zeros((len(weight), 2))
        for trees in self.leaf_sets:
            rows = np.stack([row_weight, row_weight * y[:, trees.output]], axis=1)
            room = self.memory.once(self._room)
            product_kernels.add_sums(points, weights, trees, self.go_left, rows, room, out)
        weight += out[:, 0]
        target += out[:, 1:]

    def tree_entries(self, evidence: Evidence) -> Iterator[TreeEntries]:
        """The reach matrix tree by tree, by sets of leaves where these tell it."""
        if not self.leaf_sets or evidence.allowed is not None:
            yield from super().tree_entries(evidence)
            return
        points, weights = self.merged.points(evidence.points), self._given(evidence).weights
        room = self.memory.once(self._room)
        for trees in self.leaf_sets:
            sets = self.memory.array("sets", (len(points), TREES), np.uint64)
            own = sets[:, : len(trees.root)]
            read_rows(points, trees, own)
            count = np.bitwise_count(own).T
            found = TreeEntries.room(self.ensemble.leaf_tree[trees.leaf[:, 0]], count)
            for start in range(0, len(points), ROWS):
                rows = slice(start, start + ROWS)
                product_kernels.place_reach(
                    weights[rows], trees, self.go_left, room._replace(sets=sets[rows]),
                    start, found.first, found.leaf, found.reach,
                )  # fmt: skip
            yield found

    def _walk(self, evidence: Evidence) -> tuple[Any, ...]:
        """What both kernels take."""
        points = self.merged.points(evidence.points)
        is_plain = plain(self.ensemble, points)
        trees = Trees(self.nodes, self.go_left, self.below, is_plain, self.n_components)
        leaves = Leaves.of(self.ensemble, self.value)
        return points, self._given(evidence).weights, trees, leaves, self.memory.once(self._slots)

    def _values_below(self) -> Floats:
        """What each component expects at nodes with two leaves for children, (nodes, components).

        A row with a hole there needs no more than one dot product.
        """
        ensemble = self.ensemble
        twins = self.nodes.twins.astype(np.bool_)
        leaf = np.where(twins, ensemble.left[np.where(twins, ensemble.left, 0)], 0)
        left, right = self.value[leaf, :1], self.value[leaf + twins, :1]
        below = self.go_left * left + (1 - self.go_left) * right
        return np.asarray(np.where(twins[:, None], below, 0.0))

    def _given(self, evidence: Evidence) -> ProductGiven:
        log_p, weights = self.density.responsibilities(evidence)
        warn_impossible(log_p)
        return ProductGiven(padded(weights), self.n_components)

    def _slots(self) -> Slots:
        return Slots(np.empty(self.depth, np.int32), np.empty((self.depth, self.n_components)))

    def _room(self) -> Room:
        n = self.n_components
        sets, word = np.empty((ROWS, TREES), np.uint64), np.empty(SPLITS, np.uint64)
        row, node, left, right = np.empty((4, SPLITS), dtype=np.int64)
        rows, leaves = (np.empty(ROWS), np.empty((ROWS, n))), np.empty(LEAVES)
        added, part = np.zeros((2, SPLITS, n))
        step, sums = np.empty(SPLITS), np.empty((LEAVES, 2))
        reach = np.empty(ROWS, np.int64), np.empty(ROWS * LEAVES)
        found = row, word, node, step, left, right, added, part
        return Room(sets, *rows, leaves, *found, sums, *reach)

    def _position(self) -> ProductPosition:
        return ProductPosition(self._frames(), np.empty((self.depth, self.n_components)))


def _whole_and_partly(evidence: Evidence) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Rows without blocks observed in part, and rows with some."""
    partly = evidence.partly_observed()
    return np.flatnonzero(~partly), np.flatnonzero(partly)
