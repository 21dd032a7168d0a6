"""The losses that leaf values minimise, as functions of the margin.

Every loss is convex in the margin. Losses with a bounded second derivative (squared error, Huber
losses, log losses) have a ``curvature``, an upper bound that holds everywhere (Böhning and Lindsay
1988): a quarter for the logistic loss, a half for softmax, 1 for the squared error and for
Huber's. So

    loss(F + d) <= loss(F) + gradient(F) d + curvature / 2 |d|^2,

and a step to the minimum of this quadratic never raises the loss.

The pinball loss of the quantile of level a charges a for y above the margin, 1 - a for y below:

    loss(F) = max(a (y - F), (a - 1) (y - F)).

Its weighted sum over entries is minimal at their weighted quantile. So under the expected loss the
best value of a leaf, given the rest of the model, is the quantile of the residuals, each row (or
draw) weighted by its leaf probability: a closed form, as the mean is for squares (Prop. 2). The
ridge acts like lambda further rows with residual 0, as it does for squares.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import expit, logsumexp, softmax

from knothole.arrays import Floats
from knothole.errors import UnsupportedModel
from knothole.trees.ensemble import Ensemble

# Sums of weights whose relative difference is smaller are equal.
ROUNDING = 1e-12
# Rows assumed to be at the kink of the pinball loss, relative to those on its rarer side.
AT_KINK = 1.5


@dataclass(frozen=True)
class Loss(ABC):
    """A loss of margins (entries, outputs) against encoded targets of the same shape.

    The margin is multiplied by ``scale`` first.
    """

    scale: float = 1.0

    #: The name used in summaries.
    name: ClassVar[str]

    @property
    @abstractmethod
    def curvature(self) -> float:
        """Upper bound of the second derivative."""

    #: Whether a Newton step of a leaf may raise the loss.
    may_overshoot: ClassVar[bool] = True

    @property
    def factor(self) -> float:
        """Factor of the value in summaries."""
        return 1.0

    @abstractmethod
    def value(self, margin: Floats, y: Floats) -> Floats:
        """Loss of each entry, summed over outputs, (entries,)."""

    @abstractmethod
    def derivatives(self, margin: Floats, y: Floats) -> tuple[Floats, Floats]:
        """First and second derivative in each output's margin, (entries, outputs) each."""

    def aim(self, rest: Floats, weight: Floats) -> Floats:
        """Targets of a least-squares step, given the residuals (rows, width).

        For each row, the step to the minimum of the quadratic that bounds its loss.
        """
        slope = self.derivatives(np.zeros_like(rest), rest)[0]
        return np.asarray(-slope / self.curvature)

    def part(self, output: int, width: int) -> Self:
        """The loss of some consecutive outputs."""
        return self

    def centre(self, y: Floats, weight: Floats) -> Floats:
        """The best constant prediction of targets (rows, outputs): their mean, etc., (outputs,)."""
        return np.asarray(weight @ y / weight.sum())


class Location(Loss):
    """A loss of y - F other than the square: its best constant is not the mean."""

    @abstractmethod
    def best(self, rest: Floats, weight: Floats, ridge: float, output: int) -> float:
        """The v that minimises the loss of rest - v, summed over weighted entries, plus a ridge.

        Some of the ``rest`` (entries,) must have a weight, unless the ridge is above 0.
        """

    def by_leaf(
        self,
        leaf: NDArray[np.integer[Any]],
        rest: Floats,
        weight: Floats,
        n_leaves: int,
        ridge: float,
    ) -> Floats:
        """The best value of every leaf, (leaves, width); 0 without entries or ridge.

        Each entry has a leaf, residuals (entries, width) and a weight.
        """
        # Small integers are sorted by radix, in one or two passes.
        small = np.int16 if n_leaves <= np.iinfo(np.int16).max else np.int32
        order = np.argsort(leaf.astype(small), kind="stable")
        bounds = np.append(0, np.cumsum(np.bincount(leaf, minlength=n_leaves)))
        out = np.zeros((n_leaves, rest.shape[1]))
        for i, (start, stop) in enumerate(pairwise(bounds.tolist())):
            here = order[start:stop]
            if ridge > 0 or weight[here].any():
                for k in range(rest.shape[1]):
                    out[i, k] = self.best(rest[here, k], weight[here], ridge, k)
        return out

    def centre(self, y: Floats, weight: Floats) -> Floats:
        """The best constant of each output."""
        return np.array([self.best(one, weight, 0.0, k) for k, one in enumerate(y.T)])


