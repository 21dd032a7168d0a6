"""Kernels of Gaussian mixtures with holes: log densities, EM's expectations, moments.

Everything is written in terms of the precision matrix P of a component. With r the residual of a
row, o its observed part and m its holes, and P_mm = L L',

    (x_m - mean_m) | x_o  ~  N(-P_mm^-1 P_mo r_o, P_mm^-1)
    r_o' S_oo^-1 r_o      =  r_o' P_oo r_o - |L^-1 P_mo r_o|^2
    log |S_oo|            =  log |P_mm| - log |P|

so that only the block of the holes is factorised, and only when the pattern of holes differs from
the row before. Components are the innermost axis, in packs of ``LANES``: one instruction serves
a whole pack.

An observed score z_j may have a variance v_j of its own (a repeated value: see
:mod:`~knothole.densities.normal_scores`). Then E[log p] takes the place of log p in EM: it lowers
log p by v_j (S_oo^-1)_jj / 2, and the expected second moments grow by v_j g g', where g is how
all variables move with z_j: 1 at j, -P_mm^-1 P_mj at the holes. Log densities are lowered by
v_j h_j / 2 with a number h_j of each component instead, its *sharpness* along z_j given all other
variables that repeat values, which is at least as much as their being observed in part would
give: so that what is lost does not depend on which others are observed.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from knothole.compiled import njit

Floats = NDArray[np.float64]

LANES = 8

# Factors of a determinant that are multiplied before their logarithm is taken.
_FACTORS = 8
_LOG_TWO_PI = math.log(2 * math.pi)


class Packed(NamedTuple):
    """A mixture in the form that the kernels take.

    Attributes
    ----------
    mean : float64 (packs, d, LANES)
    precision : float64 (packs, d, d, LANES)
    log_weight : float64 (packs, LANES)
        Log weight + log |P| / 2; -inf for a lane without a component.
    """

    mean: Floats
    precision: Floats
    log_weight: Floats


class Scratch(NamedTuple):
    """Working memory of one kernel call; not to be shared between threads.

    Attributes
    ----------
    places : int64 (2, d + 1)
        Positions of what is observed and of the holes of a row; the number of holes comes last.
    lower, covariance : float64 (packs, d, d, LANES)
        L, its diagonal inverted; P_mm^-1 (lower triangles).
    log_det : float64 (packs, LANES)
        -log |P_mm| / 2.
    residual, whitened : float64 (packs, d, LANES)
        r_o; L^-1 P_mo r_o.
    distance : float64 (packs, LANES)
        r_o' S_oo^-1 r_o.
    slope : float64 (d, LANES)
        A column of L^-1 P_mo, or of P_mm^-1 P_mo.
    total : float64 (LANES,)
    """

    places: NDArray[np.int64]
    lower: Floats
    covariance: Floats
    log_det: Floats
    residual: Floats
    whitened: Floats
    distance: Floats
    slope: Floats
    total: Floats


def pack(weight: Floats, mean: Floats, covariance: Floats) -> Packed:
    """Lanes from weights (k,), means (k, d) and covariances (k, d, d)."""
    k, d = mean.shape
    packs = -(-k // LANES)
    full_mean = np.zeros((packs * LANES, d))
    full_precision = np.tile(np.eye(d), (packs * LANES, 1, 1))
    full_weight = np.full(packs * LANES, -np.inf)
    precision = np.linalg.inv(covariance)
    full_mean[:k] = mean
    full_precision[:k] = (precision + precision.transpose(0, 2, 1)) / 2
    with np.errstate(divide="ignore"):
        full_weight[:k] = np.log(weight)
    if d:
        full_weight[:k] -= 0.5 * np.linalg.slogdet(covariance)[1]
    return Packed(
        np.ascontiguousarray(full_mean.reshape(packs, LANES, d).transpose(0, 2, 1)),
        np.ascontiguousarray(full_precision.reshape(packs, LANES, d, d).transpose(0, 2, 3, 1)),
        full_weight.reshape(packs, LANES),
    )


def scratch(packed: Packed) -> Scratch:
    """Working memory for kernels on this mixture."""
    packs, d, _ = packed.mean.shape
    return Scratch(
        np.full((2, d + 1), -1, dtype=np.int64),
        np.empty((packs, d, d, LANES)),
        np.empty((packs, d, d, LANES)),
        np.empty((packs, LANES)),
        np.empty((packs, d, LANES)),
        np.empty((packs, d, LANES)),
        np.empty((packs, LANES)),
        np.empty((d, LANES)),
        np.empty(LANES),
    )


@njit
def read_pattern(z, places):  # type: ignore[no-untyped-def]
    """List what is observed in a row and its holes; returns their numbers and "has it changed"."""
    n_observed, n_missing, changed = 0, 0, False
    for j in range(len(z)):
        if np.isnan(z[j]):
            changed = changed or places[1, n_missing] != j
            places[1, n_missing] = j
            n_missing += 1
        else:
            changed = changed or places[0, n_observed] != j
            places[0, n_observed] = j
            n_observed += 1
    changed = changed or places[1, len(z)] != n_missing
    places[1, len(z)] = n_missing
    return n_observed, n_missing, changed


@njit
def factor(precision, c, n_missing, s):  # type: ignore[no-untyped-def]
    """Cholesky factor of P_mm of pack ``c``, and its determinant."""
    places, lower, log_det = s.places, s.lower, s.log_det
    for i in range(n_missing):
        mi = places[1, i]
        for j in range(i + 1):
            mj = places[1, j]
            for a in range(LANES):
                lower[c, i, j, a] = precision[c, mi, mj, a]
            for k in range(j):
                for a in range(LANES):
                    lower[c, i, j, a] -= lower[c, i, k, a] * lower[c, j, k, a]
            if j < i:
                for a in range(LANES):
                    lower[c, i, j, a] *= lower[c, j, j, a]
        for a in range(LANES):
            lower[c, i, i, a] = 1.0 / math.sqrt(lower[c, i, i, a])
    for a in range(LANES):
        log_det[c, a] = 0.0
    start = 0
    while start < n_missing:
        stop = min(start + _FACTORS, n_missing)
        for a in range(LANES):
            product = 1.0
            for i in range(start, stop):
                product *= lower[c, i, i, a]
            log_det[c, a] += math.log(product)
        start = stop


@njit
def project(z, packed, c, n_observed, n_missing, s):  # type: ignore[no-untyped-def]
    """Residuals, ``whitened`` and ``distance`` of a row, for pack ``c``."""
    mean, precision = packed.mean, packed.precision
    places, lower, residual, whitened = s.places, s.lower, s.residual, s.whitened
    distance, total = s.distance, s.total
    for i in range(n_observed):
        oi = places[0, i]
        for a in range(LANES):
            residual[c, i, a] = z[oi] - mean[c, oi, a]
    for a in range(LANES):
        distance[c, a] = 0.0
    for i in range(n_observed):
        oi = places[0, i]
        for a in range(LANES):
            total[a] = 0.0
        for j in range(i):
            oj = places[0, j]
            for a in range(LANES):
                total[a] += precision[c, oi, oj, a] * residual[c, j, a]
        for a in range(LANES):
            own = precision[c, oi, oi, a] * residual[c, i, a]
            distance[c, a] += residual[c, i, a] * (2 * total[a] + own)
    for i in range(n_missing):
        mi = places[1, i]
        for a in range(LANES):
            total[a] = 0.0
        for j in range(n_observed):
            oj = places[0, j]
            for a in range(LANES):
                total[a] += precision[c, mi, oj, a] * residual[c, j, a]
        for j in range(i):
            for a in range(LANES):
                total[a] -= lower[c, i, j, a] * whitened[c, j, a]
        for a in range(LANES):
            whitened[c, i, a] = total[a] * lower[c, i, i, a]
            distance[c, a] -= whitened[c, i, a] * whitened[c, i, a]


@njit
def find_slope(precision, c, oi, n_missing, s):  # type: ignore[no-untyped-def]
    """The column of L^-1 P_mo that belongs to the observed variable ``oi``."""
    places, lower, slope = s.places, s.lower, s.slope
    for m in range(n_missing):
        mi = places[1, m]
        for a in range(LANES):
            slope[m, a] = precision[c, mi, oi, a]
        for j in range(m):
            for a in range(LANES):
                slope[m, a] -= lower[c, m, j, a] * slope[j, a]
        for a in range(LANES):
            slope[m, a] *= lower[c, m, m, a]


@njit
def back(c, n_missing, lower, vector):  # type: ignore[no-untyped-def]
    """Solve L' y = vector of pack ``c`` in place."""
    for i in range(n_missing - 1, -1, -1):
        for a in range(LANES):
            vector[i, a] *= lower[c, i, i, a]
        for j in range(i):
            for a in range(LANES):
                vector[j, a] -= lower[c, i, j, a] * vector[i, a]


