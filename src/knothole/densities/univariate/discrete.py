"""Univariate distributions of categories and counts."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats
from knothole.cached import cached_property
from knothole.checks import check_positive, require
from knothole.columns.columns import Variable
from knothole.densities.univariate.base import (
    SMOOTHING,
    Encoded,
    Natural,
    Statistics,
    Univariate,
    UnivariateTable,
    check_table,
    invert_codes,
    maximise_tables,
    observed,
    start_table,
    table_prior,
    weight_per_code,
)


@dataclass(frozen=True, eq=False)
class Categorical(UnivariateTable):
    """A probability for each level; codes are those of the levels."""

    family: ClassVar[str] = "categorical"

    @classmethod
    def start(cls, variable: Variable, x: Floats, weight: Floats, n_states: int) -> Self:
        """The marginal in every state."""
        x, weight = observed(x, weight)
        n_codes = max(1, len(variable.levels))
        counts = weight_per_code(x.astype(np.int64), weight, n_codes)
        return cls(*start_table(counts, None, n_states))

    def encode(self, x: Floats) -> Encoded:
        """The level's code."""
        code = np.where(np.isnan(x), -1.0, x).astype(np.int32)
        return Encoded(code, np.zeros(len(x)))

    def coverage(self, low: Floats, high: Floats) -> Floats:
        """Codes from ``low`` to below ``high``."""
        code = np.arange(self.n_codes)
        return ((code >= low[:, None]) & (code < high[:, None])).astype(np.float64)

    def set_mass(self, allowed: NDArray[np.bool_]) -> Floats:
        """Mass of sets of levels."""
        return np.asarray(allowed.astype(np.float64) @ np.exp(self.table))

    def value(self, code: NDArray[np.int64], uniform: Floats) -> Floats:
        """The code itself."""
        return code.astype(np.float64)


# The least mean of a state; its logarithm must be finite.
MEAN_FLOOR = 1e-9
# The largest mean, and the largest count to draw, which no quantile of such a mean exceeds.
LARGEST, MOST = 2.0**60, 2.0**80
# Range of the log dispersion.
LOG_SIZES = -7.0, 14.0
# Ratio of the geometric distribution of negative numbers.
BELOW = 0.5


