"""Completions of a Gaussian mixture, a word of 64 at a time, compiled.

For every row with holes: the responsibilities of the components given what is observed; the first
coordinate of scrambled Sobol points (:mod:`~knothole.compiled.sobol`) chooses the component of
each draw, the others, through the normal quantile, the values of the holes. One small Cholesky
factor per pattern of holes serves responsibilities and draws alike.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats
from knothole.compiled import sobol
from knothole.compiled.sobol import WORD
from knothole.compiled.threads import Memory, over_chunks
from knothole.densities.gaussian import kernels as kernels
from knothole.densities.gaussian.fill import fill, spread
from knothole.densities.gaussian.kernels import Packed
from knothole.densities.gaussian.normal_scores import NormalScores
from knothole.tables.evidence import Evidence

_BLOCK = 128
# Parts of a word whose groups can go on.
PARTS = 2
_NO_WORDS = np.empty((0, 0), dtype=np.uint64)


class Maps(NamedTuple):
    """The arrays of :class:`~knothole.densities.gaussian.normal_scores.NormalScores`."""

    coarse: Floats
    values: Floats
    tail: Floats
    limits: Floats
    whole: NDArray[np.bool_]
    flat: Floats


class Discrete(NamedTuple):
    """Discrete emissions as plain arrays.

    Attributes
    ----------
    variable : int64 (emissions,)
        What each is about.
    flag : bool (emissions,)
        Whether it says if a numeric variable is recorded (code 0) or not (code 1).
    first_code : int64 (emissions + 1,)
        First row of each in ``probability``.
    probability : float64 (codes, k)
        Of every code in each component.
    first_word : int64 (emissions,)
        First word of the variable in ``Evidence.allowed``; -1 where it has none.
    """

    variable: NDArray[np.int64]
    flag: NDArray[np.bool_]
    first_code: NDArray[np.int64]
    probability: Floats
    first_word: NDArray[np.int64]


class Tables(NamedTuple):
    """A fitted mixture as plain arrays, for :func:`~knothole.densities.gaussian.fill.fill`.

    Attributes
    ----------
    packed : Packed
    sharpness : float64 (d, k)
        What lowers log p by half its product with a score's variance.
    maps : Maps
    numeric : int64 (d,)
        The variable of each column of ``maps``.
    discrete : Discrete
    net : uint32 (parts, coordinates, points)
    quantile : float64
        The table of :func:`~knothole.compiled.sobol.quantiles`.
    """

    packed: Packed
    sharpness: Floats
    maps: Maps
    numeric: NDArray[np.int64]
    discrete: Discrete
    net: NDArray[np.uint32]
    quantile: Floats


class Workspace(NamedTuple):
    """Working memory of :func:`fill`; not to be shared between threads."""

    kernel: kernels.Scratch
    score: Floats
    variance: Floats
    joint: Floats
    first: NDArray[np.int64]
    component: NDArray[np.int64]
    chosen: NDArray[np.uint32]
    lane: NDArray[np.uint32]
    bits: NDArray[np.uint32]
    code: Floats
    normal: Floats
    z: Floats


def tabulate(
    packed: Packed,
    sharpness: Floats,
    scores: NormalScores,
    numeric: NDArray[np.int64],
    discrete: Discrete,
    groups: int,
) -> Tables:
    """All that :func:`fill` needs; a word is made of ``groups`` independent nets."""
    coordinates = 1 + len(numeric) + len(discrete.variable)
    return Tables(
        packed,
        sharpness,
        Maps(scores.coarse, scores.values, scores.tail, scores.limits, scores.whole, scores.flat),
        numeric,
        discrete,
        sobol.sobol_net(coordinates, WORD // groups, PARTS if groups > 1 else 1),
        sobol.quantiles(),
    )


def workspace(tables: Tables) -> Workspace:
    """Working memory for one thread."""
    d, k = len(tables.numeric), len(tables.packed.log_weight)

    def whole(size: int) -> NDArray[np.int64]:
        return np.empty(size, dtype=np.int64)

    def bits() -> NDArray[np.uint32]:
        # As indices, unsigned numbers need no test for being negative.
        return np.empty(WORD, dtype=np.uint32)

    return Workspace(
        kernels.scratch(tables.packed),
        score=np.empty(d),
        variance=np.empty(d),
        joint=np.empty(k),
        first=whole(k + 1),
        component=whole(WORD),
        chosen=bits(),
        lane=bits(),
        bits=bits(),
        code=np.empty(WORD),
        normal=np.empty((d, WORD)),
        z=np.empty((d + 4, WORD)),
    )


class Sampler:
    """Completes rows of evidence, 64 draws a word.

    Words and rows of different numbers are independent; so are the ``groups`` equal parts of a
    word, each of which is evenly spread. The same seed, row and word give the same draws. A word's
    second part has more draws of the same groups (:mod:`~knothole.compiled.sobol`).

    Parameters
    ----------
    tables : Tables
    seed : int
    """

    def __init__(self, tables: Tables, seed: int) -> None:
        self.tables = tables
        self.parts = len(tables.net)
        self.seed = seed
        # Fresh memory costs as much as the draws: every thread has its own to use again.
        self._memory = Memory()

    def draw(self, evidence: Evidence, first_row: int, word: int) -> Floats:
        """Draws (rows, variables, 64) of the first part of a word; see :meth:`draw_parts`."""
        rows = np.arange(first_row, first_row + len(evidence.points))
        return np.asarray(self.draw_parts(evidence, rows, word, 1)[0])

    def draw_parts(
        self, evidence: Evidence, rows: NDArray[np.int64], word: int, parts: int
    ) -> Floats:
        """Draws (parts, rows, variables, 64); ``rows`` are the numbers of the rows.

        Only holes are written: what else the array holds means nothing. It is good until the same
        thread draws again.
        """
        points = np.ascontiguousarray(evidence.points)
        memory = self._memory.__dict__
        if "workspace" not in memory:
            memory["workspace"], memory["out"] = workspace(self.tables), np.empty(0)
        size = parts * points.size * WORD
        if len(memory["out"]) < size:
            memory["out"] = np.empty(size)
        out: Floats = memory["out"][:size].reshape(parts, *points.shape, WORD)
        allowed = _NO_WORDS if evidence.allowed is None else evidence.allowed
        seed = word_seed(self.seed, word)
        fill(self.tables, points, allowed, seed, rows, memory["workspace"], out)
        return out

    def complete(
        self, evidence: Evidence, word: int, lanes: NDArray[np.int64], out: Floats
    ) -> None:
        """Write the draws ``lanes`` of a word to ``out`` (rows, lanes, variables), all variables.

        Rows are numbered from 0 on; the work goes to several threads.
        """

        def work(start: int, stop: int) -> None:
            part = evidence[start:stop]
            spread(part.points, self.draw(part, start, word), lanes, out[start:stop])

        over_chunks(work, len(evidence.points), _BLOCK)


@lru_cache
def word_seed(seed: int, word: int) -> np.uint64:
    """The seed of one word, for :func:`~knothole.densities.gaussian.fill.fill`."""
    return np.uint64(np.random.SeedSequence([seed, word]).generate_state(1, np.uint64)[0])
