"""The hash that CatBoost stores categories by: the lower half of their text's CityHash64."""

from __future__ import annotations

from collections.abc import Hashable
from numbers import Integral

import numpy as np

from knothole.errors import InvalidInput

MASK = 2**64 - 1
# Constants of CityHash64 and of its mixing function.
K0, K1, K2, K3 = 0xC3A5C85C97CB3127, 0xB492B66FBE98F273, 0x9AE16A3B2F90404F, 0xC949D7C7509E6557
MIX = 0x9DDFEA08EB382D69


def hash_of(value: Hashable) -> int:
    """CatBoost's hash of a category: a string, bytes, or a whole number (a bool is 0 or 1).

    Examples
    --------
    >>> hash_of("x"), hash_of(3) == hash_of("3")
    (3510494104, True)
    """
    if isinstance(value, (Integral, np.bool_)):
        value = str(int(value))
    if isinstance(value, str):
        value = value.encode("utf-8")
    if not isinstance(value, bytes):
        raise InvalidInput(
            f"catboost takes strings and whole numbers as categories; got {value!r}. Convert the "
            f"column to strings the way it was done for training."
        )
    return _city_hash(value) & 0xFFFFFFFF


def text_for(hash_value: int) -> bytes:
    """A text with this hash, which the model cannot tell from the category's real name."""
    tail = int.from_bytes(b"knothole", "little")
    mixed = _rotate(tail + 16, 16)
    head = _unmix(hash_value ^ tail, mixed)
    return head.to_bytes(8, "little") + b"knothole"


def _rotate(x: int, by: int) -> int:
    x &= MASK
    return (x >> by) | (x << (64 - by)) & MASK


def _shift_mix(x: int) -> int:
    return x ^ (x >> 47)


def _mix(u: int, v: int) -> int:
    """CityHash's mixing function of two words."""
    a = _shift_mix((u ^ v) * MIX & MASK)
    return _shift_mix((v ^ a) * MIX & MASK) * MIX & MASK


def _unmix(mixed: int, v: int) -> int:
    """The word ``u`` for which ``_mix(u, v)`` is ``mixed``; ``_shift_mix`` undoes itself."""
    inverse = pow(MIX, -1, 2**64)
    a = (_shift_mix(mixed * inverse & MASK) * inverse & MASK) ^ v
    return (_shift_mix(a) * inverse & MASK) ^ v


def _city_hash(text: bytes) -> int:
    """CityHash64 in its first version, which CatBoost uses."""
    n = len(text)
    if n == 0:
        return K2
    if n < 4:
        y = text[0] + (text[n >> 1] << 8)
        z = n + (text[-1] << 2)
        return _shift_mix((y * K2 ^ z * K3) & MASK) * K2 & MASK
    if n <= 8:
        return _mix(n + (_word(text, 0, 4) << 3), _word(text, n - 4, 4))
    if n <= 16:
        last = _word(text, n - 8)
        return _mix(_word(text, 0), _rotate(last + n, n)) ^ last
    if n <= 32:
        a, b = _word(text, 0) * K1, _word(text, 8)
        c, d = _word(text, n - 8) * K2, _word(text, n - 16) * K0
        mixed = (a + _rotate(b ^ K3, 20) - c + n) & MASK
        return _mix((_rotate(a - b, 43) + _rotate(c, 30) + d) & MASK, mixed)
    return _city_hash_33_to_64(text) if n <= 64 else _city_hash_long(text)


def _word(text: bytes, at: int, size: int = 8) -> int:
    return int.from_bytes(text[at : at + size], "little")


def _city_hash_33_to_64(text: bytes) -> int:
    n = len(text)

    def half(a: int, first: int, last: int) -> tuple[int, int]:
        z = _word(text, last)
        b, c = _rotate(a + z, 52), _rotate(a, 37)
        a += _word(text, first)
        c += _rotate(a, 7)
        a += _word(text, first + 8)
        return a + z, b + _rotate(a, 31) + c

    v, w = half(_word(text, 0) + (n + _word(text, n - 16)) * K0, 8, 24)
    x, y = half(_word(text, 16) + _word(text, n - 32), n - 24, n - 8)
    r = _shift_mix(((v + y) * K2 + (x + w) * K0) & MASK)
    return _shift_mix((r * K0 + w) & MASK) * K2 & MASK


def _city_hash_long(text: bytes) -> int:
    n = len(text)

    def weak(at: int, a: int, b: int) -> tuple[int, int]:
        a += _word(text, at)
        last = _word(text, at + 24)
        b = _rotate(b + a + last, 21)
        c = a
        a += _word(text, at + 8) + _word(text, at + 16)
        return (a + last) & MASK, (b + _rotate(a, 44) + c) & MASK

    x, y, z = _word(text, 0), _word(text, n - 16) ^ K1, _word(text, n - 56) ^ K0
    v = weak(n - 64, n, y)
    w = weak(n - 32, n * K1, K0)
    z = (z + _shift_mix(v[1]) * K1) & MASK
    x = _rotate(z + x, 39) * K1 & MASK
    y = _rotate(y, 33) * K1 & MASK
    for at in range(0, (n - 1) & ~63, 64):
        x = _rotate(x + y + v[0] + _word(text, at + 16), 37) * K1 & MASK
        y = _rotate(y + v[1] + _word(text, at + 48), 42) * K1 & MASK
        x ^= w[1]
        y ^= v[0]
        z = _rotate(z ^ w[0], 33)
        v = weak(at, v[1] * K1, x + w[0])
        w = weak(at + 32, z + w[1], y)
        z, x = x, z
    first = (_mix(v[0], w[0]) + _shift_mix(y) * K1 + z) & MASK
    return _mix(first, (_mix(v[1], w[1]) + x) & MASK)
