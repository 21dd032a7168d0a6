"""Names for the arrays that everything here is made of, and records of them added up."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from operator import add
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
Integers = NDArray[np.int32]
Ints = NDArray[np.int64]
Words = NDArray[np.uint64]

# Bytes that are loaded together.
_CACHE_LINE = 64


def aligned(*shape: int) -> Floats:
    """Zeros that begin where a cache line does: vectors that cross lines take longer to load.

    Examples
    --------
    >>> aligned(3, 4).ctypes.data % 64
    0
    """
    size = math.prod(shape)
    room = np.zeros(size + _CACHE_LINE // 8)
    first = -(room.ctypes.data // 8) % (_CACHE_LINE // 8)
    return room[first : first + size].reshape(shape)


def joined(one: Any, other: Any, join: Callable[[Any, Any], Any] = add) -> Any:
    """Two tuples or dataclasses of numbers and arrays, nested or not: what they hold, joined.

    Examples
    --------
    >>> joined((1.0, (2.0, np.array([3.0]))), (10.0, (20.0, np.array([30.0]))))
    (11.0, (22.0, array([33.])))
    """
    if is_dataclass(one) and not isinstance(one, type):
        names = [field.name for field in fields(one)]
        return type(one)(*(joined(getattr(one, n), getattr(other, n), join) for n in names))
    if isinstance(one, tuple):
        parts = [joined(own, new, join) for own, new in zip(one, other, strict=True)]
        return type(one)(*parts) if hasattr(one, "_fields") else tuple(parts)
    return join(one, other)


# Numbers that the core's loops over components and states take at once.
AT_ONCE = 4


def padded(array: Floats, axes: int = 1) -> Floats:
    """An aligned array with zeros added at the end of its last axes, up to a multiple of four.

    Examples
    --------
    >>> padded(np.ones(3)).tolist()
    [1.0, 1.0, 1.0, 0.0]
    """
    first = array.ndim - axes
    out = aligned(*array.shape[:first], *(size + -size % AT_ONCE for size in array.shape[first:]))
    out[tuple(map(slice, array.shape))] = array
    return out
