"""From margins to predictions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from scipy.special import expit, softmax

from knothole.arrays import Floats
from knothole.errors import InvalidInput

FUNCTIONS: dict[str, Callable[[Floats], Any]] = {
    "identity": np.asarray,
    "sigmoid": expit,
    "softmax": partial(softmax, axis=-1),
    "exp": np.exp,
}


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
        if self.name not in FUNCTIONS:
            raise InvalidInput(f"link must be one of {tuple(FUNCTIONS)}; got {self.name!r}.")

    @property
    def linear(self) -> bool:
        """Whether the expectation of the prediction is the prediction at the expected margin."""
        return self.name == "identity"

    def __call__(self, margin: Floats) -> Floats:
        """Predictions of margins, over the last axis."""
        return np.asarray(FUNCTIONS[self.name](margin * self.scale))


IDENTITY = Link("identity")
