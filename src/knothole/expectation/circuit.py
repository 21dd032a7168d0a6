"""Exact leaf probabilities under any circuit, by one evaluation for each leaf of a row.

A circuit has no fixed shape that would let a walk share work, as mixtures and latent trees have. So
the leaves compatible with a row's observed values are listed, and the pairs (row, leaf) become rows
of one evaluation in which every missing value is confined to the leaf's region:

    r(leaf) = p(region of leaf, x_o) / p(x_o).

The probability of a pair of leaves (Lemma 2) is the same with the intersection of both regions.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from knothole._core import circuit as kernels
from knothole.arrays import Floats, Integers
from knothole.bits import unpack_at
from knothole.columns.evidence import Evidence
from knothole.densities.base import LatentDensity, warn_impossible
from knothole.densities.univariate.base import Univariate, log_of
from knothole.expectation.engine import (
    Entries,
    ExactEngine,
    weighted_values,
)
from knothole.expectation.tables import node_arrays
from knothole.trees.ensemble import Ensemble
from knothole.trees.regions import regions

# Evaluations of the circuit in one call.
EVALUATIONS = 4096


class CircuitEngine(ExactEngine):
    """Exact expectations under a circuit, or any density evaluated from its distributions."""

    chunk = 64

    def __init__(self, ensemble: Ensemble, density: LatentDensity) -> None:
        from scipy import sparse

        self.ensemble = ensemble
        self.density = density
        self.value = weighted_values(ensemble)
        self.nodes = node_arrays(ensemble)
        self.regions = regions(ensemble)
        n = len(self.regions.column)
        # Entry of each leaf's region in each variable, counted from 1; absent where unrestricted.
        self.entry = sparse.csr_matrix(
            (np.arange(1, n + 1), self.regions.column, self.regions.start),
            shape=(ensemble.n_leaves, len(ensemble.columns)),
        )

    def margin(self, evidence: Evidence) -> tuple[Floats, Floats]:
        """Prop. 1; the error is 0."""
        out = np.tile(self.ensemble.base, (len(evidence.points), 1))
        leaves = np.arange(self.ensemble.n_leaves)[:, None]
        first = self.ensemble.tree_output[self.ensemble.leaf_tree][:, None]
        value = np.zeros((len(leaves), self.ensemble.n_outputs))
        value[leaves, first + np.arange(self.value.shape[1])] = self.value
        out += self.leaf_probabilities(evidence) @ value
        return out, np.zeros_like(out)

    def entries(self, evidence: Evidence) -> Iterator[Entries]:
        """The leaf probabilities of a chunk, in parts."""
        known = Known(self.density, evidence)
        row, leaf = self._candidates(evidence)
        for start in range(0, len(row), EVALUATIONS):
            some = slice(start, start + EVALUATIONS)
            probability = self._leaf_probability(known, row[some], [leaf[some]])
            yield Entries(row[some], leaf[some], probability)

    def squares(self, evidence: Evidence) -> Floats:
        """E[margin^2] of each output, without the base, (rows, outputs): Lemma 2."""
        out = np.zeros((len(evidence.points), self.ensemble.n_outputs))
        output = self.ensemble.tree_output[self.ensemble.leaf_tree]
        for row, leaf, other, probability in self._pairs(evidence):
            same = output[leaf] == output[other]
            row, leaf, other = row[same], leaf[same], other[same]
            weight = probability[same] * np.where(leaf == other, 1.0, 2.0)
            for j in range(self.value.shape[1]):
                values = self.value[leaf, j] * self.value[other, j]
                np.add.at(out, (row, output[leaf] + j), weight * values)
        return out

    def add_pairs(self, evidence: Evidence, row_weight: Floats, out: Floats) -> None:
        """Add the rows' weighted probabilities of pairs to ``out`` (leaves, leaves)."""
        for row, leaf, other, probability in self._pairs(evidence):
            np.add.at(out, (leaf, other), row_weight[row] * probability)

    def _pairs(self, evidence: Evidence) -> Iterator[tuple[Integers, Integers, Integers, Floats]]:
        """(row, leaf, other leaf, joint probability): each leaf with itself and later trees."""
        known = Known(self.density, evidence)
        candidates, leaves = self._candidates(evidence)
        order = np.lexsort((leaves, candidates))
        bounds = np.searchsorted(candidates[order], np.arange(len(evidence.points) + 1))
        for row, (start, stop) in enumerate(pairwise(bounds.tolist())):
            own = leaves[order[start:stop]]
            tree = self.ensemble.leaf_tree[own]
            first, second = np.nonzero((tree[:, None] < tree) | np.eye(len(own), dtype=np.bool_))
            for at in range(0, len(first), EVALUATIONS):
                leaf, other = own[first[at : at + EVALUATIONS]], own[second[at : at + EVALUATIONS]]
                rows = np.full(len(leaf), row, dtype=np.int32)
                yield rows, leaf, other, self._leaf_probability(known, rows, [leaf, other])

    def _leaf_probability(
        self, known: Known, row: NDArray[Any], leaves: list[NDArray[Any]]
    ) -> Floats:
        """p(missing values in the regions of all these leaves | x_o), for each entry of ``row``."""
        terms = [term[row] for term in known.terms]
        entries = [self.entry[leaf].toarray() - 1 for leaf in leaves]
        for v in range(len(self.ensemble.columns)):
            confined = np.any([entry[:, v] >= 0 for entry in entries], axis=0)
            at = np.flatnonzero(known.missing[row, v] & confined)
            if len(at):
                own = [entry[at, v] for entry in entries]
                mass = self._mass(v, own, known.allowed(v, row[at]), known.odds(v, row[at]))
                terms[v][at] = log_of(mass)
        return np.asarray(np.exp(self.density.combine(terms) - known.log_p[row]))

    def _mass(
        self,
        v: int,
        entries: list[NDArray[Any]],
        allowed: NDArray[np.bool_] | None,
        odds: Floats | None,
    ) -> Floats:
        """Mass of the intersection of regions of a variable; an entry of -1 is unrestricted."""
        box, distribution = self.regions, self.density.distributions_[v]
        n_levels = int(self.ensemble.n_levels[v])
        if n_levels:
            codes = np.ones((len(entries[0]), n_levels), dtype=np.bool_)
            if allowed is not None:
                codes &= allowed
            for entry in entries:
                some = entry >= 0
                codes[some] &= unpack_at(box.sets, box.set_start[entry[some]], n_levels)
            mass = distribution.set_mass(codes)
            missing = codes[:, -1]
            return mass if odds is None else mass + _more(distribution, missing, odds)
        low = np.max([np.where(entry < 0, -np.inf, box.low[entry]) for entry in entries], axis=0)
        high = np.min([np.where(entry < 0, np.inf, box.high[entry]) for entry in entries], axis=0)
        missing = np.all([(entry < 0) | box.missing[entry] for entry in entries], axis=0)
        nothing = low >= high
        low, high = np.where(nothing, 0.0, low), np.where(nothing, 0.0, high)
        mass = distribution.mass(low, high, missing)
        return mass if odds is None else mass + _more(distribution, missing, odds)

    def _candidates(self, evidence: Evidence) -> tuple[Integers, Integers]:
        """(row, leaf) for all leaves compatible with the observed values, tree by tree."""
        points = np.ascontiguousarray(evidence.points)
        n = kernels.count_leaves(points, self.nodes)
        row, leaf = np.empty(n, dtype=np.int32), np.empty(n, dtype=np.int32)
        kernels.list_leaves(points, self.nodes, row, leaf)
        return row, leaf


