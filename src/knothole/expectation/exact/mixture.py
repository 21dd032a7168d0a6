"""Exact expectations under a mixture of products, or a single product.

Given the component, missing values are independent, so the probability q of going left at a node
does not depend on the row (:func:`~knothole.expectation.tables.left_probabilities`). A row has a
weight for each component, initially its responsibilities p(k | x_o). It follows the splits on
observed values; at a missing value the weights divide into ``w * q`` and ``w * (1 - q)``; at a leaf
their sum is the leaf's probability.

Two cases need more than q: partly observed one-hot groups, and pairs of trees (Lemma 2). There the
walk also keeps the region of every missing value, and weights divide by the masses of its two
sides.

Expected margins of small trees need neither. The expected value of a tree, given the component, is
computed from its leaves upwards, over the splits that still branch for the row.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np

from knothole._core import mixture_regions, mixture_walk
from knothole.arrays import Floats, padded
from knothole.bits import unpack_at
from knothole.cached import cached_property
from knothole.columns.evidence import Evidence
from knothole.densities.base import warn_impossible
from knothole.densities.univariate.base import Univariate
from knothole.expectation.exact.walk import WalkEngine, merged_levels
from knothole.expectation.tables import plain
from knothole.trees.ensemble import Ensemble


class Product(Protocol):
    """A density whose missing values are independent given a component."""

    distributions_: tuple[Univariate | None, ...]

    def responsibilities(self, evidence: Evidence) -> tuple[Floats, Floats]:
        """Log p(x_o) (rows,) and p(component | x_o) (rows, components)."""
        ...


class MixtureEngine(WalkEngine):
    """Exact expectations under a mixture of products."""

    chunk = 4096  # large: encoding has an overhead for each variable

    def __init__(self, ensemble: Ensemble, density: Product) -> None:
        super().__init__(merged_levels(ensemble, density), density.distributions_)
        self.density = density

    def margin(self, evidence: Evidence) -> tuple[Floats, Floats]:
        """Prop. 1; the error is 0."""
        if evidence.allowed is not None or not self.leaf_sets:
            return super().margin(evidence)
        out = np.tile(self.ensemble.base, (len(evidence.points), 1))
        points, weights = self._points(evidence), self._weights(evidence)
        telling = self._telling(evidence)
        for trees in self.leaf_sets:
            mixture_walk.add_expected(
                points, weights, telling, trees, self.go_left, self.value, out
            )
        return out, np.zeros_like(out)

    def _telling(self, evidence: Evidence) -> NodeOdds | None:
        """The odds of missing values, and what is tabulated of them at nodes."""
        if evidence.odds is None:
            return None
        odds = np.ascontiguousarray(evidence.odds[:, : len(self.ensemble.columns)])
        return NodeOdds(odds, *self._not_recorded)

    @cached_property
    def _not_recorded(self) -> tuple[Floats, Any, Any]:
        """The other fields of :class:`NodeOdds`."""
        ensemble, code = self.ensemble, self.tables.unrecorded
        share, goes_left = self._at_nodes[1], ensemble.missing_left.copy()
        for v in np.flatnonzero(code >= 0).tolist():
            nodes = np.flatnonzero(ensemble.feature == v)
            sets = unpack_at(ensemble.sets, ensemble.set_start[nodes], int(ensemble.n_levels[v]))
            goes_left[nodes] = sets[:, code[v]]
        return share, ensemble.feature, goes_left

    def _given(self, evidence: Evidence, regions: bool) -> MixtureGiven | RegionGiven:
        weights = self._weights(evidence)
        if regions:
            return RegionGiven(weights, self._known(evidence))
        is_plain = plain(self.ensemble, evidence.points)
        return MixtureGiven(weights, self.go_left, self._words(evidence), is_plain)

    def _weights(self, evidence: Evidence) -> Floats:
        log_p, weights = self.density.responsibilities(evidence)
        warn_impossible(log_p)
        return padded(weights)


# ---- records, for kernels ------------------------------------------------------------------------


class MixtureGiven(NamedTuple):
    """Responsibilities, and q, for walks without regions."""

    weights: Any  # (rows, components) p(component | x_o)
    go_left: Any  # (nodes, components) q
    words: Any  # LeafWords
    plain: bool  # see `tables.plain`

    @property
    def kernels(self) -> Any:
        """The kernels for these arguments."""
        return mixture_walk


class RegionGiven(NamedTuple):
    """Responsibilities, for walks that keep the regions of missing values."""

    weights: Any  # (rows, components) p(component | x_o)
    known: Any  # RegionRows

    @property
    def kernels(self) -> Any:
        """The kernels for these arguments."""
        return mixture_regions


class NodeOdds(NamedTuple):
    """The odds that missing values of nullable variables imply (`Evidence.odds`)."""

    odds: Any  # (rows, variables)
    share: Any  # (nodes, components) fraction of the arriving mass that is not recorded
    variable: Any  # (nodes,)
    goes_left: Any  # (nodes,) whether "not recorded" goes left
