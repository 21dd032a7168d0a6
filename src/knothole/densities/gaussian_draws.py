"""Completions of a Gaussian mixture, a word of 64 at a time, compiled.

For every row with holes: the responsibilities of the components given what is observed; the first
coordinate of scrambled Sobol points (:mod:`~knothole.densities.quasi`) chooses the component of
each draw, the others, through the normal quantile, the values of the holes. One small Cholesky
factor per pattern of holes serves responsibilities and draws alike.
"""

from __future__ import annotations

import math
import threading
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from knothole.compiled import inlined, njit, over_blocks
from knothole.densities import gaussian_kernels as kernels
from knothole.densities import quasi
from knothole.densities.gaussian_kernels import Packed
from knothole.densities.normal_scores import NormalScores, cell_of, decode, is_flat, on_line
from knothole.densities.quasi import WORD
from knothole.evidence import NOT_RECORDED, Evidence

Floats = NDArray[np.float64]

_BLOCK = 64
_NO_WORDS = np.empty((0, 0), dtype=np.uint64)


class Maps(NamedTuple):
    """The arrays of :class:`~knothole.densities.normal_scores.NormalScores`."""

    coarse: Floats
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
    probability : float64 (codes, k)
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
    sharpness : float64 (d, k)
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
    point: NDArray[np.uint32]
    group: NDArray[np.uint32]
    lane: NDArray[np.uint32]
    bits: NDArray[np.uint32]
    shifts: NDArray[np.uint32]
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
        quasi.sobol_net(coordinates, WORD // groups),
        quasi.quantiles(),
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
        chosen=whole(WORD),
        component=whole(WORD),
        point=bits(),
        group=bits(),
        lane=bits(),
        bits=bits(),
        shifts=bits(),
        code=np.empty(WORD),
        normal=np.empty((d, WORD)),
        z=np.empty((d + 4, WORD)),
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
        # Fresh memory costs as much as the draws: every thread has its own to use again.
        self._memory = threading.local()

    def draw(self, evidence: Evidence, first_row: int, word: int) -> Floats:
        """Draws (rows, variables, 64); ``first_row`` numbers the first row.

        Only holes are written: what else the array holds means nothing. It is good until the same
        thread draws again.
        """
        points = np.ascontiguousarray(evidence.points)
        memory = self._memory.__dict__
        if "workspace" not in memory:
            memory["workspace"], memory["out"] = workspace(self.tables), np.empty((0, 0, WORD))
        if memory["out"].size < points.size * WORD:
            memory["out"] = np.empty((*points.shape, WORD))
        out: Floats = memory["out"][: len(points)]
        allowed = _NO_WORDS if evidence.allowed is None else evidence.allowed
        seed = word_seed(self.seed, word)
        fill(self.tables, points, allowed, seed, first_row, memory["workspace"], out)
        return out

    def complete(self, evidence: Evidence, word: int, lanes: Any, out: Floats) -> None:
        """Write the draws ``lanes`` of a word to ``out`` (rows, lanes, variables), all variables.

        Rows are numbered from 0 on; the work goes to several threads.
        """

        def work(start: int, stop: int) -> None:
            part = evidence[start:stop]
            drawn = self.draw(part, start, word)[:, :, lanes].transpose(0, 2, 1)
            points = part.points[:, None, :]
            out[start:stop] = points
            np.copyto(out[start:stop], drawn, where=np.isnan(points))

        over_blocks(work, len(evidence.points), _BLOCK)


def word_seed(seed: int, word: int) -> np.uint64:
    """The seed of one word, for :func:`fill`."""
    return np.uint64(np.random.SeedSequence([seed, word]).generate_state(1, np.uint64)[0])


@inlined
def read_scores(points, numeric, coarse, values, tail, flat, score, variance):  # type: ignore[no-untyped-def]
    """Scores of a row's numeric variables, NaN where they have none, and their variances."""
    for j in range(len(numeric)):
        x = points[numeric[j]]
        variance[j] = 0.0
        if not np.isfinite(x):
            score[j] = np.nan
            continue
        i = cell_of(x, j, coarse, values)
        if is_flat(x, j, i, values, flat):
            score[j] = flat[j, i, 0]
            variance[j] = flat[j, i, 1]
        else:
            score[j] = on_line(x, j, i, values, tail)


@inlined
def allows(words, first, code):  # type: ignore[no-untyped-def]
    """Whether a set of codes, whose first word is given, holds ``code``; all do without words."""
    if len(words) == 0 or first < 0:
        return True
    return (words[first + (code >> 6)] >> np.uint64(code & 63)) & np.uint64(1) != np.uint64(0)


@inlined
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
def draw_codes(e, words, discrete, component, bits, code):  # type: ignore[no-untyped-def]
    """A code of leaf ``e`` for each draw, from its component's probabilities."""
    start, stop = discrete.first_code[e], discrete.first_code[e + 1]
    first = discrete.first_word[e]
    total = 0.0
    for t in range(WORD):
        k = component[t]
        if t == 0 or k != component[t - 1]:
            total = 0.0
            for row in range(start, stop):
                if allows(words, first, row - start):
                    total += discrete.probability[row, k]
        left = (bits[t] + 0.5) * 2.0**-32 * total
        for row in range(start, stop):
            if allows(words, first, row - start) and discrete.probability[row, k] > 0.0:
                code[t] = row - start
                left -= discrete.probability[row, k]
                if left < 0.0:
                    break


@inlined
def factors_of(i, j, k, n_missing, lower):  # type: ignore[no-untyped-def]
    """Column ``i`` of L of component ``k`` from row ``j`` on, four entries, 0 past the end."""
    return (
        lower[j, i, k] if j < n_missing else 0.0,
        lower[j + 1, i, k] if j + 1 < n_missing else 0.0,
        lower[j + 2, i, k] if j + 2 < n_missing else 0.0,
        lower[j + 3, i, k] if j + 3 < n_missing else 0.0,
    )


@inlined
def draw_scores(k, start, stop, mean, places, n_missing, lower, solved, normal, z):  # type: ignore[no-untyped-def]
    """Scores of the holes for the draws ``start`` to ``stop``, which are component ``k``'s.

    z = mean + y with L' y = D^-1/2 e - D^-1 L^-1 P_mo r_o, e standard normal; of every equation,
    four terms at a time. Rows of ``z`` past the last hole are read, with factor 0.
    """
    for i in range(n_missing - 1, -1, -1):
        scale = math.sqrt(lower[i, i, k])
        middle = lower[i, i, k] * solved[i, k]
        l0, l1, l2, l3 = factors_of(i, i + 1, k, n_missing, lower)
        for t in range(start, stop):
            z[i, t] = (
                scale * normal[i, t] - middle
                - l0 * z[i + 1, t] - l1 * z[i + 2, t] - l2 * z[i + 3, t] - l3 * z[i + 4, t]
            )  # fmt: skip
        for j in range(i + 5, n_missing, 4):
            l0, l1, l2, l3 = factors_of(i, j, k, n_missing, lower)
            for t in range(start, stop):
                z[i, t] -= l0 * z[j, t] + l1 * z[j + 1, t] + l2 * z[j + 2, t] + l3 * z[j + 3, t]
    for i in range(n_missing):
        middle = mean[k, places[1, i]]
        for t in range(start, stop):
            z[i, t] += middle


@inlined
def has_holes(points):  # type: ignore[no-untyped-def]
    """Whether anything is missing in a row."""
    holes = 0
    for v in range(len(points)):
        holes += np.isnan(points[v])
    return holes > 0


@njit
def fill(tables, points, allowed, seed, first_row, workspace, out):  # type: ignore[no-untyped-def]
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
    workspace : Workspace
    out : float64 (rows, variables, 64)
        Holes are written for all draws, everything else is left as it is.
    """
    packed, sharpness, maps, numeric, discrete, net, quantile = tables
    mean, precision, blocks, log_weight = packed
    coarse, values, tail, limits, whole, flat = maps
    scratch, score, variance, joint, first, chosen, component, point, group = workspace[:9]
    lane, bits, shifts, code, normal, z = workspace[9:]
    places, lower, _, log_det, residual, product, solved, distance, _ = scratch
    d = len(numeric)
    for n in range(len(points)):
        if not has_holes(points[n]):
            continue
        words = allowed[n] if len(allowed) else allowed.reshape(-1)
        read_scores(points[n], numeric, coarse, values, tail, flat, score, variance)
        n_observed, n_missing, changed = kernels.read_pattern(score, places)
        if changed:
            kernels.factor(blocks, places, n_missing, lower, log_det)
        kernels.project(
            score, mean, precision, places, n_missing, lower, residual, product, solved, distance
        )
        kernels.add_sharpness(variance, sharpness, places, n_observed, distance)
        joint[:] = 0.0
        kernels.add_log(log_weight, log_det, distance, n_observed, joint)
        add_discrete(points[n], words, discrete, joint)
        kernels.normalise(joint)
        state = quasi.row_state(seed, first_row + n)
        quasi.allot(joint, state, net, chosen, first, component, point, group)
        for t in range(WORD):
            lane[t] = group[t] * net.shape[1] + point[t]
        for i in range(n_missing):
            quasi.points(1 + i, net, point, group, state, shifts, bits)
            quasi.normals(bits, quantile, normal[i])
        z[n_missing : n_missing + 4] = 0.0
        start = 0
        while start < WORD:
            k = component[start]
            stop = start + 1
            while stop < WORD and component[stop] == k:
                stop += 1
            draw_scores(k, start, stop, mean, places, n_missing, lower, solved, normal, z)
            start = stop
        for i in range(n_missing):
            j = places[1, i]
            v = numeric[j]
            if not np.isnan(points[n, v]):
                continue  # known not to be recorded
            decode(z[i], j, values, limits, whole)
            own = out[n, v]
            for t in range(WORD):
                own[lane[t]] = z[i, t]
        for e in range(len(discrete.variable)):
            v = discrete.variable[e]
            if not np.isnan(points[n, v]):
                continue
            quasi.points(1 + d + e, net, point, group, state, shifts, bits)
            draw_codes(e, words, discrete, component, bits, code)
            for t in range(WORD):
                if not discrete.flag[e]:
                    out[n, v, lane[t]] = code[t]
                elif code[t] == 1.0:
                    out[n, v, lane[t]] = NOT_RECORDED
