"""One policy for compiled kernels.

Kernels take plain arrays, allocate nothing, validate nothing and write into a caller's ``out``.
They release the interpreter lock, so that several threads (:mod:`knothole.compiled.threads`) can
be in them at once.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import partial
from typing import Any

import numba
from llvmlite import binding as llvm
from numba.core import typed_passes, untyped_passes
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler, Flags
from numba.core.dispatcher import Dispatcher

from knothole.compiled.kept import keep

# How the names of functions begin that Python calls, and that call a kernel.
_FROM_PYTHON = "_ZN7cpython"


def _mark(function: Any, *attributes: str) -> None:
    """Give a function attributes, which save time alone: LLVM 15 takes them for its result's."""
    if llvm.llvm_version_info[0] > 15:
        for attribute in attributes:
            function.add_function_attribute(attribute)


class _Library(JITCodeLibrary):
    """A kernel's machine code, with copies of its own of all that it calls.

    numba leaves such copies open to be replaced by others of the same name, among them what was
    compiled for the called kernel itself. Both are right, but are optimised apart, and sums differ
    in their last bits: whichever a process has met first, a fresh one or one from the disk, served.
    """

    def _optimize_functions(self, module: Any) -> None:
        """Leave that for when all that a kernel calls is there: it would be done twice."""
        module.data_layout = self._codegen._data_layout

    def _optimize_final_module(self) -> None:
        for function in self._final_module.functions:
            if not function.is_declaration and function.linkage.name == "linkonce_odr":
                function.linkage = "internal"
            if function.name.startswith(_FROM_PYTHON):
                # What it does, to take arrays out of Python's objects, is in calls.
                _mark(function, "noinline", "optnone")
        # numba does it twice, to find references that need no counting: here there are none.
        how = llvm.create_pipeline_tuning_options(speed_level=3)
        # Copies of loop bodies take a sixth of a first run to compile, and gain a few per cent.
        how.loop_unrolling = how.loop_interleaving = False
        builder = llvm.create_pass_builder(self._codegen._tm, how)
        builder.getModulePassManager().run(self._final_module, builder)


class _Part(_Library):
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


class _Apart(_Part):
    """A part whose code is called, not copied: large functions take longer than their sum."""

    def _optimize_final_module(self) -> None:
        for function in self._final_module.functions:
            if not function.is_declaration and function.linkage.name == "external":
                _mark(function, "noinline")


class _Flags(Flags):
    """numba's flags, which it hashes and compares whenever it looks for what an operator means."""

    def __hash__(self) -> int:
        return 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Flags) and self._values == other._values


# What kernels have not: closures, "with", expressions of whole arrays, loops over literals.
_WITHOUT = (
    untyped_passes.WithLifting, untyped_passes.InlineClosureLikes,
    untyped_passes.RewriteDynamicRaises, untyped_passes.MakeFunctionToJitFunction,
    untyped_passes.InlineInlinables, untyped_passes.FindLiterallyCalls,
    untyped_passes.LiteralUnroll, untyped_passes.LiteralPropagationSubPipelinePass,
    typed_passes.InlineOverloads, typed_passes.NopythonRewrites,
)  # fmt: skip


class _Compiler(Compiler):
    """numba's compiler, into such a library."""

    library: type[JITCodeLibrary] = _Library

    def compile_extra(self, func: Any) -> Any:
        """As ever, but nothing is looked through for garbage meanwhile: hardly any is made."""
        self.state.flags = _Flags(self.state.flags)
        collects = gc.isenabled()
        gc.disable()
        try:
            return super().compile_extra(func)
        finally:
            if collects:
                gc.enable()

    def define_pipelines(self) -> Any:
        """As ever, but for passes that find nothing in kernels."""
        state = self.state
        if state.library is None:
            state.library = self.library(state.targetctx.codegen(), state.func_id.func_qualname)
            state.library.enable_object_caching()
        pipelines = super().define_pipelines()
        for pipeline in pipelines:
            pipeline.passes = [each for each in pipeline.passes if each[0] not in _WITHOUT]
            pipeline.finalize()
        return pipelines


class _PartCompiler(_Compiler):
    """The same for parts of kernels."""

    library = _Part


class _ApartCompiler(_Compiler):
    """The same for parts that stay apart."""

    library = _Apart


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
    return keep(numba.njit(**OPTIONS)(function))


def inner(
    function: Callable[..., Any], *, inline: bool = False, how: type[_Compiler] = _PartCompiler
) -> Any:
    """Compile a function that kernels alone call: it becomes a part of each of them.

    It takes a fraction of the time of a kernel, but has no machine code of its own.
    """
    options = OPTIONS | {"pipeline_class": how, "no_cpython_wrapper": True}
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


def apart(function: Callable[..., Any]) -> Any:
    """The same for a large function, whose code is never to be in the place of a call.

    A kernel of several such takes less time to compile than one large function.
    """
    return inner(function, how=_ApartCompiler)


def _refuse(name: str, *_: Any, **__: Any) -> None:
    raise TypeError(f"{name} is a part of kernels: only they can call it.")
