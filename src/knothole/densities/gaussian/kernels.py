"""Kernels for Gaussian components with holes: factors, distances, responsibilities.

Everything is written in terms of the precision matrix P of a component. With r the residual of a
row, o its observed part and m its holes, and P_mm = L D L' (L with a unit diagonal, D diagonal),

    (x_m - mean_m) | x_o  ~  N(-P_mm^-1 P_mo r_o, P_mm^-1)
    r_o' S_oo^-1 r_o      =  r_o' P_oo r_o - |D^-1/2 L^-1 P_mo r_o|^2
    log |S_oo|            =  log |P_mm| - log |P|

so that only the block of the holes is factorised, and only when the pattern of holes differs from
the row before. The innermost loops run across components, four at once
(:mod:`knothole.compiled.simd`): their number is padded with copies of the last.

An observed score z_j may have a variance v_j of its own (a repeated value: see
:mod:`~knothole.densities.gaussian.normal_scores`). Then E[log p] takes the place of log p in EM: it
lowers log p by v_j (S_oo^-1)_jj / 2, and the expected second moments grow by v_j g g', where g is
how all variables move with z_j: 1 at j, -P_mm^-1 P_mj at the holes. Log densities are lowered by
v_j h_j / 2 with a number h_j of each component instead, its *sharpness* along z_j given all other
variables that repeat values, which is at least as much as their being observed in part would give:
so that what is lost does not depend on which others are observed.

Helpers take plain arrays, not the tuples below: taking an array out of a tuple has a price, which
the kernels pay once for all rows.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats
from knothole.compiled import simd
from knothole.compiled.pointers import pointers, shift
from knothole.compiled.policy import apart, inlined, njit
from knothole.compiled.simd import AT_ONCE, load, room, spread, store
from knothole.densities.univariate.base import log_of

# Factors of a determinant that are multiplied before their logarithm is taken.
_FACTORS = 8
_LOG_TWO_PI = math.log(2 * math.pi)
# Log densities this far below the best have a share that is lost in rounding.
_FAR_BELOW = -37.0


class PackedComponents(NamedTuple):
    """A mixture of k components in the form that the kernels take.

    Attributes
    ----------
    mean : float64 (d, n)
        Components last, padded: n is k or some more.
    blocks : float64 (d, d, n)
        The precision, likewise.
    log_weight : float64 (k,)
        Log weight + log |P| / 2.
    """

    mean: Floats
    blocks: Floats
    log_weight: Floats


class GaussianScratch(NamedTuple):
    """Working memory of one kernel call; not to be shared between threads.

    Attributes
    ----------
    places : int64 (2, d + 4)
        Positions of what is observed and of the holes of a row; after d of them, how many holes.
    lower, covariance : float64 (d + 3, d, n), (d, d, n)
        L, with 1 / D on its diagonal; P_mm^-1 (lower triangles).
    log_det : float64 (n,)
        -log |P_mm| / 2.
    residual : float64 (d + 3, n)
        r of what is observed, then zeros.
    solved : float64 (d, n)
        L^-1 P_mo r_o.
    distance : float64 (n,)
        r_o' S_oo^-1 r_o.
    slope : float64 (d, d, n)
        For each observed variable, a column of L^-1 P_mo, or of P_mm^-1 P_mo.
    """

    places: NDArray[np.int64]
    lower: Floats
    covariance: Floats
    log_det: Floats
    residual: Floats
    solved: Floats
    distance: Floats
    slope: Floats


def pack(weight: Floats, mean: Floats, precision: Floats, log_det: Floats) -> PackedComponents:
    """Arrays for kernels from weights (k,), means (k, d), and :func:`invert` of covariances."""
    log_weight = log_of(weight) - 0.5 * log_det
    return PackedComponents(_components_last(mean), _components_last(precision), log_weight)


def _components_last(array: Floats) -> Floats:
    k, last = len(array), np.moveaxis(array, 0, -1)
    out = room(*last.shape[:-1], k + -k % AT_ONCE)
    out[..., :k], out[..., k:] = last, last[..., -1:]
    return out


def invert(covariance: Floats) -> tuple[Floats, Floats]:
    """Inverses (k, d, d) and log determinants (k,) of covariances.

    Not by LAPACK: its threads would get in the way of ours, and change bits with their number.
    """
    covariance = np.ascontiguousarray(covariance)
    precision, log_det = np.zeros_like(covariance), np.zeros(len(covariance))
    invert_into(covariance, np.zeros_like(covariance), precision, log_det)
    return precision, log_det


def scratch(packed: PackedComponents) -> GaussianScratch:
    """Working memory for kernels on this mixture."""
    d, n = packed.mean.shape
    places = np.zeros((2, d + 4), dtype=np.int64)
    places[1, d] = -1  # no row's pattern
    return GaussianScratch(
        places,
        lower=room(d + 3, d, n),
        covariance=np.empty((d, d, n)),
        log_det=np.empty(n),
        residual=room(d + 3, n),
        solved=np.zeros((d, n)),
        distance=np.zeros(n),
        slope=np.empty((d, d, n)),
    )


@njit
def invert_into(covariance, root, precision, log_det):  # type: ignore[no-untyped-def]
    """Inverses by Cholesky factors; ``root`` (k, d, d) is working memory, all else zeros."""
    d = covariance.shape[1]
    for k in range(len(covariance)):
        for i in range(d):
            for j in range(i + 1):
                total = covariance[k, i, j]
                for m in range(j):
                    total -= root[k, i, m] * root[k, j, m]
                root[k, i, j] = math.sqrt(total) if i == j else total / root[k, j, j]
            log_det[k] += 2.0 * math.log(root[k, i, i])
        # The factor's inverse takes its place, row by row: a row needs those above it.
        for i in range(d):
            scale = 1.0 / root[k, i, i]
            for j in range(i):
                total = 0.0
                for m in range(j, i):
                    total -= root[k, i, m] * root[k, m, j]
                precision[k, 0, j] = total * scale
            for j in range(i):
                root[k, i, j] = precision[k, 0, j]
                precision[k, 0, j] = 0.0
            root[k, i, i] = scale
        for m in range(d):
            for i in range(m + 1):
                for j in range(i + 1):
                    precision[k, i, j] += root[k, m, i] * root[k, m, j]
        for i in range(d):
            for j in range(i):
                precision[k, j, i] = precision[k, i, j]


@inlined
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


@inlined
def other_pattern(z, before):  # type: ignore[no-untyped-def]
    """Whether the holes of a row are not those of the row before."""
    different = 0
    for j in range(len(z)):
        different += np.isnan(z[j]) != np.isnan(before[j])
    return different > 0


@apart
def factor(blocks, places, n_missing, lower, log_det):  # type: ignore[no-untyped-def]
    """Factors L and D of P_mm, and its determinant."""
    d, n = blocks.shape[1:]
    blocks_, lower_, log_det_ = pointers((blocks, lower, log_det))
    for i in range(n_missing):
        row, own = shift(lower_, i * d * n), shift(blocks_, places[1, i] * d * n)
        for j in range(i + 1):
            simd.copy(shift(row, j * n), shift(own, places[1, j] * n), n)
    for p in range(n_missing):
        pivot = shift(lower_, (p * d + p) * n)
        for k in range(n):
            pivot[k] = 1.0 / pivot[k]
        for i in range(p + 1, n_missing):
            row = shift(lower_, i * d * n)
            entry = shift(row, p * n)
            for j in range(p + 1, i):
                subtract_product(shift(row, j * n), entry, shift(lower_, (j * d + p) * n), n)
            diagonal = shift(row, i * n)
            for k in range(0, n, AT_ONCE):
                scaled = load(entry, k) * load(pivot, k)
                store(diagonal, k, load(diagonal, k) - load(entry, k) * scaled)
                store(entry, k, scaled)
    simd.fill(log_det_, 0.0, n)
    for start in range(0, n_missing, _FACTORS):
        stop = min(start + _FACTORS, n_missing)
        for k in range(n):
            product = 1.0
            for i in range(start, stop):
                product *= lower_[(i * d + i) * n + k]
            log_det_[k] += 0.5 * math.log(product)


@inlined
def subtract_product(out, x, y, n):  # type: ignore[no-untyped-def]
    """``out`` -= x * y."""
    for k in range(0, n, AT_ONCE):
        store(out, k, load(out, k) - load(x, k) * load(y, k))


@apart
def project(z, n_observed, n_missing, packed, scratch):  # type: ignore[no-untyped-def]
    """L^-1 P_mo r_o of a row, and the squared distance of its observed part.

    r_o' P_oo r_o is gathered as 2 r_i (P_ii r_i / 2 + sum of P_ij r_j), j before i. Sums have four
    terms at a time: residuals that are not there yet are 0.
    """
    mean, blocks, _ = packed
    places, lower, _, _, residual, solved, distance, _ = scratch
    d, n = mean.shape
    mean_, blocks_, solved_ = pointers((mean, blocks, solved))
    residual_, distance_ = pointers((residual, distance))
    simd.fill(residual_, 0.0, (d + 3) * n)
    simd.fill(distance_, 0.0, n)
    for a in range(d):  # what is observed, then the holes
        known = a < n_observed
        i = places[0, a] if known else places[1, a - n_observed]
        x, half = (spread(z[i]), spread(0.5)) if known else (spread(0.0), spread(0.0))
        row, total = shift(blocks_, i * d * n), shift(solved_, max(a - n_observed, 0) * n)
        for k in range(0, n, AT_ONCE):
            store(total, k, (x - load(mean_, i * n + k)) * load(row, i * n + k) * half)
        for b in range(0, min(a, n_observed), 4):
            r = shift(residual_, b * n)
            p0, p1 = shift(row, places[0, b] * n), shift(row, places[0, b + 1] * n)
            p2, p3 = shift(row, places[0, b + 2] * n), shift(row, places[0, b + 3] * n)
            for k in range(0, n, AT_ONCE):
                first = load(p0, k) * load(r, k) + load(p1, k) * load(r, n + k)
                second = load(p2, k) * load(r, 2 * n + k) + load(p3, k) * load(r, 3 * n + k)
                store(total, k, load(total, k) + (first + second))
        if known:
            for k in range(0, n, AT_ONCE):
                own = x - load(mean_, i * n + k)
                store(residual_, a * n + k, own)
                twice = load(total, k) + load(total, k)
                store(distance_, k, load(distance_, k) + own * twice)
    forward(n_missing, lower, solved)
    subtract_solved(n_missing, lower, solved, distance)


@inlined
def measure(residual, product, places, n_missing, lower, solved, distance):  # type: ignore[no-untyped-def]
    """L^-1 P_mo r_o and the squared distances, as :func:`project`, from r and P r (k, d)."""
    k_all, d = residual.shape
    for k in range(k_all):
        total = 0.0
        for i in range(d):
            total += product[k, i] * residual[k, i]
        distance[k] = total
        for i in range(n_missing):
            solved[i, k] = product[k, places[1, i]]
    forward(n_missing, lower, solved)
    subtract_solved(n_missing, lower, solved, distance)


@inlined
def forward(n_missing, lower, vector):  # type: ignore[no-untyped-def]
    """Solve L y = vector (holes, n) in place."""
    d, n = lower.shape[1:]
    lower_, vector_ = pointers((lower, vector))
    for i in range(n_missing):
        for j in range(i + 1, n_missing):
            entry = shift(lower_, (j * d + i) * n)
            subtract_product(shift(vector_, j * n), entry, shift(vector_, i * n), n)


@inlined
def subtract_solved(n_missing, lower, solved, distance):  # type: ignore[no-untyped-def]
    """Take |D^-1/2 L^-1 P_mo r_o|^2 off the distances."""
    d, n = lower.shape[1:]
    lower_, solved_, distance_ = pointers((lower, solved, distance))
    for i in range(n_missing):
        for k in range(0, n, AT_ONCE):
            own = load(solved_, i * n + k)
            part = own * own * load(lower_, (i * d + i) * n + k)
            store(distance_, k, load(distance_, k) - part)


@inlined
def back(n_missing, lower, vector):  # type: ignore[no-untyped-def]
    """Solve D L' y = vector (holes, k) in place."""
    for i in range(n_missing):
        for k in range(vector.shape[1]):
            vector[i, k] *= lower[i, i, k]
    for i in range(n_missing - 1, -1, -1):
        for j in range(i):
            for k in range(vector.shape[1]):
                vector[j, k] -= lower[i, j, k] * vector[i, k]


