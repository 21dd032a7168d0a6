"""Scrambled Sobol points as the randomness of draws, 64 to a word, compiled.

The draws of a word are :data:`GROUPS` groups of :data:`SIZE`. A group has a Sobol sequence of its
own, xor-ed with random bits that are a hash of (seed, key, group, coordinate); word after word it
goes on with the next points of that sequence. So every draw by itself is uniform, the draws of a
group cover the cube evenly, ever more so with more words, and groups are independent of each
other: how far their means lie apart tells the standard error.

The key says who shares points. Predictions have one key for all rows, so that answers are smooth
in what a row says and differences between rows are quiet. Where draws of many rows are added up or
handed out, a row's key is a hash of what it says (:func:`row_keys`), so that rows are independent.
Nothing depends on a row's place, on chunks or threads.
"""

from __future__ import annotations

from functools import cache, lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from knothole.arrays import Floats, Words
from knothole.compiled.normal import lower_quantile
from knothole.compiled.policy import apart, inlined, njit

#: Draws in a word, independent groups of them, and points of a group in a word.
WORD = 64
GROUPS = 8
SIZE = WORD // GROUPS
#: Words until a group's sequence ends; those after them begin others.
WORDS = 256
# Coordinates beyond these have random bits: nets of so few points are no better there.
NET_COORDINATES = 1024

# The table of the normal quantile has 2**12 cells; the eight at either end are left to a formula.
_CELLS = 1 << 12
_TAIL = 8 / _CELLS
_UNIT = 2.0**-32


class Points:
    """The points of draws that need so many coordinates.

    Parameters
    ----------
    seed : int
    coordinates : int
    """

    def __init__(self, seed: int, coordinates: int) -> None:
        self.seed = seed
        self.coordinates = coordinates
        self.order: NDArray[np.intp] | None = None

    def arrange(self, weight: Floats) -> None:
        """Give the sequence's first coordinates, which cover the cube best, to what weighs most.

        For points that all rows share: errors of rows with their own cancel out in sums.

        Examples
        --------
        >>> points = Points(seed=0, coordinates=3)
        >>> points.arrange(np.array([2.0, 5.0, 7.0]))
        >>> points.order.tolist()
        [2, 1, 0]
        """
        if self.coordinates <= NET_COORDINATES:
            self.order = np.argsort(np.argsort(-weight, kind="stable"))

    def uniform(self, words: range, keys: Words) -> Floats:
        """Uniform numbers of consecutive words, (keys, 64 * words, coordinates).

        Those of a coordinate lie together in memory. Words are of one run of :data:`WORDS`; the
        next run has another seed. Common points are arranged.
        """
        run, first = divmod(words.start, WORDS)
        net = sobol_net(min(self.coordinates, NET_COORDINATES))[first : first + len(words)]
        if self.order is not None and keys is COMMON:
            net = np.ascontiguousarray(net[:, self.order])
        out = np.empty((len(keys), self.coordinates, WORD * len(words)))
        fill_uniform(net, hashed_seed(self.seed, run), keys, words.start, out)
        return out.transpose(0, 2, 1)


#: The key that all rows of predictions have.
COMMON = np.zeros(1, dtype=np.uint64)


@cache
def sobol_net(coordinates: int) -> NDArray[np.uint32]:
    """A linearly scrambled Sobol sequence, (words, coordinates, points of a group in a word)."""
    from scipy.stats import qmc  # it imports much: only where points are drawn

    sobol = qmc.Sobol(coordinates, scramble=True, bits=32, rng=np.random.default_rng(0))
    bits = (sobol.random(SIZE * WORDS) * 2.0**32).astype(np.uint32)
    return np.ascontiguousarray(bits.reshape(WORDS, SIZE, coordinates).transpose(0, 2, 1))


@lru_cache
def hashed_seed(seed: int, run: int) -> np.uint64:
    """A seed as a random state."""
    return np.uint64(np.random.SeedSequence([seed, run]).generate_state(1, np.uint64)[0])


