"""Names for array types, and small helpers for arrays and records of arrays."""

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

# Bytes in a cache line.
_CACHE_LINE = 64


def aligned(*shape: int) -> Floats:
    """Zeros aligned to a cache line: vector loads across two lines are slower.

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
    """Combine two tuples or dataclasses of numbers and arrays, nested or not, entry by entry.

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


# Components or states that the core's loops process at once.
AT_ONCE = 4


def padded(array: Floats, axes: int = 1) -> Floats:
    """An aligned copy with zeros appended to the last axes, up to a multiple of four.

    Examples
    --------
    >>> padded(np.ones(3)).tolist()
    [1.0, 1.0, 1.0, 0.0]
    """
    first = array.ndim - axes
    out = aligned(*array.shape[:first], *(size + -size % AT_ONCE for size in array.shape[first:]))
    out[tuple(map(slice, array.shape))] = array
    return out
