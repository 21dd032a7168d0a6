"""Completions of a Gaussian mixture, a word of 64 at a time, compiled.

For every row with holes: the responsibilities of the components given what is observed; the first
coordinate of scrambled Sobol points (:mod:`~knothole.compiled.sobol`) chooses the component of
each draw, the others, through the normal quantile, the values of the holes: a variable has the
same coordinate whatever else is missing. One small Cholesky factor per pattern of holes serves
responsibilities and draws alike.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats, Words
from knothole.columns.evidence import Evidence
from knothole.compiled import sobol
from knothole.compiled.simd import room
from knothole.compiled.sobol import WORD, Points
from knothole.compiled.threads import Memory, over_chunks
from knothole.densities.gaussian import kernels as kernels
from knothole.densities.gaussian.fill import ROOM, fill, fill_common, spread
from knothole.densities.gaussian.kernels import Packed
from knothole.densities.gaussian.normal_scores import NormalScores

_BLOCK = 128


def _no_words(points: Floats) -> Words:
    return np.empty((len(points), 0), dtype=np.uint64)


class Maps(NamedTuple):
    """The arrays of :class:`~knothole.densities.gaussian.normal_scores.NormalScores`."""

    coarse: Floats
    values: Floats
    tail: Floats
    limits: Floats
    whole: NDArray[np.bool_]
    flat: Floats
    unit: Floats


class Discrete(NamedTuple):
    """Discrete distributions as plain arrays.

    Attributes
    ----------
    variable : int64 (distributions,)
        What each is about.
    flag : bool (distributions,)
        Whether it says if a numeric variable is recorded (code 0) or not (code 1).
    first_code : int64 (distributions + 1,)
        First row of each in ``probability``.
    probability : float64 (codes, k)
        Of every code in each component.
    first_word : int64 (distributions,)
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
    quantile : float64
        The table of :func:`~knothole.compiled.sobol.quantiles`.
    """

    packed: Packed
    sharpness: Floats
    maps: Maps
    numeric: NDArray[np.int64]
    discrete: Discrete
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
    place: NDArray[np.uint32]
    own: tuple[NDArray[np.uint32], Floats]
    code: Floats
    normal: Floats
    z: Floats


def tabulate(
    packed: Packed,
    sharpness: Floats,
    scores: NormalScores,
    numeric: NDArray[np.int64],
    discrete: Discrete,
) -> Tables:
    """All that :func:`fill` needs."""
    return Tables(
        packed,
        sharpness,
        Maps(*(getattr(scores, name) for name in Maps._fields)),
        numeric,
        discrete,
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
        place=bits(),
        own=(
            np.empty((1 + d + len(tables.discrete.variable), WORD), dtype=np.uint32),
            np.empty((d, WORD)),
        ),
        code=np.empty(WORD),
        normal=np.zeros((d, ROOM)),
        z=np.zeros((d + 4, ROOM)),
    )


class Normals(NamedTuple):
    """A mixture of normals for each row: shares, means and standard deviations, (rows, k) each."""

    share: Floats
    mean: Floats
    deviation: Floats


class Source(NamedTuple):
    """The points of some words: those that all rows share, or what rows make their own of.

    Attributes
    ----------
    bits : uint32 (words, coordinates, 64)
        Common points; (words, 0, 64) where rows have their own.
    normal : float64 (words, d, 64)
        Their coordinates of numeric variables as standard normals.
    keys : uint64 (rows,)
        Whose points rows have, where they have their own.
    seed : uint64
    net : uint32 (words, coordinates, points of a group)
    first_word : int
    """

    bits: NDArray[np.uint32]
    normal: Floats
    keys: Words
    seed: np.uint64
    net: NDArray[np.uint32]
    first_word: int


class Sampler:
    """Completes rows of evidence, 64 draws a word (:mod:`~knothole.compiled.sobol`).

    Parameters
    ----------
    tables : Tables
    n_variables : int
        Of the density.
    seed : int
    """

    def __init__(self, tables: Tables, n_variables: int, seed: int) -> None:
        self.tables = tables
        self.n_variables = n_variables
        self.points = Points(seed, 1 + len(tables.numeric) + len(tables.discrete.variable))
        # Fresh memory costs as much as the draws: every thread has its own to use again.
        self._memory = Memory()
        self._common: dict[range, Source] = {}

    def arrange(self, weight: Floats) -> None:
        """Give what weighs most among the variables the best coordinates, after the components'."""
        variables = np.concatenate([self.tables.numeric, self.tables.discrete.variable])
        self.points.arrange(np.concatenate([[np.inf], weight[variables]]))
        self._common.clear()

    def draw(self, evidence: Evidence, words: range, keys: Words | None = None) -> Floats:
        """Draws (rows, variables, 64 * words), from common points or from those of ``keys``.

        Only holes are written: what else the array holds means nothing. It is good until the same
        thread draws again.
        """
        points = np.ascontiguousarray(evidence.points)
        memory = self._memory.__dict__
        size = len(words) * points.size * WORD
        if len(memory.get("out", ())) < size:
            memory["out"] = room(size)
        out: Floats = memory["out"][:size].reshape(*points.shape, len(words) * WORD)
        allowed = _no_words(points) if evidence.allowed is None else evidence.allowed
        source = self._shared(words) if keys is None else self._source(words, keys)
        workspace = self._memory.once(self._workspace)
        fill(self.tables, points, allowed, source, workspace, self._normals(0), out)
        return out

    def describe_number(self, evidence: Evidence) -> Normals:
        """The distributions of the scores of the rows' only missing numbers."""
        points, found = np.ascontiguousarray(evidence.points), self._normals(len(evidence.points))
        source, out = self._source(range(0), sobol.COMMON), np.empty((*points.shape, 0))
        workspace = self._memory.once(self._workspace)
        fill(self.tables, points, _no_words(points), source, workspace, found, out)
        return found

    def _normals(self, rows: int) -> Normals:
        return Normals(*np.empty((3, rows, len(self.tables.packed.log_weight))))

    def _workspace(self) -> Workspace:
        return workspace(self.tables)

    def complete(self, evidence: Evidence, word: int, keys: Words, out: Floats) -> None:
        """Write draws of a word to ``out`` (rows, draws, variables), all variables.

        The work goes to several threads.
        """

        def work(start: int, stop: int) -> None:
            part = evidence[start:stop]
            draws = self.draw(part, range(word, word + 1), keys[start:stop])
            spread(part.points, draws, out[start:stop])

        over_chunks(work, len(evidence.points), _BLOCK)

    def _source(self, words: range, keys: Words) -> Source:
        seed, net = self.points.of(words, keys)
        bits = np.empty((len(words), 0, WORD), dtype=np.uint32)
        normal = np.empty((len(words), 0, WORD))
        return Source(bits, normal, keys, seed, net, words.start)

    def _shared(self, words: range) -> Source:
        """The common points of some words; kept, since the same words are asked for again."""
        if words not in self._common:
            source = self._source(words, sobol.COMMON)
            bits = np.empty((len(words), self.points.coordinates, WORD), dtype=np.uint32)
            normal = np.empty((len(words), len(self.tables.numeric), WORD))
            fill_common(source, self.tables.quantile, bits, normal)
            self._common[words] = source._replace(bits=bits, normal=normal)
        return self._common[words]
