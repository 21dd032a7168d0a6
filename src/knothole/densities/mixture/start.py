"""Where EM starts: components around rows that are far from each other, as in k-means++."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats
from knothole.columns.columns import Kind, Variable
from knothole.compiled.policy import njit
from knothole.densities.mixture.em import (
    MixtureStatistics,
    ProductMixture,
    emission_statistics,
)
from knothole.densities.rows import EncodedRows
from knothole.densities.univariate.base import Emission

# The squared distance of two different categories, and of two rows that share no variable: what
# two independent standardised numbers have in the mean.
APART = 2.0
# Bound of a standardised value, so that one outlier does not decide.
CLIP = 3.0


def comparable(points: Floats, variables: Sequence[Variable]) -> Floats:
    """Values on one scale: numbers standardised and clipped, categories as they are.

    "Not recorded" becomes a number outside of the clipped range.
    """
    out = points.copy()
    for v, variable in enumerate(variables):
        if variable.kind is Kind.CATEGORICAL:
            continue
        finite = np.isfinite(out[:, v])
        x = out[finite, v]
        if len(x):
            unit = np.abs(x).max() or 1.0
            x = x / unit
            sd = x.std()
            x = (x - x.mean()) / (sd if sd > 0 else 1.0)
        out[finite, v] = np.clip(x, -CLIP, CLIP)
        out[np.isposinf(out[:, v]), v] = 2 * CLIP
    return out


def start(
    rows: EncodedRows,
    nearest: NDArray[np.int64],
    emissions: Sequence[Emission],
    n_components: int,
    strength: float,
) -> ProductMixture:
    """Components fitted to the rows ``nearest`` to each of so many seeds.

    ``emissions`` have one state.
    """
    alike = tuple(emission.take(np.zeros(n_components, dtype=np.int64)) for emission in emissions)
    even = ProductMixture(np.full(n_components, 1 / n_components), alike)
    share = np.zeros((len(rows), n_components))
    share[np.arange(len(rows)), nearest] = rows.weight
    statistics = emission_statistics(rows.packed, alike, share)
    # A seed has few rows: half a row of prior at the least.
    found = MixtureStatistics(np.nan, share.sum(axis=0), statistics)
    return even.maximised(found, max(strength, 0.5))


def assign(
    value: Floats,
    category: NDArray[np.bool_],
    weight: Floats,
    n_components: int,
    rng: np.random.Generator,
) -> NDArray[np.int64]:
    """Number of the nearest seed of each row; a seed is drawn by squared distance to the others."""
    rows = len(value)
    distance = np.full(rows, np.inf)
    nearest = np.zeros(rows, dtype=np.int64)
    chance = weight
    for k in range(n_components):
        total = chance.sum()
        seed = rng.choice(rows, p=chance / total) if total > 0 else rng.integers(rows)
        nearer(value, category, value[seed], k, distance, nearest)
        chance = weight * distance
    return nearest


@njit
def nearer(value, category, seed, k, distance, nearest):  # type: ignore[no-untyped-def]
    """Assign the rows that are nearer to a new seed than to those before."""
    for i in range(len(value)):
        total, shared = 0.0, 0
        for v in range(len(seed)):
            difference = value[i, v] - seed[v]
            if np.isnan(difference):
                continue
            shared += 1
            if category[v]:
                total += APART if difference != 0 else 0.0
            else:
                total += difference * difference
        mean = total / shared if shared > 0 else APART
        if mean < distance[i]:
            distance[i] = mean
            nearest[i] = k
