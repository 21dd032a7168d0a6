"""Completions of a Gaussian mixture, a word of 64 at a time, compiled.

For every row with holes: the responsibilities of the components given what is observed; the first
coordinate of scrambled Sobol points (:mod:`~knothole.densities.quasi`) chooses the component of
each draw, the others, through the normal quantile, the values of the holes. One small Cholesky
factor per pattern of holes serves responsibilities and draws alike.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from knothole.compiled import njit, over_blocks
from knothole.densities import gaussian_kernels as kernels
from knothole.densities import quasi
from knothole.densities.gaussian_kernels import LANES, Packed
from knothole.densities.normal_scores import NormalScores, cell_of, decode, is_flat, on_line
from knothole.densities.quasi import WORD
from knothole.evidence import NOT_RECORDED, Evidence

Floats = NDArray[np.float64]

_BLOCK = 256
_NO_WORDS = np.empty((0, 0), dtype=np.uint64)


class Maps(NamedTuple):
    """The arrays of :class:`~knothole.densities.normal_scores.NormalScores`."""

    values: Floats
    tail: Floats
    limits: Floats
    whole: NDArray[np.bool_]
    flat: Floats


class Discrete(NamedTuple):
    """Discrete leaves as plain arrays.

    Attributes
    ----------
    variable : int64 (leaves,)
        What each is about.
    flag : bool (leaves,)
        Whether it says if a numeric variable is recorded (code 0) or not (code 1).
    first_code : int64 (leaves + 1,)
        First row of each in ``probability``.
    probability : float64 (codes, lanes)
        Of every code in each component.
    first_word : int64 (leaves,)
        First word of the variable in ``Evidence.allowed``; -1 where it has none.
    """

    variable: NDArray[np.int64]
    flag: NDArray[np.bool_]
    first_code: NDArray[np.int64]
    probability: Floats
    first_word: NDArray[np.int64]


class Tables(NamedTuple):
    """A fitted mixture as plain arrays, for :func:`fill`.

    Attributes
    ----------
    packed : Packed
    sharpness : float64 (packs, d, LANES)
        What lowers log p by half its product with a score's variance.
    maps : Maps
    numeric : int64 (d,)
        The variable of each column of ``maps``.
    discrete : Discrete
    net : uint32 (coordinates, points)
    quantile : float64
        The table of :func:`~knothole.densities.quasi.quantiles`.
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
    chosen: NDArray[np.int64]
    component: NDArray[np.int64]
    point: NDArray[np.int64]
    group: NDArray[np.int64]
    bits: NDArray[np.uint32]
    shifts: NDArray[np.uint32]
    code: Floats
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
        Maps(scores.values, scores.tail, scores.limits, scores.whole, scores.flat),
        numeric,
        discrete,
        quasi.sobol_net(coordinates, WORD // groups),
        quasi.quantiles(),
    )


def workspace(tables: Tables) -> Workspace:
    """Working memory for one thread."""
    d, lanes = len(tables.numeric), tables.packed.log_weight.size
    return Workspace(
        kernels.scratch(tables.packed),
        np.empty(d),
        np.empty(d),
        np.empty(lanes),
        np.empty(lanes + 1, dtype=np.int64),
        *(np.empty(WORD, dtype=np.int64) for _ in range(4)),
        *(np.empty(WORD, dtype=np.uint32) for _ in range(2)),
        np.empty(WORD),
        np.empty((d, WORD)),
    )