@inlined
def find_covariance(n_missing, lower, covariance):  # type: ignore[no-untyped-def]
    """P_mm^-1 (its lower triangle) from its factors."""
    n = lower.shape[2]
    # V = L^-1 first, below its unit diagonal, which holds 1 / D instead ...
    for j in range(n_missing):
        for k in range(n):
            covariance[j, j, k] = lower[j, j, k]
        for i in range(j + 1, n_missing):
            for k in range(n):
                covariance[i, j, k] = -lower[i, j, k]
            for p in range(j + 1, i):
                for k in range(n):
                    covariance[i, j, k] -= lower[i, p, k] * covariance[p, j, k]
    # ... then V' D^-1 V in place: entry (i, j) needs rows from i on, which are still there.
    for i in range(n_missing):
        for j in range(i + 1):
            if j < i:
                for k in range(n):
                    covariance[i, j, k] *= covariance[i, i, k]
            for p in range(i + 1, n_missing):
                for k in range(n):
                    covariance[i, j, k] += (
                        covariance[p, i, k] * covariance[p, p, k] * covariance[p, j, k]
                    )


@inlined
def expect_holes(places, n_missing, lower, residual, solved):  # type: ignore[no-untyped-def]
    """Put the expectation of the holes into the residuals; ``solved`` is used up."""
    back(n_missing, lower, solved)
    for i in range(n_missing):
        mi = places[1, i]
        for k in range(len(residual)):
            residual[k, mi] = -solved[i, k]


