"""Expectation and maximisation for a circuit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from knothole.arrays import Floats
from knothole.columns.columns import Evidence
from knothole.densities.circuit.nodes import Structure, evaluate, flows
from knothole.densities.univariate.base import Emission, Statistics
from knothole.densities.univariate.packed import expected_levels
from knothole.densities.univariate.table import log_of


@dataclass(frozen=True, eq=False)
class CircuitStatistics:
    """Expected statistics of some rows, additive: log likelihood, weights' flows, emissions'."""

    log_likelihood: float
    through: Floats
    emissions: tuple[Statistics, ...]


def emission_statistics(emission: Emission, x: Floats, share: Floats) -> Statistics:
    """An emission's statistics from values and their shares of its states, (rows, states)."""
    encoded = emission.encode(x)
    seen = encoded.code >= 0
    z, share = encoded.z[seen], share[seen]
    count = np.zeros((emission.n_codes, emission.n_states))
    np.add.at(count, encoded.code[seen], share)
    return Statistics(count, z @ share, z**2 @ share)


def expect(
    structure: Structure,
    weights: Floats,
    emissions: Sequence[Emission],
    evidence: Evidence,
    terms: Sequence[Floats],
    weight: Floats,
) -> CircuitStatistics:
    """Statistics of rows, given their terms."""
    log_weights = log_of(weights)
    values = evaluate(structure, log_weights, terms)
    flow, through = flows(structure, log_weights, values, weight)
    shares = [flow[nodes].T for nodes in structure.emission_nodes]
    statistics = [
        emission_statistics(emission, evidence.points[:, v], shares[v])
        for v, emission in enumerate(emissions)
    ]
    for v, rows, allowed in evidence.restricted():
        own = statistics[v]
        count = own.count + expected_levels(emissions[v], allowed, shares[v][rows])
        statistics[v] = Statistics(count, own.first, own.second)
    return CircuitStatistics(float(weight @ values[-1]), through, tuple(statistics))


def maximise_weights(
    structure: Structure, weights: Floats, through: Floats, strength: float
) -> Floats:
    """Maximum a posteriori weights: in each sum, ``strength`` further rows spread evenly."""
    out = weights.copy()
    for own in structure.sums.values():
        counts = through[own] + strength / (own.stop - own.start)
        # A sum that no row passes through, and no prior: its weights stay.
        if counts.sum() > 0:
            out[own] = counts / counts.sum()
    return out


def log_prior_of_weights(structure: Structure, weights: Floats, strength: float) -> float:
    """Log Dirichlet density of the weights, up to a constant."""
    if strength == 0:
        return 0.0
    return strength * sum(float(np.log(weights[own]).mean()) for own in structure.sums.values())