class Sampler:
    """Completes rows of evidence, 64 draws a word.

    Words and rows of different numbers are independent; so are the ``groups`` equal parts of a
    word, each of which is evenly spread. The same seed, row and word give the same draws.

    Parameters
    ----------
    tables : Tables
    seed : int
    """

    def __init__(self, tables: Tables, seed: int) -> None:
        self.tables = tables
        self.seed = seed

    def draw(self, evidence: Evidence, first_row: int, word: int) -> Floats:
        """Draws (rows, variables, 64), holes filled; ``first_row`` numbers the first row."""
        points = np.ascontiguousarray(evidence.points)
        out = np.empty((*points.shape, WORD))
        out[:] = points[:, :, None]
        allowed = _NO_WORDS if evidence.allowed is None else evidence.allowed
        seed = word_seed(self.seed, word)
        fill(self.tables, points, allowed, seed, first_row, workspace(self.tables), out)
        return out

    def draw_all(self, evidence: Evidence, word: int, threads: int | None = None) -> Floats:
        """The same for many rows, on several threads."""

        def work(start: int, stop: int) -> Floats:
            return self.draw(evidence[start:stop], start, word)

        parts = over_blocks(work, len(evidence.points), _BLOCK, threads)
        return np.concatenate(parts) if parts else np.empty((*evidence.points.shape, WORD))


def word_seed(seed: int, word: int) -> np.uint64:
    """The seed of one word, for :func:`fill`."""
    return np.uint64(np.random.SeedSequence([seed, word]).generate_state(1, np.uint64)[0])


@njit
def read_scores(points, tables, score, variance):  # type: ignore[no-untyped-def]
    """Scores of a row's numeric variables, NaN where they have none, and their variances."""
    maps = tables.maps
    for j in range(len(tables.numeric)):
        x = points[tables.numeric[j]]
        variance[j] = 0.0
        if not np.isfinite(x):
            score[j] = np.nan
            continue
        i = cell_of(x, maps.values[j])
        if is_flat(x, i, maps.values[j], maps.flat[j]):
            score[j] = maps.flat[j, i, 0]
            variance[j] = maps.flat[j, i, 1]
        else:
            score[j] = on_line(x, i, maps.values[j], maps.tail[j])


@njit
def allows(words, first, code):  # type: ignore[no-untyped-def]
    """Whether a set of codes, whose first word is given, holds ``code``; all do without words."""
    if len(words) == 0 or first < 0:
        return True
    return (words[first + (code >> 6)] >> np.uint64(code & 63)) & np.uint64(1) != np.uint64(0)


@njit
def known_code(x, flag):  # type: ignore[no-untyped-def]
    """The code that a point says, -1 at a hole."""
    if np.isnan(x):
        return -1
    if flag:
        return 1 if np.isinf(x) else 0
    return int(x)


@njit
def add_discrete(points, words, discrete, joint):  # type: ignore[no-untyped-def]
    """Add log p of a row's discrete variables to the log joint density of each component."""
    for e in range(len(discrete.variable)):
        code = known_code(points[discrete.variable[e]], discrete.flag[e])
        if code < 0 and len(words) == 0:
            continue
        start, stop = discrete.first_code[e], discrete.first_code[e + 1]
        if code >= 0:
            start, stop = start + code, start + code + 1
        for k in range(len(joint)):
            mass = 0.0
            for row in range(start, stop):
                if code >= 0 or allows(words, discrete.first_word[e], row - start):
                    mass += discrete.probability[row, k]
            joint[k] += math.log(mass)


@njit
def draw_codes(e, words, discrete, w):  # type: ignore[no-untyped-def]
    """A code of leaf ``e`` for each draw, from its component's probabilities; into ``w.code``."""
    start, stop = discrete.first_code[e], discrete.first_code[e + 1]
    first = discrete.first_word[e]
    total = 0.0
    for t in range(WORD):
        k = w.component[t]
        if t == 0 or k != w.component[t - 1]:
            total = 0.0
            for row in range(start, stop):
                if allows(words, first, row - start):
                    total += discrete.probability[row, k]
        left = (w.bits[t] + 0.5) * 2.0**-32 * total
        for row in range(start, stop):
            if allows(words, first, row - start) and discrete.probability[row, k] > 0.0:
                w.code[t] = row - start
                left -= discrete.probability[row, k]
                if left < 0.0:
                    break


