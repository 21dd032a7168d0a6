"""Losses with a bounded second derivative: squared error, Huber losses, log losses.

Values are (rows, outputs, draws): margins of a row's completions. Every loss here is convex in the
margin, and its second derivative has an upper bound, the ``curvature``, that holds everywhere
(Böhning and Lindsay 1988): a quarter for the logistic loss, a half for softmax, 1 for the squared
error and for Huber's. So

    loss(F + d) <= loss(F) + gradient(F) d + curvature / 2 |d|^2,

a quadratic in the leaves whose minimum is the forest system of Prop. 3: going there never raises
the expected loss.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit, logsumexp, softmax

from knothole.arrays import Floats
from knothole.leaves.losses.base import Location, Loss


@dataclass(frozen=True)
class Squared(Loss):
    """Half the squared error; the scale is already taken out of the targets."""

    name = "squared error"
    curvature = 1.0

    @property
    def factor(self) -> float:
        """Summaries have the squared error of predictions."""
        return 2.0 * self.scale**2

    def value(self, margin: Floats, y: Floats) -> Floats:
        """Half the squared difference."""
        return np.asarray(0.5 * ((margin - y) ** 2).sum(axis=1))

    def derivatives(self, margin: Floats, y: Floats) -> tuple[Floats, Floats]:
        """The difference, and 1."""
        return margin - y, np.ones_like(margin)


@dataclass(frozen=True)
class Huber(Location):
    """Half the squared error up to ``delta`` from y, and growing as the error beyond."""

    delta: float = 1.0

    name = "Huber loss"
    curvature = 1.0

    @property
    def factor(self) -> float:
        """Summaries have the loss in units of predictions, as the library has it."""
        return self.scale**2

    def value(self, margin: Floats, y: Floats) -> Floats:
        """Half the square of what is within delta, and delta times the rest."""
        error = np.abs(margin - y)
        within = np.minimum(error, self.delta)
        return np.asarray((within * (error - 0.5 * within)).sum(axis=1))

    def derivatives(self, margin: Floats, y: Floats) -> tuple[Floats, Floats]:
        """The difference, at most delta, and 1: a bound, for steps that never raise the loss."""
        return np.clip(margin - y, -self.delta, self.delta), np.ones_like(margin)

    def best(self, rest: Floats, weight: Floats, ridge: float, output: int) -> float:
        """Where the derivative, and that of half the ridge times v^2, vanish."""

        def slope(v: float) -> float:
            return float(weight @ self.derivatives(np.asarray(v), rest)[0] + ridge * v)

        zero = [0.0] if ridge > 0 else []
        ends = np.concatenate([rest[weight > 0], zero])
        low, high = float(ends.min()), float(ends.max())
        if low == high or slope(low) >= 0:  # but for rounding, it is not above 0 there
            return low
        return float(brentq(slope, low, high, xtol=1e-300, maxiter=1000))


@dataclass(frozen=True)
class PseudoHuber(Huber):
    """XGBoost's smooth relative: delta^2 (sqrt(1 + ((y - F) / delta)^2) - 1)."""

    name = "pseudo-Huber loss"

    def value(self, margin: Floats, y: Floats) -> Floats:
        """As above."""
        root = np.sqrt(1 + ((margin - y) / self.delta) ** 2)
        return np.asarray(self.delta**2 * (root - 1).sum(axis=1))

    def derivatives(self, margin: Floats, y: Floats) -> tuple[Floats, Floats]:
        """The difference over the root, and 1 over the third power of the root."""
        root = np.sqrt(1 + ((margin - y) / self.delta) ** 2)
        return (margin - y) / root, root**-3.0


class LogLoss(Loss):
    """Minus the log probability of what is true; ``bound`` is that of its second derivative."""

    name = "log loss"
    bound: ClassVar[float]

    @property
    def curvature(self) -> float:
        """The bound, in units of the margin."""
        return self.bound * self.scale**2

    @abstractmethod
    def probability(self, scaled: Floats) -> Floats:
        """Probabilities of the outputs."""

    def derivatives(self, margin: Floats, y: Floats) -> tuple[Floats, Floats]:
        """P - y, and the diagonal p (1 - p)."""
        p = self.probability(margin * self.scale)
        return self.scale * (p - y), self.scale**2 * p * (1 - p)


class Logistic(LogLoss):
    """Log loss of a sigmoid, of each output by itself: no p (1 - p) is above a quarter."""

    bound = 0.25

    def value(self, margin: Floats, y: Floats) -> Floats:
        """Log(1 + exp(F)) - y F."""
        scaled = margin * self.scale
        return np.asarray((np.logaddexp(0.0, scaled) - y * scaled).sum(axis=1))

    def probability(self, scaled: Floats) -> Floats:
        """The probability of each output by itself."""
        return np.asarray(expit(scaled))


class Softmax(LogLoss):
    """Log loss of a softmax: the largest eigenvalue of diag(p) - p p' is at most a half."""

    bound = 0.5

    def value(self, margin: Floats, y: Floats) -> Floats:
        """Log sum exp(F), less F of the row's class."""
        scaled = margin * self.scale
        return np.asarray(logsumexp(scaled, axis=1) - (y * scaled).sum(axis=1))

    def probability(self, scaled: Floats) -> Floats:
        """The probabilities of all outputs, which sum to 1."""
        return np.asarray(softmax(scaled, axis=1))
