"""Univariate distributions of numbers: Gaussian, histogram, whole numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats
from knothole.checks import check_array, check_positive, require
from knothole.columns.columns import Variable
from knothole.densities.normal import normal_mass, normal_quantile
from knothole.densities.univariate.base import (
    FARTHEST,
    TINY,
    Encoded,
    Natural,
    Statistics,
    Univariate,
    UnivariateTable,
    observed,
    start_table,
    weight_per_code,
)

# The least variance of a state, relative to the column's: keeps EM from singular solutions.
VARIANCE_FLOOR = 1e-6
# Rows of the prior per row of ``strength``.
PRIOR_PART = 0.1
# A smaller spread, relative to the values, is rounding error.
ROUNDING = 1e-13


@dataclass(frozen=True, eq=False)
class Gaussian(Univariate):
    """A normal distribution in each state, of the column standardised by its own mean and sd.

    The prior is normal-inverse-gamma. It acts like rows with the column's mean and variance (0 and
    1, standardised), a tenth of ``strength``: a state's variance is far smaller than the column's,
    and more rows would dominate it.
    """

    family: ClassVar[str] = "gaussian"
    location: float
    scale: float
    mean: Floats
    variance: Floats

    @classmethod
    def start(cls, variable: Variable, x: Floats, weight: Floats, n_states: int) -> Self:
        """The marginal in every state."""
        location, scale = location_and_scale(*observed(x, weight))
        return cls(location, scale, np.zeros(n_states), np.ones(n_states))

    def encode(self, x: Floats) -> Encoded:
        """One code; ``z`` is the standardised value. Values too far out have density 0."""
        z, possible = standardised(x, self.location, self.scale)
        code = -np.isnan(x).astype(np.int32)
        return Encoded(code, z, None if possible.all() else np.where(possible, 0.0, -np.inf))

    def natural(self) -> Natural:
        """The normal density in the common form, with its square expanded."""
        table = -0.5 * np.log(2 * np.pi * self.variance) - 0.5 * self.mean**2 / self.variance
        table -= np.log(self.scale)
        return Natural(table[None], self.mean / self.variance, -0.5 / self.variance)

    @classmethod
    def maximise_each(
        cls, distributions: Sequence[Self], statistics: Sequence[Statistics], strengths: Floats
    ) -> list[Self]:
        """Moments of the rows together with those of the prior."""
        prior = PRIOR_PART * strengths[:, None]
        rows = np.array([own.count[0] for own in statistics]) + prior
        some = np.maximum(rows, np.finfo(np.float64).tiny)
        mean = np.array([own.first for own in statistics]) / some
        variance = (np.array([own.second for own in statistics]) + prior) / some - mean**2
        variance = np.where(rows > 0, np.maximum(variance, VARIANCE_FLOOR), 1.0)
        each = zip(distributions, mean, variance, strict=True)
        return [replace(distribution, mean=m, variance=v) for distribution, m, v in each]

    def log_prior(self, strength: float) -> float:
        """Expected log density of the prior's rows."""
        energy = np.log(self.variance) + (1 + self.mean**2) / self.variance
        return float(-0.5 * PRIOR_PART * strength * energy.sum())

    def mass(self, low: Floats, high: Floats, not_recorded: NDArray[np.bool_]) -> Floats:
        """Mass of intervals."""
        return normal_mass(self._standard(low), self._standard(high))

    def _standard(self, x: Floats) -> Floats:
        z = (x[:, None] - self.location) / self.scale
        return np.asarray((z - self.mean) / np.sqrt(self.variance))

    def invert(self, state: NDArray[np.integer[Any]], uniform: Floats) -> Floats:
        """Normal quantiles."""
        mean = self.location + self.scale * self.mean
        deviation = self.scale * np.sqrt(self.variance)
        inside = np.clip(uniform, TINY, np.nextafter(1.0, 0.0))  # quantiles of 0 and 1 are infinite
        return np.asarray(mean[state] + deviation[state] * normal_quantile(inside))

    def take(self, states: NDArray[np.integer[Any]]) -> Self:
        """Only these states."""
        return replace(self, mean=self.mean[states], variance=self.variance[states])

    def check(self, variable: Variable, n_states: int) -> None:
        """Also checks the moments."""
        check_array("location", self.location, ())
        check_positive("scale", self.scale)
        check_array("mean", self.mean, (n_states,))
        check_positive("variance", self.variance, (n_states,))
        super().check(variable, n_states)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Fields."""
        column = np.array([self.location, self.scale])
        return {"column": column, "mean": self.mean, "variance": self.variance}

    @classmethod
    def from_arrays(cls, arrays: dict[str, NDArray[Any]]) -> Self:
        """From fields."""
        location, scale = arrays["column"].tolist()
        return cls(location, scale, arrays["mean"], arrays["variance"])


def standardised(
    x: Floats, location: Any, scale: Any, out: Floats | None = None
) -> tuple[Floats, NDArray[np.bool_]]:
    """Standardised values (0 where not finite), and flags: missing, and possible."""
    finite = np.isfinite(x)
    z = np.empty(x.shape) if out is None else out
    z[...] = x
    np.copyto(z, location, where=~finite)
    with np.errstate(over="ignore"):
        z -= location
        z /= scale
    # Squares stay infinite, so the density is 0, but products with 0 are not NaN.
    np.minimum(np.maximum(z, -(FARTHEST**2), out=z), FARTHEST**2, out=z)
    return z, finite | np.isnan(x)


def location_and_scale(x: Floats, weight: Floats) -> tuple[float, float]:
    """Mean and standard deviation; a constant column has its absolute value as the scale.

    Divided by the largest value first, so that squares neither overflow nor underflow.
    """
    if len(x) == 0:
        return 0.0, 1.0
    unit = float(np.abs(x).max()) or 1.0
    scaled = x / unit
    mean = float(np.average(scaled, weights=weight))
    sd = float(np.sqrt(np.average((scaled - mean) ** 2, weights=weight)))
    return mean * unit, (sd if sd > ROUNDING else 1.0) * unit


MAX_BINS = 64
# The least number of bins, if there are enough rows for each.
LEAST_BINS = 16
ROWS_PER_BIN = 20
# A narrower bin, relative to the column's standard deviation, reflects ties, not density.
NARROWEST = 1e-3
# Fraction of the smoothing row that each tail gets.
TAIL_SHARE = 0.25


@dataclass(frozen=True, eq=False)
class Histogram(UnivariateTable):
    """A constant density in each bin, the bins shared by all states.

    Codes are the bins in order, then the lower and the upper tail. A tail decays exponentially, at
    the scale of the adjacent bin's width, so that no value has density zero.

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
        missing = np.isnan(x)
        return Encoded(np.where(missing, -1, code).astype(np.int32), np.zeros(len(x)),
                       np.where(missing, 0.0, base))  # fmt: skip

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
        """The fraction of each bin or tail that lies in ``[low, high)``."""
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
    """Codes of values; that of NaN is meaningless."""
    bins = len(edges) - 1
    position = np.searchsorted(edges, x, side="right") - 1
    return np.where(position < 0, bins, np.where(position >= bins, bins + 1, position))


