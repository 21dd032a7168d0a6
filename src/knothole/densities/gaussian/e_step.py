"""The expectation step of EM for Gaussian components with holes, compiled.

See :mod:`~knothole.densities.gaussian.kernels` for the formulas and the arrays.
"""

from __future__ import annotations

import numpy as np

from knothole.compiled.policy import inlined, njit
from knothole.densities.gaussian.kernels import (
    add_log,
    back,
    expect_holes,
    factor,
    find_covariance,
    forward,
    measure,
    normalise,
    other_pattern,
    read_pattern,
)

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
