"""The kernel that completes rows: see :mod:`~knothole.densities.gaussian.draws`."""

from __future__ import annotations

import math

import numpy as np

from knothole.compiled import sobol
from knothole.compiled.bits import has
from knothole.compiled.policy import inlined, inner, njit
from knothole.compiled.sobol import WORD
from knothole.densities.gaussian import kernels as kernels
from knothole.densities.gaussian.normal_scores import cell_of, decode, is_flat, on_line
from knothole.tables.evidence import NOT_RECORDED


@inlined
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


@inner
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


@inner
def draw_codes(e, words, discrete, component, place, bits, code):  # type: ignore[no-untyped-def]
    """A code of emission ``e`` for each draw, from its component's probabilities."""
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
def draw_scores(k, start, stop, mean, n_missing, scratch, normal, z):  # type: ignore[no-untyped-def]
    """Scores of the holes for the draws ``start`` to ``stop``, which are component ``k``'s.

    z = mean + y with L' y = D^-1/2 e - D^-1 L^-1 P_mo r_o, e standard normal; of every equation,
    four terms at a time. Rows of ``z`` past the last hole are read, with factor 0.
    """
    places, lower, solved = scratch.places, scratch.lower, scratch.solved
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
        middle = mean[places[1, i], k]
        for t in range(start, stop):
            z[i, t] += middle


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


@inner
def own_points(x, row, w, source, tables, workspace):  # type: ignore[no-untyped-def]
    """A word's points of a row that has its own, as far as it needs them."""
    score, variable = workspace.score, tables.discrete.variable
    bits, normal = workspace.own_bits, workspace.own_normal
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
            sobol.normals(bits[1 + j], tables.quantile, normal[j])


@inlined
def weigh(tables, points, words, workspace):  # type: ignore[no-untyped-def]
    """Responsibilities of the components given a row, and what its missing numbers need.

    They are in the workspace; returns how many numbers are missing.
    """
    packed, sharpness, maps, numeric, discrete, _ = tables
    scratch, score, variance, joint = workspace[:4]
    places, lower, _, log_det, _, _, distance, _ = scratch
    read_scores(points, numeric, maps, score, variance)
    n_observed, n_missing, changed = kernels.read_pattern(score, places)
    if changed:
        kernels.factor(packed.blocks, places, n_missing, lower, log_det)
    kernels.project(score, n_observed, n_missing, packed, scratch)
    kernels.add_sharpness(variance, sharpness, places, n_observed, distance)
    joint[:] = 0.0
    kernels.add_log(packed.log_weight, log_det, distance, n_observed, joint)
    add_discrete(points, words, discrete, joint)
    kernels.normalise(joint)
    return n_missing


@inlined
def describe(tables, scratch, joint, row, normals):  # type: ignore[no-untyped-def]
    """Write the normal of each component for a row's only missing number."""
    j = scratch.places[1, 0]
    for k in range(len(joint)):
        variance = scratch.lower[0, 0, k]
        normals.share[row, k] = joint[k]
        normals.mean[row, k] = tables.packed.mean[j, k] - variance * scratch.solved[0, k]
        normals.deviation[row, k] = math.sqrt(variance)


@njit
def fill(tables, points, allowed, source, workspace, normals, out):  # type: ignore[no-untyped-def]
    """Draw the holes of a chunk of rows, 64 draws each and word; or describe their only number.

    One kernel for both: most of it is what they share, and compiling takes time.

    Parameters
    ----------
    tables : Tables
    points : float64 (rows, variables)
        What is known of each variable, as in :class:`~knothole.tables.evidence.Evidence`.
    allowed : uint64 (rows, words)
        Sets of categories of the same; (0, 0) where there are none.
    source : Source
    workspace : Workspace
    normals : Normals
        Written where it has rows: then every row lacks a single number.
    out : float64 (words, rows, variables, 64)
        Holes are written for all draws, everything else is left as it is.
    """
    packed, _, maps, numeric, discrete, _ = tables
    mean = packed.mean
    _, values, _, limits, whole, _, _ = maps
    scratch, _, _, joint, first, component, chosen, place = workspace[:8]
    code, normal, z = workspace[10:]
    places = scratch.places
    d = len(numeric)
    common = source.bits.shape[1] > 0
    for n in range(len(points)):
        if not has_holes(points[n]):
            continue
        words = allowed[n] if len(allowed) else allowed.reshape(-1)
        n_missing = weigh(tables, points[n], words, workspace)
        if len(normals.share) > 0:
            describe(tables, scratch, joint, n, normals)
        for w in range(len(out)):
            bits, standard = source.bits[w], source.normal[w]
            if not common:
                own_points(points[n], n, w, source, tables, workspace)
                bits, standard = workspace.own_bits, workspace.own_normal
            sobol.allot(joint, bits[0], chosen, first, component, place)
            for i in range(n_missing):
                j = places[1, i]
                for t in range(WORD):
                    normal[i, t] = standard[j, place[t]]
            z[n_missing : n_missing + 4] = 0.0
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
                decode(z[i], j, values, limits, whole)
                for t in range(WORD):
                    out[w, n, v, place[t]] = z[i, t]
            for e in range(len(discrete.variable)):
                v = discrete.variable[e]
                if not np.isnan(points[n, v]):
                    continue
                draw_codes(e, words, discrete, component, place, bits[1 + d + e], code)
                for t in range(WORD):
                    if not discrete.flag[e]:
                        out[w, n, v, place[t]] = code[t]
                    elif code[t] == 1.0:
                        out[w, n, v, place[t]] = NOT_RECORDED
