"""One policy for compiled kernels.

Kernels take plain arrays, allocate nothing, validate nothing and write into a caller's ``out``.
They release the interpreter lock, so that several threads (:mod:`knothole.compiled.threads`) can
be in them at once.
"""

from __future__ import annotations

import hashlib
import os
import threading
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

import numba
from numba.core.caching import (
    CompileResultCacheImpl,
    FunctionCache,
    IndexDataCacheFile,
    NullCache,
)
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.core.dispatcher import Dispatcher


class _Library(JITCodeLibrary):
    """A kernel's machine code, with copies of its own of all that it calls.

    numba leaves such copies open to be replaced by others of the same name, among them what was
    compiled for the called kernel itself. Both are right, but are optimised apart, and sums differ
    in their last bits: whichever a process has met first, a fresh one or one from the disk, served.
    """

    def _optimize_final_module(self) -> None:
        for function in self._final_module.functions:
            if not function.is_declaration and function.linkage.name == "linkonce_odr":
                function.linkage = "internal"
        # numba does it twice, to find references that need no counting: here there are none.
        passes, builder = self._codegen._module_pass_manager()
        passes.run(self._final_module, builder)


class _Part(JITCodeLibrary):
    """Code that becomes a part of kernels: it is optimised there, and has none of its own."""

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True

    @property
    def codegen(self) -> _Part:
        """Whom to tell of the environment, which code that only counts does not need."""
        return self

    def set_env(self, *_: Any) -> None:
        """Forget it: there is nowhere to write it to."""


class _Compiler(Compiler):
    """numba's compiler, into such a library."""

    library: type[JITCodeLibrary] = _Library

    def define_pipelines(self) -> Any:
        """As ever."""
        state = self.state
        if state.library is None:
            state.library = self.library(state.targetctx.codegen(), state.func_id.func_qualname)
            state.library.enable_object_caching()
        return super().define_pipelines()


class _PartCompiler(_Compiler):
    """The same for parts of kernels."""

    library = _Part


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
    "pipeline_class": _Compiler,
}


def njit(function: Callable[..., Any]) -> Any:
    """Compile a kernel: cached on disk, without the interpreter lock, safe for NaN."""
    return _cached(numba.njit(**OPTIONS)(function))


def inner(function: Callable[..., Any], *, inline: bool = False) -> Any:
    """Compile a function that kernels alone call: it becomes a part of each of them.

    It takes a fraction of the time of a kernel, but has no machine code of its own.
    """
    options = OPTIONS | {"pipeline_class": _PartCompiler, "no_cpython_wrapper": True}
    dispatcher = numba.njit(forceinline=inline, **options)(function)
    if isinstance(dispatcher, Dispatcher):
        # Python must not find what has no machine code: there would be nothing to call.
        parts: Any = dispatcher
        parts.add_overload = lambda part: parts.overloads.update({part.signature.args: part})
        parts._compile_for_args = partial(_refuse, function.__qualname__)
    return dispatcher


def inlined(function: Callable[..., Any]) -> Any:
    """The same for a small function, whose code is to be in the place of each call.

    (numba's own ``inline="always"`` copies the source instead, and then counts references to every
    array once more.)
    """
    return inner(function, inline=True)


def _refuse(name: str, *_: Any, **__: Any) -> None:
    raise TypeError(f"{name} is a part of kernels: only they can call it.")


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


class _Shipped(_ReadOnly, _in_tree):  # type: ignore[misc, valid-type]
    """The same beside the package's own files, where no other folder can be written to."""


class _UserWide(_user_wide):  # type: ignore[misc, valid-type]
    """The user's own cache."""

    def ensure_cache_path(self) -> None:
        """Refuse what, without a home, is a folder below the current one: kernels are code."""
        if not os.path.isabs(self.get_cache_path()):
            raise OSError("there is no home directory")
        super().ensure_cache_path()


class _Places(CompileResultCacheImpl):
    _locator_classes = (_Provided, _in_tree, _UserWide, *_others, _Shipped)


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
        digest = hashlib.sha256(repr(self._impl.locator.get_source_stamp()).encode())
        package, folder = Path(__file__).parent.parent, Path(function.__code__.co_filename).parent
        for root in (package,) if folder.is_relative_to(package) else (package, folder):
            digest.update(_kernels_below(root))
        self._base = f"{self._impl.filename_base}-"
        self._stamp = digest.hexdigest()
        name = f"{self._base}{self._stamp[:16]}"
        self._cache_file = IndexDataCacheFile(self._cache_path, name, self._stamp)

    @property
    def is_kept(self) -> bool:
        """Whether the kernel has been compiled before, or cannot be kept."""
        kept = os.path.exists(self._cache_file._index_path)
        return kept or not os.access(self._cache_path, os.W_OK)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The kernel, unless it has to be compiled."""
        try:
            return super().load_overload(sig, target_context)
        except Exception as error:  # there is no end to what unpickling a damaged file may raise
            with suppress(OSError):
                self.flush()
            _warn_once(f"one that was kept cannot be read, {error!r}")
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep a kernel, and none of what it was before."""
        try:
            super().save_overload(sig, data)
            for name in os.listdir(self._cache_path):
                other = name.startswith(self._base) and self._stamp[:16] not in name
                if other and name.endswith((".nbi", ".nbc")):
                    with suppress(FileNotFoundError):  # another process does the same
                        os.unlink(os.path.join(self._cache_path, name))
        except OSError as error:
            _warn_once(str(error))


class _NoCache(NullCache):
    """Kernels are compiled in memory."""

    is_kept = True

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


def _cached(dispatcher: Any) -> Any:
    """Let a compiled function be kept on disk (where NUMBA_DISABLE_JIT has left it compiled)."""
    if isinstance(dispatcher, Dispatcher):
        try:
            kept: Any = _Cache(dispatcher.py_func)
        except (RuntimeError, OSError):  # numba's word for no folder at all
            kept = _NoCache()
        dispatcher._cache = kept  # type: ignore[attr-defined]
    return dispatcher


@cache
def _kernels_below(root: Path) -> bytes:
    """A hash of the policy, and of the files below a folder that kernels are made of.

    Those that have kernels or machine code of their own, records that kernels take, constants.
    """
    digest = hashlib.sha256(Path(__file__).read_bytes())
    for path in sorted(root.rglob("*.py")):
        source = path.read_bytes()
        if any(mark in source for mark in (b"knothole.compiled", b"numba", b"NamedTuple")):
            digest.update(source)
    return digest.digest()