def row_keys(points: Floats, allowed: Words | None = None) -> Words:
    """A hash of what each row says: its points, and the sets it is known to lie in, (rows,)."""
    # The same number in another writing, and NaN of any kind, say the same.
    plain = np.where(np.isnan(points), np.nan, points + 0.0)
    parts = [np.ascontiguousarray(plain).view(np.uint64)]
    if allowed is not None:
        parts.append(allowed)
    out = np.empty(len(points), dtype=np.uint64)
    fill_keys(np.ascontiguousarray(np.hstack(parts)), out)
    return out


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
def state_of(seed, key):  # type: ignore[no-untyped-def]
    """The random state of a key."""
    golden = np.uint64(0x9E3779B97F4A7C15)
    return mix(mix(seed + golden) ^ (key * golden + np.uint64(1)))


@njit
def fill_keys(words, out):  # type: ignore[no-untyped-def]
    """A hash of each row of words."""
    for n in range(len(words)):
        state = np.uint64(words.shape[1])
        for i in range(words.shape[1]):
            state = mix(state ^ words[n, i]) + np.uint64(0x9E3779B97F4A7C15)
        out[n] = state


@inlined
def bits_of(state, number, coordinate):  # type: ignore[no-untyped-def]
    """32 random bits for one coordinate, of a group or of a draw."""
    golden = np.uint64(0x9E3779B97F4A7C15)
    place = (np.uint64(coordinate) << np.uint64(20)) + np.uint64(number + 1)
    return np.uint32(mix(state + place * golden) >> np.uint64(32))


@njit
def fill_uniform(net, seed, keys, first_word, out):  # type: ignore[no-untyped-def]
    """Uniform numbers for keys; ``net`` (words, ...), ``out`` (keys, coordinates, draws)."""
    for n in range(len(keys)):
        state = state_of(seed, keys[n])
        for w in range(len(net)):
            for c in range(out.shape[1]):
                for g in range(GROUPS):
                    shift = bits_of(state, g, c)
                    for p in range(SIZE):
                        draw = g * SIZE + p
                        if c < net.shape[1]:
                            bits = net[w, c, p] ^ shift
                        else:
                            number = GROUPS + (first_word + w) * WORD + draw
                            bits = bits_of(state, number, c)
                        out[n, c, w * WORD + draw] = (bits + 0.5) * _UNIT


@inlined
def normals(uniform, quantile, out):  # type: ignore[no-untyped-def]
    """Standard normals of 64 uniform numbers."""
    lowest, highest = 1.0, 0.0
    for t in range(WORD):
        place = uniform[t] * _CELLS
        cell = np.uint32(place)
        out[t] = quantile[cell] + (place - cell) * (quantile[cell + np.uint32(1)] - quantile[cell])
        lowest, highest = min(lowest, uniform[t]), max(highest, uniform[t])
    if lowest < _TAIL or highest >= 1.0 - _TAIL:
        for t in range(WORD):
            if uniform[t] < _TAIL:
                out[t] = lower_quantile(uniform[t])
            elif uniform[t] >= 1.0 - _TAIL:
                out[t] = -lower_quantile(1.0 - uniform[t])


@inlined
def only_component(share, uniform):  # type: ignore[no-untyped-def]
    """The component that all draws choose, by their first coordinates; -1 if they differ."""
    lowest, highest = uniform[0], uniform[0]
    for draw in range(WORD):
        lowest, highest = min(lowest, uniform[draw]), max(highest, uniform[draw])
    reached, low, high = 0.0, 0, 0
    for k in range(len(share) - 1):
        reached += share[k]
        low += reached <= lowest
        high += reached <= highest
    return low if low == high else -1


@apart
def allot(share, uniform, chosen, first, component, place):  # type: ignore[no-untyped-def]
    """Give the draws of a word to components, by the first coordinate of their points.

    Parameters
    ----------
    share : float64 (components,)
    uniform : float64 (64,)
        The first coordinate of the draws.
    chosen, first : uint32 (64,), int64 (components + 1,)
        Working memory.
    component, place : int64 (64,), uint32 (64,)
        Out: the components of the draws, in order, and the place of each draw in the word. A
        component's own draws are in the order of the word.
    """
    alone = only_component(share, uniform)
    if alone >= 0:
        for draw in range(WORD):
            component[draw] = alone
            place[draw] = draw
        return
    for draw in range(WORD):
        chosen[draw] = 0
    reached = 0.0
    for k in range(len(share) - 1):
        reached += share[k]
        for draw in range(WORD):
            chosen[draw] += np.uint32(reached <= uniform[draw])
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
        place[t] = draw
