"""One policy for compiled kernels.

Kernels take plain arrays, allocate nothing, validate nothing and write into a caller's ``out``.
They release the interpreter lock, so that several threads (:mod:`knothole.compiled.threads`) can
be in them at once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
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