@dataclass(frozen=True)
class Squared(Loss):
    """Half the squared error; targets are already divided by the scale."""

    name = "squared error"
    curvature = 1.0
    may_overshoot = False

    @property
    def factor(self) -> float:
        """Summaries report the squared error of predictions."""
        return 2.0 * self.scale**2

    def value(self, margin: Floats, y: Floats) -> Floats:
        """Half the squared difference."""
        return np.asarray(0.5 * ((margin - y) ** 2).sum(axis=1))

    def derivatives(self, margin: Floats, y: Floats) -> tuple[Floats, Floats]:
        """The difference, and 1."""
        return margin - y, np.ones_like(margin)


@dataclass(frozen=True)
class Huber(Location):
    """Half the squared error up to ``delta``, linear beyond it."""

    delta: float = 1.0

    name = "Huber loss"
    curvature = 1.0

    @property
    def factor(self) -> float:
        """Summaries report the loss in units of predictions, as the library does."""
        return self.scale**2

    def value(self, margin: Floats, y: Floats) -> Floats:
        """Half the square of the part within delta, and delta times the rest."""
        error = np.abs(margin - y)
        within = np.minimum(error, self.delta)
        return np.asarray((within * (error - 0.5 * within)).sum(axis=1))

    def derivatives(self, margin: Floats, y: Floats) -> tuple[Floats, Floats]:
        """The difference, clipped to delta, and 1: a bound, for steps that never raise the loss."""
        return np.clip(margin - y, -self.delta, self.delta), np.ones_like(margin)

    def best(self, rest: Floats, weight: Floats, ridge: float, output: int) -> float:
        """Where the derivative of the loss plus half the ridge times v^2 is 0."""

        def slope(v: float) -> float:
            return float(weight @ self.derivatives(np.asarray(v), rest)[0] + ridge * v)

        zero = [0.0] if ridge > 0 else []
        ends = np.concatenate([rest[weight > 0], zero])
        low, high = float(ends.min()), float(ends.max())
        if low == high or slope(low) >= 0:  # up to rounding, it is at most 0 there
            return low
        return float(brentq(slope, low, high, xtol=1e-300, maxiter=1000))


@dataclass(frozen=True)
class PseudoHuber(Huber):
    """XGBoost's smooth variant: delta^2 (sqrt(1 + ((y - F) / delta)^2) - 1)."""

    name = "pseudo-Huber loss"

    def value(self, margin: Floats, y: Floats) -> Floats:
        """The formula of the class."""
        root = np.sqrt(1 + ((margin - y) / self.delta) ** 2)
        return np.asarray(self.delta**2 * (root - 1).sum(axis=1))

    def derivatives(self, margin: Floats, y: Floats) -> tuple[Floats, Floats]:
        """The difference over the root, and 1 over the third power of the root."""
        root = np.sqrt(1 + ((margin - y) / self.delta) ** 2)
        return (margin - y) / root, root**-3.0


class LogLoss(Loss):
    """Minus the log probability of the truth; ``bound`` bounds its second derivative."""

    name = "log loss"
    bound: ClassVar[float]

    @property
    def curvature(self) -> float:
        """The bound of the second derivative, in units of the margin."""
        return self.bound * self.scale**2

    @abstractmethod
    def probability(self, scaled: Floats) -> Floats:
        """Probabilities of the outputs."""

    def derivatives(self, margin: Floats, y: Floats) -> tuple[Floats, Floats]:
        """P - y, and the diagonal p (1 - p)."""
        p = self.probability(margin * self.scale)
        return self.scale * (p - y), self.scale**2 * p * (1 - p)


class Logistic(LogLoss):
    """Log loss of a sigmoid, for each output on its own: p (1 - p) is at most a quarter."""

    bound = 0.25

    def value(self, margin: Floats, y: Floats) -> Floats:
        """Log(1 + exp(F)) - y F."""
        scaled = margin * self.scale
        return np.asarray((np.logaddexp(0.0, scaled) - y * scaled).sum(axis=1))

    def probability(self, scaled: Floats) -> Floats:
        """The probability of each output on its own."""
        return np.asarray(expit(scaled))


class Softmax(LogLoss):
    """Log loss of a softmax: the largest eigenvalue of diag(p) - p p' is at most a half."""

    bound = 0.5

    def value(self, margin: Floats, y: Floats) -> Floats:
        """Log sum exp(F), minus the F of the row's class."""
        scaled = margin * self.scale
        return np.asarray(logsumexp(scaled, axis=1) - (y * scaled).sum(axis=1))

    def probability(self, scaled: Floats) -> Floats:
        """The probabilities of all outputs, which sum to 1."""
        return np.asarray(softmax(scaled, axis=1))


