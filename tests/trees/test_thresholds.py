"""Thresholds are exact to the bit: the threshold goes right, the number just below goes left."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from knothole.trees.thresholds import (
    OVERFLOW,
    exact_less_equal,
    exact_less_equal_float32,
    exact_less_float32,
)

MAX = float(np.finfo(np.float32).max)
TINY = 2.0**-149  # the smallest denormal of float32
NORMAL = float(np.finfo(np.float32).tiny)
NAMED = [0.0, -0.0, TINY, -TINY, 2 * TINY, 3 * TINY, -3 * TINY, NORMAL, NORMAL - TINY, -NORMAL]
NAMED += [1.0, -1.0, 2.0, 0.1, -0.1, 1 + 2.0**-23, 1 + 2.0**-24, 1 + 3 * 2.0**-24, 16777216.0]
NAMED += [MAX, -MAX, np.nextafter(MAX, 0), OVERFLOW, -OVERFLOW, 1e300, -1e300, 1e-300, -1e-300]


def single(x):
    with np.errstate(over="ignore"):
        return np.float32(np.float64(x))


def less_float32(x, t):
    return bool(single(x) < single(t))


def less_equal_float32(x, t):
    return bool(np.float64(single(x)) <= t)


def less_equal(x, t):
    return bool(x <= t)


RULES = [
    (exact_less_float32, less_float32),
    (exact_less_equal_float32, less_equal_float32),
    (exact_less_equal, less_equal),
]


def assert_exact(exact_of, goes_left, threshold):
    exact = float(exact_of(threshold))
    below = float(np.nextafter(exact, -np.inf))
    assert not goes_left(exact, threshold)
    # Nothing goes left where the threshold is -inf in the library's own precision.
    assert goes_left(below, threshold) or exact == -np.inf


@pytest.mark.parametrize(("exact_of", "goes_left"), RULES)
@pytest.mark.parametrize("threshold", NAMED)
def test_named_thresholds(exact_of, goes_left, threshold):
    assert_exact(exact_of, goes_left, threshold)


@pytest.mark.parametrize(("exact_of", "goes_left"), RULES)
@settings(max_examples=300, deadline=None)
@given(
    threshold=st.floats(-1e38, 1e38) | st.floats(width=32, allow_nan=False, allow_infinity=False)
)
def test_any_threshold(exact_of, goes_left, threshold):
    assert_exact(exact_of, goes_left, threshold)


@pytest.mark.parametrize(("exact_of", "goes_left"), RULES)
@settings(max_examples=200, deadline=None)
@given(bits=st.integers(0, 0x7F7FFFFE), negative=st.booleans(), step=st.integers(-1, 1))
def test_midpoints(exact_of, goes_left, bits, negative, step):
    """Thresholds at the midpoint of two neighbouring float32 numbers, and one ulp beside it."""
    pair = np.array([bits, bits + 1], dtype=np.uint32).view(np.float32).astype(np.float64)
    middle = float(pair.sum() / 2) * (-1 if negative else 1)
    threshold = middle if step == 0 else float(np.nextafter(middle, step * np.inf))
    assert_exact(exact_of, goes_left, threshold)


def test_infinite_thresholds():
    inf = np.inf
    # Nothing is below -inf, every finite number is at most +inf.
    assert exact_less_float32(-inf) == -inf
    assert exact_less_equal_float32(inf) == inf
    assert exact_less_equal(inf) == inf
    # A finite float64 can round to an infinite float32.
    assert_exact(exact_less_float32, less_float32, inf)
    assert_exact(exact_less_equal_float32, less_equal_float32, -inf)


def test_nan_stays_nan():
    for exact_of, _ in RULES:
        assert np.isnan(exact_of(np.nan))


def test_vectorised():
    thresholds = np.array([NAMED, NAMED[::-1]])
    for exact_of, _ in RULES:
        together = exact_of(thresholds)
        assert together.shape == thresholds.shape and together.dtype == np.float64
        alone = [float(exact_of(t)) for t in thresholds.ravel().tolist()]
        assert together.ravel().tolist() == alone
