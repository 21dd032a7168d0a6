"""Gaussian components in the form that the compiled core reads (``core/gaussian.hpp``)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from knothole._core import gaussian_em as core
from knothole.arrays import Floats, aligned
from knothole.densities.univariate.base import log_of

# Components are padded to a multiple of this: inner loops run across them.
AT_ONCE = 4


class PackedComponents(NamedTuple):
    """A mixture of k components.

    Attributes
    ----------
    mean : float64 (d, n)
        Components are the last axis, padded to n >= k.
    blocks : float64 (d, d, n)
        The precision matrices, padded likewise.
    log_weight : float64 (k,)
        Log weight + log |P| / 2.
    """

    mean: Floats
    blocks: Floats
    log_weight: Floats


def pack(weight: Floats, mean: Floats, precision: Floats, log_det: Floats) -> PackedComponents:
    """Arrays for kernels from weights (k,), means (k, d), and :func:`invert` of covariances."""
    log_weight = log_of(weight) - 0.5 * log_det
    return PackedComponents(_components_last(mean), _components_last(precision), log_weight)


def _components_last(array: Floats) -> Floats:
    k, last = len(array), np.moveaxis(array, 0, -1)
    out = aligned(*last.shape[:-1], k + -k % AT_ONCE)
    out[..., :k], out[..., k:] = last, last[..., -1:]
    return out


def invert(covariance: Floats) -> tuple[Floats, Floats]:
    """Inverses (k, d, d) and log determinants (k,) of covariances."""
    covariance = np.ascontiguousarray(covariance)
    precision, log_det = np.empty_like(covariance), np.empty(len(covariance))
    core.invert(covariance, precision, log_det)
    return precision, log_det