@njit
def add_spread(variance, packed, c, n_observed, n_missing, s):  # type: ignore[no-untyped-def]
    """Add the sum of v_j (S_oo^-1)_jj to the distance."""
    places, slope, distance = s.places, s.slope, s.distance
    for i in range(n_observed):
        oi = places[0, i]
        v = variance[oi]
        if v == 0.0:
            continue
        find_slope(packed.precision, c, oi, n_missing, s)
        for a in range(LANES):
            distance[c, a] += v * packed.precision[c, oi, oi, a]
        for m in range(n_missing):
            for a in range(LANES):
                distance[c, a] -= v * slope[m, a] * slope[m, a]


@njit
def locate(z, packed, s):  # type: ignore[no-untyped-def]
    """Factors and distances of a row in every pack; returns the sizes of o and m."""
    n_observed, n_missing, changed = read_pattern(z, s.places)
    for c in range(len(packed.log_weight)):
        if changed:
            factor(packed.precision, c, n_missing, s)
        project(z, packed, c, n_observed, n_missing, s)
    return n_observed, n_missing, changed


@njit
def add_log(n_observed, packed, s, joint):  # type: ignore[no-untyped-def]
    """Add log (weight p) to ``joint`` of every lane, from its distance."""
    for c in range(len(packed.log_weight)):
        for a in range(LANES):
            joint[c * LANES + a] += (
                packed.log_weight[c, a]
                + s.log_det[c, a]
                - 0.5 * (s.distance[c, a] + n_observed * _LOG_TWO_PI)
            )


