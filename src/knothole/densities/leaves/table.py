"""Tables of log probabilities, which several families have in part: prior, step, draws."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from knothole.densities.leaves.base import Floats

# Rows' worth of uniform counts added to a column's frequencies, so that nothing is impossible.
SMOOTHING = 1.0


def smoothed_marginal(counts: Floats, base: Floats | None = None) -> Floats:
    """Frequencies, with one more row spread over the codes (evenly, or as ``base`` says)."""
    if base is None:
        base = np.full(len(counts), 1 / len(counts))
    marginal = counts + SMOOTHING * base
    return np.asarray(marginal / marginal.sum())


def log_of(probability: Floats) -> Floats:
    """Logarithm; -inf where a probability is 0."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(probability))


def maximise_table(count: Floats, marginal: Floats, strength: float) -> Floats:
    """Maximum a posteriori log probabilities (codes, states) under a Dirichlet prior.

    A state without any rows has the marginal.
    """
    total = count.sum(axis=0)
    # Weight in no state at all and no prior: the marginal is as good as any.
    pseudo = np.where(total + strength > 0, strength, 1.0)
    return log_of((count + pseudo * marginal[:, None]) / (total + pseudo))


def table_prior(table: Floats, marginal: Floats, strength: float) -> float:
    """Log Dirichlet density of a table, up to a constant."""
    if strength == 0:
        return 0.0
    return float(strength * (marginal @ table).sum())


def draw_codes(
    table: Floats, state: NDArray[np.integer[Any]], rng: np.random.Generator
) -> NDArray[np.int64]:
    """One code for each entry of ``state``."""
    u = rng.random(len(state))
    codes = np.empty(len(state), dtype=np.int64)
    for k in np.unique(state):
        here = np.flatnonzero(state == k)
        possible = np.flatnonzero(np.isfinite(table[:, k]))
        bounds = np.cumsum(np.exp(table[possible, k]))
        position = np.searchsorted(bounds, u[here] * bounds[-1], side="right")
        codes[here] = possible[np.minimum(position, len(possible) - 1)]
    return codes
