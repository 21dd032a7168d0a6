"""Which family a column gets, from its values."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats
from knothole.columns.columns import Kind, Variable
from knothole.densities.univariate.base import Emission, observed
from knothole.densities.univariate.categorical import Categorical
from knothole.densities.univariate.counts import NegativeBinomial, Poisson
from knothole.densities.univariate.gaussian import Gaussian, location_and_scale
from knothole.densities.univariate.histogram import Histogram, choose_edges, information
from knothole.densities.univariate.integers import Integer

#: The families that stand on their own.
PLAIN: dict[str, type[Emission]] = {
    family.family: family
    for family in (Categorical, Gaussian, Histogram, Integer, Poisson, NegativeBinomial)
}

#: What the values of a variable follow, but for point masses, unless a family is named.
USUAL: dict[Kind, type[Emission]] = {
    Kind.CATEGORICAL: Categorical,
    Kind.CONTINUOUS: Gaussian,
    Kind.INTEGER: Integer,
}

# A continuous column with at most so many different values is a set of points.
FEW_VALUES = 32
# Rows each of them must have on average.
ROWS_PER_VALUE = 10
# Otherwise a value is a point where it has this part of the rows, and this many times as many as
# the values next to it: columns are rounded, so that most values of the middle occur often.
REPEATED = 0.02
OUTSTANDING = 5
NEIGHBOURS = 3


def repeated_values(variable: Variable, x: Floats, weight: Floats) -> Floats:
    """Values of a continuous column that have a probability of their own."""
    if variable.kind is not Kind.CONTINUOUS:
        return np.empty(0)
    values, counts = np.unique(observed(x, weight)[0], return_counts=True)
    rows = counts.sum()
    if len(values) <= FEW_VALUES and rows >= ROWS_PER_VALUE * len(values):
        return np.asarray(values)
    often = np.flatnonzero(counts >= REPEATED * rows)
    return np.array(
        [values[i] for i in often if counts[i] >= OUTSTANDING * _next_to(counts, int(i))]
    )


def _next_to(counts: NDArray[np.int64], i: int) -> float:
    """The larger of the mean counts on either side."""
    sides = counts[max(0, i - NEIGHBOURS) : i], counts[i + 1 : i + 1 + NEIGHBOURS]
    return max((float(side.mean()) for side in sides if len(side)), default=0.0)


def prefers_histogram(x: Floats) -> bool:
    """Whether a histogram of all values is likelier than a Gaussian, parameters accounted for."""
    x = x[np.isfinite(x)]
    weight = np.ones(len(x))
    if len(x) == 0 or x.min() == x.max():
        return False
    _, scale = location_and_scale(x, weight)
    gaussian = -0.5 * len(x) * (np.log(2 * np.pi) + 1) - len(x) * np.log(scale) - np.log(len(x))
    x = np.sort(x)
    return bool(information(choose_edges(x, weight), x, weight) > gaussian)
