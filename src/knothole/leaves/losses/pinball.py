"""The loss of quantiles.

For the quantile of the level a, an error of y above the margin costs a, one below it 1 - a:

    loss(F) = max(a (y - F), (a - 1) (y - F)).

Among weighted entries the sum of it is least at their weighted quantile. So under the expected loss
the best value of a leaf, given the rest of the model, is the quantile of what that leaves of y,
each row (or completion) weighing its reach: a closed form, as the mean is for squares (Prop. 2).
The ridge is lambda rows more, whose rest is 0: that is what it is for squares, too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from knothole.arrays import Floats
from knothole.leaves.losses.base import Location

# Sums of weights that differ by less than this part are the same.
ROUNDING = 1e-12
# Rows that are taken to be at the kink, as a part of those on its rarer side.
AT_KINK = 1.5


@dataclass(frozen=True)
class Pinball(Location):
    """The loss of the quantiles of these levels, one for each output or one for all of them."""

    levels: tuple[float, ...] = (0.5,)

    name = "pinball loss"
    #: No quadratic lies above it and touches it at its kink.
    curvature = np.inf

    @property
    def factor(self) -> float:
        """Summaries have the loss of predictions."""
        return self.scale

    def part(self, output: int, width: int) -> Self:
        """With the levels of some outputs."""
        several = len(self.levels) > 1
        return replace(self, levels=self.levels[output : output + width]) if several else self

    def value(self, margin: Floats, y: Floats) -> Floats:
        """The loss of each output at its level, summed."""
        level, above = np.array(self.levels)[:, None], y - margin
        return np.asarray(np.maximum(level * above, (level - 1) * above).sum(axis=1))

    def derivatives(self, margin: Floats, y: Floats) -> tuple[Floats, Floats]:
        """The slope (at the kink, that below y), and 0."""
        level = np.array(self.levels)[:, None]
        return (margin > y) - level, np.zeros_like(margin)

    def aim(self, rest: Floats, weight: Floats) -> Floats:
        """A Newton step for the loss with its kink made round: within h its slope changes evenly.

        H is such that it holds a part of the rows, the larger the closer the level is to a half.
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
    """The quantile of weighted values; the middle where all between two of them are equally good.

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