@dataclass(frozen=True)
class Pinball(Location):
    """The loss of the quantiles of these levels, one for each output or one for all of them."""

    levels: tuple[float, ...] = (0.5,)

    name = "pinball loss"
    may_overshoot = False
    #: No quadratic bounds it from above and touches it at its kink.
    curvature = np.inf

    @property
    def factor(self) -> float:
        """Summaries report the loss of predictions."""
        return self.scale

    def part(self, output: int, width: int) -> Self:
        """The loss with the levels of some outputs."""
        several = len(self.levels) > 1
        return replace(self, levels=self.levels[output : output + width]) if several else self

    def value(self, margin: Floats, y: Floats) -> Floats:
        """The loss of each output at its level, summed over outputs."""
        level, above = np.array(self.levels), y - margin
        return np.asarray(np.maximum(level * above, (level - 1) * above).sum(axis=1))

    def derivatives(self, margin: Floats, y: Floats) -> tuple[Floats, Floats]:
        """The slope (at the kink: that for y below) and 0."""
        level = np.array(self.levels)
        return (margin > y) - level, np.zeros_like(margin)

    def aim(self, rest: Floats, weight: Floats) -> Floats:
        """A Newton step for the loss with a rounded kink: within h of it the slope is linear.

        h is chosen such that a certain fraction of the rows is within it, largest for a level of
        one half.
        """
        level = np.broadcast_to(np.array(self.levels), rest.shape[1])
        part = np.minimum(AT_KINK * np.minimum(level, 1 - level), 0.5)
        near = zip(np.abs(rest.T), part.tolist(), strict=True)
        h = np.array([weighted_quantile(one, weight, share) for one, share in near])
        return np.asarray((np.clip(rest, -h, h) + h * (2 * level - 1)) / part)

    def best(self, rest: Floats, weight: Floats, ridge: float, output: int) -> float:
        """The weighted quantile."""
        if ridge > 0:
            rest, weight = np.append(rest, 0.0), np.append(weight, ridge)
        return weighted_quantile(rest, weight, self.levels[output % len(self.levels)])


def weighted_quantile(values: Floats, weight: Floats, level: float) -> float:
    """The quantile of weighted values; where an interval minimises the loss, its middle.

    Examples
    --------
    >>> values = np.array([4.0, 1.0, 2.0, 3.0])
    >>> weighted_quantile(values, np.ones(4), 0.5), weighted_quantile(values, np.ones(4), 0.7)
    (2.5, 3.0)
    >>> weighted_quantile(values, np.array([3.0, 1.0, 1.0, 1.0]), 0.7)
    4.0
    """
    order = np.argsort(values)
    below = np.cumsum(weight[order])
    wanted = level * below[-1]
    low = np.searchsorted(below, wanted * (1 - ROUNDING))
    high = np.searchsorted(below, wanted * (1 + ROUNDING), side="right")
    high = min(high, len(values) - 1)
    return float(0.5 * values[order[low]] + 0.5 * values[order[high]])


# Losses by the name of the link.
LOG_LOSSES: dict[str, type[Loss]] = {"sigmoid": Logistic, "softmax": Softmax}
# Losses by their names in recipes.
HUBER = {"Huber": Huber, "pseudo-Huber": PseudoHuber}


def loss_of(ensemble: Ensemble) -> Loss:
    """The loss that a model was trained on, according to its link and its recipe.

    The squared error if they say nothing, and for leaves that are class frequencies.

    Examples
    --------
    >>> from sklearn.tree import DecisionTreeRegressor
    >>> from knothole.trees.read import read
    >>> tree = DecisionTreeRegressor(criterion="absolute_error").fit([[0.0], [1.0]], [0.0, 1.0])
    >>> loss_of(read(tree))
    Pinball(scale=1.0, levels=(0.5,))
    """
    link, recipe = ensemble.link, ensemble.recipe
    if link.name in LOG_LOSSES:
        return LOG_LOSSES[link.name](link.scale)
    if link.name == "blend":
        raise UnsupportedModel(
            "a model made of models (votes, calibrated probabilities, a transformed target) cannot "
            "be refitted as a whole: its loss is not that of its leaves. Wrap and refit the models "
            "inside it one by one."
        )
    if not link.linear:
        trained = f", trained on {recipe.loss!r}," if recipe.loss else ""
        raise _unserved(
            f"with a {link.name!r} link (Poisson, gamma, Tweedie, survival){trained}",
            "the loss has no quadratic bound",
        )
    if ensemble.classes is not None:
        return Squared(link.scale)
    if recipe.loss in HUBER:
        if recipe.delta is None:
            raise _unserved("of a Huber loss", "it does not say where its loss becomes linear")
        return HUBER[recipe.loss](link.scale, recipe.delta / link.scale)
    if recipe.loss:
        raise _unserved(
            f"that was trained on {recipe.loss!r}",
            "leaves are found for squared errors, absolute errors, quantiles, Huber losses and "
            "log losses",
        )
    return Pinball(link.scale, recipe.levels) if recipe.levels else Squared(link.scale)


def _unserved(what: str, why: str) -> UnsupportedModel:
    return UnsupportedModel(
        f"a model {what} cannot be refitted: {why}. Train a model on weighted draws instead: "
        f"knothole.expand."
    )
