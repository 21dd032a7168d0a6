"""One way to run kernels on several threads, and what threads must not share.

Kernels release the interpreter lock, so parallelism is a thread pool over chunks of rows around
them. A chunk's result never depends on which thread computed it or on how many there are.
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
    """Working memory to use again: every thread has its own, and pickles have none."""

    def once(self, make: Callable[[], T]) -> T:
        """What a function gave when this thread first asked for what it gives."""
        name = make.__name__
        if name not in self.__dict__:
            self.__dict__[name] = make()
        found: T = self.__dict__[name]
        return found

    def array(self, name: str, shape: tuple[int, ...], dtype: Any = np.float64) -> NDArray[Any]:
        """An array with anything in it, this thread's until it asks for one of the name again.

        Fresh memory takes time, most of all where a worker of Dask gives it back at once.
        """
        size, own = math.prod(shape), self.__dict__.get(name)
        if own is None or own.dtype != dtype or len(own) < size:
            own = self.__dict__[name] = np.empty(size, dtype)
        found: NDArray[Any] = own[:size].reshape(shape)
        return found

    def __reduce__(self) -> tuple[type[Memory], tuple[()]]:
        return Memory, ()


def thread_count(threads: int | None = None) -> int:
    """Threads to use: the argument, else ``KNOTHOLE_THREADS``, else the cores we may run on."""
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
    """Whether this thread does a part of some work: what it calls must not start threads."""

    alone = False


_inside = _Inside()


def over_chunks(
    work: Callable[[int, int], Any], n_rows: int, size: int, threads: int | None = None
) -> list[Any]:
    """Call ``work(start, stop)`` for consecutive chunks of rows; results in the chunks' order."""
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
    """At most ``size`` rows a chunk, so that all threads have as much to do.

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
    """The sum of records (:func:`~knothole.arrays.joined`) that ``work`` has of blocks of rows.

    ``blocks`` are how many rows each has at least, and how many blocks there are at most: they and
    the order of their sum are the same for any number of threads, so the bits are.
    """
    least, most = blocks
    parts = over_chunks(work, n_rows, max(least, -(-n_rows // most)), threads)
    total: T = reduce(joined, parts)
    return total


def threads_of(n_jobs: int | None) -> int | None:
    """Threads that ``n_jobs`` stands for, counted as scikit-learn does; None for the default.

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
