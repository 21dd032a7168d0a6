"""Reach under a Gaussian mixture: exact where only categories are missing, else by completions.

Given the component, categories are independent of each other and of all numbers. So a row whose
numbers are known has a mixture of products for its holes, with the components' responsibilities
for weights: rare categories, which few draws may never meet, are all accounted for.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Self

import numpy as np

from knothole.arrays import Floats, Mask
from knothole.densities.gaussian.density import GaussianMixture
from knothole.reach.completions.engine import CompletionsEngine, Sampler
from knothole.reach.engine import Entries
from knothole.reach.walks.product import ProductEngine
from knothole.tables.evidence import Evidence
from knothole.trees.ensemble import Ensemble


class GaussianEngine(CompletionsEngine):
    """Completions, and a mixture of products for rows whose missing numbers no tree asks for."""

    def __init__(self, ensemble: Ensemble, sampler: Sampler, density: GaussianMixture) -> None:
        super().__init__(ensemble, sampler)
        used = self.forest.look.used
        self.numbers = np.flatnonzero(used & (ensemble.n_levels == 0))
        self.categories: ProductEngine | None = None
        if (used & (ensemble.n_levels > 0)).any():
            self.categories = ProductEngine(ensemble, _Categories(density))

    def with_values(self, ensemble: Ensemble) -> Self:
        """The engine for the same trees with other leaf values; all else is shared."""
        other = super().with_values(ensemble)
        if self.categories is not None:
            other.categories = self.categories.with_values(ensemble)
        return other

    def margin(self, evidence: Evidence) -> tuple[Floats, Floats]:
        """Prop. 1 for rows without missing numbers, with error 0; a mean over draws for others."""
        drawn = self._drawn(evidence)
        if self.categories is None or drawn.all():
            return super().margin(evidence)
        mean, error = (np.empty((len(drawn), self.ensemble.n_outputs)) for _ in range(2))
        mean[~drawn], error[~drawn] = self.categories.margin(evidence[np.flatnonzero(~drawn)])
        if drawn.any():
            mean[drawn], error[drawn] = super().margin(evidence[np.flatnonzero(drawn)])
        return mean, error

    def entries(self, evidence: Evidence) -> Iterator[Entries]:
        """The reach matrix of a block, part by part."""
        drawn = self._drawn(evidence)
        known, others = np.flatnonzero(~drawn), np.flatnonzero(drawn)
        if self.categories is not None and len(known):
            for part in self.categories.entries(evidence[known]):
                yield Entries(known[part.row].astype(np.int32), part.leaf, part.reach)
        if len(others):
            for part in super().entries(evidence[others]):
                yield Entries(others[part.row].astype(np.int32), part.leaf, part.reach)

    def _drawn(self, evidence: Evidence) -> Mask:
        """Rows that need draws: those in which a number is missing that trees ask for."""
        if self.categories is None:
            return np.ones(len(evidence.points), dtype=np.bool_)
        return np.asarray(np.isnan(evidence.points[:, self.numbers]).any(axis=1))


class _Categories:
    """A Gaussian mixture as a mixture of products, for rows whose numbers are known."""

    def __init__(self, density: GaussianMixture) -> None:
        self.responsibilities = density.responsibilities
        n_states = len(density.weights_)
        own = density.emissions_of_categories()
        unused = _Unused(n_states)
        self.emissions_: tuple[Any, ...] = tuple(
            own.get(v, unused) for v in range(len(density.variables_))
        )


class _Unused:
    """In the place of a number's emission, which is never asked for."""

    def __init__(self, n_states: int) -> None:
        self.n_states = n_states

    def mass(self, low: Floats, high: Floats, not_recorded: Mask) -> Floats:
        """Nothing, of any interval."""
        return np.zeros((len(low), self.n_states))
