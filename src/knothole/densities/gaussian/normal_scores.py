"""Normal scores of columns: one monotone map per numeric variable, as in a Gaussian copula.

A column's map is its quantile function in normal units, x(z): piecewise linear on one grid of z
that all columns share, and linear beyond its ends. Draws are mapped forwards, observed values
backwards, and log densities change by its slope. A column that is only standardised has the
straight line ``location + scale * z``.

A value that many rows share (a zero that means "none", or each value of an integer column with few
values) is a *flat* of the map: an interval of z that maps to one x. Such a value has its mid-rank
as score: the mean of a standard normal truncated to the interval.

**Densities.** Where the map increases, dz/dx turns a density of z into one of x, with total mass 1.
A flat has a probability, not a density: P(x) = the integral of q(z) over the interval, which has no
closed form in several variables. By Jensen's inequality, with w the standard normal truncated to
the interval,

    log P(x) >= E_w[log q(z)] + entropy of w.

A flat contributes this bound, which is exact if q is the standard normal; for a normal density q it
takes only the mean and the variance of w. So a log density with flats is a lower bound, never too
high, and comparisons between densities stay fair.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from knothole._core import normal_scores as core
from knothole.arrays import Floats
from knothole.checks import check_array, check_positive, require
from knothole.densities.normal import truncated_moments
from knothole.densities.univariate.base import Stored, observed
from knothole.densities.univariate.continuous import location_and_scale

# The grid of z as in ``core/normal_scores.hpp``: 64 cells per unit. Thresholds of draws are off by
# less than half a cell, a probability of at most 0.003; a column's table is 4 kB.
END = 4.0
CELLS_PER_UNIT = 64
GRID = np.linspace(-END, END, int(2 * END) * CELLS_PER_UNIT + 1)
# The search for a cell starts with 16 blocks of 32 grid points.
STRIDE = 32


class Maps(NamedTuple):
    """The arrays of :class:`NormalScores`, as kernels take them (``core/normal_scores.hpp``)."""

    coarse: Floats
    values: Floats
    tail: Floats
    limits: Floats
    whole: NDArray[np.bool_]
    flat: Floats
    unit: Floats


@dataclass(frozen=True, eq=False)
class NormalScores(Stored):
    """The maps of ``d`` numeric variables as plain arrays.

    Attributes
    ----------
    values : float64 (d, len(GRID))
        x at the grid of z, never decreasing.
    tail : float64 (d, 2)
        Slope of x below and above the grid.
    limits : float64 (d, 2)
        Range that draws are clipped to: for an empirical map, the range seen in training.
    whole : bool (d,)
        Draws are rounded to whole numbers.
    flat : float64 (d, len(GRID), 3)
        At the first grid point of a flat: mean, variance and entropy of the standard normal
        within it. Zeros elsewhere.
    """

    values: Floats
    tail: Floats
    limits: Floats
    whole: NDArray[np.bool_]
    flat: Floats

    @classmethod
    def fit(
        cls,
        columns: Iterable[Floats],
        weight: Floats,
        whole: NDArray[np.bool_],
        points: Sequence[Floats],
        empirical: NDArray[np.bool_],
    ) -> NormalScores:
        """Maps of columns.

        Parameters
        ----------
        columns : iterable of float64 (rows,)
            NaN are missing values.
        weight : float64 (rows,)
        whole : bool (d,)
            Columns of whole numbers.
        points : sequence of arrays
            For each other column, the values that have a probability of their own.
        empirical : bool (d,)
            Columns mapped by rank; the others are only standardised.

        Examples
        --------
        >>> import numpy as np
        >>> x = np.random.default_rng(0).lognormal(size=500)
        >>> yes, no = np.array([True]), np.array([False])
        >>> scores = NormalScores.fit([x], np.ones(500), whole=no, points=[()], empirical=yes)
        >>> z, variance, log_slope = scores.encode(np.array([[np.median(x)]]))
        >>> bool(abs(z[0, 0]) < 0.05), float(variance[0, 0])
        (True, 0.0)
        """
        d = len(whole)
        values = np.empty((d, len(GRID)))
        tail = np.empty((d, 2))
        limits = np.tile([-np.inf, np.inf], (d, 1))
        for j, x in enumerate(columns):
            column, rows = observed(x, weight)
            location, scale = location_and_scale(column, rows)
            values[j] = location + scale * GRID
            tail[j] = scale
            if empirical[j] and len(column):
                limits[j] = column.min(), column.max()
                often = column if whole[j] else points[j]
                values[j] = _empirical(column, rows, often, scale)
        flat = np.stack([_flats(row) for row in values]) if d else np.empty((0, len(GRID), 3))
        return cls(values, tail, limits, np.asarray(whole), flat)

    @property
    def maps(self) -> Maps:
        """The arrays for kernels, with the last value of each block of grid points."""
        coarse = self.values[:, STRIDE - 1 : -1 : STRIDE]
        return Maps(
            np.ascontiguousarray(coarse), np.ascontiguousarray(self.values),
            np.ascontiguousarray(self.tail), np.ascontiguousarray(self.limits),
            np.ascontiguousarray(self.whole), np.ascontiguousarray(self.flat), self.unit,
        )  # fmt: skip

    @property
    def repeats(self) -> NDArray[np.bool_]:
        """Columns in which some scores have a variance, (d,)."""
        return np.asarray((self.unit > 0) | (self.flat[:, :, 1] > 0).any(axis=1))

    @property
    def straight(self) -> NDArray[np.bool_]:
        """Columns that are only standardised, (d,)."""
        return np.asarray(np.isinf(self.limits).all(axis=1))

    @property
    def unit(self) -> Floats:
        """The variance of the score of a value that is not on a flat, (d,).

        An integer of a column that is only standardised stands for the unit interval around it.
        """
        return np.where(self.whole & self.straight, 1 / (12 * self.tail[:, 0] ** 2), 0.0)

    def units(self) -> tuple[Floats, Floats]:
        """Location and scale of columns that are only standardised; 0 and 1 for others."""
        middle = self.values[:, len(GRID) // 2]
        return np.where(self.straight, middle, 0.0), np.where(self.straight, self.tail[:, 0], 1.0)

    def encode(self, x: Floats) -> tuple[Floats, Floats, Floats]:
        """Scores of values, (rows, d) each: z, the variance of z, and the log base measure.

        NaN and infinite values have z = NaN and base measure 0. The variance of a value on no flat
        is that of its unit interval, and its base measure log dz/dx; the base measure of a flat is
        the entropy of the standard normal truncated to it.
        """
        x = np.ascontiguousarray(x, dtype=np.float64)
        z, variance, base = np.empty_like(x), np.empty_like(x), np.empty_like(x)
        core.encode(x, self.maps, z, variance, base)
        return z, variance, base

    def positions(self, variable: int, x: Floats) -> Floats:
        """The z that separate values below each ``x`` from the others: P(X < x) = P(Z < z).

        For a column of integers it is half-way to the next lower one.
        """
        x = np.ascontiguousarray(np.ceil(x) - 0.5 if self.whole[variable] else x, dtype=np.float64)
        out = np.empty_like(x)
        core.positions(x, self.maps, variable, out)
        return out

    def position(self, variable: int, x: float) -> float:
        """:meth:`positions` of one value."""
        return float(self.positions(variable, np.array([x]))[0])

    def decode(self, z: Floats) -> Floats:
        """Values of scores, (rows, d): x(z), rounded and clipped as the column requires."""
        out = z.T.copy()
        core.decode(out, self.maps)
        return np.ascontiguousarray(out.T)

    def check(self, d: int) -> None:
        """Refuse a file's content that is not the maps of ``d`` variables."""
        check_array("scores.values", self.values, (d, len(GRID)))
        check_positive("scores.tail", self.tail, (d, 2))
        check_array("scores.limits", self.limits, (d, 2), finite=False)
        check_array("scores.whole", self.whole, (d,), "b")
        check_array("scores.flat", self.flat, (d, len(GRID), 3))
        require((np.diff(self.values, axis=1) >= 0).all(), "scores.values must never fall")
        require((self.limits[:, 0] <= self.limits[:, 1]).all(), "scores.limits must be in order")
        flats = all(np.allclose(a, _flats(b)) for a, b in zip(self.flat, self.values, strict=True))
        require(flats, "scores.flat must be about the flats of scores.values")


