"""The integer emission: a categorical on the range of the values seen, with geometric tails."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats
from knothole.columns.columns import Variable
from knothole.densities.univariate.base import Encoded, observed
from knothole.densities.univariate.histogram import (
    MAX_BINS,
    Histogram,
    best_edges,
    bin_counts,
    quantile_edges,
)

# Up to so many different numbers, each has a bin of its own.
FEW_NUMBERS = 16


@dataclass(frozen=True, eq=False)
class Integer(Histogram):
    """A probability for each whole number; on a wide range, neighbours share one evenly.

    It is a histogram with edges half way between whole numbers, integrated over the unit interval
    around each of them. Other numbers count as the nearest whole one.
    """

    family: ClassVar[str] = "integer"

    @classmethod
    def start(cls, variable: Variable, x: Floats, weight: Floats, n_states: int) -> Self:
        """The marginal in every state."""
        x, weight = observed(np.rint(x), weight)
        return cls._on(choose_integer_edges(x, weight), x, weight, n_states)

    def encode(self, x: Floats) -> Encoded:
        """The bin or tail of the nearest whole number."""
        return super().encode(np.rint(x))

    def log_base(self, code: NDArray[np.int64], x: Floats) -> Floats:
        """Log probability of a whole number within its bin or tail."""
        base = super().log_base(code, x)
        for tail, scale in zip((-2, -1), self.tails, strict=True):
            # The mass of a unit interval, not the density in its middle.
            there = code == self.n_codes + tail
            base[there] += np.log(2 * scale * np.sinh(0.5 / scale))
        return base

    def coverage(self, low: Floats, high: Floats) -> Floats:
        """Part of each bin's or tail's whole numbers that lie in ``[low, high)``."""
        return super().coverage(np.ceil(low) - 0.5, np.ceil(high) - 0.5)

    def value(self, code: NDArray[np.int64], uniform: Floats) -> Floats:
        """A whole number of a bin or tail."""
        return np.rint(super().value(code, uniform))


def choose_integer_edges(x: Floats, weight: Floats) -> Floats:
    """A bin for each number where they are few, else as a penalised likelihood asks."""
    if len(x) == 0:
        return np.array([-0.5, 0.5])
    low, high = x.min() - 0.5, x.max() + 0.5
    if high - low <= FEW_NUMBERS:
        return np.arange(low, high + 0.5)
    order = np.argsort(x, kind="stable")
    x, weight = x[order], weight[order]

    def snapped(bins: int) -> Floats:
        inner = np.floor(quantile_edges(x, bins, 1.0)[1:-1]) + 0.5
        return np.unique(np.concatenate(([low], inner, [high])))

    candidates = [snapped(bins) for bins in bin_counts(len(x))]
    if high - low <= MAX_BINS:
        candidates.append(np.arange(low, high + 0.5))
    return best_edges(candidates, x, weight)