def choose_edges(x: Floats, weight: Floats) -> Floats:
    """Edges at quantiles; their number is chosen by a penalised likelihood."""
    location, scale = location_and_scale(x, weight)
    if len(x) == 0 or x.min() == x.max():
        return location + scale * np.array([-0.5, 0.5])
    order = np.argsort(x, kind="stable")
    x, weight = x[order], weight[order]
    return best_edges((quantile_edges(x, bins, scale) for bins in bin_counts(len(x))), x, weight)


def bin_counts(n_rows: int) -> list[int]:
    """Numbers of bins to try.

    Not too few, even if the column's own distribution is flat: with a single bin it could not
    differ between states. The prior copes with bins that have few rows.
    """
    least = min(LEAST_BINS, n_rows // ROWS_PER_BIN)
    return [1 << i for i in range(MAX_BINS.bit_length()) if 1 << i >= least]


def best_edges(candidates: Iterable[Floats], x: Floats, weight: Floats) -> Floats:
    """The candidate with the best Bayesian information criterion on sorted values."""
    return max(candidates, key=lambda edges: information(edges, x, weight))


def information(edges: Floats, x: Floats, weight: Floats) -> float:
    """Log likelihood of sorted values under a histogram, minus the penalty for its bins."""
    counts = np.diff(np.append(0.0, np.cumsum(weight))[np.searchsorted(x, edges)])
    filled = counts > 0
    density = counts[filled] / (weight.sum() * np.diff(edges)[filled])
    return float(counts[filled] @ np.log(density) - 0.5 * len(counts) * np.log(len(x)))


def quantile_edges(x: Floats, bins: int, scale: float) -> Floats:
    """Edges with about equally many sorted values between them, not closer than a bound."""
    inner = np.quantile(x, np.arange(1, bins) / bins)
    low, high = x[0], np.nextafter(x[-1], np.inf)
    edges = [low]
    for edge in inner:
        if edge - edges[-1] >= NARROWEST * scale and high - edge >= NARROWEST * scale:
            edges.append(edge)
    return np.append(edges, high)


# With at most so many different numbers, each has its own bin.
FEW_NUMBERS = 16


@dataclass(frozen=True, eq=False)
class Integer(Histogram):
    """A probability for each integer; if the range is wide, the integers of a bin share one.

    A histogram with edges half-way between integers, integrated over the unit interval around
    each. Other numbers count as the nearest integer.
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
            # The mass of the unit interval, not the density at its centre.
            there = code == self.n_codes + tail
            base[there] += np.log(2 * scale * np.sinh(0.5 / scale))
        return base

    def coverage(self, low: Floats, high: Floats) -> Floats:
        """The fraction of each bin's or tail's integers that lie in ``[low, high)``."""
        return super().coverage(np.ceil(low) - 0.5, np.ceil(high) - 0.5)

    def value(self, code: NDArray[np.int64], uniform: Floats) -> Floats:
        """A whole number of a bin or tail."""
        return np.rint(super().value(code, uniform))


def choose_integer_edges(x: Floats, weight: Floats) -> Floats:
    """One bin for each number if there are few; otherwise chosen by a penalised likelihood."""
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