def _empirical(x: Floats, weight: Floats, points: Floats, scale: float) -> Floats:
    """The quantile function of a column at the grid, flat at ``points`` that fill a cell."""
    from scipy.special import ndtri

    value, index = np.unique(x, return_inverse=True)
    mass = np.bincount(index, weights=weight) / weight.sum()
    rows = weight.sum() ** 2 / (weight**2).sum()
    # Half a row's weight lies beyond each extreme value, so that no rank is 0 or 1.
    upper = np.cumsum(mass)
    edge = 0.5 / (rows + 1)
    low = ndtri(np.clip(upper - mass, edge, 1 - edge))
    high = ndtri(np.clip(upper, edge, 1 - edge))
    middle = ndtri(np.clip(upper - mass / 2, edge, 1 - edge))
    # A flat ends within a cell, which connects it to its neighbour.
    first, last = _cell(low) + 1, _cell(high)
    first[0], last[-1] = 0, len(GRID) - 1
    is_flat = (last > first) & np.isin(value, points)
    # Knots: both ends of a flat, and the mid-rank of other values, thinned so that each stands for
    # several rows; otherwise the slope between neighbours would be mostly noise.
    knot_z = np.concatenate([middle[~is_flat], GRID[first[is_flat]], GRID[last[is_flat]]])
    knot_x = np.concatenate([value[~is_flat], value[is_flat], value[is_flat]])
    must = np.arange(len(knot_z)) >= np.count_nonzero(~is_flat)
    order = np.lexsort((knot_x, knot_z))
    curve = _curve(knot_z[order], knot_x[order], must[order], spacing=rows ** (-1 / 3), tail=scale)
    grid_values = curve(GRID)
    for start, stop, point in zip(first[is_flat], last[is_flat], value[is_flat], strict=True):
        grid_values[start : stop + 1] = point
    return np.asarray(np.maximum.accumulate(grid_values))


