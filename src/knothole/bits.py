"""Sets of codes as bits, in words of 64.

The set of a variable with ``n`` levels has ``n // 64 + 1`` words. Bit ``c % 64`` of word
``c // 64`` stands for code ``c``; bit ``n`` for all categories never seen. Sets are stored one
after the other in one array, so a set is given by an array and the position of its first word.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Ints, Mask, Words


def set_words(n_levels: Any) -> Any:
    """Number of words in a set of a variable with ``n_levels`` levels.

    Examples
    --------
    >>> [set_words(n) for n in (2, 63, 64)]
    [1, 1, 2]
    """
    return n_levels // 64 + 1


def word_offsets(n_levels: Ints) -> Ints:
    """The first word of each variable's set when they are stored in a row, and the end.

    A variable without levels is numeric and has no words.

    Examples
    --------
    >>> word_offsets(np.array([3, 0, 70])).tolist()
    [0, 1, 1, 3]
    """
    words = np.where(n_levels > 0, n_levels // 64 + 1, 0)
    return np.concatenate([[0], np.cumsum(words)]).astype(np.int64)


def starts(counts: Ints) -> Ints:
    """Start positions of consecutive runs, given their lengths."""
    return np.asarray(np.cumsum(counts) - counts)


def pack(n_levels: Ints, owner: Ints, code: Ints) -> tuple[Ints, Words]:
    """Pack sets given by their members: the first word of each set, and the words of all.

    Parameters
    ----------
    n_levels : int64 (sets,)
        Number of categories of each set's column.
    owner, code : int64 (members,)
        Category ``code[i]`` is in set ``owner[i]``.

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
    """Complements of sets, given with the number of categories of each.

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
    """Whether the set at the start of these words has each category and, last, an unseen one."""
    found: Mask = unpack(words[None, : set_words(n_levels)], n_levels + 1)[0]
    return found


def unpack(words: Words, n_levels: int) -> Mask:
    """Sets (sets, words) as booleans, (sets, levels).

    Examples
    --------
    >>> unpack(np.array([[5]], dtype=np.uint64), 3).tolist()
    [[True, False, True]]
    """
    as_bytes = np.ascontiguousarray(words).view(np.uint8)
    return np.unpackbits(as_bytes, axis=1, bitorder="little")[:, :n_levels].astype(np.bool_)


def unpack_at(words: Words, start: NDArray[Any], n_levels: int) -> Mask:
    """The sets that begin at ``start`` in an array of words, (sets, levels)."""
    return unpack(words[start[:, None] + np.arange(set_words(n_levels))], n_levels)
