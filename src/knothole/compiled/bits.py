"""Sets of codes as bits, in words of 64.

The set of a variable with ``n`` levels has ``n // 64 + 1`` words. Bit ``c % 64`` of word
``c // 64`` stands for code ``c``; bit ``n`` for every category that was never seen. Sets stand one
after the other in one array, so a set is an array and the position of its first word.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from knothole.arrays import Ints, Mask, Words
from knothole.compiled.policy import inlined


def set_words(n_levels: int) -> int:
    """Words of the set of a variable with ``n_levels`` levels.

    Examples
    --------
    >>> [set_words(n) for n in (2, 63, 64)]
    [1, 1, 2]
    """
    return n_levels // 64 + 1


def word_offsets(n_levels: Ints) -> Ints:
    """First word of each variable's set where they stand in a row, and the end.

    A variable without levels is numeric and has no words.

    Examples
    --------
    >>> word_offsets(np.array([3, 0, 70])).tolist()
    [0, 1, 1, 3]
    """
    words = np.where(n_levels > 0, n_levels // 64 + 1, 0)
    return np.concatenate([[0], np.cumsum(words)]).astype(np.int64)


def pack(bits: NDArray[Any]) -> Words:
    """The words of a set, from one bit a level and a last one for unseen categories.

    Examples
    --------
    >>> pack(np.array([1, 0, 1, 0])).tolist()
    [5]
    """
    padded = np.zeros(64 * set_words(len(bits) - 1), dtype=np.uint8)
    padded[: len(bits)] = bits
    return np.packbits(padded, bitorder="little").view(np.uint64)


def unpack(words: Words, n_levels: int) -> Mask:
    """Sets (sets, words) as booleans, (sets, levels).

    Examples
    --------
    >>> unpack(np.array([[5]], dtype=np.uint64), 3).tolist()
    [[True, False, True]]
    """
    octets = np.ascontiguousarray(words).view(np.uint8)
    return np.unpackbits(octets, axis=1, bitorder="little")[:, :n_levels].astype(np.bool_)


def unpack_at(words: Words, start: NDArray[Any], n_levels: int) -> Mask:
    """The sets that begin at ``start`` in an array of words, (sets, levels)."""
    return unpack(words[start[:, None] + np.arange(set_words(n_levels))], n_levels)


@inlined
def has(words, start, code):  # type: ignore[no-untyped-def]
    """Whether the set that begins at ``start`` has a code; ``words`` is an array or a pointer."""
    return (words[start + (code >> 6)] >> np.uint64(code & 63)) & np.uint64(1) != 0


@inlined
def put(words, start, code):  # type: ignore[no-untyped-def]
    """Put a code into the set that begins at ``start``."""
    words[start + (code >> 6)] |= np.uint64(1) << np.uint64(code & 63)


@intrinsic
def popcount(typing_context: Any, word: Any) -> Any:
    """Number of bits set in a uint64."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ctpop(args[0])

    return types.uint64(types.uint64), generate


@intrinsic
def lowest_bit(typing_context: Any, word: Any) -> Any:
    """Position of the lowest bit set in a uint64 that is not 0."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.uint64(types.uint64), generate