@inlined
def add_sharpness(variance, sharpness, places, n_observed, distance):  # type: ignore[no-untyped-def]
    """Add the sum of v_j h_j to the distances; ``sharpness`` is (d, k)."""
    for i in range(n_observed):
        oi = places[0, i]
        if variance[oi] > 0.0:
            for k in range(sharpness.shape[1]):
                distance[k] += variance[oi] * sharpness[oi, k]


@inlined
def add_log(log_weight, log_det, distance, n_observed, joint):  # type: ignore[no-untyped-def]
    """Add log (weight p) to ``joint`` of every component, from its distance."""
    for k in range(len(joint)):
        joint[k] += log_weight[k] + log_det[k] - 0.5 * (distance[k] + n_observed * _LOG_TWO_PI)


@inlined
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
        below = joint[k] - top
        joint[k] = math.exp(below) if below > _FAR_BELOW else 0.0
        total += joint[k]
    for k in range(len(joint)):
        joint[k] /= total
    return top + math.log(total)


@njit
def log_joint(z, variance, packed, sharpness, scratch, out):  # type: ignore[no-untyped-def]
    """Add log (weight p(z_o)) of every row and component to ``out`` (rows, k)."""
    places, lower, _, log_det, _, _, distance, _ = scratch
    n_observed, n_missing = 0, 0
    for n in range(len(z)):
        if n == 0 or other_pattern(z[n], z[n - 1]):
            n_observed, n_missing, _ = read_pattern(z[n], places)
            factor(packed.blocks, places, n_missing, lower, log_det)
        project(z[n], n_observed, n_missing, packed, scratch)
        if variance.shape[1] > 0:
            add_sharpness(variance[n], sharpness, places, n_observed, distance)
        add_log(packed.log_weight, log_det, distance, n_observed, out[n])


