"""The histogram emission: piecewise constant, with exponential tails beyond the values seen."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats
from knothole.checks import check_array, require
from knothole.columns.columns import Variable
from knothole.densities.univariate.base import Encoded, observed
from knothole.densities.univariate.gaussian import location_and_scale
from knothole.densities.univariate.table import TableEmission, start_table, weight_per_code

MAX_BINS = 64
# Bins that every column has, as long as each has so many rows.
LEAST_BINS = 16
ROWS_PER_BIN = 20
# A bin narrower than this part of the column's sd says more about ties than about density.
NARROWEST = 1e-3
# The part of the smoothing row that goes to each tail.
TAIL_SHARE = 0.25


@dataclass(frozen=True, eq=False)
class Histogram(TableEmission):
    """A constant density in each bin, the bins shared by all states.

    Codes are the bins in order, then the lower and the upper tail. A tail decays exponentially
    with the width of the bin next to it, so that no value has density zero.

    Attributes
    ----------
    edges : float64 (bins + 1,)
        Bin ``b`` is ``[edges[b], edges[b + 1])``.
    """

    family: ClassVar[str] = "histogram"
    edges: Floats

    @classmethod
    def start(cls, variable: Variable, x: Floats, weight: Floats, n_states: int) -> Self:
        """The marginal in every state, its bins chosen by a penalised likelihood."""
        x, weight = observed(x, weight)
        return cls._on(choose_edges(x, weight), x, weight, n_states)

    @classmethod
    def _on(cls, edges: Floats, x: Floats, weight: Floats, n_states: int) -> Self:
        bins = len(edges) - 1
        counts = weight_per_code(_bin(edges, x), weight, bins + 2)
        share = np.full(bins + 2, TAIL_SHARE)
        share[:bins] = (1 - 2 * TAIL_SHARE) / bins
        return cls(*start_table(counts, share, n_states), edges)

    @property
    def tails(self) -> tuple[float, float]:
        """Scales of the lower and the upper tail."""
        width = np.diff(self.edges)
        return float(width[0]), float(width[-1])

    def encode(self, x: Floats) -> Encoded:
        """The bin or tail; infinite values have density 0."""
        code = _bin(self.edges, x)
        base = self.log_base(code, x)
        hole = np.isnan(x)
        return Encoded(np.where(hole, -1, code).astype(np.int32), np.zeros(len(x)),
                       np.where(hole, 0.0, base))  # fmt: skip

    def log_base(self, code: NDArray[np.int64], x: Floats) -> Floats:
        """Log density of a value within its bin or tail."""
        bins = len(self.edges) - 1
        lower, upper = self.tails
        base = np.append(-np.log(np.diff(self.edges)), [-np.log(lower), -np.log(upper)])[code]
        for tail, distance in ((bins, self.edges[0] - x), (bins + 1, x - self.edges[-1])):
            there = code == tail
            base[there] -= distance[there] / self.tails[tail - bins]
        return np.asarray(base)

    def coverage(self, low: Floats, high: Floats) -> Floats:
        """Part of each bin or tail that lies in ``[low, high)``."""
        high = np.maximum(low, high)
        start, width = self.edges[:-1], np.diff(self.edges)
        lower, upper = self.tails

        def inside(x: Floats) -> Floats:
            return np.asarray(np.clip((x[:, None] - start) / width, 0.0, 1.0))

        def beyond(x: Floats, edge: float, scale: float, side: float) -> Floats:
            return np.asarray(np.exp(-np.maximum(side * (x - edge), 0.0) / scale))

        parts = np.empty((len(low), len(width) + 2))
        parts[:, :-2] = inside(high) - inside(low)
        first, last = self.edges[0], self.edges[-1]
        parts[:, -2] = beyond(high, first, lower, -1.0) - beyond(low, first, lower, -1.0)
        parts[:, -1] = beyond(low, last, upper, 1.0) - beyond(high, last, upper, 1.0)
        return parts

    def value(self, code: NDArray[np.int64], uniform: Floats) -> Floats:
        """Uniform in a bin, exponential in a tail."""
        bins = len(self.edges) - 1
        lower, upper = self.tails
        within = np.minimum(code, bins - 1)
        x = self.edges[within] + np.diff(self.edges)[within] * uniform
        excess = -np.log1p(-uniform)
        x = np.where(code == bins, self.edges[0] - lower * excess, x)
        return np.where(code == bins + 1, self.edges[-1] + upper * excess, x)

    def codes_of(self, variable: Variable) -> int:
        """The bins and two tails."""
        check_array("edges", self.edges, (None,))
        rising = len(self.edges) > 1 and (np.diff(self.edges) > 0).all()
        require(rising, "edges must rise, and be two at least")
        return len(self.edges) + 1


def _bin(edges: Floats, x: Floats) -> NDArray[np.int64]:
    """Codes of values; that of NaN means nothing."""
    bins = len(edges) - 1
    position = np.searchsorted(edges, x, side="right") - 1
    return np.where(position < 0, bins, np.where(position >= bins, bins + 1, position))


def choose_edges(x: Floats, weight: Floats) -> Floats:
    """Edges at quantiles, as many as a penalised likelihood of the column asks for."""
    location, scale = location_and_scale(x, weight)
    if len(x) == 0 or x.min() == x.max():
        return location + scale * np.array([-0.5, 0.5])
    order = np.argsort(x, kind="stable")
    x, weight = x[order], weight[order]
    return best_edges((quantile_edges(x, bins, scale) for bins in bin_counts(len(x))), x, weight)


def bin_counts(n_rows: int) -> list[int]:
    """Numbers of bins to try.

    Not too few, even for a column whose own distribution is flat: with one bin, it could not
    differ between states. The prior keeps rows from being too few for them.
    """
    least = min(LEAST_BINS, n_rows // ROWS_PER_BIN)
    return [1 << i for i in range(MAX_BINS.bit_length()) if 1 << i >= least]


def best_edges(candidates: Iterable[Floats], x: Floats, weight: Floats) -> Floats:
    """The candidate with the best Bayesian information criterion on sorted values."""
    return max(candidates, key=lambda edges: information(edges, x, weight))


def information(edges: Floats, x: Floats, weight: Floats) -> float:
    """Log likelihood of sorted values under their histogram, less what its bins cost."""
    counts = np.diff(np.append(0.0, np.cumsum(weight))[np.searchsorted(x, edges)])
    filled = counts > 0
    density = counts[filled] / (weight.sum() * np.diff(edges)[filled])
    return float(counts[filled] @ np.log(density) - 0.5 * len(counts) * np.log(len(x)))


def quantile_edges(x: Floats, bins: int, scale: float) -> Floats:
    """Edges around about equally many of the sorted values, no two closer than a bound."""
    inner = np.quantile(x, np.arange(1, bins) / bins)
    low, high = x[0], np.nextafter(x[-1], np.inf)
    edges = [low]
    for edge in inner:
        if edge - edges[-1] >= NARROWEST * scale and high - edge >= NARROWEST * scale:
            edges.append(edge)
    return np.append(edges, high)
