"""One way to run kernels on several threads, and what threads must not share.

Kernels release the interpreter lock (:mod:`knothole.compiled.policy`), so parallelism is a thread
pool over blocks of rows around them. A block's result never depends on which thread computed it or
on how many there are.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")


class made_once(Generic[T]):
    """A property that is made when it is first read, by one thread while others wait.

    It is an entry of the instance's ``__dict__`` from then on, under its own name.

    Examples
    --------
    >>> class Square:
    ...     @made_once
    ...     def area(self):
    ...         print("made")
    ...         return 4.0
    >>> square = Square()
    >>> square.area + square.area
    made
    8.0
    """

    def __init__(self, make: Callable[[Any], T]) -> None:
        self.make = make
        self.name = make.__name__
        self.__doc__ = make.__doc__
        self._lock = threading.RLock()

    @overload
    def __get__(self, instance: None, owner: type) -> made_once[T]: ...

    @overload
    def __get__(self, instance: object, owner: type) -> T: ...

    def __get__(self, instance: object | None, owner: type) -> made_once[T] | T:
        if instance is None:
            return self
        made = instance.__dict__
        with self._lock:
            if self.name not in made:
                made[self.name] = self.make(instance)
        found: T = made[self.name]
        return found


class Memory(threading.local):
    """Working memory to use again: every thread has its own, and pickles have none."""

    def once(self, make: Callable[[], T]) -> T:
        """What a function gave when this thread first asked for what it gives."""
        name = make.__name__
        if name not in self.__dict__:
            self.__dict__[name] = make()
        found: T = self.__dict__[name]
        return found

    def __reduce__(self) -> tuple[type[Memory], tuple[()]]:
        return Memory, ()


def thread_count(threads: int | None = None) -> int:
    """Threads to use: the argument, else ``KNOTHOLE_THREADS``, else the cores we may run on."""
    if threads is not None:
        return max(1, int(threads))
    setting = os.environ.get("KNOTHOLE_THREADS")
    if setting:
        return max(1, int(setting))
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def over_blocks(
    work: Callable[[int, int], Any], n_rows: int, block: int, threads: int | None = None
) -> list[Any]:
    """Call ``work(start, stop)`` for consecutive blocks of rows; results in the blocks' order."""
    bounds = [(start, min(start + block, n_rows)) for start in range(0, n_rows, block)]
    workers = min(thread_count(threads), len(bounds))
    if workers <= 1:
        return [work(start, stop) for start, stop in bounds]
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(lambda bound: work(*bound), bounds))
