"""Large objects on disk, in temporary files without a name.

The space is freed when nothing refers to an object any more, and when the process ends for whatever
reason.
"""

from __future__ import annotations

import mmap
import pickle
import shutil
import tempfile
import threading
import weakref
from itertools import accumulate
from typing import Any, ClassVar

# Fraction of a disk's free space that may be used.
SHARE = 0.5
# Alignment of arrays in the file, in bytes.
ALIGNED = 64


def place(dask_worker: Any = None) -> str:
    """The directory for files: a Dask worker's own, or that for temporary files.

    Dask passes the worker to functions run on it outside of its tasks.
    """
    try:
        from distributed import get_worker

        return str((dask_worker or get_worker()).local_directory)
    except (ImportError, ValueError):
        return tempfile.gettempdir()


def _up(number: int, step: int) -> int:
    """The next multiple of ``step``."""
    return -(-number // step) * step


def room(dask_worker: Any = None) -> float:
    """Bytes that may be written; 0 where writing is impossible."""
    try:
        where = place(dask_worker)
        with tempfile.TemporaryFile(dir=where):
            return SHARE * shutil.disk_usage(where).free
    except OSError:
        return 0.0


class SpillFile:
    """The file of this process for all objects of one name."""

    _open: ClassVar[weakref.WeakValueDictionary[str, SpillFile]] = weakref.WeakValueDictionary()
    _opening = threading.Lock()

    def __init__(self) -> None:
        self.file = tempfile.TemporaryFile(dir=place(), buffering=0)  # noqa: SIM115
        weakref.finalize(self, self.file.close)
        self._end = 0
        self._free: list[tuple[int, int]] = []  # size and position of freed space
        self._lock = threading.RLock()  # a finalizer may run at any time

    @classmethod
    def called(cls, name: str) -> SpillFile:
        """The file of this name in the current process."""
        with cls._opening:
            return cls._open.get(name) or cls._open.setdefault(name, cls())

    def put(self, pieces: list[Any], starts: list[int], size: int) -> int:
        """Write pieces at these offsets from a common start; returns the start."""
        with self._lock:
            fits = [one for one in self._free if one[0] == size]
            if fits:
                self._free.remove(fits[0])
            start = fits[0][1] if fits else self._end
            self._end = max(self._end, start + size)
            self.file.truncate(self._end)
            for piece, at in zip(pieces, starts, strict=True):
                self.file.seek(start + at)
                rest = memoryview(piece).cast("B")
                while rest:
                    rest = rest[self.file.write(rest) :]
        return start

    def free(self, size: int, start: int) -> None:
        """Mark space as free."""
        with self._lock:
            self._free.append((size, start))


class _Mapped(mmap.mmap):
    """A mapped part of a file; it is freed when no array refers to it any more."""

    spilled: Spilled


class Spilled:
    """An object on disk, in the file of a name. Pickling it pickles the object itself."""

    def __init__(self, name: str, what: Any) -> None:
        arrays: list[pickle.PickleBuffer] = []
        head = pickle.dumps(what, protocol=5, buffer_callback=arrays.append)
        pieces = [head, *(array.raw() for array in arrays)]
        self._lengths = [len(piece) for piece in pieces]
        *self._starts, end = accumulate((_up(n, ALIGNED) for n in self._lengths), initial=0)
        size = _up(end, mmap.ALLOCATIONGRANULARITY)
        self._name, self._store = name, SpillFile.called(name)
        self._place = size, self._store.put(pieces, self._starts, size)
        weakref.finalize(self, self._store.free, *self._place)

    def read(self) -> Any:
        """The object, with memory-mapped arrays: they use memory only while they exist."""
        size, start = self._place
        mapped = _Mapped(self._store.file.fileno(), size, access=mmap.ACCESS_COPY, offset=start)
        mapped.spilled, view = self, memoryview(mapped)
        spans = zip(self._starts, self._lengths, strict=True)
        head, *arrays = (view[at : at + length] for at, length in spans)
        return pickle.loads(head, buffers=arrays)

    def __reduce__(self) -> tuple[type[Spilled], tuple[str, Any]]:
        return Spilled, (self._name, self.read())
