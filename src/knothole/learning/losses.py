"""What is minimised, as a function of the margin: squared error, and log loss of boosted models.

Values are (rows, outputs, draws): margins of a row's completions. Every loss here is convex in the
margin, and its second derivative has an upper bound, the ``curvature``, that holds everywhere
(Böhning and Lindsay 1988): a quarter for the logistic loss, a half for softmax. So

    loss(F + d) <= loss(F) + gradient(F) d + curvature / 2 |d|^2,

a quadratic in the leaves whose minimum is the forest system of Prop. 3: going there never raises
the expected loss.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.special import expit, logsumexp, softmax

from knothole.arrays import Floats
from knothole.errors import UnsupportedModel
from knothole.trees.links import Link


@dataclass(frozen=True)
class Loss(ABC):
    """A loss of margins against encoded targets; ``scale`` multiplies the margin first."""

    scale: float = 1.0

    #: As summaries have it.
    name: ClassVar[str]

    @property
    @abstractmethod
    def curvature(self) -> float:
        """Bound of the second derivative."""

    @property
    def factor(self) -> float:
        """What the value is multiplied by in summaries."""
        return 1.0

    @abstractmethod
    def value(self, margin: Floats, y: Floats) -> Floats:
        """Loss, summed over outputs, (rows, draws)."""

    @abstractmethod
    def derivatives(self, margin: Floats, y: Floats) -> tuple[Floats, Floats]:
        """First and second derivative in each output's margin, (rows, outputs, draws) each."""


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


# By the name of the link.
LOSSES: dict[str, type[Loss]] = {"identity": Squared, "sigmoid": Logistic, "softmax": Softmax}


def loss_of(link: Link) -> Loss:
    """The loss that a model with this link is tuned by."""
    if link.name not in LOSSES:
        raise UnsupportedModel(
            f"a model with a {link.name!r} link (Poisson, gamma, Tweedie) cannot be tuned: its "
            f"trees do not say which loss it was trained on, and the loss has no quadratic bound. "
            f"Train a model on weighted completions instead: knothole.learning.induction.expand."
        )
    return LOSSES[link.name](link.scale)
