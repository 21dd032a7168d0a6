"""Reach under a Gaussian mixture: exact where that is possible, else by completions.

Given the component, categories are independent of each other and of all numbers. So a row whose
numbers are known has a mixture of products for its holes, with the components' responsibilities
for weights: rare categories, which few draws may never meet, are all accounted for. And a row that
lacks a single number has a mixture of normals for it (:mod:`knothole.expectation.one_number`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats, Mask
from knothole.columns.evidence import Evidence
from knothole.compiled.sobol import GROUPS
from knothole.densities.gaussian.density import GaussianMixture
from knothole.densities.gaussian.draws import Sampler
from knothole.expectation.engine import Entries, add_margin
from knothole.expectation.exact.product import ProductEngine
from knothole.expectation.monte_carlo.engine import CompletionsEngine
from knothole.expectation.one_number import OneNumber
from knothole.trees.ensemble import Ensemble

# How a row is answered.
DRAWN, BY_CATEGORIES, BY_NUMBER = range(3)


class GaussianEngine(CompletionsEngine):
    """Completions, and exact reach for rows that lack a single number, or categories alone."""

    def __init__(self, ensemble: Ensemble, sampler: Sampler, density: GaussianMixture) -> None:
        super().__init__(ensemble, sampler)
        self.density = density
        used = self.forest.look.used
        self.numbers = np.flatnonzero(used & (ensemble.n_levels == 0))
        self.labels = np.flatnonzero(used & (ensemble.n_levels > 0))
        self.number_weights = density.number_weights()
        self.one_number = OneNumber(self.merged, self.forest, _Numbers(density, sampler))
        self.exactly: dict[int, OneNumber | ProductEngine] = {BY_NUMBER: self.one_number}
        if len(self.labels):
            self.exactly[BY_CATEGORIES] = ProductEngine(ensemble, _Categories(density))

    def margin(self, evidence: Evidence) -> tuple[Floats, Floats]:
        """Prop. 1 where it is exact, with error 0; a mean over draws elsewhere."""
        mean = np.tile(self.ensemble.base, (len(evidence.points), 1))
        error = np.zeros_like(mean)
        for how, rows in self._ways(evidence):
            if how == DRAWN:
                mean[rows], error[rows] = super().margin(evidence[rows])
            elif how == BY_NUMBER:
                own = mean[rows]
                self.one_number.add_margin(evidence[rows], self.value, own)
                mean[rows] = own
            else:
                for part in self._exact_entries(how, evidence, rows):
                    add_margin(part, self.ensemble, self.value, mean)
        return mean, error

    def group_margins(self, evidence: Evidence, words: range) -> Floats:
        """As margins are: where they are exact, groups agree."""
        out = np.empty((len(evidence.points), GROUPS, self.ensemble.n_outputs))
        for how, rows in self._ways(evidence):
            own = evidence[rows]
            drawn = how == DRAWN
            found = super().group_margins(own, words) if drawn else self.margin(own)[0][:, None]
            out[rows] = found
        return out

    def entries(self, evidence: Evidence) -> Iterator[Entries]:
        """The reach matrix of a chunk, part by part."""
        for how, rows in self._ways(evidence):
            if how != DRAWN:
                yield from self._exact_entries(how, evidence, rows)
                continue
            for part in super().entries(evidence[rows]):
                yield Entries(rows[part.row].astype(np.int32), part.leaf, part.reach)

    def _exact_entries(
        self, how: int, evidence: Evidence, rows: NDArray[np.intp]
    ) -> Iterator[Entries]:
        for part in self.exactly[how].entries(evidence[rows]):
            yield Entries(rows[part.row].astype(np.int32), part.leaf, part.reach)

    def _ways(self, evidence: Evidence) -> Iterator[tuple[int, NDArray[np.intp]]]:
        """How rows are answered, and which. (To draw what is not missing is no error either.)"""
        points = evidence.points
        numbers = np.isnan(points[:, self.numbers]).any(axis=1)
        labels = np.isnan(points[:, self.labels]).any(axis=1)
        way = np.where(labels & ~numbers, BY_CATEGORIES, DRAWN)
        if evidence.allowed is None:
            one = ~np.isfinite(points) @ self.number_weights == 1
            way[numbers & ~labels & one] = BY_NUMBER
        for how in (DRAWN, *self.exactly):
            rows = np.flatnonzero(way == how)
            if len(rows):
                yield how, rows


class _Numbers:
    """A Gaussian mixture that describes the only number that rows lack."""

    def __init__(self, density: GaussianMixture, sampler: Sampler) -> None:
        self.cut_scores = density.cut_scores
        self.describe_number = sampler.describe_number


class _Categories:
    """A Gaussian mixture as a mixture of products, for rows whose numbers are known."""

    def __init__(self, density: GaussianMixture) -> None:
        self.responsibilities = density.responsibilities
        self.variables_ = density.variables_
        n_states = len(density.weights_)
        own = density.distributions_of_categories()
        unused = _Unused(n_states)
        self.distributions_: tuple[Any, ...] = tuple(
            own.get(v, unused) for v in range(len(density.variables_))
        )


class _Unused:
    """In the place of a number's distribution, which is never asked for."""

    def __init__(self, n_states: int) -> None:
        self.n_states = n_states

    def mass(self, low: Floats, high: Floats, not_recorded: Mask) -> Floats:
        """Nothing, of any interval."""
        return np.zeros((len(low), self.n_states))
