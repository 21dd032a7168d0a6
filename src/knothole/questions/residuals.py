"""How large the residual of a row is to be expected, given what is known of the row.

The scale of the scores in :mod:`knothole.questions.intervals`. Intervals cover as promised with any
scale; a good one makes them short where much is known.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.optimize import nnls

from knothole.arrays import Floats
from knothole.reach.expectation import Expectation
from knothole.tables.evidence import Evidence

# How much of the scale to believe within a pattern.
_POWERS = (0.0, 0.25, 0.5, 0.75, 1.0)
# What a power must gain in log likelihood to be taken.
_GAIN = 1.0


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
        spread = expectation.std(evidence, threads=threads).mean(axis=1)
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
        own quantile of scores in the end, so the power is chosen by what it tells *within* them.
        """
        if not residual.any():
            return cls.constant()
        limits = np.quantile(outputs.centre, [0.02, 0.98])
        features = _features(outputs, limits)
        weights = _likely_weights(features, residual)
        scale = features @ weights
        floor = float(np.quantile(scale, 0.05))
        scale = np.maximum(scale, floor).reshape(patterns, -1)
        residual = residual.reshape(patterns, -1)
        losses = [_loss_within(residual, scale**power) for power in _POWERS]
        gains = (losses[0] - np.array(losses)) * residual.shape[1]
        power = _POWERS[int(gains.argmax())] if gains.max() > _GAIN else 0.0
        return cls(weights, limits, floor, power)

    def expected(self, outputs: Outputs) -> Floats:
        """Expected size of the residual."""
        parts = _features(outputs, self.limits).T
        # Not a matrix product, whose last bit depends on the number of rows.
        total = sum(weight * part for weight, part in zip(self.weights, parts, strict=True))
        return np.maximum(total, self.floor)

    def __call__(self, outputs: Outputs) -> Floats:
        """What scores are divided by."""
        return np.asarray(self.expected(outputs) ** self.power)


def _features(outputs: Outputs, limits: Floats) -> Floats:
    low, high = limits
    clipped = np.clip(outputs.centre, low, high)
    ones = np.ones(len(clipped))
    return np.stack([ones, outputs.spread, outputs.half, clipped - low, high - clipped], axis=1)


def _likely_weights(features: Floats, residual: Floats) -> Floats:
    """Least squares, reweighted, ends where the likelihood of Laplace residuals is largest."""
    unit = residual.mean()
    size = np.where(features.any(axis=0), features.mean(axis=0), 1.0)
    parts, share = features / size, residual / unit
    weights, _ = nnls(parts, share)
    for _ in range(10):
        scale = np.maximum(parts @ weights, 1e-6)
        weights, _ = nnls(parts / scale[:, None], share / scale)
    return np.asarray(weights * unit / size)


def _loss_within(residual: Floats, scale: Floats) -> float:
    """Laplace loss a row of residuals (patterns, rows), each pattern with a factor of its own."""
    factor = (residual / scale).mean(axis=1)
    return float(np.mean(np.log(np.maximum(factor, 1e-300)) + np.log(scale).mean(axis=1)))
