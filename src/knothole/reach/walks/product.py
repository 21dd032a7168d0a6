"""Reach under a mixture of products (and its one-component case), exactly.

Given the component, holes are independent, so the probability q of going left at a node does not
depend on the row (:class:`~knothole.reach.tables.Tables`). A row carries a weight for each
component, at first its responsibilities p(k | x_o). It follows observed splits; at a hole the
weights divide into ``w * q`` and ``w * (1 - q)``; at a leaf their sum is the leaf's reach.

Two cases need more than q: a one-hot block observed in part, and two trees at once (Lemma 2). There
the row carries the region of every hole too, and masses are read off the tables on the way
(:mod:`knothole.reach.walks.product_position`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats
from knothole.compiled.simd import padded
from knothole.densities.emissions.base import Emission
from knothole.reach.engine import Entries, plain, warn_impossible
from knothole.reach.tables import left_probabilities
from knothole.reach.walks import product_kernels
from knothole.reach.walks.base import WalkEngine
from knothole.reach.walks.product_position import ProductStack, ProductWalk
from knothole.tables.evidence import Evidence
from knothole.trees.ensemble import Ensemble


class Product(Protocol):
    """A density whose holes are independent given a component."""

    emissions_: tuple[Emission, ...]

    def responsibilities(self, evidence: Evidence) -> tuple[Floats, Floats]:
        """Log p(x_o) (rows,) and p(component | x_o) (rows, components)."""
        ...


class ProductEngine(WalkEngine):
    """Exact expectations under a mixture of products."""

    def __init__(self, ensemble: Ensemble, density: Product) -> None:
        super().__init__(ensemble, density.emissions_)
        self.density = density
        self.n_components = self.walk_tables.states
        self.go_left = padded(left_probabilities(ensemble, self.tables))
        self.below = self._values_below()

    def with_values(self, ensemble: Ensemble) -> Self:
        """The engine for the same trees with other leaf values; all else is shared."""
        other = super().with_values(ensemble)
        other.below = other._values_below()
        return other

    def margin(self, evidence: Evidence) -> tuple[Floats, Floats]:
        """Prop. 1; the error is 0."""
        partly = evidence.partly_observed()
        if partly.all() and len(partly):
            return super().margin(evidence)
        out = np.tile(self.ensemble.base, (len(partly), 1))
        if not partly.any():
            self._add_margin(evidence, out)
            return out, np.zeros_like(out)
        whole, rest = np.flatnonzero(~partly), np.flatnonzero(partly)
        part = out[whole]
        self._add_margin(evidence[whole], part)
        out[whole] = part
        out[rest] = super().margin(evidence[rest])[0]
        return out, np.zeros_like(out)

    def entries(self, evidence: Evidence) -> Iterator[Entries]:
        """The reach matrix of a block, part by part."""
        partly = evidence.partly_observed()
        whole, rest = np.flatnonzero(~partly), np.flatnonzero(partly)
        if len(whole):
            yield from self._whole_entries(evidence[whole], whole)
        if len(rest):
            for part in super().entries(evidence[rest]):
                yield Entries(rest[part.row].astype(np.int32), part.leaf, part.reach)

    def _add_margin(self, evidence: Evidence, out: Floats) -> None:
        points = evidence.points
        product_kernels.add_margin(
            points,
            self._walk(evidence).weights,
            self.nodes,
            plain(self.ensemble, points),
            self.go_left,
            self.below,
            self.value,
            self.ensemble.tree_output,
            *self._slots(),
            out,
        )

    def _whole_entries(self, evidence: Evidence, rows: NDArray[np.intp]) -> Iterator[Entries]:
        """Entries of rows without blocks observed in part, which have the numbers ``rows``."""
        weights = self._walk(evidence).weights
        slots = self._slots()
        tree = row = 0
        while tree < self.ensemble.n_trees:
            out = self._room()
            count, tree, row = product_kernels.emit_reach(
                evidence.points, weights, self.nodes, self.ensemble.leaf_start,
                plain(self.ensemble, evidence.points), self.go_left, tree, row, *slots, *out,
            )  # fmt: skip
            yield Entries(rows[out[0][:count]].astype(np.int32), out[1][:count], out[2][:count])

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

    def _walk(self, evidence: Evidence) -> ProductWalk:
        log_p, weights = self.density.responsibilities(evidence)
        warn_impossible(log_p)
        return ProductWalk(padded(weights), self.n_components)

    def _slots(self) -> tuple[NDArray[np.int32], Floats]:
        return np.empty(self.depth, dtype=np.int32), np.empty((self.depth, self.n_components))

    def _stack(self) -> ProductStack:
        return ProductStack(self._frames(), np.empty((self.depth, self.n_components)))
