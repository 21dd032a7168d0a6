"""Exact float64 thresholds: every library's comparison as *go left iff x < threshold*.

A library that rounds a value to float32 before it compares treats an interval of float64 values
as one number. The exact threshold is the smallest float64 that goes right. It lies at or just
above the midpoint of two neighbouring float32 numbers (rounding is to the even one of them).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from knothole.arrays import Floats

# From here on, a float64 rounds to infinity in float32.
OVERFLOW = 2.0**128 - 2.0**103


def exact_less_float32(threshold: ArrayLike) -> Floats:
    """Thresholds for libraries that go left iff float32(x) < float32(threshold).

    Examples
    --------
    >>> threshold = exact_less_float32(1.0)
    >>> bool(np.float32(threshold) < 1), bool(np.float32(np.nextafter(threshold, 0)) < 1)
    (False, True)
    """
    with np.errstate(over="ignore"):
        t = np.asarray(threshold).astype(np.float32)
        below = np.nextafter(t, np.float32(-np.inf)).astype(np.float64)
        # Both have 24 bits, so that their midpoint is exact in float64, also among denormals.
        middle = np.clip((below + t.astype(np.float64)) / 2, -OVERFLOW, OVERFLOW)
        rounds_up = middle.astype(np.float32) >= t
    exact = np.where(rounds_up, middle, np.nextafter(middle, np.inf))
    return np.where(np.isneginf(t), -np.inf, exact)


def exact_less_equal_float32(threshold: ArrayLike) -> Floats:
    """Thresholds for libraries that go left iff float32(x) <= threshold, a float64.

    Examples
    --------
    >>> threshold = exact_less_equal_float32(0.1)  # lies between two float32 numbers
    >>> float(np.float32(threshold)) <= 0.1, float(np.float32(np.nextafter(threshold, 0))) <= 0.1
    (False, True)
    """
    t = np.asarray(threshold, dtype=np.float64)
    with np.errstate(over="ignore"):
        nearest = t.astype(np.float32)
        # The smallest float32 above the threshold: to be at most t is to be below that one.
        above = np.where(nearest > t, nearest, np.nextafter(nearest, np.float32(np.inf)))
    return np.where(np.isposinf(t), np.inf, exact_less_float32(above))


def exact_less_equal(threshold: ArrayLike) -> Floats:
    """Thresholds for libraries that go left iff x <= threshold, both float64.

    Examples
    --------
    >>> float(exact_less_equal(1.0))
    1.0000000000000002
    """
    return np.nextafter(np.asarray(threshold, dtype=np.float64), np.inf)