@dataclass(frozen=True, eq=False)
class Count(Univariate):
    """Counts 0, 1, 2, ... with a mean in each state, and a little mass on negative numbers.

    Code 0 is a count, with ``z`` the count itself; code 1 is a negative number. It has about the
    probability of one row in the training table, or more if negative numbers occurred, so that none
    is impossible. Other numbers count as the nearest integer. The prior is ``strength`` rows with
    the column's mean.

    Attributes
    ----------
    mean : float64 (states,)
        Mean of the counts.
    centre : float
        The column's mean.
    table, marginal : float64 (2, states), (2,)
        Log probability of a count, and of a negative number; and the same for the whole column.
    """

    mean: Floats
    centre: float
    table: Floats
    marginal: Floats

    @cached_property
    def n_codes(self) -> int:
        """Count, or negative."""
        return 2

    @abstractmethod
    def log_base(self, x: Floats) -> Floats:
        """The part of a count's log probability that does not depend on the state."""

    @abstractmethod
    def rate(self) -> tuple[Floats, Floats]:
        """The rest of the log probability of x: constant and slope in x, (states,)."""

    @abstractmethod
    def under(self, x: Floats, mean: Floats) -> Floats:
        """P(count < x) for finite x >= 1, broadcast against means."""

    @abstractmethod
    def over(self, x: Floats, mean: Floats) -> Floats:
        """P(count >= x) for finite x >= 1, broadcast against means."""

    @staticmethod
    def fields(x: Floats, weight: Floats, n_states: int) -> tuple[Floats, float, Floats, Floats]:
        """The marginal of the column in every state."""
        counts, of_counts = x[x >= 0], weight[x >= 0]
        # One additional row at 1 keeps the mean above zero.
        centre = (of_counts @ counts + SMOOTHING) / (of_counts.sum() + SMOOTHING)
        split = np.array([of_counts.sum(), weight[x < 0].sum()])
        table, marginal = start_table(split, None, n_states)
        return np.full(n_states, centre), float(centre), table, marginal

    def encode(self, x: Floats) -> Encoded:
        """Count or negative; infinite values have probability 0."""
        missing, finite = np.isnan(x), np.isfinite(x)
        x = np.rint(np.where(finite, x, 0.0))
        count = np.maximum(x, 0.0)
        base = np.where(x < 0, np.log1p(-BELOW) + (-x - 1) * np.log(BELOW), self.log_base(count))
        base = np.where(missing, 0.0, np.where(finite, base, -np.inf))
        code = np.where(missing, -1, (x < 0).astype(np.int32)).astype(np.int32)
        return Encoded(code, count, base)

    def natural(self) -> Natural:
        """Log probability as a linear function of the count."""
        constant, slope = self.rate()
        table = self.table.copy()
        table[0] += constant
        return Natural(table, slope, np.zeros_like(slope))

    @classmethod
    def maximise_each(
        cls, distributions: Sequence[Self], statistics: Sequence[Statistics], strengths: Floats
    ) -> list[Self]:
        """Means of the counts of the rows together with those of the prior."""
        each = zip(distributions, statistics, strengths.tolist(), strict=True)
        return [distribution._maximised(own, strength) for distribution, own, strength in each]

    def _maximised(self, statistics: Statistics, strength: float) -> Self:
        prior = strength * self.marginal[0]
        rows = statistics.count[0] + prior
        some = np.maximum(rows, np.finfo(np.float64).tiny)
        mean = np.where(rows > 0, (statistics.first + prior * self.centre) / some, self.centre)
        [table] = maximise_tables([statistics.count], [self.marginal], np.array([strength]))
        return replace(self, mean=np.maximum(mean, MEAN_FLOOR), table=table)

    def log_prior(self, strength: float) -> float:
        """Expected log probability of the prior's rows."""
        constant, slope = self.rate()
        counts = strength * self.marginal[0] * (constant + slope * self.centre).sum()
        return table_prior(self.table, self.marginal, strength) + float(counts)

    def below(self, x: Floats) -> tuple[Floats, Floats]:
        """P(count < x) and P(count >= x), (values, states)."""
        none, all_of_them = (x <= 0)[:, None], np.isposinf(x)[:, None]
        x = np.where(np.isfinite(x), np.maximum(x, 1.0), 1.0)[:, None]
        under = np.where(all_of_them, 1.0, self.under(x, self.mean))
        over = np.where(all_of_them, 0.0, self.over(x, self.mean))
        return np.where(none, 0.0, under), np.where(none, 1.0, over)

    def mass(self, low: Floats, high: Floats, not_recorded: NDArray[np.bool_]) -> Floats:
        """Mass of the whole numbers in an interval."""
        low, high = np.ceil(low), np.ceil(np.maximum(low, high))
        (under_low, over_low), (under_high, over_high) = self.below(low), self.below(high)
        # Between probabilities near 1 use the complements: in the upper tail only they differ.
        counts = np.where(under_low > 0.5, over_low - over_high, under_high - under_low)
        negative = _negative_below(high) - _negative_below(low)
        probability = np.exp(self.table)
        return np.asarray(np.maximum(counts, 0.0) * probability[0] + negative * probability[1])

    def invert(self, state: NDArray[np.integer[Any]], uniform: Floats) -> Floats:
        """Counts, and rarely a negative number."""
        sign, left = invert_codes(self.table, state, uniform)
        below = -np.ceil(np.log1p(-left) / np.log(BELOW))  # geometric, from -1 down
        return np.where(sign == 1, np.minimum(below, -1.0), self.quantile(self.mean[state], left))

    def quantile(self, mean: Floats, uniform: Floats) -> Floats:
        """The least count with P(count <= .) of at least ``uniform``, for each mean.

        By doubling, then bisection: scipy's own search takes minutes for widely spread counts (a
        negative binomial of size 1e-3), and fails for large ones.
        """
        below, found = np.full(len(mean), -1.0), np.zeros(len(mean))

        def short(count: Floats, of: NDArray[np.intp]) -> NDArray[np.bool_]:
            return (count < MOST) & (self.under(count + 1, mean[of]) < uniform[of])

        rows = np.arange(len(mean))
        while len(rows := rows[short(found[rows], rows)]):
            below[rows] = found[rows]
            found[rows] = np.minimum(2 * found[rows] + 1, MOST)
        rows = np.arange(len(mean))
        while len(rows):
            middle = np.floor((below[rows] + found[rows]) / 2)
            inside = (below[rows] < middle) & (middle < found[rows])
            rows, middle = rows[inside], middle[inside]
            more = short(middle, rows)
            below[rows[more]] = middle[more]
            found[rows[~more]] = middle[~more]
        return found

    def take(self, states: NDArray[np.integer[Any]]) -> Self:
        """Only these states."""
        return replace(self, mean=self.mean[states], table=self.table[:, states])

    def check(self, variable: Variable, n_states: int) -> None:
        """Also checks the means, and the table of counts and negative numbers."""
        check_positive("mean", self.mean, (n_states,))
        require((self.mean <= LARGEST).all(), "mean is of no counts")
        check_positive("centre", self.centre)
        check_table(self.table, self.marginal, self.n_codes, n_states)
        super().check(variable, n_states)


