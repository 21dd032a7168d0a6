"""The expectation step of EM for Gaussian components with holes, compiled.

See :mod:`~knothole.densities.gaussian.kernels` for the formulas and the arrays.
"""

from __future__ import annotations

from knothole.compiled.policy import inlined, njit
from knothole.densities.gaussian.kernels import (
    add_log,
    back,
    expect_holes,
    factor,
    find_covariance,
    forward,
    normalise,
    project,
    read_pattern,
)

# Shares below this are nothing, beside the rounding of sums over rows.
_NO_SHARE = 1e-12


@inlined
def add_spread(variance, blocks, places, n_observed, n_missing, lower, slope, distance):  # type: ignore[no-untyped-def]
    """Add the sum of v_j (S_oo^-1)_jj to the distances; the columns of L^-1 P_mo are kept."""
    n = blocks.shape[2]
    for i in range(n_observed):
        oi = places[0, i]
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
def add_moments(k, share, places, n_missing, residual, covariance, first, second):  # type: ignore[no-untyped-def]
    """Add a row's expected residuals and their products (lower half), times its share."""
    for i in range(residual.shape[1]):
        part = share * residual[k, i]
        first[k, i] += part
        for j in range(i + 1):
            second[k, i, j] += part * residual[k, j]
    for i in range(n_missing):
        for j in range(i + 1):
            second[k, places[1, i], places[1, j]] += share * covariance[i, j, k]


@inlined
def add_spread_moments(k, share, variance, places, n_observed, n_missing, slope, second):  # type: ignore[no-untyped-def]
    """Add v_j g g', times a row's share, to the products of residuals."""
    for o in range(n_observed):
        oi = places[0, o]
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
def expectations(rows, packed, scratch, joint, log_density, first, second):  # type: ignore[no-untyped-def]
    """EM's expectation step over rows.

    Parameters
    ----------
    rows : (float64 (rows, d), float64 (rows, d), float64 (rows,))
        Scores, their variances, and the rows' weights.
    joint : float64 (rows, k)
        In: what other variables add to the log joint density. Out: responsibilities, times the
        row's weight.
    log_density : float64 (rows,)
        Out: log p of the observed part.
    first, second : float64 (k, d), (k, d, d)
        Added to: sums of residuals from the current means and of their products (lower triangle),
        times responsibilities, holes at their conditional moments.
    """
    z, variance, weight = rows
    mean, precision, blocks, log_weight = packed
    places, lower, covariance, log_det, residual, _, solved, distance, slope = scratch
    for n in range(len(z)):
        n_observed, n_missing, changed = read_pattern(z[n], places)
        if changed:
            factor(blocks, places, n_missing, lower, log_det)
            find_covariance(n_missing, lower, covariance)
        project(z[n], mean, precision, n_missing, scratch)
        add_spread(variance[n], blocks, places, n_observed, n_missing, lower, slope, distance)
        add_log(log_weight, log_det, distance, n_observed, joint[n])
        log_density[n] = normalise(joint[n])
        expect_holes(places, n_missing, lower, residual, solved)
        for i in range(n_observed):
            if variance[n, places[0, i]] > 0.0:
                back(n_missing, lower, slope[places[0, i]])
        for k in range(len(mean)):
            joint[n, k] *= weight[n]
            if joint[n, k] > _NO_SHARE * weight[n]:
                share = joint[n, k]
                add_moments(k, share, places, n_missing, residual, covariance, first, second)
                add_spread_moments(
                    k, share, variance[n], places, n_observed, n_missing, slope, second
                )
