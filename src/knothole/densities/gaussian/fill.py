"""The kernel that completes rows: see :mod:`~knothole.densities.gaussian.draws`."""

from __future__ import annotations

import math

import numpy as np

from knothole.columns.evidence import NOT_RECORDED
from knothole.compiled import simd, sobol
from knothole.compiled.bits import has
from knothole.compiled.pointers import pointers, shift
from knothole.compiled.policy import apart, inlined, njit
from knothole.compiled.simd import AT_ONCE, load, store
from knothole.compiled.sobol import WORD
from knothole.densities.gaussian import kernels as kernels
from knothole.densities.gaussian.normal_scores import cell_of, decode, is_flat, on_line

#: A word's draws, and room after them: four are written at a time.
ROOM = WORD + AT_ONCE


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


@apart
def draw_codes(e, words, discrete, component, place, bits, code):  # type: ignore[no-untyped-def]
    """A code of distribution ``e`` for each draw, from its component's probabilities."""
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
        left = (bits[place[t]] + 0.5) * 2.0**-32 * total
        for row in range(start, stop):
            if allows(words, first, row - start) and discrete.probability[row, k] > 0.0:
                code[t] = row - start
                left -= discrete.probability[row, k]
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


@njit
def spread(points, draws, out):  # type: ignore[no-untyped-def]
    """Complete rows: ``out`` (rows, draws, variables) from ``draws`` (rows, variables, 64)."""
    for n in range(len(points)):
        for s in range(out.shape[1]):
            for v in range(points.shape[1]):
                out[n, s, v] = points[n, v]
        for v in range(points.shape[1]):
            if np.isnan(points[n, v]):
                for s in range(out.shape[1]):
                    out[n, s, v] = draws[n, v, s]


@njit
def fill_common(source, quantile, bits, normal):  # type: ignore[no-untyped-def]
    """Points that rows share: ``bits`` (words, coordinates, 64) and ``normal`` (words, d, 64)."""
    state = sobol.state_of(source.seed, source.keys[0])
    for w in range(len(bits)):
        for c in range(bits.shape[1]):
            sobol.points(c, source.net[w], state, source.first_word + w, bits[w, c])
        for j in range(normal.shape[1]):
            sobol.normals(bits[w, 1 + j], quantile, normal[w, j])


@inlined
def has_holes(points):  # type: ignore[no-untyped-def]
    """Whether anything is missing in a row."""
    holes = 0
    for v in range(len(points)):
        holes += np.isnan(points[v])
    return holes > 0


@apart
def own_points(x, row, w, source, variable, quantile, score, own):  # type: ignore[no-untyped-def]
    """A word's points of a row that has its own, as far as it needs them."""
    bits, normal = own
    state, d = sobol.state_of(source.seed, source.keys[row]), len(normal)
    for c in range(len(bits)):
        # The component's coordinate comes first, then those of numbers and of codes.
        known = c > 0
        if known:
            known = not np.isnan(score[c - 1] if c <= d else x[variable[c - 1 - d]])
        if not known:
            sobol.points(c, source.net[w], state, source.first_word + w, bits[c])
    for j in range(d):
        if np.isnan(score[j]):
            sobol.normals(bits[1 + j], quantile, normal[j])


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
def fill(tables, points, allowed, source, workspace, normals, out):  # type: ignore[no-untyped-def]
    """Draw the holes of a chunk of rows, 64 draws each and word; or describe their only number.

    One kernel for both: most of it is what they share, and compiling takes time.

    Parameters
    ----------
    tables : Tables
    points : float64 (rows, variables)
        What is known of each variable, as in :class:`~knothole.columns.evidence.Evidence`.
    allowed : uint64 (rows, words)
        Sets of categories of the same; (rows, 0) where there are none.
    source : Source
    workspace : Workspace
    normals : Normals
        Written where it has rows: then every row lacks a single number.
    out : float64 (rows, variables, 64 * words)
        Holes are written for all draws, everything else is left as it is.
    """
    packed, sharpness, maps, numeric, discrete, quantile = tables
    _, values, _, limits, whole, _, _ = maps
    scratch, score, variance, joint, first, component, chosen, place, own, code, normal, z = (
        workspace
    )
    places, lower, _, log_det, _, _, distance, _ = scratch
    mean, d = packed.mean, len(numeric)
    common = source.bits.shape[1] > 0
    for n in range(len(points)):
        if not has_holes(points[n]):
            continue
        words = allowed[n]
        read_scores(points[n], numeric, maps, score, variance)
        n_observed, n_missing, changed = kernels.read_pattern(score, places)
        if changed:
            kernels.factor(packed.blocks, places, n_missing, lower, log_det)
        kernels.project(score, n_observed, n_missing, packed, scratch)
        kernels.add_sharpness(variance, sharpness, places, n_observed, distance)
        for k in range(len(joint)):
            joint[k] = 0.0
        kernels.add_log(packed.log_weight, log_det, distance, n_observed, joint)
        add_discrete(points[n], words, discrete, joint)
        kernels.normalise(joint)
        if len(normals.share) > 0:
            describe(mean, scratch, joint, n, normals)
        for w in range(out.shape[2] // WORD):
            bits, standard = source.bits[w], source.normal[w]
            if not common:
                own_points(points[n], n, w, source, discrete.variable, quantile, score, own)
                bits, standard = own
            sobol.allot(joint, bits[0], chosen, first, component, place)
            for i in range(n_missing):
                j = places[1, i]
                for t in range(WORD):
                    normal[i, t] = standard[j, place[t]]
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
            for e in range(len(discrete.variable)):
                v = discrete.variable[e]
                if not np.isnan(points[n, v]):
                    continue
                draw_codes(e, words, discrete, component, place, bits[1 + d + e], code)
                for t in range(WORD):
                    if not discrete.flag[e]:
                        out[n, v, w * WORD + place[t]] = code[t]
                    elif code[t] == 1.0:
                        out[n, v, w * WORD + place[t]] = NOT_RECORDED
