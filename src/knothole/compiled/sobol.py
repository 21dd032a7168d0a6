"""Scrambled Sobol points as the randomness of draws, 64 to a word.

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

from knothole._core import sobol as core
from knothole.arrays import Floats, Words

#: As in ``core/sobol.hpp``: draws in a word, independent groups of them, and points of a group in
#: a word.
WORD = 64
GROUPS = 8
SIZE = WORD // GROUPS
#: Words until a group's sequence ends; those after them begin others.
WORDS = 256
# Coordinates beyond these have random bits: nets of so few points are no better there.
NET_COORDINATES = 1024


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
        core.fill_uniform(net, hashed_seed(self.seed, run), keys, words.start, out)
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
    core.fill_keys(np.ascontiguousarray(np.hstack(parts)), out)
    return out
