"""Scrambled Sobol points as the randomness of draws, 64 draws to a word.

The draws of a word are :data:`GROUPS` groups of :data:`SIZE`. Each group has its own Sobol
sequence, xor-ed with random bits that are a hash of (seed, key, group, coordinate); the next word
takes the next points of that sequence. So every single draw is uniform, the draws of a group cover
the cube evenly (the better, the more words), and groups are independent of each other: the spread
of their means estimates the standard error.

Rows with the same key share points. All rows of predictions do, so that answers vary smoothly with
a row's values and differences between rows have little noise. Where draws of many rows are added
up or returned, a row's key is a hash of its evidence (:func:`row_keys`), so that rows are
independent. Nothing depends on a row's position, on chunks or on threads.
"""

from __future__ import annotations

from functools import cache, lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from knothole._core import sobol as core
from knothole.arrays import Floats, Words

#: As in ``core/sobol.hpp``: draws in a word, independent groups, points of a group in a word.
WORD = 64
GROUPS = 8
SIZE = WORD // GROUPS
#: Words after which a group's sequence ends; later words begin new sequences.
WORDS = 256
# Later coordinates use random bits: with so few points, a net would be no better there.
NET_COORDINATES = 1024
# The direction numbers of Joe and Kuo (2008), for this many coordinates and 2**11 points, as odd
# integers: the k-th has k bits.
_DIRECTIONS = Path(__file__).with_name("joe_kuo.npy")
_BITS = 32


class Points:
    """The points of draws with this many coordinates.

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
        """Give the first coordinates of the sequence, which cover the cube best, the largest
        weight.

        Only for points that all rows share: with keys per row, errors cancel in sums.

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

        The numbers of a coordinate are adjacent in memory. Words must be of one run of
        :data:`WORDS`; the next run has another seed. Shared points are arranged.
        """
        run, first = divmod(words.start, WORDS)
        net = sobol_net(min(self.coordinates, NET_COORDINATES))[first : first + len(words)]
        if self.order is not None and keys is COMMON:
            net = np.ascontiguousarray(net[:, self.order])
        out = np.empty((len(keys), self.coordinates, WORD * len(words)))
        core.fill_uniform(net, int(hashed_seed(self.seed, run)), keys, words.start, out)
        return out.transpose(0, 2, 1)


#: The key that all rows of predictions share.
COMMON = np.zeros(1, dtype=np.uint64)


@cache
def sobol_net(coordinates: int) -> NDArray[np.uint32]:
    """A linearly scrambled Sobol sequence, (words, coordinates, points of a group in a word).

    Equal to the points of ``scipy.stats.qmc.Sobol(coordinates, bits=32,
    rng=np.random.default_rng(0))``, without importing it, which takes longer than most
    predictions. Matousek (1998): a random lower triangular matrix of bits times each direction
    number, and a random shift of all points.
    """
    rng = np.random.default_rng(np.random.SeedSequence(0, spawn_key=(0,)))
    places = np.arange(_BITS, dtype=np.uint32)
    shift = rng.integers(2, size=(coordinates, _BITS), dtype=np.uint32) @ (1 << places)
    matrix = np.tril(rng.integers(2, size=(coordinates, _BITS, _BITS), dtype=np.uint32))
    matrix[:, places, places] = 1
    numbers = np.load(_DIRECTIONS)[:coordinates].astype(np.uint32)
    numbers <<= _BITS - 1 - np.arange(numbers.shape[1], dtype=np.uint32)
    # Bits, highest first, (coordinates, bits, direction numbers).
    bits = (numbers[:, None] >> places[::-1, None]) & 1
    scrambled = ((matrix @ bits) & 1) << places[::-1, None]
    directions = scrambled.sum(axis=1, dtype=np.uint32).T
    # In Gray code order, the second half of 2**k points is the first half reversed and shifted.
    points = shift[None].astype(np.uint32)
    for direction in directions:
        points = np.concatenate([points, points[::-1] ^ direction])
    return np.ascontiguousarray(points.reshape(WORDS, SIZE, coordinates).transpose(0, 2, 1))


@lru_cache
def hashed_seed(seed: int, run: int) -> np.uint64:
    """A seed mixed into a random state."""
    return np.uint64(np.random.SeedSequence([seed, run]).generate_state(1, np.uint64)[0])


def row_keys(points: Floats, allowed: Words | None = None) -> Words:
    """A hash of each row's evidence: its points, and the sets that restrict it, (rows,)."""
    # -0.0 and 0.0 are the same value, and so are all kinds of NaN.
    plain = np.where(np.isnan(points), np.nan, points + 0.0)
    parts = [np.ascontiguousarray(plain).view(np.uint64)]
    if allowed is not None:
        parts.append(allowed)
    out = np.empty(len(points), dtype=np.uint64)
    core.fill_keys(np.ascontiguousarray(np.hstack(parts)), out)
    return out
