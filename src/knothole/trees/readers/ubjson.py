"""Universal Binary JSON, the part of it that XGBoost writes.

Whatever a file declares is bounded by the bytes that are there: lengths by what remains, depth
by :data:`MAX_DEPTH`. A typed array becomes a numpy view into the buffer, big-endian as stored;
views of a ``bytearray`` are writable, so that a document can be edited in place.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from knothole.errors import DamagedFile

MAX_DEPTH = 64

_NUMBERS = {
    marker: struct.Struct(f">{form}") for marker, form in zip(b"iUIlLdD", "bBhiqfd", strict=True)
}
_DTYPES: dict[int, np.dtype[Any]] = {
    marker: np.dtype(number.format) for marker, number in _NUMBERS.items()
}
_LENGTHS = frozenset(b"iUIlL")
_CONSTANTS = {ord("Z"): None, ord("T"): True, ord("F"): False}
_ARRAY, _END_ARRAY, _OBJECT, _END_OBJECT = b"[]{}"
_STRING, _TYPE, _COUNT = b"S$#"


def parse(data: bytes | bytearray) -> Any:
    r"""The document in ``data``: dicts, lists, strings, numbers and arrays.

    >>> parse(b"{i\x01a[$l#i\x02" + bytes([0, 0, 0, 1, 0, 0, 0, 2]) + b"}")
    {'a': array([1, 2], dtype='>i4')}
    """
    parser = _Parser(data)
    try:
        document = parser.value(parser.byte(), 0)
    except (IndexError, struct.error) as error:
        raise DamagedFile(f"UBJSON: the file ends in the middle of a value ({error})") from error
    if parser.position != len(data):
        raise DamagedFile(f"UBJSON: {len(data) - parser.position} bytes after the document's end")
    return document


class _Parser:
    def __init__(self, data: bytes | bytearray) -> None:
        self.data = data
        self.position = 0

    def byte(self) -> int:
        byte = self.data[self.position]
        self.position += 1
        return byte

    def value(self, marker: int, depth: int) -> Any:
        if marker in _NUMBERS:
            return self.number(marker)
        if marker == _STRING:
            return self.string(self.byte())
        if depth >= MAX_DEPTH:
            raise DamagedFile(f"UBJSON: nested deeper than {MAX_DEPTH} levels")
        if marker == _OBJECT:
            return self.object(depth + 1)
        if marker == _ARRAY:
            return self.array(depth + 1)
        if marker in _CONSTANTS:
            return _CONSTANTS[marker]
        raise DamagedFile(f"UBJSON: no value begins with {self._where(marker)}")

    def number(self, marker: int) -> Any:
        number = _NUMBERS[marker]
        (value,) = number.unpack_from(self.data, self.position)
        self.position += number.size
        return value

    def length(self, marker: int, item_size: int = 1) -> int:
        """A declared number of items; refused if the rest of the file cannot hold them."""
        if marker not in _LENGTHS:
            raise DamagedFile(f"UBJSON: expected a length, found {self._where(marker)}")
        length = int(self.number(marker))
        remaining = len(self.data) - self.position
        if not 0 <= length * item_size <= remaining:
            raise DamagedFile(
                f"UBJSON: {length} items of {item_size} bytes declared at byte {self.position}, "
                f"but {remaining} bytes remain"
            )
        return length

    def string(self, marker: int) -> str:
        length = self.length(marker)
        start = self.position
        self.position += length
        return self.data[start : self.position].decode("utf-8")

    def object(self, depth: int) -> dict[str, Any]:
        content: dict[str, Any] = {}
        while (marker := self.byte()) != _END_OBJECT:
            key = self.string(marker)
            if key in content:
                raise DamagedFile(f"UBJSON: the key {key!r} comes twice in one object")
            content[key] = self.value(self.byte(), depth)
        return content

    def array(self, depth: int) -> Any:
        marker = self.byte()
        if marker == _TYPE:
            return self.typed_array()
        if marker == _COUNT:
            count = self.length(self.byte())
            return [self.value(self.byte(), depth) for _ in range(count)]
        content = []
        while marker != _END_ARRAY:
            content.append(self.value(marker, depth))
            marker = self.byte()
        return content

    def typed_array(self) -> Any:
        kind = self.byte()
        if kind not in _DTYPES or self.byte() != _COUNT:
            raise DamagedFile(f"UBJSON: not an array of numbers: {self._where(kind)}")
        dtype = _DTYPES[kind]
        count = self.length(self.byte(), dtype.itemsize)
        array = np.frombuffer(self.data, dtype, count, self.position)
        self.position += array.nbytes
        return array

    def _where(self, marker: int) -> str:
        return f"{bytes([marker])!r} at byte {self.position - 1}"