def _cell(z: Floats) -> NDArray[np.int64]:
    """The last grid point at or below z."""
    return np.floor((np.clip(z, -END, END) + END) * CELLS_PER_UNIT).astype(np.int64)


def _curve(z: Floats, x: Floats, must: NDArray[np.bool_], spacing: float, tail: float) -> Any:
    """A smooth monotone curve through some of the knots, linear beyond them."""
    from scipy.interpolate import PchipInterpolator  # slow to import, and needed only to learn

    bin_of = np.floor(z / spacing)
    keep = must | np.r_[True, bin_of[1:] != bin_of[:-1]]
    keep[[0, -1]] = True
    z, x = z[keep], x[keep]
    apart = np.r_[True, np.diff(z) > 1e-9]
    z, x = z[apart], x[apart]
    z = np.r_[z[0] - 2 * END, z, z[-1] + 2 * END]
    x = np.r_[x[0] - 2 * END * tail, x, x[-1] + 2 * END * tail]
    return PchipInterpolator(z, x)


def _flats(values: Floats) -> Floats:
    """Moments of the standard normal in the flats of one column, (len(GRID), 3)."""
    out = np.zeros((len(values), 3))
    same = np.r_[False, np.diff(values) == 0, False]
    starts = np.flatnonzero(~same[:-1] & same[1:])
    stops = np.flatnonzero(same[:-1] & ~same[1:])
    for start, stop in zip(starts, stops, strict=True):
        out[start] = truncated_moments(GRID[start], GRID[stop])
    return out
