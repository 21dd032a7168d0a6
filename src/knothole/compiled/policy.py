"""One policy for compiled kernels, and one way to run them on several threads.

Kernels take plain arrays, allocate nothing, validate nothing and write into a caller's ``out``.
They release the interpreter lock, so parallelism is a thread pool over blocks of rows around
them. A block's result never depends on which thread computed it or on how many there are.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numba
from numba.core.caching import FunctionCache, IndexDataCacheFile
from numba.core.dispatcher import Dispatcher

# Not ``fastmath=True``: that includes "nnan" and "ninf", which delete tests for NaN.
FASTMATH = {"reassoc", "contract", "arcp", "nsz"}

#: The policy itself, for what is compiled in other ways (``numba.extending.overload``).
OPTIONS = {
    "nogil": True,
    "fastmath": FASTMATH,
    "error_model": "numpy",
    # Both make the first call of a fresh installation shorter. Kernels allocate nothing, so that
    # no references to arrays need counting (one that does allocate is refused when it is
    # compiled), and nothing but Python and other kernels calls them.
    "_nrt": False,
    "no_cfunc_wrapper": True,
}


def njit(function: Callable[..., Any]) -> Any:
    """Compile a kernel: cached on disk, without the interpreter lock, safe for NaN."""
    return _cached(numba.njit(**OPTIONS)(function))


def inlined(function: Callable[..., Any]) -> Any:
    """Compile a small function into the kernels that call it.

    The compiler puts its machine code there. (numba's own ``inline="always"`` copies the source
    instead, and then counts references to every array once more.)
    """
    return _cached(numba.njit(forceinline=True, **OPTIONS)(function))


class _Cache(FunctionCache):
    """numba's cache on disk, for kernels that call those of other files.

    Their code is compiled into the kernel, but numba looks for changes only in the kernel's own
    file: after an upgrade it would go on with what the others used to be.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        folder = Path(function.__code__.co_filename).parent
        package = Path(__file__).parent.parent
        root = package if folder.is_relative_to(package) else folder
        stamps = (self._impl.locator.get_source_stamp(), _kernels_below(root))
        self._cache_file = IndexDataCacheFile(self._cache_path, self._impl.filename_base, stamps)


def _cached(dispatcher: Any) -> Any:
    """Let a compiled function be kept on disk (where NUMBA_DISABLE_JIT has left it compiled)."""
    if isinstance(dispatcher, Dispatcher):
        dispatcher._cache = _Cache(dispatcher.py_func)  # type: ignore[attr-defined]
    return dispatcher


@cache
def _kernels_below(root: Path) -> str:
    """A hash of the policy, and of the files below a folder that have kernels."""
    digest = hashlib.sha256(Path(__file__).read_bytes())
    for path in sorted(root.rglob("*.py")):
        source = path.read_bytes()
        if b"knothole.compiled.policy" in source:
            digest.update(source)
    return digest.hexdigest()


class Memory(threading.local):
    """Working memory to use again: every thread has its own, and copies and pickles have none."""

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
