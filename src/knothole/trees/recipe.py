"""How a model was trained, as far as its library tells."""

from __future__ import annotations

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
    """

    levels: tuple[float, ...] = ()
    learning_rate: float | None = None

    @classmethod
    def of(cls, levels: Iterable[Any] = (), learning_rate: Any = None) -> Recipe:
        """From what a library says; numbers that make no sense say nothing.

        Examples
        --------
        >>> Recipe.of(["0.1", "0.9"], 0.3)
        Recipe(levels=(0.1, 0.9), learning_rate=0.3)
        >>> Recipe.of(learning_rate=0.0)
        Recipe(levels=(), learning_rate=None)
        """
        found = tuple(float(level) for level in levels)
        rate = None if learning_rate is None else float(learning_rate)
        return cls(
            found if all(0 < level < 1 for level in found) else (),
            rate if rate is not None and 0 < rate <= 1 else None,
        )


#: Of a model whose library tells nothing.
UNTOLD = Recipe()
