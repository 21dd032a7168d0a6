"""Reach under a latent tree, exactly.

Given x_o, latents without a hole below them are summed out once per row; the decision trees then
walk with the small tree that remains (:mod:`knothole.expectation.exact.latent_position`). The
circuit is
never evaluated leaf by leaf.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats
from knothole.columns.evidence import Evidence
from knothole.compiled.simd import padded, room
from knothole.densities.latent_tree.density import LatentTree
from knothole.densities.univariate.packed import pack
from knothole.expectation.engine import used_variables, warn_impossible
from knothole.expectation.exact import latent_kernels
from knothole.expectation.exact.base import WalkEngine
from knothole.expectation.exact.latent_kernels import Sides, Splits, Trees
from knothole.expectation.exact.latent_messages import Messages
from knothole.expectation.exact.latent_position import LatentGiven, LatentPosition, fill_likelihood
from knothole.expectation.exact.latent_reduce import Latents, Reduced, Scratch
from knothole.expectation.leaf_sets import LEAVES, LeafSets, leaf_sets
from knothole.expectation.tables import left_probabilities
from knothole.trees.ensemble import Ensemble


class LatentEngine(WalkEngine):
    """Exact expectations under a latent tree."""

    def __init__(self, ensemble: Ensemble, density: LatentTree) -> None:
        super().__init__(ensemble, density)
        self.density = density
        self.states = self.walk_tables.states
        parent = np.asarray(density.parent_, dtype=np.int64)
        n_children = np.bincount(parent[parent >= 0], minlength=len(parent))
        transition = padded(density.transition_, axes=2)
        self.latents = Latents(
            parent=parent,
            order=np.asarray(density.order_, dtype=np.int64),
            child_start=np.concatenate([[0], np.cumsum(n_children)]).astype(np.int64),
            children=np.argsort(np.where(parent < 0, len(parent), parent), kind="stable"),
            transition=transition,
            transposed=padded(transition.transpose(0, 2, 1)),
            prior=padded(density.prior_),
            n=len(parent),
            states=self.states,
        )
        self.used = used_variables(ensemble)

    def margin(self, evidence: Evidence) -> tuple[Floats, Floats]:
        """Prop. 1; the error is 0."""
        if evidence.allowed is not None or not self.leaf_sets:
            return super().margin(evidence)
        out = np.tile(self.ensemble.base, (len(evidence.points), 1))
        points = self.merged.points(evidence.points)
        words = np.empty((len(points), self.ensemble.n_trees), dtype=np.uint64)
        first = 0
        for some in self.leaf_sets:
            latent_kernels.read_words(points, some, words, first)
            first += len(some.root)
        trees = self._trees._replace(value=self.value[self._leaf, 0])
        room = self.memory.once(self._splits), self.memory.once(self._sides)
        latent_kernels.add_expected(points, words, trees, self._given(evidence), *room, out)
        return out, np.zeros_like(out)

    @cached_property
    def leaf_sets(self) -> list[LeafSets]:
        """Sets of leaves, where trees are small enough."""
        return leaf_sets(self.ensemble)

    @cached_property
    def _leaf(self) -> NDArray[np.int64]:
        return np.concatenate([some.leaf for some in self.leaf_sets])

    @cached_property
    def _trees(self) -> Trees:
        sets = self.leaf_sets
        root, parting, right = (
            np.concatenate([getattr(some, name) for some in sets])
            for name in ("root", "parting", "right")
        )
        return Trees(
            root=root,
            output=np.repeat([some.output for some in sets], [len(some.root) for some in sets]),
            value=np.empty((0, 0)),
            parting=parting,
            right=right,
            feature=self.ensemble.feature,
            go_left=padded(left_probabilities(self.ensemble, self.tables)),
            n_trees=len(root),
            n_variables=len(self.ensemble.columns),
            states=self.density.transition_.shape[1],
        )

    def _splits(self) -> Splits:
        n = self.ensemble.n_leaves
        return Splits(
            go_left=np.empty(n, dtype=np.int64),
            node=np.empty(n, dtype=np.int64),
            left=np.empty(n),
            right=np.empty(n),
            side=np.empty(n, dtype=np.int64),
            stop=np.empty(self.ensemble.n_trees, dtype=np.int64),
            word=np.empty(LEAVES, dtype=np.uint64),
            later=np.empty(LEAVES, dtype=np.int64),
        )

    def _sides(self) -> Sides:
        n = self.depth
        return Sides(
            reach=np.empty(2 * n),
            node=np.empty(n, dtype=np.int64),
            mark=np.empty(n, dtype=np.int64),
            belief=np.empty(n, dtype=np.int64),
        )

    def _given(self, evidence: Evidence) -> LatentGiven:
        like = self._likelihood(evidence)
        return LatentGiven(like, self.used, self.latents, *self.memory.once(self._scratch))

    def _scratch(self) -> tuple[Reduced, Scratch, Messages]:
        n, states = self.latents.n, self.states
        reduced = Reduced(
            n=np.zeros(1, dtype=np.int64),
            parent=np.empty(n, dtype=np.int64),
            child=np.empty(n, dtype=np.int64),
            sibling=np.empty(n, dtype=np.int64),
            slot=np.empty(n, dtype=np.int64),
            g=room(n, states),
            matrix=room(2 * n, states, states),
        )
        scratch = Scratch(
            active=np.empty(n, dtype=np.bool_),
            with_hole=np.empty(n, dtype=np.bool_),
            message=room(n, states),
            local=room(n, states),
            buffer=room(states, states),
        )
        # A position moves the focus once for each of its frames; there may be two of them.
        moves = 2 * (self.depth + 1) * (n + 1)
        messages = Messages(
            e=room(n + 2 * self.depth, states),
            belief=room(n + self.depth, states),
            arena=room(2 * n + moves, states),
            place=np.empty(3 * n, dtype=np.int64),
            edge=np.empty(moves, dtype=np.int64),
            old=np.empty(moves, dtype=np.int64),
            target=np.empty(3 * n, dtype=np.int64),
            count=np.empty(n, dtype=np.int64),
            toward=np.empty((n, n), dtype=np.int64),
            vector=room(states),
            at=np.zeros(3, dtype=np.int64),
            n=n,
            states=states,
        )
        return reduced, scratch, messages

    def _likelihood(self, evidence: Evidence) -> Floats:
        """Likelihood of what is known of each variable, scaled, (rows, variables, states).

        It is 1 at holes that trees split on: they bring their regions themselves, blocks observed
        in part included. So it is at values that are impossible in every state.
        """
        hole = np.isnan(evidence.points)
        hole[:, : len(self.used)] &= self.used
        hole[:, len(self.used) :] = False
        packed = pack(self.density.distributions_, evidence)
        width = self.latents.n * self.states
        like = room(len(packed), width)
        scratch = like.view(np.int64), np.empty(width), np.empty(width, dtype=np.int32)
        impossible = np.zeros(len(packed), dtype=np.bool_)
        # Base measures are the same in all states: they say nothing here.
        values = packed.code, packed.z, packed.slot
        parameters = packed.parameters(self.density.distributions_)
        fill_likelihood(values, parameters, hole, (like, *scratch), impossible)
        warn_impossible(np.where(impossible, -np.inf, 0.0))
        return like.reshape(len(packed), self.latents.n, self.states)

    def _position(self) -> LatentPosition:
        return LatentPosition(
            frames=self._frames(),
            e=np.empty((self.depth, self.states)),
            right=np.empty((self.depth, self.states)),
            mark=np.empty(self.depth, dtype=np.int64),
            focus=np.empty(self.depth, dtype=np.int64),
            belief=room(self.states),
            left_mass=np.empty(self.states),
            right_mass=np.empty(self.states),
        )
