"""Scrambled Sobol points as the randomness of a word of 64 draws, compiled.

A word is made of groups of equal size; each group is one Sobol net, xor-ed with random bits of
its own that are a hash of (seed, row, group, coordinate). So every draw by itself is uniform, the
draws of a group cover the cube evenly, and groups, rows and words of different seeds are
independent: means of groups tell the standard error. Nothing depends on blocks or threads.

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

from knothole.compiled import inlined, njit

#: Draws in a word.
WORD = 64

# The table of the normal quantile has 2**12 cells; the eight at either end are left to a formula.
_CELL_BITS = 12
_LOW_BITS = 32 - _CELL_BITS
_LOW_MASK = (1 << _LOW_BITS) - 1
_TAIL_CELLS = 8
_CELLS = 1 << _CELL_BITS
_UNIT = 2.0**-32
# The first coordinates of a net are the best of so many of Sobol's.
_CHOSEN = 24
_POOL = 512


@cache
def sobol_net(coordinates: int, size: int, parts: int = 1) -> NDArray[np.uint32]:
    """A linearly scrambled Sobol net in parts, (parts, coordinates, size).

    Every part is a net itself, ordered by its first coordinate, the leading bits of which are, at
    point p, p itself: it lies in the p-th of ``size`` equal parts of the unit interval, and after
    an xor in another one.
    """
    order = _best_coordinates(coordinates, size, parts)
    sobol = qmc.Sobol(len(order), scramble=True, bits=32, rng=np.random.default_rng(0))
    bits = (sobol.random(size * parts)[:, order[:coordinates]] * 2.0**32).astype(np.uint32)
    return np.stack([part[np.argsort(part[:, 0])].T for part in np.split(bits, parts)])


def _best_coordinates(coordinates: int, size: int, parts: int) -> NDArray[np.int64]:
    """Coordinates of Sobol's sequence in an order in which few points of it are best.

    Few points of two coordinates can be badly spread together, in particular of neighbours. The
    first coordinates are chosen one by one such that those chosen so far have the least

        mean over points x, y of  prod_c (1 + w(x_c ^ y_c)),
        w(t) = 1/6 - 2^(floor(log2 t) - 1),

    the squared error of a random function of all products of coordinates, averaged over random
    xors (Dick and Pillichshammer, Digital Nets and Sequences, 2010, chapter 12). Scrambling does
    not change it.
    """
    pool = max(_POOL, coordinates)
    points = qmc.Sobol(pool, scramble=False).random(size * parts).T
    bits = (points * 2.0**32).astype(np.uint32)
    distance = (bits[:, :, None] ^ bits[:, None, :]) * 2.0**-32
    with np.errstate(divide="ignore"):
        factor = 7 / 6 - 2.0 ** (np.floor(np.log2(distance)) - 1)
    order = [0]
    product = factor[0].copy()
    while len(order) < min(coordinates, _CHOSEN):
        score = np.einsum("ij,cij->c", product, factor)
        score[order] = np.inf
        order.append(int(np.argmin(score)))
        product *= factor[order[-1]]
    return np.append(order, np.setdiff1d(np.arange(pool), order))


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
def points(coordinate, net, point, group, state, shifts, out):  # type: ignore[no-untyped-def]
    """The bits of one coordinate of all draws of a word.

    ``point`` (64,) and ``group`` (64,) say which point of which group's net each draw is;
    ``shifts`` is working memory.
    """
    for g in range(WORD // net.shape[1]):
        shifts[g] = bits_of(state, g, coordinate)
    for t in range(WORD):
        out[t] = net[coordinate, point[t]] ^ shifts[group[t]]


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


@njit
def allot(share, state, net, chosen, first, component, point, group):  # type: ignore[no-untyped-def]
    """Give the draws of a word to components, by the first coordinate of their points.

    Within a group, a component has its share of the draws to within one.

    Parameters
    ----------
    share : float64 (components,)
    net : uint32 (coordinates, size)
    chosen, first : int64 (64,), int64 (components + 1,)
        Working memory.
    component, point, group : int64 (64,), uint32 (64,), uint32 (64,)
        Out, sorted by component: the component of each draw, and which point of which group's
        net it is.
    """
    size = net.shape[1]
    for k in range(len(share) + 1):
        first[k] = 0
    for g in range(WORD // size):
        shift = bits_of(state, g, 0)
        flip = flip_of(shift, size)
        k = 0
        reached = share[0]
        for stratum in range(size):
            u = ((net[0, stratum ^ flip] ^ shift) + 0.5) * _UNIT
            while reached <= u and k < len(share) - 1:
                k += 1
                reached += share[k]
            chosen[g * size + stratum] = k
            first[k + 1] += 1
    for k in range(len(share)):
        first[k + 1] += first[k]
    for g in range(WORD // size):
        flip = flip_of(bits_of(state, g, 0), size)
        for stratum in range(size):
            k = chosen[g * size + stratum]
            t = first[k]
            first[k] += 1
            component[t] = k
            point[t] = stratum ^ flip
            group[t] = g


@inlined
def flip_of(shift, size):  # type: ignore[no-untyped-def]
    """What an xor with ``shift`` does to the leading bits, which number ``size`` parts."""
    return np.int64((np.uint64(shift) * np.uint64(size)) >> np.uint64(32))
