"""Exact expectations under a latent tree.

Given x_o, latents without a missing variable below them are summed out once per row; a smaller tree
of latents remains for the walks through the decision trees (``core/latent_messages.hpp``). At a
split on a missing variable, a position moves the focus to that variable, reads off the probability
of the left side, confines the variable to one side after the other, and restores the messages that
it had on arrival.

For every state of the variable's latent, the fraction of the arriving mass that goes left does not
depend on the row: it is tabulated. Where regions are needed, for partly observed one-hot groups and
for pairs of trees (Lemma 2), the mass of the remaining region is read off the tables.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from knothole._core import latent_regions, latent_walk
from knothole.arrays import Floats, aligned, padded
from knothole.columns.evidence import Evidence
from knothole.densities.base import warn_impossible
from knothole.densities.latent_tree.density import LatentTree
from knothole.densities.univariate.packed import pack
from knothole.expectation.exact.walk import WalkEngine, merged_levels
from knothole.expectation.tables import plain
from knothole.trees.ensemble import Ensemble


class LatentTreeEngine(WalkEngine):
    """Exact expectations under a latent tree."""

    def __init__(self, ensemble: Ensemble, density: LatentTree) -> None:
        super().__init__(merged_levels(ensemble, density), density.distributions_)
        self.density = density
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
        )

    def _given(self, evidence: Evidence, regions: bool) -> LatentGiven | LatentRegionGiven:
        given = LatentGiven(
            like=self._likelihood(evidence),
            used=self.ensemble.used,
            latents=self.latents,
            go_left=self.go_left,
            n_states=self.density.transition_.shape[1],
            words=self._words(evidence),
            plain=plain(self.ensemble, evidence.points),
        )
        return LatentRegionGiven(*given, self._known(evidence)) if regions else given

    def _likelihood(self, evidence: Evidence) -> Floats:
        """Scaled likelihood of what is known of each variable, (rows, variables, states).

        It is 1 for missing values that trees split on, including partly observed one-hot groups:
        the walks account for their regions. It is also 1 for values that are impossible in every
        state.
        """
        missing = np.isnan(evidence.points)
        used = self.ensemble.used
        missing[:, : len(used)] &= used
        missing[:, len(used) :] = False
        packed = pack(self.density.distributions_, evidence)
        like = aligned(len(packed), len(self.latents.parent), len(self.latents.prior))
        impossible = np.zeros(len(packed), dtype=np.bool_)
        # Base measures are equal in all states, so they cancel.
        parameters = packed.parameters(self.density.distributions_)
        latent_walk.fill_likelihood(packed.values(), parameters, missing, like, impossible)
        warn_impossible(np.where(impossible, -np.inf, 0.0))
        return like


# ---- records, for kernels ------------------------------------------------------------------------


class Latents(NamedTuple):
    """The latent tree of a density; one latent for each variable."""

    parent: Any  # (latents,) -1 at the root
    order: Any  # (latents,) parents before children
    child_start: Any  # (latents + 1,) into children
    children: Any
    transition: Any  # (latents, states, states) p(state | parent's), one row per parent's state
    transposed: Any  # the same, a row for the latent's own state
    prior: Any  # (states,) of the root


class LatentGiven(NamedTuple):
    """The evidence of rows under a latent tree."""

    like: Any  # (rows, latents, states)
    used: Any  # (variables,) that trees split on
    latents: Any
    go_left: Any  # (nodes, states) fraction of the arriving mass that goes left
    n_states: int  # without padding to a multiple of four
    words: Any  # LeafWords
    plain: bool  # see `tables.plain`

    @property
    def kernels(self) -> Any:
        """The kernels for these arguments."""
        return latent_walk


class LatentRegionGiven(NamedTuple):
    """The same for walks that keep the regions of missing values."""

    like: Any
    used: Any
    latents: Any
    go_left: Any
    n_states: int
    words: Any
    plain: bool
    known: Any  # RegionRows

    @property
    def kernels(self) -> Any:
        """The kernels for these arguments."""
        return latent_regions
