"""Reach under a mixture of products (and its one-component case), exactly.

Given the component, holes are independent, so the probability q of going left at a node does not
depend on the row (:class:`~knothole.reach.tables.Tables`). A row carries a weight for each
component, at first its responsibilities p(k | x_o). It follows observed splits; at a hole the
weights divide into ``w * q`` and ``w * (1 - q)``; at a leaf their sum is the leaf's reach.

Two cases need more than q: a one-hot block observed in part, and two trees at once (Lemma 2). There
the row carries the region of every hole too, and masses are read off the tables on the way
(:mod:`knothole.reach.cursor`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from knothole.densities.leaves.base import Leaf
from knothole.evidence import Evidence, word_offsets
from knothole.reach import cursor, product_kernels
from knothole.reach.engine import (
    ENTRIES,
    Engine,
    Entries,
    Moments,
    add_values,
    node_arrays,
    plain,
    stack_size,
    weighted_values,
)
from knothole.reach.tables import Tables
from knothole.trees.ensemble import Ensemble

Floats = NDArray[np.float64]


class Product(Protocol):
    """A density whose variables are independent given a component."""

    leaves_: tuple[Leaf, ...]

    def responsibilities(self, evidence: Evidence) -> tuple[Floats, Floats]:
        """Log p(x_o) (rows,) and p(component | x_o) (rows, components)."""
        ...


class ProductEngine(Engine):
    """Exact expectations under a mixture of products."""

    exact = True
    block = 1024

    def __init__(self, ensemble: Ensemble, density: Product) -> None:
        self.ensemble = ensemble
        self.density = density
        self.tables = Tables.of(ensemble, density.leaves_)
        self.value = weighted_values(ensemble)
        self.n_components = self.tables.mass.shape[1]
        self.nodes = node_arrays(ensemble)
        twins = self.nodes[-1].astype(np.bool_)
        first = np.where(twins, ensemble.left[np.where(twins, ensemble.left, 0)], 0)
        q = self.tables.go_left
        left_value, right_value = self.value[first, :1], self.value[first + twins, :1]
        self.below = np.where(twins[:, None], q * left_value + (1 - q) * right_value, 0.0)
        self.depth = stack_size(ensemble)
        n_levels = ensemble.n_levels.astype(np.int64)
        self.set_offset = word_offsets(n_levels)
        grid = self.tables.grid
        self.cursor_tables = (
            grid.position,
            grid.offset,
            self.tables.mass,
            self.tables.absent,
            n_levels,
            self.set_offset,
        )

    def margin(self, evidence: Evidence, first_row: int) -> tuple[Floats, Floats]:
        """Prop. 1; the error is 0."""
        points = evidence.points
        weights = self.density.responsibilities(evidence)[1]
        out = np.tile(self.ensemble.base, (len(points), 1))
        whole = ~evidence.partly_observed()
        if whole.all():
            self._add_margin(points, weights, out)
            return out, np.zeros_like(out)
        part = out[whole]
        self._add_margin(points[whole], weights[whole], part)
        out[whole] = part
        for entries in self._restricted(evidence, weights, np.flatnonzero(~whole)):
            add_values(self.ensemble, self.value, entries, out)
        return out, np.zeros_like(out)

    def _add_margin(self, points: Floats, weights: Floats, out: Floats) -> None:
        product_kernels.add_margin(
            points,
            weights,
            self.nodes,
            plain(self.ensemble, points),
            self.tables.go_left,
            self.below,
            self.value,
            self.ensemble.tree_output,
            *self._slots(),
            out,
        )

    def entries(self, evidence: Evidence, first_row: int) -> Iterator[Entries]:
        """The reach matrix of a block, part by part."""
        weights = self.density.responsibilities(evidence)[1]
        partly = evidence.partly_observed()
        whole = np.flatnonzero(~partly)
        ensemble = self.ensemble
        slots = self._slots()
        points, own_weights = evidence.points[whole], weights[whole]

        def emit(tree: int, row: int, *out: Any) -> tuple[int, int, int]:
            found: tuple[int, int, int] = product_kernels.emit_reach(
                points, own_weights, self.nodes, ensemble.leaf_start, self.tables.go_left,
                tree, row, *slots, *out,
            )  # fmt: skip
            return found

        if len(whole):
            yield from _parts(emit, whole, self._capacity, lambda t, _: t >= ensemble.n_trees)
        yield from self._restricted(evidence, weights, np.flatnonzero(partly))

    def _restricted(
        self, evidence: Evidence, weights: Floats, rows: NDArray[np.intp]
    ) -> Iterator[Entries]:
        """Entries of rows with blocks observed in part."""
        if len(rows) == 0:
            return
        points, own_weights = evidence.points[rows], weights[rows]
        allowed = self._allowed(evidence)[rows]
        region, stack = self._region(), self._stack()

        def emit(tree: int, row: int, *out: Any) -> tuple[int, int, int]:
            found: tuple[int, int, int] = cursor.emit_restricted(
                points, own_weights, allowed, self.nodes, self.cursor_tables, region, stack,
                self.ensemble.leaf_start, tree, row, *out,
            )  # fmt: skip
            return found

        yield from _parts(emit, rows, self._capacity, lambda _, r: r >= len(points))

    def moments(self, evidence: Evidence, first_row: int) -> Moments:
        """Lemmas 1 and 2, over all pairs of trees."""
        weights = self.density.responsibilities(evidence)[1]
        square = np.zeros((len(weights), self.ensemble.n_outputs))
        cursor.add_squares(
            evidence.points, weights, self._allowed(evidence), self.nodes, self.cursor_tables,
            self._region(), self._stack(), self._stack(), self.value,
            self.ensemble.tree_output, square,
        )  # fmt: skip
        mean, error = self.margin(evidence, first_row)
        variance = np.maximum(square - (mean - self.ensemble.base) ** 2, 0.0)
        return Moments(mean, variance, error, np.zeros_like(error))

    def add_pairs(
        self, evidence: Evidence, row_weight: Floats, first_row: int, out: Floats
    ) -> None:
        """Add the rows' weighted pair reach to the upper part of ``out`` (leaves, leaves)."""
        weights = self.density.responsibilities(evidence)[1]
        cursor.add_pairs(
            evidence.points, weights, self._allowed(evidence), row_weight, self.nodes,
            self.cursor_tables, self._region(), self._stack(), self._stack(), out,
        )  # fmt: skip

    # ---- what kernels write on ---------------------------------------------------------------

    @property
    def _capacity(self) -> int:
        return max(ENTRIES, int(np.diff(self.ensemble.leaf_start).max(initial=1)))

    def _slots(self) -> tuple[NDArray[np.int32], Floats]:
        return np.empty(self.depth, dtype=np.int32), np.empty((self.depth, self.n_components))

    def _region(self) -> tuple[Any, ...]:
        n = len(self.ensemble.columns)
        positions = (np.empty(n, dtype=np.int64), np.empty(n, dtype=np.int64))
        return (*positions, np.empty(n, dtype=np.bool_), np.empty(self.set_offset[-1], np.uint64))

    def _stack(self) -> tuple[Any, ...]:
        words = int(self.ensemble.n_levels.max(initial=0)) // 64 + 1
        integers = (np.empty(self.depth, dtype=np.int64) for _ in range(4))
        return (
            *integers,
            np.empty(self.depth, dtype=np.bool_),
            np.empty((self.depth, words), dtype=np.uint64),
            np.empty((self.depth + 1, self.n_components)),
            np.empty(1, dtype=np.int64),
        )

    def _allowed(self, evidence: Evidence) -> NDArray[np.uint64]:
        """The evidence's sets, or sets of everything."""
        if evidence.allowed is not None:
            return evidence.allowed
        everything = np.iinfo(np.uint64).max
        return np.full((len(evidence.points), int(self.set_offset[-1])), everything, np.uint64)


def _parts(emit: Any, rows: NDArray[np.intp], capacity: int, done: Any) -> Iterator[Entries]:
    """Call a kernel that fills arrays of entries until it is done; rows by their own numbers."""
    tree = row = 0
    while not done(tree, row):
        out_row, out_leaf = np.empty(capacity, np.int32), np.empty(capacity, np.int32)
        out_reach = np.empty(capacity)
        count, tree, row = emit(tree, row, out_row, out_leaf, out_reach)
        own = rows[out_row[:count]].astype(np.int32)
        yield Entries(own, out_leaf[:count], out_reach[:count])
