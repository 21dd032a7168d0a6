"""Who draws the holes of rows: a density by inversion, or one of the user's own as it likes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from knothole.arrays import Floats, Words
from knothole.columns.columns import Variable
from knothole.columns.evidence import Evidence
from knothole.compiled.sobol import COMMON, WORD, Points

if TYPE_CHECKING:
    from knothole.densities.base import Inverted


class Sampler(Protocol):
    """Draws the holes of a chunk of rows, 64 draws a word."""

    n_variables: int

    def arrange(self, weight: Floats) -> None:
        """Let what weighs most among the variables have the best coordinates, if there are some."""
        ...

    def draw(self, evidence: Evidence, words: range, keys: Words | None = None) -> Floats:
        """Draws (rows, variables, 64 * words); only those of missing values are read.

        From the points that all rows share, or from those of the rows' ``keys``.
        """
        ...


class Completer(Protocol):
    """A density that can complete rows."""

    variables_: tuple[Variable, ...]

    def complete_points(self, evidence: Evidence, draws: int, seed: int) -> Floats:
        """Points with every hole drawn from its conditional, (rows, draws, variables)."""
        ...


class Inversion:
    """A sampler for densities that make draws of uniform numbers."""

    def __init__(self, density: Inverted, seed: int) -> None:
        self.density = density
        self.n_variables = len(density.variables_)
        self.points = Points(seed, density.coordinates)

    def arrange(self, weight: Floats) -> None:
        """After the coordinates of states."""
        states = np.full(self.points.coordinates - self.n_variables, np.inf)
        self.points.arrange(np.concatenate([states, weight]))

    def draw(self, evidence: Evidence, words: range, keys: Words | None = None) -> Floats:
        """Draws (rows, variables, 64 * words)."""
        n_rows = len(evidence.points)
        uniform = self.points.uniform(words, COMMON if keys is None else keys)
        if keys is None:
            uniform = np.broadcast_to(uniform, (n_rows, *uniform.shape[1:]))
        drawn = self.density.draw_points(evidence, uniform)
        return np.ascontiguousarray(drawn.transpose(0, 2, 1))


class Completion:
    """A sampler for a density of the user's own, which draws as it likes.

    The groups of its draws are independent if its draws are; whether a row's draws depend on its
    place is up to it.
    """

    def __init__(self, density: Completer, seed: int) -> None:
        self.density = density
        self.n_variables = len(density.variables_)
        self.seed = seed

    def arrange(self, weight: Floats) -> None:
        """There are none that we know of."""

    def draw(self, evidence: Evidence, words: range, keys: Words | None = None) -> Floats:
        """Draws (rows, variables, 64 * words)."""
        seed = int(np.random.SeedSequence([self.seed, words.start]).generate_state(1)[0])
        drawn = self.density.complete_points(evidence, WORD * len(words), seed)
        return np.ascontiguousarray(drawn.transpose(0, 2, 1))
