"""What every loss is asked for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats


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

    def aim(self, rest: Floats, weight: Floats) -> Floats:
        """What a step of least squares goes for, given what margins leave of y, (rows, width).

        It is the step of each row by itself to the minimum of the quadratic that bounds its loss.
        """
        slope = self.derivatives(np.zeros_like(rest)[:, :, None], rest[:, :, None])[0][:, :, 0]
        return np.asarray(-slope / self.curvature)

    def part(self, output: int, width: int) -> Self:
        """The loss of some outputs, next to each other."""
        return self

    def centre(self, y: Floats, weight: Floats) -> Floats:
        """The mean of targets (rows, outputs), or what else predicts them best, (outputs,)."""
        return np.asarray(weight @ y / weight.sum())


class Location(Loss):
    """A loss of y - F alone that is not a square: its best constant is no mean."""

    @abstractmethod
    def best(self, rest: Floats, weight: Floats, ridge: float, output: int) -> float:
        """The v that minimises the loss of rest - v, summed over weighted entries, and a ridge.

        Of the entries (entries,) some have a weight, or the ridge is above 0.
        """

    def by_leaf(
        self,
        leaf: NDArray[np.integer[Any]],
        rest: Floats,
        weight: Floats,
        n_leaves: int,
        ridge: float,
    ) -> Floats:
        """The best value of every leaf, (leaves, width), 0 without a ridge where none comes.

        Entries have a leaf each, what is left of their targets (entries, width), and a weight.
        """
        # Small numbers are sorted by their digits, in a pass or two.
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