@njit
def add_row(z, variance, packed, sharpness, s, joint):  # type: ignore[no-untyped-def]
    """Add log (weight p(z_o)) of every lane to ``joint``; returns the sizes of o and m."""
    n_observed, n_missing, _ = locate(z, packed, s)
    for i in range(n_observed):
        oi = s.places[0, i]
        if variance[oi] == 0.0:
            continue
        for c in range(len(packed.log_weight)):
            for a in range(LANES):
                s.distance[c, a] += variance[oi] * sharpness[c, oi, a]
    add_log(n_observed, packed, s, joint)
    return n_observed, n_missing


@njit
def log_joint(z, variance, packed, sharpness, s, out):  # type: ignore[no-untyped-def]
    """Add log (weight p(z_o)) of every row and lane to ``out`` (rows, packs * LANES)."""
    for n in range(len(z)):
        add_row(z[n], variance[n], packed, sharpness, s, out[n])


@njit
def normalise(joint):  # type: ignore[no-untyped-def]
    """Turn a row's log joint densities into responsibilities in place; returns their log sum.

    Where no component explains the row, all are as good.
    """
    top = -np.inf
    for k in range(len(joint)):
        top = max(top, joint[k])
    if top == -np.inf:
        for k in range(len(joint)):
            joint[k] = 1.0 / len(joint)
        return top
    total = 0.0
    for k in range(len(joint)):
        joint[k] = math.exp(joint[k] - top)
        total += joint[k]
    for k in range(len(joint)):
        joint[k] /= total
    return top + math.log(total)


@njit
def invert(c, n_missing, s):  # type: ignore[no-untyped-def]
    """P_mm^-1 (its lower triangle) from its factor, for pack ``c``."""
    lower, covariance = s.lower, s.covariance
    # L^-1 first, column by column ...
    for j in range(n_missing):
        for a in range(LANES):
            covariance[c, j, j, a] = lower[c, j, j, a]
        for i in range(j + 1, n_missing):
            for a in range(LANES):
                covariance[c, i, j, a] = 0.0
            for k in range(j, i):
                for a in range(LANES):
                    covariance[c, i, j, a] -= lower[c, i, k, a] * covariance[c, k, j, a]
            for a in range(LANES):
                covariance[c, i, j, a] *= lower[c, i, i, a]
    # ... then (L^-1)' L^-1 in place: entry (i, j) needs rows from i on, which are still there.
    for i in range(n_missing):
        for j in range(i + 1):
            for a in range(LANES):
                covariance[c, i, j, a] *= covariance[c, i, i, a]
            for k in range(i + 1, n_missing):
                for a in range(LANES):
                    covariance[c, i, j, a] += covariance[c, k, i, a] * covariance[c, k, j, a]


