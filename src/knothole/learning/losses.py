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

import numpy as np
from scipy.special import expit, logsumexp, softmax

from knothole.arrays import Floats
from knothole.errors import UnsupportedModel
from knothole.trees.links import Link


@dataclass(frozen=True)
class Loss(ABC):
    """A loss of margins against encoded targets; ``scale`` multiplies the margin first."""

    scale: float = 1.0

    @property
    @abstractmethod
    def name(self) -> str:
        """As summaries have it."""

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


@dataclass(frozen=True)
class Logistic(Loss):
    """Log loss of a sigmoid, of each output by itself."""

    name = "log loss"

    @property
    def curvature(self) -> float:
        """No p (1 - p) is above a quarter."""
        return 0.25 * self.scale**2

    def value(self, margin: Floats, y: Floats) -> Floats:
        """Log(1 + exp(F)) - y F."""
        scaled = margin * self.scale
        return np.asarray((np.logaddexp(0.0, scaled) - y * scaled).sum(axis=1))

    def derivatives(self, margin: Floats, y: Floats) -> tuple[Floats, Floats]:
        """P - y and p (1 - p)."""
        p = expit(margin * self.scale)
        return self.scale * (p - y), self.scale**2 * p * (1 - p)


@dataclass(frozen=True)
class Softmax(Loss):
    """Log loss of a softmax over the outputs."""

    name = "log loss"

    @property
    def curvature(self) -> float:
        """The largest eigenvalue of diag(p) - p p' is at most a half."""
        return 0.5 * self.scale**2

    def value(self, margin: Floats, y: Floats) -> Floats:
        """Log sum exp(F), less F of the row's class."""
        scaled = margin * self.scale
        return np.asarray(logsumexp(scaled, axis=1) - (y * scaled).sum(axis=1))

    def derivatives(self, margin: Floats, y: Floats) -> tuple[Floats, Floats]:
        """P - y, and the diagonal p (1 - p)."""
        p = softmax(margin * self.scale, axis=1)
        return self.scale * (p - y), self.scale**2 * p * (1 - p)


def loss_of(link: Link) -> Loss:
    """The loss that a model with this link is tuned by."""
    losses: dict[str, type[Loss]] = {
        "identity": Squared,
        "sigmoid": Logistic,
        "softmax": Softmax,
    }
    if link.name not in losses:
        raise UnsupportedModel(
            f"a model with a {link.name!r} link (Poisson, gamma, Tweedie) cannot be tuned: its "
            f"trees do not say which loss it was trained on, and the loss has no quadratic bound. "
            f"Train a model on weighted completions instead: knothole.learning.induction.expand."
        )
    return losses[link.name](link.scale)
