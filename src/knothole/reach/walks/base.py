"""What exact engines share: walks with the regions of holes in hand (:mod:`.walks`)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats
from knothole.compiled.bits import set_words, word_offsets
from knothole.compiled.simd import padded
from knothole.densities.emissions.base import Emission
from knothole.reach.engine import (
    ENTRIES,
    Engine,
    Entries,
    Moments,
    centred_values,
    node_arrays,
    stack_size,
    weighted_values,
)
from knothole.reach.tables import Tables
from knothole.reach.walks import with_regions
from knothole.tables.evidence import Evidence
from knothole.trees.ensemble import Ensemble


class WalkEngine(Engine):
    """Exact expectations by cursors; a subclass says what its density makes of rows."""

    exact = True
    block = 512

    def __init__(self, ensemble: Ensemble, emissions: Sequence[Emission]) -> None:
        self.ensemble = ensemble
        self.tables = Tables.of(ensemble, emissions)
        self.value = weighted_values(ensemble)
        self.nodes = node_arrays(ensemble)
        self.depth = stack_size(ensemble)
        n_levels = ensemble.n_levels.astype(np.int64)
        self.set_offset = word_offsets(n_levels)
        mass = padded(self.tables.mass)
        self.walk_tables = with_regions.WalkTables(
            position=self.tables.grid.position,
            offset=self.tables.grid.offset,
            mass=mass,
            absent=padded(self.tables.absent),
            n_levels=n_levels,
            set_offset=self.set_offset,
            n_variables=len(n_levels),
            n_words=int(self.set_offset[-1]),
            states=mass.shape[1],
        )

    @abstractmethod
    def _walk(self, evidence: Evidence) -> Any:
        """What the density says of the rows, in the form of the engine's cursors."""

    @abstractmethod
    def _stack(self) -> Any:
        """Frames of a cursor (:meth:`_frames`), and what else it needs."""

    def margin(self, evidence: Evidence) -> tuple[Floats, Floats]:
        """Prop. 1; the error is 0."""
        out = np.tile(self.ensemble.base, (len(evidence.points), 1))
        with_regions.add_margin(
            evidence.points, self._allowed(evidence), self.nodes, self.walk_tables,
            self._region(), self._walk(evidence), self._stack(), self._found(), self.value,
            self.ensemble.tree_output, out,
        )  # fmt: skip
        return out, np.zeros_like(out)

    def entries(self, evidence: Evidence) -> Iterator[Entries]:
        """The reach matrix of a block, part by part."""
        allowed, region = self._allowed(evidence), self._region()
        walk, stack = self._walk(evidence), self._stack()
        tree = row = 0
        while row < len(evidence.points):
            out = self._room()
            count, tree, row = with_regions.emit_reach(
                evidence.points, allowed, self.nodes, self.ensemble.leaf_start,
                self.walk_tables, region, walk, stack, tree, row, *out,
            )  # fmt: skip
            yield Entries(out[0][:count], out[1][:count], out[2][:count])

    def moments(self, evidence: Evidence) -> Moments:
        """Lemmas 1 and 2, over all pairs of trees."""
        rows = len(evidence.points)
        square = np.zeros((rows, self.ensemble.n_outputs))
        value, taken = centred_values(self.ensemble, self.value)
        self._visit_pairs(evidence, np.ones(rows), np.empty((0, 0)), square, value)
        mean, error = self.margin(evidence)
        variance = np.maximum(square - (mean - self.ensemble.base - taken) ** 2, 0.0)
        return Moments(mean, np.sqrt(variance), error, np.zeros_like(error))

    def add_pairs(self, evidence: Evidence, row_weight: Floats, out: Floats) -> None:
        """Add the rows' weighted pair reach to ``out`` (leaves, leaves)."""
        self._visit_pairs(evidence, row_weight, out, np.empty((0, 0)), self.value)

    def _visit_pairs(
        self,
        evidence: Evidence,
        row_weight: Floats,
        pairs: Floats,
        squares: Floats,
        value: Floats,
    ) -> None:
        with_regions.add_pairs(
            evidence.points, self._allowed(evidence), row_weight, self.nodes, self.walk_tables,
            self._region(), self._walk(evidence), self._stack(), self._stack(), self._found(),
            value, self.ensemble.tree_output, pairs, squares,
        )  # fmt: skip

    # ---- what kernels write on ---------------------------------------------------------------

    def _room(self) -> tuple[NDArray[np.int32], NDArray[np.int32], Floats]:
        """Arrays for rows, leaves and reach of entries; at least for the leaves of one tree."""
        n = max(ENTRIES, int(np.diff(self.ensemble.leaf_start).max(initial=1)) + 1)
        return np.empty(n, dtype=np.int32), np.empty(n, dtype=np.int32), np.empty(n)

    def _found(self) -> with_regions.Found:
        """Room for one leaf, and for those of a tree and one more (full means "not done yet")."""
        n = int(np.diff(self.ensemble.leaf_start).max(initial=1)) + 1
        one = (np.empty(1, dtype=np.int32), np.empty(1))
        return with_regions.Found(*one, np.empty(n, dtype=np.int32), np.empty(n), n)

    def _region(self) -> with_regions.Region:
        n = len(self.ensemble.columns)
        return with_regions.Region(
            low=np.empty(n, dtype=np.int64),
            high=np.empty(n, dtype=np.int64),
            recorded=np.empty(n, dtype=np.bool_),
            sets=np.empty(self.walk_tables.n_words, dtype=np.uint64),
        )

    def _frames(self) -> with_regions.Frames:
        """The part of a stack that all cursors have."""
        words = set_words(int(self.ensemble.n_levels.max(initial=0)))
        return with_regions.Frames(
            top=np.zeros(1, dtype=np.int64),
            reach=np.empty(self.depth),
            node=np.empty(self.depth, dtype=np.int64),
            phase=np.empty(self.depth, dtype=np.int64),
            low=np.empty(self.depth, dtype=np.int64),
            high=np.empty(self.depth, dtype=np.int64),
            recorded=np.empty(self.depth, dtype=np.bool_),
            sets=np.empty((self.depth, words), dtype=np.uint64),
            words=words,
        )

    def _allowed(self, evidence: Evidence) -> NDArray[np.uint64]:
        """The evidence's sets, or sets of everything."""
        if evidence.allowed is not None:
            return evidence.allowed
        everything = np.iinfo(np.uint64).max
        return np.full((len(evidence.points), int(self.set_offset[-1])), everything, np.uint64)
