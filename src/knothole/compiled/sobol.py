"""Scrambled Sobol points as the randomness of a word of 64 draws, compiled.

A word is made of groups of equal size; each group is one Sobol net, xor-ed with random bits of
its own that are a hash of (seed, row, group, coordinate). So every draw by itself is uniform, the
draws of a group cover the cube evenly, and groups, rows and words of different seeds are
independent: means of groups tell the standard error. Nothing depends on chunks or threads.

A word may go on with a second part, 64 draws more: the next points of the same groups' sequences,
under the same random bits. Both parts of a group are one net of twice the size, which is better
than two independent ones; groups are as independent as before.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri
from scipy.stats import qmc

from knothole.compiled.policy import inlined, njit

#: Draws in a word.
WORD = 64

# The table of the normal quantile has 2**12 cells; the eight at either end are left to a formula.
_CELL_BITS = 12
_LOW_BITS = 32 - _CELL_BITS
_LOW_MASK = (1 << _LOW_BITS) - 1
_TAIL_CELLS = 8
_CELLS = 1 << _CELL_BITS
_UNIT = 2.0**-32


@cache
def sobol_net(coordinates: int, size: int, parts: int = 1) -> NDArray[np.uint32]:
    """A linearly scrambled Sobol net in parts, (parts, coordinates, size).

    Every part is a net itself, ordered by its first coordinate, the leading bits of which are, at
    point p, p itself: it lies in the p-th of ``size`` equal parts of the unit interval, and after
    an xor in another one.
    """
    sobol = qmc.Sobol(coordinates, scramble=True, bits=32, rng=np.random.default_rng(0))
    bits = (sobol.random(size * parts) * 2.0**32).astype(np.uint32)
    return np.stack([part[np.argsort(part[:, 0])].T for part in np.split(bits, parts)])


@cache
def quantiles() -> NDArray[np.float64]:
    """Normal quantiles at multiples of 2**-12, for :func:`normals`."""
    u = np.arange(_CELLS + 1) / _CELLS
    # The ends are never used; finite numbers keep the interpolation free of NaN.
    return np.asarray(ndtri(np.clip(u, 0.5 / _CELLS, 1 - 0.5 / _CELLS)))


@inlined
def mix(state):  # type: ignore[no-untyped-def]
    """The finaliser of splitmix64: every bit of the result depends on every bit of the state."""
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


@inlined
def row_state(seed, row):  # type: ignore[no-untyped-def]
    """The random state of a row."""
    golden = np.uint64(0x9E3779B97F4A7C15)
    return mix(mix(seed + golden) ^ (np.uint64(row) * golden + np.uint64(1)))


@inlined
def bits_of(state, group, coordinate):  # type: ignore[no-untyped-def]
    """32 random bits for one coordinate of one group of a row."""
    golden = np.uint64(0x9E3779B97F4A7C15)
    return np.uint32(
        mix(state + np.uint64(coordinate * WORD + group + 1) * golden) >> np.uint64(32)
    )


@inlined
def points(coordinate, net, state, out):  # type: ignore[no-untyped-def]
    """The bits of one coordinate of all draws of a word, ``out`` (64,), group by group."""
    size = net.shape[1]
    for g in range(WORD // size):
        shift = bits_of(state, g, coordinate)
        for p in range(size):
            out[g * size + p] = net[coordinate, p] ^ shift


@njit
def lower_quantile(u):  # type: ignore[no-untyped-def]
    """Normal quantile of a small ``u`` (Acklam's rational approximation, 1e-9 relative)."""
    q = math.sqrt(-2.0 * math.log(u))
    top = -7.784894002430293e-03 * q - 3.223964580411365e-01
    top = ((top * q - 2.400758277161838) * q - 2.549732539343734) * q
    top = (top + 4.374664141464968) * q + 2.938163982698783
    bottom = (7.784695709041462e-03 * q + 3.224671290700398e-01) * q + 2.445134137142996
    bottom = (bottom * q + 3.754408661907416) * q + 1.0
    return top / bottom


@inlined
def normals(bits, quantile, out):  # type: ignore[no-untyped-def]
    """Standard normals of the bits of a word."""
    lowest, highest = np.int32(_CELLS), np.int32(0)
    for t in range(WORD):
        cell = bits[t] >> np.uint32(_LOW_BITS)
        part = (np.int32(bits[t] & np.uint32(_LOW_MASK)) + 0.5) * (1.0 / (1 << _LOW_BITS))
        out[t] = quantile[cell] + part * (quantile[cell + np.uint32(1)] - quantile[cell])
        lowest, highest = min(lowest, np.int32(cell)), max(highest, np.int32(cell))
    if lowest < _TAIL_CELLS or highest >= _CELLS - _TAIL_CELLS:
        for t in range(WORD):
            u = (bits[t] + 0.5) * _UNIT
            if u < _TAIL_CELLS / _CELLS:
                out[t] = lower_quantile(u)
            elif u >= 1.0 - _TAIL_CELLS / _CELLS:
                out[t] = -lower_quantile(1.0 - u)


@inlined
def only_component(share, bits):  # type: ignore[no-untyped-def]
    """The component that all draws choose, by their first coordinates; -1 if they differ."""
    lowest, highest = bits[0], bits[0]
    for draw in range(WORD):
        lowest, highest = min(lowest, bits[draw]), max(highest, bits[draw])
    reached, low, high = 0.0, 0, 0
    for k in range(len(share) - 1):
        reached += share[k]
        low += reached <= (lowest + 0.5) * _UNIT
        high += reached <= (highest + 0.5) * _UNIT
    return low if low == high else -1


@njit
def allot(share, state, net, bits, chosen, first, component, lane):  # type: ignore[no-untyped-def]
    """Give the draws of a word to components, by the first coordinate of their points.

    Within a group, a component has its share of the draws to within one.

    Parameters
    ----------
    share : float64 (components,)
    net : uint32 (coordinates, size)
    bits, chosen, first : uint32 (64,), uint32 (64,), int64 (components + 1,)
        Working memory.
    component, lane : int64 (64,), uint32 (64,)
        Out: the components of the draws, in order, and the place of each draw in the word. A
        component's own draws are in the order of the word.
    """
    points(0, net, state, bits)
    alone = only_component(share, bits)
    if alone >= 0:
        for draw in range(WORD):
            component[draw] = alone
            lane[draw] = draw
        return
    for draw in range(WORD):
        chosen[draw] = 0
    reached = 0.0
    for k in range(len(share) - 1):
        reached += share[k]
        for draw in range(WORD):
            chosen[draw] += np.uint32(reached <= (bits[draw] + 0.5) * _UNIT)
    for k in range(len(share) + 1):
        first[k] = 0
    for draw in range(WORD):
        first[chosen[draw] + 1] += 1
    for k in range(len(share)):
        first[k + 1] += first[k]
    for draw in range(WORD):
        k = chosen[draw]
        t = first[k]
        first[k] += 1
        component[t] = k
        lane[t] = draw
