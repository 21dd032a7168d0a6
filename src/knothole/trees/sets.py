"""Sets of categories as bits of 64-bit words.

Bit ``c`` of a set stands for category ``c`` of the column that it is about, bit ``n_levels`` for
every category that the model has never seen.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Ints, Mask, Words


def starts(counts: Ints) -> Ints:
    """Where each of some runs begins that follow one another, given their lengths."""
    return np.asarray(np.cumsum(counts) - counts)


def set_words(n_levels: Any) -> Any:
    """How many words the set of a split on a column with ``n_levels`` categories has."""
    return n_levels // 64 + 1


def pack(n_levels: Ints, owner: Ints, code: Ints) -> tuple[Ints, Words]:
    """Sets by their members: the first word of each set, and the words of all.

    Parameters
    ----------
    n_levels : int64 (sets,)
        Number of categories of the column that each set is about.
    owner, code : int64 (members,)
        Set ``owner[i]`` has category ``code[i]``.

    Examples
    --------
    >>> start, words = pack(np.array([2, 70]), np.array([0, 1, 1]), np.array([1, 0, 70]))
    >>> start.tolist(), [f"{word:b}" for word in words]
    ([0, 1], ['10', '1', '1000000'])
    """
    n_words = set_words(n_levels)
    start = starts(n_words)
    words = np.zeros(int(n_words.sum()), dtype=np.uint64)
    bit = np.uint64(1) << (code % 64).astype(np.uint64)
    np.bitwise_or.at(words, start[owner] + code // 64, bit)
    return start, words


def complement(n_levels: NDArray[Any], words: Words) -> Words:
    """Sets, given with the numbers of categories they are about, of all that is not in them.

    Examples
    --------
    >>> complement(np.array([2]), np.array([0b010], dtype=np.uint64)).tolist()
    [5]
    """
    others = ~words
    last = np.cumsum(set_words(n_levels)) - 1
    others[last] &= ~np.uint64(0) >> (63 - n_levels % 64).astype(np.uint64)
    return others


def members(words: Words, n_levels: int) -> Mask:
    """Whether each category, and last one never seen, is in the set that begins these words."""
    bits = np.unpackbits(words[: set_words(n_levels)].view(np.uint8), bitorder="little")
    return bits[: n_levels + 1].astype(np.bool_)
