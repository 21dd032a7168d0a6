"""Draws of a Gaussian mixture, 64 at a time, compiled.

For every row with missing values: the responsibilities of the components given what is observed;
the first uniform number of a draw chooses its component, the others, through the normal quantile,
its missing values: a variable has the same coordinate whatever else is missing. One small Cholesky
factor per pattern serves responsibilities and draws alike.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats
from knothole.columns.evidence import NOT_RECORDED, Evidence
from knothole.compiled import simd, sobol
from knothole.compiled.bits import has
from knothole.compiled.pointers import pointers, shift
from knothole.compiled.policy import apart, inlined, njit
from knothole.compiled.simd import AT_ONCE, load, store
from knothole.compiled.sobol import WORD
from knothole.compiled.threads import Memory
from knothole.densities.gaussian import kernels as kernels
from knothole.densities.gaussian.kernels import PackedComponents
from knothole.densities.gaussian.normal_scores import (
    NormalScores,
    cell_of,
    decode,
    is_flat,
    on_line,
)

#: 64 draws, and room after them: four are written at a time.
ROOM = WORD + AT_ONCE


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


class Workspace(NamedTuple):
    """Working memory of :func:`fill`; not to be shared between threads."""

    kernel: kernels.GaussianScratch
    score: Floats
    variance: Floats
    joint: Floats
    first: NDArray[np.int64]
    component: NDArray[np.int64]
    chosen: NDArray[np.uint32]
    place: NDArray[np.uint32]
    code: Floats
    normal: Floats
    z: Floats


class Normals(NamedTuple):
    """A mixture of normals for each row: shares, means and standard deviations, (rows, k) each."""

    share: Floats
    mean: Floats
    deviation: Floats


class DrawTables(NamedTuple):
    """A fitted mixture as plain arrays.

    Attributes
    ----------
    packed : PackedComponents
    sharpness : float64 (d, k)
        What lowers log p by half its product with a score's variance.
    maps : Maps
    numeric : int64 (d,)
        The variable of each column of ``maps``.
    discrete : Discrete
    quantile : float64
        The table of :func:`~knothole.compiled.sobol.quantiles`.
    """

    packed: PackedComponents
    sharpness: Floats
    maps: Maps
    numeric: NDArray[np.int64]
    discrete: Discrete
    quantile: Floats


class Drawing:
    """A fitted mixture in the form that draws are made from, with working memory of threads."""

    def __init__(
        self,
        packed: PackedComponents,
        sharpness: Floats,
        scores: NormalScores,
        numeric: NDArray[np.int64],
        discrete: Discrete,
    ) -> None:
        maps = Maps(*(getattr(scores, name) for name in Maps._fields))
        self.tables = DrawTables(packed, sharpness, maps, numeric, discrete, sobol.quantiles())
        self.memory = Memory()

    def draw(self, evidence: Evidence, uniform: Floats) -> Floats:
        """See :meth:`knothole.densities.base.Density.draw`."""
        n = uniform.shape[1]
        uniform = uniform.transpose(0, 2, 1)
        if n % WORD:
            uniform = np.pad(uniform, [(0, 0), (0, 0), (0, -n % WORD)], constant_values=0.5)
        uniform = np.ascontiguousarray(uniform)
        out = np.empty((*evidence.points.shape, uniform.shape[2]))
        self._fill(evidence, uniform, self._normals(0), out)
        return out[:, :, :n].transpose(0, 2, 1)

    def describe_number(self, evidence: Evidence) -> Normals:
        """The distributions of the scores of the rows' only missing numbers."""
        normals = self._normals(len(evidence.points))
        self._fill(evidence, np.empty((1, 1, 0)), normals, np.empty((*evidence.points.shape, 0)))
        return normals

    def _fill(self, evidence: Evidence, uniform: Floats, normals: Normals, out: Floats) -> None:
        points, allowed = np.ascontiguousarray(evidence.points), evidence.allowed
        if allowed is None:
            allowed = np.empty((len(points), 0), dtype=np.uint64)
        standard = np.empty((out.shape[2] // WORD, len(self.tables.numeric), WORD))
        workspace = self.memory.once(self._workspace)
        odds = np.ones((1, 1, points.shape[1]))
        chance = np.ones((1, 1))
        if evidence.odds is not None or evidence.hypotheses is not None:
            chance, odds = evidence.odds_by_hypothesis()
        shares = np.empty((odds.shape[1], len(self.tables.packed.log_weight)))
        says = odds, chance, shares, np.zeros(WORD, dtype=np.int64)
        fill(self.tables, points, allowed, says, uniform, workspace, standard, normals, out)

    def _normals(self, rows: int) -> Normals:
        return Normals(*np.empty((3, rows, len(self.tables.packed.log_weight))))

    def _workspace(self) -> Workspace:
        d, k = len(self.tables.numeric), len(self.tables.packed.log_weight)
        return Workspace(
            kernels.scratch(self.tables.packed),
            score=np.empty(d),
            variance=np.empty(d),
            joint=np.empty(k),
            first=np.empty(k + 1, dtype=np.int64),
            component=np.empty(WORD, dtype=np.int64),
            # As indices, unsigned numbers need no test for being negative.
            chosen=np.empty(WORD, dtype=np.uint32),
            place=np.empty(WORD, dtype=np.uint32),
            code=np.empty(WORD),
            normal=np.zeros((d, ROOM)),
            z=np.zeros((d + 4, ROOM)),
        )


@apart
def read_scores(points, numeric, maps, score, variance):  # type: ignore[no-untyped-def]
    """Scores of a row's numeric variables, NaN where they have none, and their variances."""
    coarse, values, tail, _, _, flat, unit = maps
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
            variance[j] = unit[j]


@inlined
def allows(words, first, code):  # type: ignore[no-untyped-def]
    """Whether a set of codes, whose first word is given, holds ``code``; all do without words."""
    if len(words) == 0 or first < 0:
        return True
    return has(words, first, code)


@inlined
def known_code(x, flag):  # type: ignore[no-untyped-def]
    """The code that a point says, -1 at a hole."""
    if np.isnan(x):
        return -1
    if flag:
        return 1 if np.isinf(x) else 0
    return int(x)


@apart
def add_discrete(points, words, odds, discrete, joint):  # type: ignore[no-untyped-def]
    """Add log p of a row's discrete variables to the log joint density of each component."""
    for e in range(len(discrete.variable)):
        v = discrete.variable[e]
        code = known_code(points[v], discrete.flag[e])
        ratio = odds[v] if v < len(odds) else 1.0
        if code < 0 and len(words) == 0 and ratio == 1.0:
            continue
        start, stop = discrete.first_code[e], discrete.first_code[e + 1]
        if code >= 0:
            start, stop = start + code, start + code + 1
        for k in range(len(joint)):
            mass = 0.0
            for row in range(start, stop):
                if code >= 0 or allows(words, discrete.first_word[e], row - start):
                    chance = discrete.probability[row, k]
                    # "Not recorded" is the last of all codes.
                    mass += chance * ratio if code < 0 and row == stop - 1 else chance
            if code < 0 and ratio == np.inf:
                mass = discrete.probability[stop - 1, k]
            joint[k] += math.log(mass)


@apart
def add_hypotheses(points, words, odds, chance, discrete, joint, shares):  # type: ignore[no-untyped-def]
    """Make probabilities of the log joint densities of numbers, over the hypotheses of a row.

    ``shares`` (hypotheses, k) are those of both. Returns how many hypotheses there are.
    """
    n_cases = 1
    while n_cases < len(chance) and chance[n_cases] > 0.0:
        n_cases += 1
    for h in range(n_cases):
        for k in range(len(joint)):
            shares[h, k] = joint[k]
        add_discrete(points, words, odds[h], discrete, shares[h])
        kernels.normalise(shares[h])
    for k in range(len(joint)):
        joint[k] = 0.0
        for h in range(n_cases):
            shares[h, k] *= chance[h]
            joint[k] += shares[h, k]
    return n_cases


@apart
def choose_hypotheses(n_cases, shares, joint, component, place, uniform, which):  # type: ignore[no-untyped-def]
    """The hypothesis of each draw, given its component, by a uniform number."""
    for t in range(WORD):
        which[t] = 0
    for t in range(WORD if n_cases > 1 else 0):
        k, h = component[t], 0
        left = uniform[place[t]] * joint[k] - shares[0, k]
        while left >= 0.0 and h + 1 < n_cases:
            h += 1
            left -= shares[h, k]
        which[t] = h


@apart
def draw_codes(e, words, odds, which, discrete, component, place, uniform, code):  # type: ignore[no-untyped-def]
    """A code of distribution ``e`` for each draw, from its component's probabilities.

    The last one, "not recorded", is so many times as likely as the draw's hypothesis says.
    """
    start, stop = discrete.first_code[e], discrete.first_code[e + 1]
    first, v = discrete.first_word[e], discrete.variable[e]
    total, ratio = 0.0, 1.0
    for t in range(WORD):
        k, before = component[t], ratio
        ratio = odds[which[t], v] if v < odds.shape[1] else 1.0
        if ratio == np.inf:
            code[t] = stop - start - 1
            continue
        if t == 0 or k != component[t - 1] or ratio != before:
            total = 0.0
            for row in range(start, stop):
                if allows(words, first, row - start):
                    chance = discrete.probability[row, k]
                    total += chance * ratio if row == stop - 1 else chance
        left = uniform[place[t]] * total
        for row in range(start, stop):
            chance = discrete.probability[row, k]
            chance = chance * ratio if row == stop - 1 else chance
            if allows(words, first, row - start) and chance > 0.0:
                code[t] = row - start
                left -= chance
                if left < 0.0:
                    break


@apart
def draw_scores(k, start, stop, mean, n_missing, scratch, normal, z):  # type: ignore[no-untyped-def]
    """Scores of the holes for the draws ``start`` to ``stop``, which are component ``k``'s.

    z = mean + y with L' y = D^-1/2 e - D^-1 L^-1 P_mo r_o, e standard normal; of every equation,
    four terms at a time, of four draws: what is written after the last of them, others write over
    or nobody reads. Rows of ``z`` past the last hole are 0.
    """
    places = scratch.places
    d, n = mean.shape
    mean_, lower, solved = pointers((mean, scratch.lower, scratch.solved))
    normal_, z_ = pointers((normal, z))
    for i in range(n_missing - 1, -1, -1):
        variance = lower[(i * d + i) * n + k]
        scale, middle = simd.spread(math.sqrt(variance)), simd.spread(variance * solved[i * n + k])
        own, e = shift(z_, i * ROOM), shift(normal_, i * ROOM)
        for t in range(start, stop, AT_ONCE):
            store(own, t, scale * load(e, t) - middle)
        for j in range(i + 1, n_missing, 4):
            column, others = shift(lower, (j * d + i) * n + k), shift(z_, j * ROOM)
            l0, l1 = simd.spread(column[0]), simd.spread(column[d * n])
            l2, l3 = simd.spread(column[2 * d * n]), simd.spread(column[3 * d * n])
            for t in range(start, stop, AT_ONCE):
                first = l0 * load(others, t) + l1 * load(others, ROOM + t)
                second = l2 * load(others, 2 * ROOM + t) + l3 * load(others, 3 * ROOM + t)
                store(own, t, load(own, t) - (first + second))
    for i in range(n_missing):
        own, middle = shift(z_, i * ROOM), simd.spread(mean_[places[1, i] * n + k])
        for t in range(start, stop, AT_ONCE):
            store(own, t, load(own, t) + middle)


@inlined
def has_missing(points):  # type: ignore[no-untyped-def]
    """Whether anything is missing in a row."""
    missing = 0
    for v in range(len(points)):
        missing += np.isnan(points[v])
    return missing > 0


@apart
def describe(mean, scratch, joint, row, normals):  # type: ignore[no-untyped-def]
    """Write the normal of each component for a row's only missing number."""
    j = scratch.places[1, 0]
    for k in range(len(joint)):
        variance = scratch.lower[0, 0, k]
        normals.share[row, k] = joint[k]
        normals.mean[row, k] = mean[j, k] - variance * scratch.solved[0, k]
        normals.deviation[row, k] = math.sqrt(variance)


@njit
def fill(tables, points, allowed, says, uniform, workspace, standard, normals, out):  # type: ignore[no-untyped-def]
    """Draw the missing values of rows, 64 draws at a time; or describe their only missing number.

    One kernel for both: most of it is what they share, and compiling takes time.

    Parameters
    ----------
    tables : DrawTables
    points : float64 (rows, variables)
        What is known of each variable, as in :class:`~knothole.columns.evidence.Evidence`.
    allowed : uint64 (rows, words)
        Sets of categories of the same; (rows, 0) where there are none.
    says : tuple of float64 arrays
        What missing values say under each hypothesis (rows or 1, hypotheses, variables), how
        probable these are (rows or 1, hypotheses), and working memory: (hypotheses, k), (64,).
    uniform : float64 (rows or 1, coordinates, draws)
        What becomes draws: of the component, of numbers, of codes. A single set serves all rows.
    workspace : Workspace
    standard : float64 (words, d, 64)
        Working memory for coordinates of numbers as standard normals.
    normals : Normals
        Written where it has rows: then every row lacks a single number.
    out : float64 (rows, variables, draws)
        Missing values are written for all draws, everything else is left as it is.
    """
    packed, sharpness, maps, numeric, discrete, quantile = tables
    _, values, _, limits, whole, _, _ = maps
    scratch, score, variance, joint, first, component, chosen, place, code, normal, z = workspace
    places, lower, _, log_det, _, _, distance, _ = scratch
    mean, d = packed.mean, len(numeric)
    common, ready = len(uniform) == 1, False
    all_odds, all_chances, shares, which = says
    for n in range(len(points)):
        if not has_missing(points[n]):
            continue
        words, of_row = allowed[n], 0 if len(all_odds) == 1 else n
        odds, chance = all_odds[of_row], all_chances[of_row]
        read_scores(points[n], numeric, maps, score, variance)
        n_observed, n_missing, changed = kernels.read_pattern(score, places)
        if changed:
            kernels.factor(packed.blocks, places, n_missing, lower, log_det)
        kernels.project(score, n_observed, n_missing, packed, scratch)
        kernels.add_sharpness(variance, sharpness, places, n_observed, distance)
        for k in range(len(joint)):
            joint[k] = 0.0
        kernels.add_log(packed.log_weight, log_det, distance, n_observed, joint)
        n_cases = add_hypotheses(points[n], words, odds, chance, discrete, joint, shares)
        if len(normals.share) > 0:
            describe(mean, scratch, joint, n, normals)
        for w in range(out.shape[2] // WORD):
            source, begin, end = 0 if common else n, w * WORD, (w + 1) * WORD
            for j in range(0 if ready else d):
                if common or np.isnan(score[j]):
                    sobol.normals(uniform[source, 1 + j, begin:end], quantile, standard[w, j])
            sobol.allot(joint, uniform[source, 0, begin:end], chosen, first, component, place)
            for i in range(n_missing):
                j = places[1, i]
                for t in range(WORD):
                    normal[i, t] = standard[w, j, place[t]]
            for i in range(n_missing, n_missing + 4):
                for t in range(ROOM):
                    z[i, t] = 0.0
            start = np.int64(0)
            while start < WORD:
                k = component[start]
                stop = start + 1
                while stop < WORD and component[stop] == k:
                    stop += 1
                draw_scores(k, start, stop, mean, n_missing, scratch, normal, z)
                start = stop
            for i in range(n_missing):
                j = places[1, i]
                v = numeric[j]
                if not np.isnan(points[n, v]):
                    continue  # known not to be recorded
                decode(z[i, :WORD], j, values, limits, whole)  # the room after it holds anything
                for t in range(WORD):
                    out[n, v, w * WORD + place[t]] = z[i, t]
            last = uniform[source, uniform.shape[1] - 1, begin:end]
            choose_hypotheses(n_cases, shares, joint, component, place, last, which)
            for e in range(len(discrete.variable)):
                v = discrete.variable[e]
                if not np.isnan(points[n, v]):
                    continue
                numbers = uniform[source, 1 + d + e, begin:end]
                draw_codes(e, words, odds, which, discrete, component, place, numbers, code)
                for t in range(WORD):
                    if not discrete.flag[e]:
                        out[n, v, w * WORD + place[t]] = code[t]
                    elif code[t] == 1.0:
                        out[n, v, w * WORD + place[t]] = NOT_RECORDED
        ready = common
