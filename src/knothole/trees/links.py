"""From margins to predictions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import expit, softmax

from knothole.arrays import Floats
from knothole.errors import InvalidInput

NAMES = ("identity", "sigmoid", "softmax", "exp")


@dataclass(frozen=True)
class Link:
    """A link by name, with the factor some libraries put on the margin first.

    ``identity`` leaves margins as they are (regression, and averaged forests whose leaves are
    already probabilities); ``sigmoid`` works on each output alone (one output: the probability of
    the second class; several: one against all); ``softmax`` over the outputs; ``exp`` for
    Poisson, gamma and Tweedie.

    >>> Link("sigmoid")(np.array([[0.0]]))
    array([[0.5]])
    """

    name: str
    scale: float = 1.0

    def __post_init__(self) -> None:
        if self.name not in NAMES:
            raise InvalidInput(f"link must be one of {NAMES}; got {self.name!r}.")

    @property
    def linear(self) -> bool:
        """Whether the expectation of the prediction is the prediction at the expected margin."""
        return self.name == "identity"

    def __call__(self, margin: Floats) -> Floats:
        """Predictions of margins, over the last axis."""
        scaled = margin * self.scale
        if self.name == "sigmoid":
            return np.asarray(expit(scaled))
        if self.name == "softmax":
            return np.asarray(softmax(scaled, axis=-1))
        if self.name == "exp":
            return np.asarray(np.exp(scaled))
        return np.asarray(scaled)


IDENTITY = Link("identity")
