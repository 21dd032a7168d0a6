"""What exact engines share: walks with the regions of holes in hand (:mod:`.with_regions`)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

import numpy as np

from knothole.arrays import Floats, Words
from knothole.columns.evidence import Evidence
from knothole.compiled.bits import set_words, word_offsets
from knothole.compiled.simd import padded
from knothole.compiled.threads import Memory
from knothole.expectation.engine import (
    Entries,
    ExactEngine,
    Leaves,
    node_arrays,
    stack_size,
    weighted_values,
)
from knothole.expectation.exact import with_regions
from knothole.expectation.exact.with_regions import Found, Frames, Region, Rows, WalkTables, Working
from knothole.expectation.tables import Tables
from knothole.trees.ensemble import Ensemble
from knothole.trees.in_variables import Merged


class WalkEngine(ExactEngine):
    """Exact expectations by walks; a subclass says what its density makes of rows."""

    chunk = 512

    def __init__(self, ensemble: Ensemble, density: Any) -> None:
        blocks = [v for v, variable in enumerate(density.variables_) if len(variable.columns) > 1]
        self.merged = Merged.of(ensemble, but=blocks)  # of these, some levels alone may be possible
        self.ensemble = ensemble = self.merged.ensemble
        self.value = weighted_values(ensemble)
        self.nodes = node_arrays(ensemble)
        self.depth = stack_size(ensemble)
        self.tables = Tables.of(self.merged, density.distributions_)
        n_levels = ensemble.n_levels.astype(np.int64)
        set_offset = word_offsets(n_levels)
        mass = padded(self.tables.mass)
        self.walk_tables = WalkTables(
            position=self.tables.grid.position,
            offset=self.tables.grid.offset,
            mass=mass,
            absent=padded(self.tables.absent),
            n_levels=n_levels,
            set_offset=set_offset,
            n_variables=len(n_levels),
            n_words=int(set_offset[-1]),
            states=mass.shape[1],
        )
        self.memory = Memory()

    @abstractmethod
    def _given(self, evidence: Evidence) -> Any:
        """What the density says of rows, given what they say."""

    @abstractmethod
    def _position(self) -> Any:
        """Room for a position: frames (:meth:`_frames`), and what else it needs."""

    def margin(self, evidence: Evidence) -> tuple[Floats, Floats]:
        """Prop. 1; the error is 0."""
        out = np.tile(self.ensemble.base, (len(evidence.points), 1))
        with_regions.add_margin(*self._arguments(evidence), out)
        return out, np.zeros_like(out)

    def entries(self, evidence: Evidence) -> Iterator[Entries]:
        """The reach matrix of a chunk, part by part."""
        arguments = self._arguments(evidence)
        at = 0, 0
        while at[1] < len(evidence.points):
            out = Entries.room(self.ensemble)
            count, at = with_regions.emit_reach(*arguments, at, out)
            yield out.first(count)

    def squares(self, evidence: Evidence) -> Floats:
        """E[margin^2] of each output, without the base, (rows, outputs): Lemma 2."""
        out = np.zeros((len(evidence.points), self.ensemble.n_outputs))
        with_regions.add_pairs(*self._arguments(evidence), np.empty((0, 0)), out)
        return out

    def add_pairs(self, evidence: Evidence, row_weight: Floats, out: Floats) -> None:
        """Add the rows' weighted pair reach to ``out`` (leaves, leaves)."""
        arguments = self._arguments(evidence, row_weight)
        with_regions.add_pairs(*arguments, out, np.empty((0, 0)))

    def _arguments(self, evidence: Evidence, weight: Floats | None = None) -> tuple[Any, ...]:
        """What all kernels take."""
        weight = np.empty(0) if weight is None else weight
        rows = Rows(self.merged.points(evidence.points), self._allowed(evidence), weight)
        leaves = Leaves.of(self.ensemble, self.value)
        working = self.memory.once(self._working)
        return rows, self.nodes, leaves, self.walk_tables, self._given(evidence), working

    def _allowed(self, evidence: Evidence) -> Words:
        """The evidence's sets, or sets of everything."""
        if evidence.allowed is not None and not self.merged.classes:
            return evidence.allowed
        everything = np.iinfo(np.uint64).max
        sets = np.full((len(evidence.points), self.walk_tables.n_words), everything, np.uint64)
        if evidence.allowed is not None:
            merged = [v in self.merged.classes for v in range(self.walk_tables.n_variables)]
            own, given = np.diff(self.walk_tables.set_offset), word_offsets(evidence.n_levels)
            whole = np.repeat(merged, np.diff(given)[: len(own)])
            sets[:, ~np.repeat(merged, own)] = evidence.allowed[:, : len(whole)][:, ~whole]
        return sets

    def _working(self) -> Working:
        region = _region(len(self.ensemble.columns), self.walk_tables.n_words)
        # A place more than leaves: full means "not done yet".
        n = int(np.diff(self.ensemble.leaf_start).max(initial=1)) + 1
        one, every = (Found(np.empty(k, dtype=np.int32), np.empty(k), k) for k in (1, n))
        return Working(region, self._position(), self._position(), one, every)

    def _frames(self) -> Frames:
        """The part of a position that all kinds have."""
        words = set_words(int(self.ensemble.n_levels.max(initial=0)))
        return Frames(
            top=np.zeros(1, dtype=np.int64),
            reach=np.empty(self.depth),
            node=np.empty(self.depth, dtype=np.int64),
            phase=np.empty(self.depth, dtype=np.int64),
            saved=_region(self.depth, self.depth * words),
            words=words,
        )


def _region(n: int, words: int) -> Region:
    low, high = np.empty((2, n), dtype=np.int64)
    return Region(low, high, np.empty(n, dtype=np.bool_), np.empty(words, dtype=np.uint64))
