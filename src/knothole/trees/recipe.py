"""How a model was trained, as far as its library tells."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

#: An absolute error has the median for its best answer.
MEDIAN = (0.5,)


@dataclass(frozen=True)
class Recipe:
    """What of a model's training matters to what is done with it.

    Attributes
    ----------
    levels : tuple of float
        Quantiles of y that the outputs were trained to be, a half for an absolute error; none for
        models of means and probabilities.
    learning_rate : float or None
        Part of its best values that each tree was given; None where the library does not tell.
    loss : str
        "Huber", "pseudo-Huber", or what the library calls a loss that is none of: squared error,
        the loss of the ``levels``, log loss. Empty otherwise.
    delta : float or None
        Error from which a Huber loss grows no faster than the error itself.
    """

    levels: tuple[float, ...] = ()
    learning_rate: float | None = None
    loss: str = ""
    delta: float | None = None

    @classmethod
    def of(
        cls,
        levels: Iterable[Any] = (),
        learning_rate: Any = None,
        loss: str = "",
        delta: Any = None,
    ) -> Recipe:
        """From what a library says; numbers that make no sense say nothing.

        Examples
        --------
        >>> Recipe.of(["0.1", "0.9"], 0.3)
        Recipe(levels=(0.1, 0.9), learning_rate=0.3, loss='', delta=None)
        >>> Recipe.of(learning_rate=0.0, loss="Huber", delta="1.5")
        Recipe(levels=(), learning_rate=None, loss='Huber', delta=1.5)
        """
        found = tuple(float(level) for level in levels)
        return cls(
            found if all(0 < level < 1 for level in found) else (),
            _at_most(1.0, learning_rate),
            str(loss),
            _at_most(sys.float_info.max, delta),
        )


def _at_most(largest: float, number: Any) -> float | None:
    """A number above 0, or None where it is none."""
    return float(number) if number is not None and 0 < float(number) <= largest else None


#: Of a model whose library tells nothing.
UNTOLD = Recipe()
