"""Short vectors, one number for each state of a latent, as pointers (:mod:`.pointers`).

Their length is a multiple of :data:`LANES`, and every step loads as many numbers before it stores
any: the compiler then needs no test of whether two vectors overlap, which would take longer than
the work on sixteen numbers.
"""

from __future__ import annotations

from knothole.compiled import njit

#: The number of states is padded to a multiple of this.
LANES = 4


@njit
def fill(out, value, n):  # type: ignore[no-untyped-def]
    """``out`` = value."""
    for z in range(n):
        out[z] = value


@njit
def copy(out, x, n):  # type: ignore[no-untyped-def]
    """``out`` = x."""
    for z in range(0, n, 4):
        first, second, third, fourth = x[z], x[z + 1], x[z + 2], x[z + 3]
        out[z] = first
        out[z + 1] = second
        out[z + 2] = third
        out[z + 3] = fourth


@njit
def product(out, x, y, n):  # type: ignore[no-untyped-def]
    """``out`` = x * y; ``out`` may be one of the two."""
    for z in range(0, n, 4):
        first = x[z] * y[z]
        second = x[z + 1] * y[z + 1]
        third = x[z + 2] * y[z + 2]
        fourth = x[z + 3] * y[z + 3]
        out[z] = first
        out[z + 1] = second
        out[z + 2] = third
        out[z + 3] = fourth


@njit
def difference(out, x, y, n):  # type: ignore[no-untyped-def]
    """``out`` = x - y."""
    for z in range(0, n, 4):
        first = x[z] - y[z]
        second = x[z + 1] - y[z + 1]
        third = x[z + 2] - y[z + 2]
        fourth = x[z + 3] - y[z + 3]
        out[z] = first
        out[z + 1] = second
        out[z + 2] = third
        out[z + 3] = fourth


@njit
def add(out, x, n):  # type: ignore[no-untyped-def]
    """``out`` += x."""
    for z in range(0, n, 4):
        first = out[z] + x[z]
        second = out[z + 1] + x[z + 1]
        third = out[z + 2] + x[z + 2]
        fourth = out[z + 3] + x[z + 3]
        out[z] = first
        out[z + 1] = second
        out[z + 2] = third
        out[z + 3] = fourth


@njit
def dot(x, y, n):  # type: ignore[no-untyped-def]
    """Sum of x * y."""
    total = 0.0
    for z in range(n):
        total += x[z] * y[z]
    return total


@njit
def multiply(matrix, vector, out, n):  # type: ignore[no-untyped-def]
    """``out`` = matrix @ vector; returns its sum.

    Four rows at a time, without a store among the products: short loops of one row each would
    spend most of their time getting started.
    """
    total = 0.0
    for a in range(0, n, 4):
        first, second, third, fourth = 0.0, 0.0, 0.0, 0.0
        for z in range(n):
            x = vector[z]
            first += matrix[a * n + z] * x
            second += matrix[(a + 1) * n + z] * x
            third += matrix[(a + 2) * n + z] * x
            fourth += matrix[(a + 3) * n + z] * x
        out[a] = first
        out[a + 1] = second
        out[a + 2] = third
        out[a + 3] = fourth
        total += first + second + third + fourth
    return total


@njit
def scale(vector, n):  # type: ignore[no-untyped-def]
    """Make the mean of a vector 1; leave zeros alone."""
    total = 0.0
    for z in range(n):
        total += vector[z]
    rescale(vector, total, n)


@njit
def rescale(vector, total, n):  # type: ignore[no-untyped-def]
    """Make the mean of a vector 1, given its sum; leave zeros alone."""
    if total > 0.0:
        share = n / total
        for z in range(n):
            vector[z] *= share
