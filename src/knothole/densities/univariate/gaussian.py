"""The Gaussian emission."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from knothole.arrays import Floats
from knothole.checks import check_array, check_positive
from knothole.columns.columns import Variable
from knothole.compiled.exp import FARTHEST
from knothole.compiled.normal import quantiles
from knothole.compiled.policy import njit
from knothole.densities.univariate.base import (
    Emission,
    Encoded,
    Natural,
    Statistics,
    observed,
)

# The least variance of a state, as a part of the column's: keeps EM away from singular solutions.
VARIANCE_FLOOR = 1e-6
# Rows of the prior for each of strength's.
PRIOR_PART = 0.1
# Spread, relative to the values, that is no more than rounding.
ROUNDING = 1e-13


@dataclass(frozen=True, eq=False)
class Gaussian(Emission):
    """A normal distribution in each state, of the column standardised by its own mean and sd.

    The prior is normal-inverse-gamma in the form of rows that have the column's mean and variance
    (0 and 1, standardised): a tenth of ``strength``, since a state's variance is far smaller than
    the column's, and is soon drowned by it.
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
        """The normal density, its square expanded."""
        table = -0.5 * np.log(2 * np.pi * self.variance) - 0.5 * self.mean**2 / self.variance
        table -= np.log(self.scale)
        return Natural(table[None], self.mean / self.variance, -0.5 / self.variance)

    def maximise(self, statistics: Statistics, strength: float) -> Self:
        """Moments of the rows and of the prior's rows together."""
        return self.maximise_each([self], [statistics], np.array([strength]))[0]

    @classmethod
    def maximise_each(
        cls, emissions: Sequence[Self], statistics: Sequence[Statistics], strengths: Floats
    ) -> list[Self]:
        """Moments of all of them, (emissions, states)."""
        prior = PRIOR_PART * strengths[:, None]
        rows = np.array([own.count[0] for own in statistics]) + prior
        some = np.maximum(rows, np.finfo(np.float64).tiny)
        mean = np.array([own.first for own in statistics]) / some
        variance = (np.array([own.second for own in statistics]) + prior) / some - mean**2
        variance = np.where(rows > 0, np.maximum(variance, VARIANCE_FLOOR), 1.0)
        each = zip(emissions, mean, variance, strict=True)
        return [replace(emission, mean=m, variance=v) for emission, m, v in each]

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
        out = np.empty(len(uniform))
        fill_normals(state, uniform, mean, deviation, out)
        return out

    def take(self, states: NDArray[np.integer[Any]]) -> Self:
        """Only these states."""
        return replace(self, mean=self.mean[states], variance=self.variance[states])

    def check(self, variable: Variable, n_states: int) -> None:
        """With the moments."""
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


@njit
def fill_normals(state, uniform, mean, deviation, out):  # type: ignore[no-untyped-def]
    """Normal draws in states, from uniform numbers."""
    quantiles(uniform, out)
    for n in range(len(out)):
        out[n] = mean[state[n]] + deviation[state[n]] * out[n]


def standardised(
    x: Floats, location: Any, scale: Any, out: Floats | None = None
) -> tuple[Floats, NDArray[np.bool_]]:
    """Standardised values, 0 where they are not finite, and which are holes or possible."""
    finite = np.isfinite(x)
    z = np.empty(x.shape) if out is None else out
    z[...] = x
    np.copyto(z, location, where=~finite)
    with np.errstate(over="ignore"):
        z -= location
        z /= scale
    # Their squares are infinite, and the density 0; products with anything else are finite.
    np.minimum(np.maximum(z, -(FARTHEST**2), out=z), FARTHEST**2, out=z)
    return z, finite | np.isnan(x)


def location_and_scale(x: Floats, weight: Floats) -> tuple[float, float]:
    """Mean and sd; for a column that does not vary, its own size is all there is for a scale.

    Scaled by the largest value first, so that squares neither overflow nor vanish.
    """
    if len(x) == 0:
        return 0.0, 1.0
    unit = float(np.abs(x).max()) or 1.0
    scaled = x / unit
    mean = float(np.average(scaled, weights=weight))
    sd = float(np.sqrt(np.average((scaled - mean) ** 2, weights=weight)))
    return mean * unit, (sd if sd > ROUNDING else 1.0) * unit


def normal_mass(low: Floats, high: Floats) -> Floats:
    """P(low <= N(0, 1) < high), accurate in both tails."""
    # In the upper tail both distribution functions are near 1: mirror it to the lower one.
    upper = low > 0
    mass = ndtr(np.where(upper, -low, high)) - ndtr(np.where(upper, -high, low))
    return np.asarray(np.maximum(mass, 0.0))