@njit
def moments(z, packed, scratch, mean_out, covariance_out):  # type: ignore[no-untyped-def]
    """Conditional moments of all variables in each component.

    ``mean_out`` (rows, k, d) becomes z with holes at their expectation; ``covariance_out`` (rows,
    k, d, d) is written at the holes only.
    """
    mean = packed.mean
    places, lower, covariance, log_det, _, solved, _, _ = scratch
    for n in range(len(z)):
        n_observed, n_missing, changed = read_pattern(z[n], places)
        if changed:
            factor(packed.blocks, places, n_missing, lower, log_det)
            find_covariance(n_missing, lower, covariance)
        project(z[n], n_observed, n_missing, packed, scratch)
        back(n_missing, lower, solved)
        for k in range(mean_out.shape[1]):
            for j in range(z.shape[1]):
                mean_out[n, k, j] = z[n, j]
            for i in range(n_missing):
                mi = places[1, i]
                mean_out[n, k, mi] = mean[mi, k] - solved[i, k]
                for j in range(i + 1):
                    value = covariance[i, j, k]
                    covariance_out[n, k, mi, places[1, j]] = value
                    covariance_out[n, k, places[1, j], mi] = value


# Shares below this are nothing, beside the rounding of sums over rows.
_NO_SHARE = 1e-12