class Known:
    """The evidence of a chunk of rows, evaluated under the density.

    Attributes
    ----------
    terms : list of float64 (rows, distributions of the variable)
        Log likelihoods, shifted so that the likeliest state of an observed value has 0: the shift
        is the same for all regions, and without it differences would vanish for values far out.
        Values that make a row impossible under the density count as missing.
    log_p : float64 (rows,)
        Of the rows, on the same scale.
    missing : bool (rows, variables)
    """

    def __init__(self, density: LatentDensity, evidence: Evidence) -> None:
        self.missing = np.isnan(evidence.points)
        self.terms = density.terms(evidence)
        for v, term in enumerate(self.terms):
            scale(term, ~self.missing[:, v])
        self._odds = None if evidence.odds is None else evidence.odds.copy()
        self._allowed = {}
        for v, rows, allowed in evidence.restricted():
            self._allowed[v] = np.ones((len(self.missing), allowed.shape[1]), dtype=np.bool_)
            self._allowed[v][rows] = allowed
        self.log_p = density.combine(self.terms)
        warn_impossible(self.log_p)
        if np.isneginf(self.log_p).any():
            self._forget(density, ~self.missing)
        if np.isneginf(self.log_p).any():  # by sets of categories that never occur
            for allowed in self._allowed.values():
                allowed[np.isneginf(self.log_p)] = True
            if self._odds is not None:
                self._odds[np.isneginf(self.log_p)] = 1.0
            self._forget(density, np.ones_like(self.missing))

    def _forget(self, density: LatentDensity, what: NDArray[np.bool_]) -> None:
        """Treat some variables of impossible rows as missing."""
        impossible = np.isneginf(self.log_p)
        for v, term in enumerate(self.terms):
            term[impossible & what[:, v]] = 0.0
        self.log_p = density.combine(self.terms)

    def odds(self, v: int, row: NDArray[Any]) -> Floats | None:
        """What rows say of a missing variable (``Evidence.odds``); None if nothing."""
        return None if self._odds is None or v >= self._odds.shape[1] else self._odds[row, v]

    def allowed(self, v: int, row: NDArray[Any]) -> NDArray[np.bool_] | None:
        """Categories that a variable can have in rows, (rows, levels); None if all are possible."""
        return self._allowed[v][row] if v in self._allowed else None


def _more(distribution: Univariate, missing: NDArray[np.bool_], odds: Floats) -> Floats:
    """Additional mass of regions that include "not recorded", if that has these odds."""
    return (missing * (odds - 1))[:, None] * distribution.not_recorded()


def scale(term: Floats, observed: NDArray[np.bool_]) -> None:
    """Shift the largest term of observed values to 0; impossible values stay impossible."""
    largest = term.max(axis=1, keepdims=True)
    term -= np.where(observed[:, None] & np.isfinite(largest), largest, 0.0)
