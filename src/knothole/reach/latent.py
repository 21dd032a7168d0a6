"""Reach under a latent tree, exactly.

Given x_o, latents without a hole below them are summed out once per row; the decision trees then
walk with the small tree that remains (:mod:`knothole.reach.latent_kernels`). The circuit is never
evaluated leaf by leaf.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from knothole.densities.leaves.base import Leaf
from knothole.evidence import Evidence
from knothole.reach import latent_kernels as latent_kernels  # serves this engine's kind of walk
from knothole.reach.engine import warn_impossible
from knothole.reach.walk_engine import WalkEngine
from knothole.trees.ensemble import Ensemble

Floats = NDArray[np.float64]

# States come in multiples of this, for the kernels' sake.
LANES = 4


class Latent(Protocol):
    """A density with a latent for every variable, the latents tied together by a tree."""

    leaves_: tuple[Leaf, ...]
    parent_: NDArray[np.int64]
    order_: NDArray[np.int64]
    prior_: Floats
    transition_: Floats

    def terms(self, evidence: Evidence, within: Iterable[Any] = ()) -> list[Floats]:
        """Log likelihood of each variable's states, (rows, states) each."""
        ...


class LatentEngine(WalkEngine):
    """Exact expectations under a latent tree."""

    def __init__(self, ensemble: Ensemble, density: Latent) -> None:
        super().__init__(ensemble, density.leaves_)
        self.density = density
        self.states = -(-self.tables.mass.shape[1] // LANES) * LANES
        position, offset, mass, absent, n_levels, set_offset = self.walk_tables
        self.walk_tables = (
            position,
            offset,
            padded(mass, self.states),
            padded(absent, self.states),
            n_levels,
            set_offset,
        )
        parent = np.asarray(density.parent_, dtype=np.int64)
        n_children = np.bincount(parent[parent >= 0], minlength=len(parent))
        self.tree = (
            parent,
            np.asarray(density.order_, dtype=np.int64),
            np.concatenate([[0], np.cumsum(n_children)]).astype(np.int64),
            np.argsort(np.where(parent < 0, len(parent), parent), kind="stable"),
            square(density.transition_, self.states),
            padded(density.prior_, self.states),
        )
        self.used = np.zeros(len(ensemble.columns), dtype=np.bool_)
        self.used[ensemble.feature[ensemble.feature >= 0]] = True

    def _walk(self, evidence: Evidence) -> tuple[Any, ...]:
        terms = np.stack(self.density.terms(evidence), axis=1)
        hole = np.isnan(evidence.points[:, : len(self.used)]) & self.used
        # Active holes bring their regions themselves, restricted blocks included.
        terms[:, : len(self.used)][hole] = 0.0
        largest = terms.max(axis=2, keepdims=True)
        impossible = np.isneginf(largest)
        warn_impossible(np.where(impossible.any(axis=(1, 2)), -np.inf, 0.0))
        like = np.where(impossible, 1.0, np.exp(terms - np.where(impossible, 0.0, largest)))
        like = padded(like, self.states)
        n, states = like.shape[1:]
        reduced = (
            np.empty(n, dtype=np.int64),
            np.empty(n, dtype=np.int64),
            np.empty((n, states)),
            np.empty((n, states)),
            np.empty((n, 2, states, states)),
            np.empty((n, states)),
            np.empty((n, states)),
            np.zeros(3, dtype=np.int64),
        )
        moves = (2 * self.depth + 2) * (n + 1)
        log = (np.empty(moves, dtype=np.int64), np.empty((moves, states)), np.zeros(1, np.int64))
        scratch = (
            np.empty(n + 1, dtype=np.int64),
            np.empty(n, dtype=np.bool_),
            np.empty((n, states)),
            np.empty((n, states)),
            np.empty(n, dtype=np.int64),
            np.empty((states, states)),
            np.empty(states),
        )
        return like, self.used, self.tree, reduced, log, scratch

    def _stack(self) -> tuple[Any, ...]:
        return (
            *self._frames(),
            np.empty((self.depth, self.states)),
            np.empty((self.depth, self.states)),
            np.empty(self.depth, dtype=np.int64),
            *(np.empty(self.states) for _ in range(3)),
        )


def padded(array: Floats, states: int) -> Floats:
    """An array with zeros after its last axis, up to a whole number of states."""
    width = [(0, 0)] * (array.ndim - 1) + [(0, states - array.shape[-1])]
    return np.ascontiguousarray(np.pad(array, width))


def square(matrices: Floats, states: int) -> Floats:
    """Matrices (n, h, h) with rows and columns of zeros added."""
    extra = states - matrices.shape[1]
    return np.ascontiguousarray(np.pad(matrices, [(0, 0), (0, extra), (0, extra)]))
