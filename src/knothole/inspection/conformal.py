"""Intervals for y that hold for every pattern of holes: split conformal prediction.

Calibration rows, whose y is known, are hidden in part until they look like the row that asks, with
its pattern ``m``. How far their y lie from their expected predictions, in units of a scale
``s(x_o)``, then says how far its own y may be.

Why it holds
------------
Let ``M_k`` be the holes of a calibration row. Which rows serve pattern ``m`` is decided by looking
at patterns alone, never at values:

1. Rows with ``M_k = m``, where there are at least :data:`OWN`. Given the patterns, they and the row
   that asks are draws of one distribution p(x, y | M = m), *whatever made the holes*.
2. Otherwise rows with ``M_k`` within ``h``, where ``h`` is ``m`` or more; they are hidden to ``h``
   exactly, and so is the row that asks. If holes come about independently of (x, y), then all of
   these are draws of one distribution again.

Either way the scores of these n rows and the score of the one that asks are exchangeable. So its
own is at most the ceil((n + 1) coverage)-th smallest of theirs with probability at least
``coverage``, and at most ``coverage + 1 / (n + 1)`` where no two are equal: given the pattern, for
every n, every model and every density. With ``h = m`` this is CP-MDA-Exact (Zaffran, Dieuleveut,
Josse, Romano 2023). Where few rows fit ``m``, their CP-MDA-Nested compares the asking row with each
calibration row under the union of both patterns. That averages p-values of different patterns, of
which no more than ``1 - 2 (1 - coverage)`` is known, and is wide in practice. One common ``h``
keeps the whole promise; of those on a greedy path, the one with the shortest expected interval is
taken.

Scale and path are learned from calibration rows that are set aside for it, and so know nothing of
those whose scores are used.

Holes that depend on what is observed (MAR) or not (MNAR) are met by the first way where a pattern
is frequent. For a rare one the second is then an approximation, as good as the scale is.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls
from scipy.special import digamma
from scipy.stats import beta

from knothole.arrays import Floats
from knothole.cached import cached_property
from knothole.checks import check_number
from knothole.columns.evidence import Evidence
from knothole.densities.held_out import FOLDS, TOO_FEW_TO_JUDGE, fold_numbers
from knothole.errors import FewCalibrationRows, InvalidInput
from knothole.expectation.expectation import Expectation
from knothole.leaves.problem import in_rows, numbers

Pattern = NDArray[np.bool_]
Rows = NDArray[np.intp]

#: Most calibration rows that are kept; of more, so many are drawn at random.
KEPT = 5000
#: Most of them that serve one pattern: so many predictions does a new pattern cost.
USED = 1000
#: With so many rows of its own a pattern needs no others.
OWN = 200

# Rows set aside are hidden in patterns of these rates, so that the scale knows few holes and many.
_RATES = (0.0, 0.15, 0.15, 0.35, 0.35, 0.6)
# Rows that tell what hiding one variable costs.
_PROBES = 50
# Patterns whose scores are remembered.
_REMEMBERED = 2000
# One calibration set in twenty may lie this far below the coverage before it is said.
_LOOSE = 0.05
# How much of the scale to believe within a pattern, and the coverages that this is chosen for.
_POWERS = (0.0, 0.25, 0.5, 0.75, 1.0)
_LEVELS = (0.8, 0.85, 0.9, 0.95)


# ---- the scale: how large a residual is to be expected, given what is known of a row ------------


class Outputs(NamedTuple):
    """What a model says of rows: centre and half width of its own interval, spread by holes."""

    centre: Floats
    half: Floats
    spread: Floats

    @classmethod
    def of(cls, expectation: Expectation, points: Floats, threads: int | None) -> Outputs:
        """Outputs for points of the columns' variables.

        Several outputs are quantiles: the lowest and the highest are the model's own interval.
        """
        density, variables = expectation.density, expectation.columns.variables
        evidence = density.extended(Evidence(points), None)
        evidence = expectation.reading.read(density, evidence, variables)
        mean, _ = expectation.predict(evidence, threads=threads)
        spread = expectation.rough.std(evidence, threads=threads)[0].mean(axis=1)
        low, high = mean.min(axis=1), mean.max(axis=1)
        return cls((low + high) / 2, (high - low) / 2, spread)


class Scale(NamedTuple):
    """How large a residual is to be expected, from simple features of the answer.

    Attributes
    ----------
    weights : float64 (5,)
        Non-negative: of a constant, the spread that the holes cause, the model's own half width,
        and how far the centre lies above ``limits[0]`` and below ``limits[1]``.
    limits : float64 (2,)
        Centres are clipped to them.
    floor : float
        The smallest scale.
    power : float
        What scores are divided by is the scale to this power: 0 where it tells nothing.
    """

    weights: Floats
    limits: Floats
    floor: float
    power: float

    @classmethod
    def constant(cls) -> Scale:
        """The same for all rows."""
        return cls(np.array([1.0, 0.0, 0.0, 0.0, 0.0]), np.zeros(2), 0.0, 1.0)

    @classmethod
    def learned(cls, outputs: Outputs, residual: Floats, patterns: int) -> Scale:
        """The scale that makes Laplace residuals most likely.

        Rows come ``patterns`` times, under one pattern after the other. Each pattern has its
        own quantile of scores in the end, so the power is chosen by the width of intervals
        *within* them, for rows that the weights were not fitted to.
        """
        if not residual.any():
            return cls.constant()
        limits = np.quantile(outputs.centre, [0.02, 0.98])
        features = _features(outputs, limits)
        weights, floor = _fitted(features, residual)
        fold = np.tile(fold_numbers(len(residual) // patterns), patterns)
        expected = np.empty(len(residual))  # by weights that know nothing of the row
        for number in range(FOLDS):
            own = fold == number
            others, least = _fitted(features[~own], residual[~own])
            expected[own] = np.maximum(features[own] @ others, least)
        widths = [
            _width_within(residual.reshape(patterns, -1), expected.reshape(patterns, -1) ** power)
            for power in _POWERS
        ]
        return cls(weights, limits, floor, _POWERS[int(np.argmin(widths))])

    def expected(self, outputs: Outputs) -> Floats:
        """Expected size of the residual."""
        parts = _features(outputs, self.limits).T
        # Not a matrix product, whose last bit depends on the number of rows.
        total = np.zeros(len(outputs.centre))
        for weight, part in zip(self.weights, parts, strict=True):
            total += weight * part
        return np.maximum(total, self.floor)

    def __call__(self, outputs: Outputs) -> Floats:
        """What scores are divided by."""
        return np.asarray(self.expected(outputs) ** self.power)


def _features(outputs: Outputs, limits: Floats) -> Floats:
    low, high = limits
    clipped = np.clip(outputs.centre, low, high)
    ones = np.ones(len(clipped))
    return np.stack([ones, outputs.spread, outputs.half, clipped - low, high - clipped], axis=1)


def _fitted(features: Floats, residual: Floats) -> tuple[Floats, float]:
    """Weights by which Laplace residuals are most likely, and the smallest scale.

    Least squares, reweighted, end there.
    """
    unit = residual.mean() or 1.0
    size = np.where(features.any(axis=0), features.mean(axis=0), 1.0)
    parts, share = features / size, residual / unit
    weights, _ = nnls(parts, share)
    for _ in range(10):
        scale = np.maximum(parts @ weights, 1e-6)
        weights, _ = nnls(parts / scale[:, None], share / scale)
    floor = np.quantile(np.maximum(parts @ weights, 1e-6), 0.05)
    return weights * unit / size, float(floor * unit)


def _width_within(residual: Floats, scale: Floats) -> float:
    """Mean log width of intervals that cover most residuals (patterns, rows) of each pattern.

    Of the logarithm, because the mean itself is least where rows of large residuals are covered
    less often than others.
    """
    bound = np.quantile(residual / scale, _LEVELS, axis=1).mean(axis=0)
    return float(np.mean(np.log(np.maximum(bound, 1e-300)) + np.log(scale).mean(axis=1)))


# ---- calibration -------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Calibration:
    """Calibration rows, and what was learned from those that were set aside.

    Attributes
    ----------
    points : float64 (rows, variables)
        Rows whose scores are used, in random order; NaN where they have a hole.
    target : float64 (rows,)
        Their y.
    scale : Scale
    residual : float
        Mean scale of a row without holes.
    cost : float64 (variables,)
        What hiding a variable adds to the square of the scale.
    """

    points: Floats
    target: Floats
    scale: Scale
    residual: float
    cost: Floats
    _scores: dict[tuple[bytes, bool], Floats] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def learned(
        cls, expectation: Expectation, evidence: Evidence, y: Any, threads: int | None = None
    ) -> Self:
        """A calibration from rows that the model was not trained on, and their y.

        A one-hot block that is known in part counts as a hole.
        """
        points = evidence.points[:, : len(expectation.columns.variables)]
        target = _checked(y, len(points))
        rng = np.random.default_rng(0)
        order = rng.permutation(len(target))[:KEPT]
        aside = _set_aside(len(order))
        rows, part = order[aside:], order[:aside]
        n_variables = points.shape[1]
        if not aside:
            return cls(points[rows], target[rows], Scale.constant(), 1.0, np.ones(n_variables))
        patterns = [rng.random(n_variables) < rate for rate in _RATES]
        hidden = np.concatenate([np.where(hide, np.nan, points[part]) for hide in patterns])
        outputs = Outputs.of(expectation, hidden, threads)
        residual = np.abs(np.tile(target[part], len(patterns)) - outputs.centre)
        scale = Scale.learned(outputs, residual, len(patterns))
        plain = Outputs(outputs.centre[:aside], outputs.half[:aside], np.zeros(aside))
        cost = np.zeros(n_variables)
        if np.isnan(points[rows]).any():  # else every row serves every pattern
            added = _added_variance(expectation, points[part[:_PROBES]], threads)
            cost = scale.weights[1] ** 2 * added
        return cls(points[rows], target[rows], scale, float(scale.expected(plain).mean()), cost)

    def intervals(
        self, expectation: Expectation, evidence: Evidence, coverage: float, threads: int | None
    ) -> Floats:
        """Ends of the intervals, (rows, 2)."""
        self._check(coverage)
        points = evidence.points[:, : self.points.shape[1]].copy()
        patterns, which = np.unique(np.isnan(points), axis=0, return_inverse=True)
        bounds = np.empty(len(patterns))
        fewest = len(self.target)
        for number, pattern in enumerate(patterns):
            hide, own = self._hidden(pattern, coverage)
            points[np.ix_(which == number, hide)] = np.nan
            scores = self._scores_of(expectation, hide, own, threads)
            used = _best_number(len(scores), coverage)
            bounds[number] = np.sort(scores[:used])[_rank(used, coverage) - 1]
            fewest = min(fewest, used)
        _warn_of_few(fewest, coverage)
        outputs = Outputs.of(expectation, points, threads)
        half = np.maximum(outputs.half + bounds[which] * self.scale(outputs), 0.0)
        return np.stack([outputs.centre - half, outputs.centre + half], axis=1)

    def _check(self, coverage: float) -> None:
        check_number("coverage", coverage, above=0, below=1)
        rows = min(len(self.target), USED)
        if rows < _needed(coverage):
            raise InvalidInput(
                f"coverage={coverage:g} needs at least {_needed(coverage)} calibration rows; there "
                f"are {rows} (of more than {USED:,}, so many are used). Calibrate with more rows, "
                f"or ask for a coverage of at most {rows / (rows + 1):.3g}."
            )

    @cached_property
    def _holes(self) -> Pattern:
        return np.isnan(self.points)

    def _hidden(self, pattern: Pattern, coverage: float) -> tuple[Pattern, bool]:
        """What is hidden for a pattern, and whether only rows of exactly that pattern serve it."""
        if (self._holes == pattern).all(axis=1).sum() >= max(OWN, _needed(coverage)):
            return pattern, True

        def width(hide: Pattern, rows: int | None) -> float:
            return self._expected_width(hide, rows, coverage)

        hide = best = pattern
        shortest = np.inf
        while True:
            beyond = self._holes & ~hide
            lacking = beyond.sum(axis=1)
            fitting = int((lacking == 0).sum())
            if width(hide, fitting) < shortest:
                shortest, best = width(hide, fitting), hide
            further = np.flatnonzero(beyond.any(axis=0))
            if not len(further) or width(hide, None) >= shortest:
                return best, False
            one_more = [hide | (np.arange(len(hide)) == variable) for variable in further]
            rows = fitting + beyond[lacking == 1][:, further].sum(axis=0)
            options = zip(one_more, rows, strict=True)
            widths = [(width(more, int(n)), width(more, None)) for more, n in options]
            hide = one_more[widths.index(min(widths))]

    def _serving(self, hide: Pattern, own: bool) -> Rows:
        """Rows that are to be hidden like this."""
        fit = (self._holes == hide) if own else (~self._holes | hide)
        return np.flatnonzero(fit.all(axis=1))[:USED]

    def _expected_width(self, hide: Pattern, rows: int | None, coverage: float) -> float:
        """Expected half width where this is hidden, and so many rows serve (None: any number)."""
        scale = self.residual + np.sqrt(self.cost[hide].sum())
        if rows is None:
            return float(-np.log1p(-coverage) * scale)
        return float(_order_statistics(coverage)[_best_number(rows, coverage)] * scale)

    def _scores_of(
        self, expectation: Expectation, hide: Pattern, own: bool, threads: int | None
    ) -> Floats:
        """Scores of calibration rows: how far y lies outside, in units of the scale."""
        key = hide.tobytes(), own
        scores = self._scores.get(key)
        if scores is None:
            rows = self._serving(hide, own)
            points = np.where(hide, np.nan, self.points[rows])
            outputs = Outputs.of(expectation, points, threads)
            outside = np.abs(self.target[rows] - outputs.centre) - outputs.half
            scores = outside / self.scale(outputs)
            if len(self._scores) >= _REMEMBERED:
                self._scores.clear()
            self._scores[key] = scores
        return scores


def _checked(y: Any, rows: int) -> Floats:
    """Targets as one number a row."""
    table = in_rows(y, rows)
    if table.shape[1] != 1:
        raise InvalidInput(
            f"y must have one column, since intervals are for one target; got {table.shape[1]}. "
            f"Wrap and calibrate a model for each target."
        )
    return numbers(table)[:, 0]


def _added_variance(expectation: Expectation, points: Floats, threads: int | None) -> Floats:
    """Variance of the prediction that hiding a variable adds by itself, (variables,)."""
    variables = points.shape[1]
    hidden = np.tile(points, (variables + 1, 1, 1))
    hidden[np.arange(variables), :, np.arange(variables)] = np.nan
    spread = Outputs.of(expectation, hidden.reshape(-1, variables), threads).spread
    variance = (spread.reshape(variables + 1, -1) ** 2).mean(axis=1)
    return np.asarray(np.maximum(variance[:-1] - variance[-1], 0.0))


def _set_aside(rows: int) -> int:
    """Rows for the scale: a fifth, within limits; none of few rows (one scale for all).

    >>> [_set_aside(rows) for rows in (99, 100, 200, 700, 5000)]
    [0, 20, 40, 140, 250]
    """
    return min(250, rows // 5) if rows >= TOO_FEW_TO_JUDGE else 0


def _rank(rows: int, coverage: float) -> int:
    """Which of the sorted scores bounds the next one with this probability."""
    return max(1, int(np.ceil((rows + 1) * coverage - 1e-9)))


def _needed(coverage: float) -> int:
    """The fewest rows of which one bounds the next.

    >>> [_needed(coverage) for coverage in (0.5, 0.9, 0.95, 0.99)]
    [1, 9, 19, 99]
    """
    return max(1, int(np.ceil(coverage / (1 - coverage) - 1e-9)))


@lru_cache(maxsize=64)
def _order_statistics(coverage: float) -> Floats:
    """Expected score that bounds the next one with n = 0, 1, ... rows: infinite with too few.

    Of exponential scores, as those of Laplace residuals are; a difference of harmonic numbers.
    """
    rows = np.arange(USED + 1)
    above = rows - np.maximum(1, np.ceil((rows + 1) * coverage - 1e-9))
    expected = digamma(rows + 1) - digamma(np.maximum(above, 0) + 1)
    return np.where(above < 0, np.inf, expected)


def _best_number(rows: int, coverage: float) -> int:
    """How many of the rows to use, so that the interval is expected to be shortest.

    With 28 rows the largest but one bounds the next with probability 27/29; with 19 of them, with
    18/20, and that is all that was asked for.

    >>> [_best_number(rows, 0.9) for rows in (8, 9, 18, 28, 29, 1000)]
    [0, 9, 9, 19, 29, 999]
    """
    return int(np.argmin(_order_statistics(coverage)[: rows + 1]))


def _assured(rows: int, coverage: float) -> float:
    """What all but one calibration set in twenty cover at least."""
    rank = _rank(rows, coverage)
    return float(beta.ppf(0.05, rank, rows + 1 - rank))


def _warn_of_few(rows: int, coverage: float) -> None:
    aim = coverage - _LOOSE
    if _assured(rows, coverage) >= aim:
        return
    enough = rows
    while _assured(enough, coverage) < aim:
        enough += max(1, enough // 20)
    warnings.warn(
        f"some intervals rest on {rows} calibration rows. Over all calibration sets they cover "
        f"{coverage:.0%} or more, but one set in twenty covers less than "
        f"{_assured(rows, coverage):.0%}; with {enough} rows that have no more holes it would be "
        f"{aim:.0%}. Calibrate with more rows, best with complete ones.",
        FewCalibrationRows,
        stacklevel=5,
    )
