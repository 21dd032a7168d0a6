"""Compiled kernels on disk: where they are kept, and those that a wheel brings.

A wheel for one kind of processor (``make wheel``) has kernels compiled for it, so that a first call
compiles nothing. They are looked for first, then those that this machine has compiled.
"""

from __future__ import annotations

import hashlib
import os
import sys
import threading
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from llvmlite.binding import get_host_cpu_features
from numba.core import config
from numba.core.caching import (
    CompileResultCacheImpl,
    FunctionCache,
    IndexDataCacheFile,
    NullCache,
)
from numba.core.compiler import CompileResult
from numba.core.dispatcher import Dispatcher

from knothole.compiled.claims import claim, release

#: Kernels of a wheel, which kind of processor they are for, and what such a processor has.
SHIPPED = Path(__file__).parent / "kernels"
PROCESSOR = "x86-64-v3"
FEATURES = {"avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe", "popcnt", "xsave"}

# Where numba keeps kernels: NUMBA_CACHE_DIR, ``__pycache__``, the user's own cache, and others.
_provided, _in_tree, _user_wide, *_others = CompileResultCacheImpl._locator_classes


class _ReadOnly:
    """A folder of kernels that serves even where it may not be written to."""

    def ensure_cache_path(self) -> None:
        """Refuse a folder that is not there and cannot be made."""
        try:
            super().ensure_cache_path()  # type: ignore[misc]
        except OSError:
            if not os.path.isdir(self.get_cache_path()):  # type: ignore[attr-defined]
                raise


class _Provided(_ReadOnly, _provided):  # type: ignore[misc, valid-type]
    """NUMBA_CACHE_DIR: kernels that an image was built with."""


class _Beside(_ReadOnly, _in_tree):  # type: ignore[misc, valid-type]
    """The same beside the package's own files, where no other folder can be written to."""


class _UserWide(_user_wide):  # type: ignore[misc, valid-type]
    """The user's own cache."""

    def ensure_cache_path(self) -> None:
        """Refuse what, without a home, is a folder below the current one: kernels are code."""
        if not os.path.isabs(self.get_cache_path()):
            raise OSError("there is no home directory")
        super().ensure_cache_path()


class _Places(CompileResultCacheImpl):
    _locator_classes = (_Provided, _in_tree, _UserWide, *_others, _Beside)


