"""Arrays as bare pointers, for kernels whose inner loops are shorter than the bookkeeping.

numba counts references to arrays: every view, every unpacked tuple and every helper that is
handed an array adds to an atomic counter and takes away again. In a walk that does ten to a
hundred operations between two calls, that is most of the time. A pointer has no counter and
travels in one register.

A kernel turns its records of arrays into records of pointers once, at the top; whoever called the
kernel holds the arrays meanwhile. Sizes travel next to the pointers as integers. There is no check
of bounds, as anywhere in a kernel.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.errors import TypingError
from numba.extending import intrinsic


@intrinsic
def pointers(typing_context: Any, record: Any) -> Any:
    """The record (a tuple or named tuple, nested or not) with arrays replaced by pointers.

    Arrays must be C-contiguous; booleans become ``uint8``. Numbers stay what they are.
    """
    signature = _pointer_type(record)(record)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _pointer_value(context, builder, record, args[0])

    return signature, codegen


@intrinsic
def shift(typing_context: Any, pointer: Any, index: Any) -> Any:
    """The pointer to an element: ``shift(p, i)[j]`` is ``p[i + j]``."""
    if not isinstance(pointer, types.CPointer) or not isinstance(index, types.Integer):
        raise TypingError(f"shift() takes a pointer and an integer; got {pointer} and {index}")

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return cgutils.gep(builder, args[0], args[1])

    return pointer(pointer, index), codegen


@intrinsic
def prefetch(typing_context: Any, pointer: Any) -> Any:
    """Start to load what lies at a pointer: it will be read soon."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = builder.bitcast(args[0], cgutils.voidptr_t)
        integer = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, integer, integer, integer])
        function = builder.module.declare_intrinsic("llvm.prefetch", [cgutils.voidptr_t], kind)
        # For reading; to stay in every cache; data.
        builder.call(function, [place, *(ir.Constant(integer, i) for i in (0, 3, 1))])
        return context.get_dummy_value()

    return types.none(pointer), codegen


def _pointer_type(kind: Any) -> Any:
    """The numba type of a record, once arrays are pointers."""
    if isinstance(kind, types.Array):
        if kind.layout != "C":
            raise TypingError(f"pointers() takes C-contiguous arrays; got {kind}")
        return types.CPointer(types.uint8 if kind.dtype == types.boolean else kind.dtype)
    if isinstance(kind, types.BaseNamedTuple):
        return types.NamedTuple([_pointer_type(field) for field in kind], kind.instance_class)
    if isinstance(kind, types.BaseTuple):
        return types.Tuple([_pointer_type(field) for field in kind])
    return kind


def _pointer_value(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    """The value that goes with :func:`_pointer_type`."""
    if isinstance(kind, types.Array):
        return context.make_array(kind)(context, builder, value).data
    if isinstance(kind, types.BaseTuple):
        fields = [
            _pointer_value(context, builder, field, builder.extract_value(value, i))
            for i, field in enumerate(kind)
        ]
        return context.make_tuple(builder, _pointer_type(kind), fields)
    return value
