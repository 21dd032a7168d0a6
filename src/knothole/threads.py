"""Threads around kernels, and memory that threads must not share.

Kernels release the interpreter lock, so a thread pool over chunks of rows is enough. A chunk's
result never depends on which thread computed it or on how many threads there are.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import joined
from knothole.errors import InvalidInput

T = TypeVar("T")

# What Python says where a limit of memory or of processes allows no further thread.
NO_THREAD = "can't start new thread"


class Memory(threading.local):
    """Reusable working memory, separate for every thread; empty after unpickling."""

    def once(self, make: Callable[[], T]) -> T:
        """Per-thread cache of ``make()``."""
        name = make.__name__
        if name not in self.__dict__:
            self.__dict__[name] = make()
        found: T = self.__dict__[name]
        return found

    def array(self, name: str, shape: tuple[int, ...], dtype: Any = np.float64) -> NDArray[Any]:
        """An uninitialised array; the thread's previous array of this name is reused.

        Fresh memory takes time, most of all in a Dask worker, which returns freed memory at once.
        """
        size, own = math.prod(shape), self.__dict__.get(name)
        if own is None or own.dtype != dtype or len(own) < size:
            own = self.__dict__[name] = np.empty(size, dtype)
        found: NDArray[Any] = own[:size].reshape(shape)
        return found

    def __reduce__(self) -> tuple[type[Memory], tuple[()]]:
        return Memory, ()


def thread_count(threads: int | None = None) -> int:
    """Threads to use: the argument, else ``KNOTHOLE_THREADS``, else the cores available."""
    if threads is not None:
        return max(1, _whole("threads", threads))
    setting = os.environ.get("KNOTHOLE_THREADS")
    if setting:
        return max(1, _whole("KNOTHOLE_THREADS", setting))
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _whole(name: str, value: Any) -> int:
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidInput(f"{name} must be a whole number of threads; got {value!r}.") from error


class _Inside(threading.local):
    """Whether this thread runs a part of some work: then nested calls must not start threads."""

    alone = False


_inside = _Inside()


def over_chunks(
    work: Callable[[int, int], Any], n_rows: int, size: int, threads: int | None = None
) -> list[Any]:
    """Call ``work(start, stop)`` for consecutive chunks of rows; results in order of the chunks."""
    bounds = [(start, min(start + size, n_rows)) for start in range(0, n_rows, size)]
    many = len(bounds) > 1 and not _inside.alone
    workers = min(thread_count(threads), len(bounds)) if many else 1
    alone = _inside.alone or workers > 1 or threads == 1

    def one(bound: tuple[int, int]) -> Any:
        before, _inside.alone = _inside.alone, alone
        try:
            return work(*bound)
        finally:
            _inside.alone = before

    if workers <= 1:
        return [one(bound) for bound in bounds]
    try:
        with ThreadPoolExecutor(workers) as pool:
            return list(pool.map(one, bounds))
    except RuntimeError as error:
        if str(error) != NO_THREAD:
            raise
        raise MemoryError(
            f"{error}: {workers} were asked for, and a limit of memory or processes allows fewer."
        ) from error


def even_size(n_rows: int, size: int, threads: int | None = None) -> int:
    """The chunk size, at most ``size`` rows, that gives all threads equally much to do.

    Examples
    --------
    >>> even_size(10_000, 4096, threads=2), even_size(500, 4096, threads=2)
    (2500, 500)
    """
    chunks = max(1, -(-n_rows // size))
    if chunks > 1:
        workers = thread_count(threads)
        chunks = -(-chunks // workers) * workers
    return max(1, -(-n_rows // chunks))


def summed(
    work: Callable[[int, int], T], n_rows: int, blocks: tuple[int, int], threads: int | None = None
) -> T:
    """The sum of the records (:func:`~knothole.arrays.joined`) of ``work`` for blocks of rows.

    ``blocks``: the least number of rows in a block, and the largest number of blocks. Blocks and
    the order of the sum are the same for any number of threads, and so is every bit of the result.
    """
    least, most = blocks
    parts = over_chunks(work, n_rows, max(least, -(-n_rows // most)), threads)
    total: T = reduce(joined, parts)
    return total


def threads_of(n_jobs: int | None) -> int | None:
    """Number of threads for ``n_jobs``, as scikit-learn defines it; None for the default.

    >>> threads_of(2), threads_of(None), threads_of(-1) == thread_count()
    (2, None, True)
    """
    if n_jobs is None:
        return None
    if not isinstance(n_jobs, int | np.integer) or n_jobs == 0:
        raise InvalidInput(
            f"n_jobs must be a whole number, -1 for all cores, or None; got {n_jobs!r}."
        )
    return int(n_jobs) if n_jobs > 0 else max(1, thread_count() + 1 + int(n_jobs))
