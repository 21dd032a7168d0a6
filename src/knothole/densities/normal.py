"""The normal distribution: cdf and quantiles, masses of intervals and boxes, moments."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from knothole._core import normal as core
from knothole.arrays import Floats

_LOG_ROOT_TWO_PI = 0.5 * math.log(2 * math.pi)
MOST_INTERVALS = 2


def normal_cdf(z: Any) -> Floats:
    """P(Z < z) of a standard normal Z, accurate in the lower tail.

    Examples
    --------
    >>> normal_cdf([0.0, -np.inf]).tolist()
    [0.5, 0.0]
    """
    z = np.asarray(z, dtype=np.float64, order="C")
    out: Floats = np.empty_like(z)
    core.cdf(z.reshape(-1), out.reshape(-1))
    return out


def normal_quantile(u: Any) -> Floats:
    """The z with P(Z < z) = u, for u between 0 and 1.

    Examples
    --------
    >>> normal_quantile([0.5, 0.975]).round(6).tolist()
    [0.0, 1.959964]
    """
    u = np.asarray(u, dtype=np.float64, order="C")
    out: Floats = np.empty_like(u)
    core.quantile(u.reshape(-1), out.reshape(-1))
    return out


def normal_mass(low: Floats, high: Floats) -> Floats:
    """P(low <= N(0, 1) < high), accurate in both tails."""
    # In the upper tail both cdf values are near 1: use the mirror image in the lower tail.
    upper = low > 0
    mass = normal_cdf(np.where(upper, -low, high)) - normal_cdf(np.where(upper, -high, low))
    return np.asarray(np.maximum(mass, 0.0))


def box_mass(mean: Floats, covariance: Floats, low: Floats, high: Floats) -> Floats:
    """P(low <= x < high) of one or two normal variables: means (..., b), covariances (..., b, b).

    Exact; there is no closed form for more variables.
    """
    sd = np.sqrt(np.einsum("...ii->...i", covariance))
    a, b = (low - mean) / sd, (high - mean) / sd
    if len(low) == 1:
        return normal_mass(a[..., 0], b[..., 0])
    rho = covariance[..., 0, 1] / (sd[..., 0] * sd[..., 1])
    mass = (
        below(b[..., 0], b[..., 1], rho)
        - below(a[..., 0], b[..., 1], rho)
        - below(b[..., 0], a[..., 1], rho)
        + below(a[..., 0], a[..., 1], rho)
    )
    return np.asarray(np.clip(mass, 0.0, 1.0))


def below(h: Floats, k: Floats, rho: Floats) -> Floats:
    """P(X < h, Y < k) of standard normals with correlation ``rho``, by Owen's T function.

    Owen (1956): with a_h = (k - rho h) / (h sqrt(1 - rho^2)) and a_k likewise,
    P = (Phi(h) + Phi(k)) / 2 - T(h, a_h) - T(k, a_k) - [1/2 where h and k have opposite signs].
    """
    from scipy.special import owens_t

    root = np.sqrt(np.maximum((1 - rho) * (1 + rho), np.finfo(np.float64).tiny))
    finite = np.isfinite(h) & np.isfinite(k)
    # Avoid 0, where the formula needs limits; a shift of 1e-300 does not change the result.
    h_safe = np.where(finite, np.where(h == 0, 1e-300, h), 1.0)
    k_safe = np.where(finite, np.where(k == 0, 1e-300, k), 1.0)
    with np.errstate(over="ignore"):
        a_h = (k_safe / h_safe - rho) / root
        a_k = (h_safe / k_safe - rho) / root
    inner = 0.5 * (normal_cdf(h_safe) + normal_cdf(k_safe))
    inner = inner - owens_t(h_safe, a_h) - owens_t(k_safe, a_k)
    inner = inner - 0.5 * (h_safe * np.sign(k_safe) < 0)
    outer = np.where(np.isposinf(h), normal_cdf(k), np.where(np.isposinf(k), normal_cdf(h), 0.0))
    outer = np.where(np.isneginf(h) | np.isneginf(k), 0.0, outer)
    return np.asarray(np.where(finite, inner, outer))


def truncated_moments(low: float, high: float) -> tuple[float, float, float]:
    """Mean, variance and entropy of the standard normal truncated to ``[low, high]``."""
    mass = float(normal_mass(np.asarray(low), np.asarray(high)))
    peak_low, peak_high = (math.exp(-0.5 * z * z - _LOG_ROOT_TWO_PI) for z in (low, high))
    mean = (peak_low - peak_high) / mass
    second = 1 + (low * peak_low - high * peak_high) / mass
    return mean, max(second - mean * mean, 0.0), math.log(mass) + _LOG_ROOT_TWO_PI + 0.5 * second
