"""A strict reader of FlatBuffers tables: every offset is checked, nothing is trusted.

A table starts with the distance to its vtable, which lists where each field lies; vectors, strings
and tables are reached by offsets from their field. Whatever points outside the buffer is refused,
and so is a buffer whose vectors together are far larger than it is (offsets that point at the same
bytes over and over would otherwise let a small file grow without bound).
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from knothole.trees.readers.catboost.forest import strict

# Builders share small tables between parents, so that some bytes are rightly read more than once.
SHARING = 8
TRUNCATED = "the file is truncated or corrupt"


class Buffer:
    """Bytes with a bound on how much may be read from them."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self._budget = SHARING * len(data)

    def number(self, position: int, form: str) -> Any:
        """One number at ``position``, of ``struct`` format ``form``."""
        strict.require(0 <= position <= len(self.data) - struct.calcsize(form), TRUNCATED)
        return struct.unpack_from(form, self.data, position)[0]

    def array(self, position: int, dtype: Any, count: int) -> NDArray[Any]:
        """``count`` numbers from ``position`` on."""
        dtype = np.dtype(dtype)
        size = count * dtype.itemsize
        self._budget -= size
        inside = position >= 0 and count >= 0 and position + size <= len(self.data)
        strict.require(inside and self._budget >= 0, TRUNCATED)
        return np.frombuffer(self.data, dtype, count, position)

    def root(self) -> Table:
        """The table that the buffer is about."""
        return Table(self, self.number(0, "<I"))


class Table:
    """One table; fields are named by their number in the schema, absent ones take the default."""

    def __init__(self, buffer: Buffer, position: int) -> None:
        vtable = position - buffer.number(position, "<i")
        size = buffer.number(vtable, "<H")
        self._buffer = buffer
        self._position = position
        self._fields = buffer.array(vtable + 4, "<u2", (size - 4) // 2)

    def _field(self, slot: int) -> int | None:
        if slot >= len(self._fields) or self._fields[slot] == 0:
            return None
        return self._position + int(self._fields[slot])

    def _target(self, slot: int) -> int | None:
        field = self._field(slot)
        return None if field is None else field + int(self._buffer.number(field, "<I"))

    def number(self, slot: int, form: str, default: Any) -> Any:
        """A scalar field of ``struct`` format ``form``."""
        field = self._field(slot)
        return default if field is None else self._buffer.number(field, form)

    def span(self, slot: int) -> tuple[int, int]:
        """Position of a vector's first element, and how many it has; (0, 0) if it is absent."""
        target = self._target(slot)
        return (0, 0) if target is None else self._span_at(target)

    def vector(self, slot: int, dtype: Any) -> NDArray[Any]:
        """A vector of numbers or structs."""
        start, count = self.span(slot)
        return self._buffer.array(start, dtype, count)

    def string(self, slot: int) -> str:
        """A string, or the empty one."""
        return self.vector(slot, "u1").tobytes().decode("utf-8")

    def table(self, slot: int) -> Table:
        """A table, which must be there."""
        target = self._target(slot)
        if target is None:
            raise strict.damage(TRUNCATED)
        return Table(self._buffer, target)

    def tables(self, slot: int) -> list[Table]:
        """A vector of tables."""
        return [Table(self._buffer, target) for target in self._targets(slot)]

    def strings(self, slot: int) -> list[str]:
        """A vector of strings."""
        spans = [self._span_at(target) for target in self._targets(slot)]
        texts = [self._buffer.array(start, "u1", count) for start, count in spans]
        return [text.tobytes().decode("utf-8") for text in texts]

    def _span_at(self, target: int) -> tuple[int, int]:
        return target + 4, self._buffer.number(target, "<I")

    def _targets(self, slot: int) -> list[int]:
        start, _ = self.span(slot)
        offsets = self.vector(slot, "<u4").tolist()
        return [start + 4 * i + offset for i, offset in enumerate(offsets)]
