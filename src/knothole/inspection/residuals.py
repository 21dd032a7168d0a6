"""How large the residual of a row is to be expected, given what is known of the row.

The scale of the scores in :mod:`knothole.inspection.intervals`. Intervals cover as promised with
any
scale; a good one makes them short where much is known.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from knothole.arrays import Floats
from knothole.columns.evidence import Evidence
from knothole.densities.held_out import FOLDS, fold_numbers
from knothole.expectation.expectation import Expectation

# How much of the scale to believe within a pattern.
_POWERS = (0.0, 0.25, 0.5, 0.75, 1.0)
# Coverages that the power is chosen for.
_LEVELS = (0.8, 0.85, 0.9, 0.95)


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
        evidence = expectation.density.extended(Evidence(points), None)
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

    @classmethod
    def restored(cls, arrays: dict[str, NDArray[Any]]) -> Scale:
        """From arrays that a file held."""
        weights, limits = arrays["weights"], arrays["limits"]
        if weights.shape != (5,) or limits.shape != (2,):
            raise ValueError(f"a scale of {weights.shape} weights and {limits.shape} limits")
        return cls(weights, limits, float(arrays["floor"]), float(arrays["power"]))

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