class _Shipped:
    """A kernel of the wheel, if it brings it, and this processor can run it."""

    _index_key = FunctionCache._index_key

    def __init__(self, function: Callable[..., Any]) -> None:
        self._py_func = function
        self._file = _file(SHIPPED, function) if _runs_shipped() else None

    @property
    def is_there(self) -> bool:
        """Whether the wheel has it."""
        return self._file is not None and os.path.exists(self._file._index_path)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The kernel for these types, or None."""
        if self._file is None:
            return None
        target_context.refresh()
        types, (triple, _, _), code = self._index_key(sig, target_context.codegen())
        found = self._file.load((types, (triple, PROCESSOR, ""), code))
        return found and CompileResult._rebuild(target_context, *found)


class _Cache(FunctionCache):
    """numba's cache on disk, for kernels that call those of other files.

    Their code is compiled into the kernel, but numba looks for changes only in the kernel's own
    file: after an upgrade it would go on with what the others used to be. What is kept is named by
    a hash of them all, so that no process ever takes an old kernel for the new one of that name.

    A cache that cannot be read or written costs time, and is no error.
    """

    _impl_class = _Places

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        self._shipped = _Shipped(function)
        self._cache_file = _file(self._cache_path, function)

    @property
    def is_kept(self) -> bool:
        """Whether the kernel has been compiled before, or cannot be kept."""
        kept = self._shipped.is_there or os.path.exists(self._cache_file._index_path)
        return kept or not os.access(self._cache_path, os.W_OK)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The kernel, unless it has to be compiled: here, or by another process that is at it."""
        try:
            shipped = self._shipped.load_overload(sig, target_context)
            found = shipped or super().load_overload(sig, target_context)
            if found is None:
                claim(self._cache_path, self._claimed(sig))
                found = super().load_overload(sig, target_context)
                if found is not None:
                    release(self._cache_path, self._claimed(sig))
            return found
        except Exception as error:  # there is no end to what unpickling a damaged file may raise
            with suppress(OSError):
                self.flush()
            _warn_once(f"one that was kept cannot be read, {error!r}")
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep a kernel, and none of what it was before."""
        try:
            super().save_overload(sig, data)
            own = _stamp(self._py_func)[:16]
            for name in os.listdir(self._cache_path):
                other = name.startswith(f"{_name(self._py_func)}-") and own not in name
                if other and name.endswith((".nbi", ".nbc")):
                    with suppress(FileNotFoundError):  # another process does the same
                        os.unlink(os.path.join(self._cache_path, name))
        except OSError as error:
            _warn_once(str(error))
        finally:
            release(self._cache_path, self._claimed(sig))

    def _claimed(self, sig: Any) -> str:
        """What all processes call a kernel for these types."""
        return f"{_name(self._py_func)} {sig}"


class _NoCache(NullCache):
    """Kernels are compiled in memory, but for those of a wheel."""

    is_kept = True

    def __init__(self, function: Callable[..., Any]) -> None:
        self.load_overload = _Shipped(function).load_overload

    def save_overload(self, sig: Any, data: Any) -> None:
        """Say so."""
        _warn_once("no folder for them may be written to")


def is_kept(kernel: Any) -> bool:
    """Whether nothing is gained by compiling a kernel ahead: it is there, or cannot be kept."""
    return bool(getattr(getattr(kernel, "_cache", None), "is_kept", True))


_warned = threading.Event()


def _warn_once(reason: str) -> None:
    """Say, once in a process, that kernels are not kept."""
    if not _warned.is_set():
        _warned.set()
        warnings.warn(
            f"compiled kernels are not kept on disk ({reason}): every new process compiles them. "
            f"Set NUMBA_CACHE_DIR to a folder that may be written to, or see docs/containers.md.",
            RuntimeWarning,
            stacklevel=2,
        )


def keep(dispatcher: Any) -> Any:
    """Let a compiled function be kept on disk (where NUMBA_DISABLE_JIT has left it compiled)."""
    if isinstance(dispatcher, Dispatcher):
        try:
            kept: Any = _Cache(dispatcher.py_func)
        except (RuntimeError, OSError):  # numba's word for no folder at all
            kept = _NoCache(dispatcher.py_func)
        dispatcher._cache = kept  # type: ignore[attr-defined]
    return dispatcher


def _file(folder: Any, function: Callable[..., Any]) -> IndexDataCacheFile:
    """Where a function's kernels are in a folder."""
    stamp = _stamp(function)
    return IndexDataCacheFile(str(folder), f"{_name(function)}-{stamp[:16]}", stamp)


def _name(function: Callable[..., Any]) -> str:
    """Of its own in a folder that kernels of all modules share."""
    name = f"{function.__module__}.{function.__qualname__}".replace("<", "").replace(">", "")
    major, minor = sys.version_info[:2]
    return f"{name}-{function.__code__.co_firstlineno}.py{major}{minor}{sys.abiflags}"


def _stamp(function: Callable[..., Any]) -> str:
    """A hash of all that a function's kernels are made of."""
    package, folder = Path(__file__).parent.parent, Path(function.__code__.co_filename).parent
    roots = (package,) if folder.is_relative_to(package) else (package, folder)
    return hashlib.sha256(b"".join(_kernels_below(root) for root in roots)).hexdigest()


@cache
def _runs_shipped() -> bool:
    """Whether there are kernels of a wheel, and this processor is of their kind."""
    if not SHIPPED.is_dir() or config.CPU_NAME is not None:
        return False
    features = get_host_cpu_features()
    return all(features.get(name, False) for name in FEATURES)


@cache
def _kernels_below(root: Path) -> bytes:
    """A hash of the files below a folder that kernels are made of.

    Those that have kernels or machine code of their own, records that kernels take, constants.
    """
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        source = path.read_bytes()
        if any(mark in source for mark in (b"knothole.compiled", b"numba", b"NamedTuple")):
            digest.update(source)
    return digest.digest()