@njit
def draw_scores(k, start, stop, n_missing, mean, w):  # type: ignore[no-untyped-def]
    """Scores of the holes for draws of component ``k``, from normals that ``w.z`` holds.

    z = mean + y with L' y = e - L^-1 P_mo r_o, e standard normal.
    """
    lower, z = w.kernel.lower, w.z
    c, a = k // LANES, k % LANES
    for i in range(n_missing - 1, -1, -1):
        centre = w.kernel.whitened[c, i, a]
        for t in range(start, stop):
            z[i, t] -= centre
        for j in range(i + 1, n_missing):
            slope = lower[c, j, i, a]
            for t in range(start, stop):
                z[i, t] -= slope * z[j, t]
        scale = lower[c, i, i, a]
        for t in range(start, stop):
            z[i, t] *= scale
    for i in range(n_missing):
        centre = mean[c, w.kernel.places[1, i], a]
        for t in range(start, stop):
            z[i, t] += centre


@njit
def fill(tables, points, allowed, seed, first_row, w, out):  # type: ignore[no-untyped-def]
    """Draw the holes of a block of rows: one word, 64 draws each.

    Parameters
    ----------
    tables : Tables
    points : float64 (rows, variables)
        What is known of each variable, as in :class:`~knothole.evidence.Evidence`.
    allowed : uint64 (rows, words)
        Sets of categories of the same; (0, 0) where there are none.
    seed : uint64
        Determines the draws, together with the row's number: see :func:`word_seed`.
    first_row : int
        Number of the block's first row.
    w : Workspace
    out : float64 (rows, variables, 64)
        Holes are written for all draws, everything else is left as it is.
    """
    packed, discrete, maps = tables.packed, tables.discrete, tables.maps
    d = len(tables.numeric)
    size = tables.net.shape[1]
    no_words = allowed.reshape(-1)[:0]
    for n in range(len(points)):
        whole = True
        for v in range(points.shape[1]):
            whole = whole and not np.isnan(points[n, v])
        if whole:
            continue
        words = allowed[n] if len(allowed) else no_words
        read_scores(points[n], tables, w.score, w.variance)
        for k in range(len(w.joint)):
            w.joint[k] = 0.0
        _, n_missing = kernels.add_row(
            w.score, w.variance, packed, tables.sharpness, w.kernel, w.joint
        )
        add_discrete(points[n], words, discrete, w.joint)
        kernels.normalise(w.joint)
        state = quasi.row_state(seed, first_row + n)
        quasi.allot(w.joint, state, tables.net[0], w.chosen, w.first, w.component, w.point, w.group)
        for i in range(n_missing):
            quasi.points(tables.net[1 + i], w.point, w.group, state, 1 + i, w.shifts, w.bits)
            quasi.normals(w.bits, tables.quantile, w.z[i])
        start = 0
        while start < WORD:
            k = w.component[start]
            stop = start + 1
            while stop < WORD and w.component[stop] == k:
                stop += 1
            draw_scores(k, start, stop, n_missing, packed.mean, w)
            start = stop
        for i in range(n_missing):
            j = w.kernel.places[1, i]
            v = tables.numeric[j]
            if not np.isnan(points[n, v]):
                continue  # known not to be recorded
            decode(w.z[i], maps.values[j], maps.limits[j], maps.whole[j])
            for t in range(WORD):
                out[n, v, w.group[t] * size + w.point[t]] = w.z[i, t]
        for e in range(len(discrete.variable)):
            v = discrete.variable[e]
            if not np.isnan(points[n, v]):
                continue
            place = 1 + d + e
            quasi.points(tables.net[place], w.point, w.group, state, place, w.shifts, w.bits)
            draw_codes(e, words, discrete, w)
            for t in range(WORD):
                lane = w.group[t] * size + w.point[t]
                if not discrete.flag[e]:
                    out[n, v, lane] = w.code[t]
                elif w.code[t] == 1.0:
                    out[n, v, lane] = NOT_RECORDED


def lanes_of(tables: list[Floats], lanes: int) -> Floats:
    """Probabilities of the codes of all leaves, (codes, lanes), from their log probabilities."""
    if not tables:
        return np.empty((0, lanes))
    stacked = np.exp(np.vstack(tables))
    # Lanes without a component have weight 0 whatever they hold; not 0, whose log is infinite.
    out: Any = np.ones((len(stacked), lanes))
    out[:, : stacked.shape[1]] = stacked
    return out