@njit
def expect_holes(c, n_observed, n_missing, s):  # type: ignore[no-untyped-def]
    """Put the residuals of all variables in their own order, holes at their expectation.

    ``whitened`` is used up.
    """
    places, residual = s.places, s.residual
    back(c, n_missing, s.lower, s.whitened[c])
    # The observed ones move up to their places, from the last on so that none is overwritten.
    for i in range(n_observed - 1, -1, -1):
        for a in range(LANES):
            residual[c, places[0, i], a] = residual[c, i, a]
    for i in range(n_missing):
        for a in range(LANES):
            residual[c, places[1, i], a] = -s.whitened[c, i, a]


@njit
def add_second(c, variance, share, packed, n_observed, n_missing, s, second):  # type: ignore[no-untyped-def]
    """Add a row's expected products of residuals, times its shares, to ``second`` (lower half)."""
    places, residual, covariance, slope = s.places, s.residual, s.covariance, s.slope
    for i in range(residual.shape[1]):
        for j in range(i + 1):
            for a in range(LANES):
                second[c, i, j, a] += share[a] * residual[c, i, a] * residual[c, j, a]
    for i in range(n_missing):
        mi = places[1, i]
        for j in range(i + 1):
            mj = places[1, j]
            for a in range(LANES):
                second[c, mi, mj, a] += share[a] * covariance[c, i, j, a]
    for o in range(n_observed):
        oi = places[0, o]
        v = variance[oi]
        if v == 0.0:
            continue
        find_slope(packed.precision, c, oi, n_missing, s)
        back(c, n_missing, s.lower, slope)
        for a in range(LANES):
            second[c, oi, oi, a] += v * share[a]
        for i in range(n_missing):
            mi = places[1, i]
            high, low = max(mi, oi), min(mi, oi)
            for a in range(LANES):
                second[c, high, low, a] -= v * share[a] * slope[i, a]
            for j in range(i + 1):
                mj = places[1, j]
                for a in range(LANES):
                    second[c, mi, mj, a] += v * share[a] * slope[i, a] * slope[j, a]


@njit
def expectations(z, variance, weight, packed, s, joint, share, log_density, count, first, second):  # type: ignore[no-untyped-def]
    """EM's expectation step over rows.

    Parameters
    ----------
    joint : float64 (rows, packs * LANES)
        In: what other variables add to the log joint density. Out: responsibilities, times the
        row's weight.
    share : float64 (LANES,)
        Working memory.
    log_density : float64 (rows,)
        Out: log p of the observed part.
    count, first, second : (packs, LANES), (packs, d, LANES), (packs, d, d, LANES)
        Added to: sums of responsibilities, of residuals from the current means, of their
        products (lower triangle), holes at their conditional moments.
    """
    d = z.shape[1]
    residual = s.residual
    for n in range(len(z)):
        n_observed, n_missing, changed = locate(z[n], packed, s)
        for c in range(len(packed.log_weight)):
            if changed:
                invert(c, n_missing, s)
            add_spread(variance[n], packed, c, n_observed, n_missing, s)
        add_log(n_observed, packed, s, joint[n])
        log_density[n] = normalise(joint[n])
        for c in range(len(packed.log_weight)):
            most = 0.0
            for a in range(LANES):
                share[a] = weight[n] * joint[n, c * LANES + a]
                joint[n, c * LANES + a] = share[a]
                most = max(most, share[a])
            if most == 0.0:
                continue
            expect_holes(c, n_observed, n_missing, s)
            for a in range(LANES):
                count[c, a] += share[a]
            for i in range(d):
                for a in range(LANES):
                    first[c, i, a] += share[a] * residual[c, i, a]
            add_second(c, variance[n], share, packed, n_observed, n_missing, s, second)


@njit
def moments(z, packed, s, mean, covariance):  # type: ignore[no-untyped-def]
    """Conditional moments of all variables in each lane.

    ``mean`` (rows, lanes, d) becomes z with holes at their expectation; ``covariance`` (rows,
    lanes, d, d) is written at the holes only.
    """
    places = s.places
    for n in range(len(z)):
        n_observed, n_missing, changed = locate(z[n], packed, s)
        for c in range(len(packed.log_weight)):
            if changed:
                invert(c, n_missing, s)
            expect_holes(c, n_observed, n_missing, s)
            for a in range(LANES):
                k = c * LANES + a
                for j in range(z.shape[1]):
                    mean[n, k, j] = packed.mean[c, j, a] + s.residual[c, j, a]
                for i in range(n_missing):
                    for j in range(i + 1):
                        value = s.covariance[c, i, j, a]
                        covariance[n, k, places[1, i], places[1, j]] = value
                        covariance[n, k, places[1, j], places[1, i]] = value