@inlined
def add_spread(variance, repeats, blocks, places, n_missing, lower, slope, distance):  # type: ignore[no-untyped-def]
    """Add the sum of v_j (S_oo^-1)_jj to the distances; the columns of L^-1 P_mo are kept."""
    n = blocks.shape[2]
    for oi in repeats:
        v = variance[oi]
        if v == 0.0:
            continue
        for m in range(n_missing):
            mi = places[1, m]
            for k in range(n):
                slope[oi, m, k] = blocks[mi, oi, k]
        forward(n_missing, lower, slope[oi])
        for k in range(n):
            distance[k] += v * blocks[oi, oi, k]
        for m in range(n_missing):
            for k in range(n):
                distance[k] -= v * slope[oi, m, k] * slope[oi, m, k] * lower[m, m, k]


@inlined
def add_covariance(k, share, places, n_missing, covariance, second):  # type: ignore[no-untyped-def]
    """Add the covariances of a row's holes (lower half), times its share."""
    for i in range(n_missing):
        for j in range(i + 1):
            second[k, places[1, i], places[1, j]] += share * covariance[i, j, k]


@inlined
def add_spread_moments(k, share, variance, repeats, places, n_missing, slope, second):  # type: ignore[no-untyped-def]
    """Add v_j g g', times a row's share, to the products of residuals."""
    for oi in repeats:
        if variance[oi] == 0.0:
            continue
        part = share * variance[oi]
        second[k, oi, oi] += part
        for i in range(n_missing):
            mi = places[1, i]
            second[k, max(mi, oi), min(mi, oi)] -= part * slope[oi, i, k]
            for j in range(i + 1):
                both = slope[oi, i, k] * slope[oi, j, k]
                second[k, mi, places[1, j]] += part * both


@njit
def residuals(z, mean, out):  # type: ignore[no-untyped-def]
    """Write z - mean of every component, 0 at holes, to ``out`` (rows, k, d)."""
    for n in range(len(z)):
        for k in range(len(mean)):
            for j in range(z.shape[1]):
                out[n, k, j] = 0.0 if np.isnan(z[n, j]) else z[n, j] - mean[k, j]


@njit
def expectations(rows, packed, scratch, residual, product, joint, log_density, sums):  # type: ignore[no-untyped-def]
    """EM's expectation step over rows, but for sums that are products of matrices.

    Parameters
    ----------
    rows : (float64 (rows, d), float64 (rows, d), float64 (rows,), int64 (variables,))
        Scores, their variances (0 at holes), the rows' weights, and which scores have variances.
    residual : float64 (rows, k, d)
        In: :func:`residuals`. Out, for each component, those of rows that it has a share of, one
        after the other, with holes at their expectation.
    product : float64 (rows, k, d)
        In: P r. Out: the same residuals times responsibilities.
    joint : float64 (rows, k)
        In: what other variables add to the log joint density. Out: responsibilities, times the
        row's weight.
    log_density : float64 (rows,)
        Out: log p of the observed part.
    sums : (float64 (k, d), float64 (k, d, d), int64 (k,))
        Added to: residuals, and what conditional and own variances add to their products (lower
        triangle), times responsibilities. Out: how many rows a component has a share of.
    """
    z, variance, weight, repeats = rows
    first, second, filled = sums
    _, blocks, log_weight = packed
    places, lower, covariance, log_det, _, solved, distance, slope = scratch
    n_observed, n_missing = 0, 0
    for k in range(len(log_weight)):
        filled[k] = 0
    for n in range(len(z)):
        if n == 0 or other_pattern(z[n], z[n - 1]):
            n_observed, n_missing, _ = read_pattern(z[n], places)
            factor(blocks, places, n_missing, lower, log_det)
            find_covariance(n_missing, lower, covariance)
        measure(residual[n], product[n], places, n_missing, lower, solved, distance)
        add_spread(variance[n], repeats, blocks, places, n_missing, lower, slope, distance)
        add_log(log_weight, log_det, distance, n_observed, joint[n])
        log_density[n] = normalise(joint[n])
        expect_holes(places, n_missing, lower, residual[n], solved)
        for oi in repeats:
            if variance[n, oi] > 0.0:
                back(n_missing, lower, slope[oi])
        for k in range(len(log_weight)):
            joint[n, k] *= weight[n]
            share = joint[n, k]
            if share > _NO_SHARE * weight[n]:
                at = filled[k]  # no row after this one: what is there has been read
                for j in range(z.shape[1]):
                    part = share * residual[n, k, j]
                    first[k, j] += part
                    product[at, k, j] = part
                    residual[at, k, j] = residual[n, k, j]
                filled[k] = at + 1
                add_covariance(k, share, places, n_missing, covariance, second)
                add_spread_moments(k, share, variance[n], repeats, places, n_missing, slope, second)