def _negative_below(x: Floats) -> Floats:
    """P(number < x | negative) at whole x, (values, 1)."""
    return np.asarray(BELOW ** np.maximum(-x, 0.0))[:, None]


@dataclass(frozen=True, eq=False)
class Poisson(Count):
    """Poisson counts."""

    family: ClassVar[str] = "poisson"

    @classmethod
    def start(cls, variable: Variable, x: Floats, weight: Floats, n_states: int) -> Self:
        """The marginal in every state."""
        return cls(*cls.fields(*observed(np.rint(x), weight), n_states))

    def log_base(self, x: Floats) -> Floats:
        """The factorial."""
        from scipy.special import gammaln

        return np.asarray(-gammaln(x + 1))

    def rate(self) -> tuple[Floats, Floats]:
        """Minus the mean, and its logarithm."""
        return -self.mean, np.log(self.mean)

    def under(self, x: Floats, mean: Floats) -> Floats:
        """Incomplete gamma function."""
        from scipy.special import gammaincc

        return np.asarray(gammaincc(x, mean))

    def over(self, x: Floats, mean: Floats) -> Floats:
        """Incomplete gamma function."""
        from scipy.special import gammainc

        return np.asarray(gammainc(x, mean))


@dataclass(frozen=True, eq=False)
class NegativeBinomial(Count):
    """Negative binomial counts: variance ``mean + mean**2 / size``.

    Attributes
    ----------
    size : float
        Dispersion parameter, by maximum likelihood of the whole column.
    """

    family: ClassVar[str] = "negative_binomial"
    size: float

    @classmethod
    def start(cls, variable: Variable, x: Floats, weight: Floats, n_states: int) -> Self:
        """The marginal in every state."""
        x, weight = observed(np.rint(x), weight)
        size = best_size(x[x >= 0], weight[x >= 0])
        return cls(*cls.fields(x, weight, n_states), size)

    def log_base(self, x: Floats) -> Floats:
        """The binomial coefficient."""
        from scipy.special import gammaln

        return np.asarray(gammaln(x + self.size) - gammaln(self.size) - gammaln(x + 1))

    def rate(self) -> tuple[Floats, Floats]:
        """Log probabilities of failure (times size) and of success."""
        both = self.mean + self.size
        return self.size * np.log(self.size / both), np.log(self.mean / both)

    def under(self, x: Floats, mean: Floats) -> Floats:
        """Incomplete beta function."""
        from scipy.special import betainc

        return np.asarray(betainc(self.size, x, self.size / (mean + self.size)))

    def over(self, x: Floats, mean: Floats) -> Floats:
        """Incomplete beta function."""
        from scipy.special import betaincc

        return np.asarray(betaincc(self.size, x, self.size / (mean + self.size)))

    def check(self, variable: Variable, n_states: int) -> None:
        """Also checks the dispersion."""
        check_positive("size", self.size)
        low, high = LOG_SIZES
        require(low - 1 <= np.log(self.size) <= high + 1, "size is no dispersion of a column")
        super().check(variable, n_states)


def best_size(x: Floats, weight: Floats) -> float:
    """The maximum likelihood estimate of the dispersion of counts."""
    from scipy.optimize import minimize_scalar  # slow to import, and needed only to learn
    from scipy.special import gammaln

    if len(x) == 0:
        return 1.0
    mean = float(np.average(x, weights=weight)) + MEAN_FLOOR
    values, position = np.unique(x, return_inverse=True)
    weight = weight_per_code(position, weight, len(values))

    def loss(log_size: float) -> float:
        size = np.exp(log_size)
        terms = gammaln(values + size) - gammaln(size) + size * np.log(size / (mean + size))
        return -float(weight @ (terms + values * np.log(mean / (mean + size))))

    return float(np.exp(minimize_scalar(loss, bounds=LOG_SIZES, method="bounded").x))
