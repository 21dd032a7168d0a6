"""Sums and products of a few numbers, one for each component or state, by pointers.

Sixteen numbers are too few for a compiler's loops: testing whether two arrays overlap takes longer
than the work. So the four numbers that a processor handles at once are a type of their
own here, :class:`Four`; lengths are multiples of :data:`AT_ONCE`.
"""

from __future__ import annotations

import math
import operator
from typing import Any, ClassVar

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.datamodel import models
from numba.core.typing.templates import ConcreteTemplate, infer_global
from numba.extending import intrinsic, lower_builtin, register_model
from numpy.typing import NDArray

from knothole.compiled.pointers import shift
from knothole.compiled.policy import FASTMATH, inlined

#: Numbers that a processor handles at once; components and states are padded to a multiple.
AT_ONCE = 4
#: Numbers that are loaded together.
CACHE_LINE = 8

_VECTOR = ir.VectorType(ir.DoubleType(), AT_ONCE)
_WORDS = ir.VectorType(ir.IntType(64), AT_ONCE)
_FLAGS = tuple(sorted(FASTMATH))


class Four(types.Type):
    """Four float64 numbers, or words of bits, in one register."""

    def __init__(self) -> None:
        super().__init__(name="Four")


four = Four()


@register_model(Four)
class FourModel(models.PrimitiveModel):
    """A :class:`Four` is a vector of LLVM's."""

    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, _VECTOR)


@intrinsic
def load(typing_context: Any, pointer: Any, index: Any) -> Any:
    """Four numbers from ``pointer[index]`` on."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = builder.bitcast(builder.gep(args[0], [args[1]]), _VECTOR.as_pointer())
        return builder.load(place, align=8)

    return four(pointer, index), codegen


@intrinsic
def store(typing_context: Any, pointer: Any, index: Any, values: Any) -> Any:
    """Write four numbers to ``pointer[index]`` and after."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = builder.bitcast(builder.gep(args[0], [args[1]]), _VECTOR.as_pointer())
        builder.store(args[2], place, align=8)
        return context.get_dummy_value()

    return types.none(pointer, index, values), codegen


def _everywhere(builder: Any, value: Any, n: int) -> Any:
    """A vector of LLVM's with the same number ``n`` times."""
    nothing = ir.Constant(ir.VectorType(value.type, n), ir.Undefined)
    first = builder.insert_element(nothing, value, ir.Constant(ir.IntType(32), 0))
    places = ir.Constant(ir.VectorType(ir.IntType(32), n), [0] * n)
    return builder.shuffle_vector(first, nothing, places)


@intrinsic
def spread(typing_context: Any, value: Any) -> Any:
    """The same number four times."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _everywhere(builder, args[0], AT_ONCE)

    return four(types.float64), codegen


def _adds(width: int) -> Any:
    """A function that adds numbers to those of ``64 * width`` whose bits are set in their words."""

    @intrinsic
    def add(typing_context: Any, out: Any, words: Any, values: Any, n: Any) -> Any:
        """In their order, to as many at once as fit registers with what is float64, or int32.

        Bits are read from memory as the masks that they are: shifted out of a word, they would
        have to change registers.
        """
        real, integer = values.dtype is types.float64, ir.IntType(32)
        lanes, part = (8, min(128, 64 * width)) if real else (16, 64 * width)
        vector = ir.VectorType(ir.DoubleType() if real else integer, lanes)
        mask, bits = ir.IntType(lanes), ir.VectorType(ir.IntType(1), lanes)

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            out, words, values, n = args
            out = builder.bitcast(out, vector.as_pointer())
            for first in range(0, 64 * width // lanes, part // lanes):
                numbers = [ir.Constant(integer, first + i) for i in range(part // lanes)]
                places = [builder.gep(out, [number]) for number in numbers]
                totals = [cgutils.alloca_once(builder, vector) for _ in numbers]
                for place, total in zip(places, totals, strict=True):
                    builder.store(builder.load(place, align=4), total)
                with cgutils.for_range(builder, n) as loop:
                    own = builder.mul(loop.index, ir.Constant(loop.index.type, width))
                    masks = builder.bitcast(builder.gep(words, [own]), mask.as_pointer())
                    value = builder.load(builder.gep(values, [loop.index]))
                    same = _everywhere(builder, value, lanes)
                    for number, total in zip(numbers, totals, strict=True):
                        here = builder.bitcast(builder.load(builder.gep(masks, [number])), bits)
                        before = builder.load(total)
                        after = (
                            builder.fadd(before, same, flags=_FLAGS)
                            if real
                            else builder.add(before, same)
                        )
                        builder.store(builder.select(here, after, before), total)
                for place, total in zip(places, totals, strict=True):
                    builder.store(builder.load(total), place, align=4)
            return context.get_dummy_value()

        return types.none(out, words, values, types.int64), codegen

    return add


#: Add each of ``n`` numbers to those of 64, at ``out``, whose bits are set in its word;
#: or to those of 256 whose bits are set in its four words.
add_where, add_where_of_four = _adds(1), _adds(AT_ONCE)


_OCTETS = ir.VectorType(ir.IntType(8), 64)
_BITS = ir.VectorType(ir.IntType(1), 64)


def _of_each_word(builder: Any, pointer: Any, kind: Any) -> list[Any]:
    """Where the parts of four words, each of a kind, begin."""
    whole = builder.bitcast(pointer, kind.as_pointer())
    return [builder.gep(whole, [ir.Constant(ir.IntType(32), i)]) for i in range(AT_ONCE)]


@intrinsic
def mark_below(typing_context: Any, out: Any, octets: Any, limit: Any) -> Any:
    """Set the bits of four words, at ``out``, of those of 256 octets that are below another."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        limits = _everywhere(builder, builder.trunc(args[2], ir.IntType(8)), 64)
        words = _of_each_word(builder, args[0], ir.IntType(64))
        for word, own in zip(words, _of_each_word(builder, args[1], _OCTETS), strict=True):
            below = builder.icmp_unsigned("<", builder.load(own, align=1), limits)
            builder.store(builder.bitcast(below, ir.IntType(64)), word, align=8)
        return context.get_dummy_value()

    return types.none(out, octets, limit), codegen


@intrinsic
def put_where(typing_context: Any, out: Any, octets: Any, words: Any) -> Any:
    """Copy those of 256 octets to ``out`` whose bits are set in four words."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kinds = (_OCTETS, _OCTETS, ir.IntType(64))
        each = (_of_each_word(builder, *pair) for pair in zip(args, kinds, strict=True))
        for to, own, word in zip(*each, strict=True):
            here = builder.bitcast(builder.load(word, align=8), _BITS)
            before, after = builder.load(to, align=1), builder.load(own, align=1)
            builder.store(builder.select(here, after, before), to, align=1)
        return context.get_dummy_value()

    return types.none(out, octets, words), codegen


@intrinsic
def below(typing_context: Any, values: Any, limit: Any) -> Any:
    """Which of 64 numbers are below a limit, as the bits of a word; its bits are at a pointer."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        own = builder.load(builder.bitcast(args[1], ir.DoubleType().as_pointer()))
        same = _everywhere(builder, own, 64)
        numbers = builder.load(builder.bitcast(args[0], same.type.as_pointer()), align=8)
        return builder.bitcast(builder.fcmp_ordered("<", numbers, same), ir.IntType(64))

    return types.uint64(values, limit), codegen


@intrinsic
def ends(typing_context: Any, values: Any) -> Any:
    """The least and the largest of 64 numbers."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.VectorType(ir.DoubleType(), 64)
        numbers = builder.load(builder.bitcast(args[0], kind.as_pointer()), align=8)
        found = []
        for sign in "<>":
            rest, n = numbers, 64
            while n > 1:
                n //= 2
                first, last = (
                    builder.shuffle_vector(
                        rest, rest, ir.Constant(ir.VectorType(ir.IntType(32), n), list(places))
                    )
                    for places in (range(n), range(n, 2 * n))
                )
                rest = builder.select(builder.fcmp_ordered(sign, first, last), first, last)
            found.append(builder.extract_element(rest, ir.Constant(ir.IntType(32), 0)))
        return context.make_tuple(builder, signature.return_type, found)

    return types.UniTuple(types.float64, 2)(values), codegen


@intrinsic
def add_counts(typing_context: Any, out: Any, words: Any, values: Any, n: Any) -> Any:
    """Add each of ``n`` numbers to eight at ``out``, times the bits in the bytes of its word."""
    octets = ir.VectorType(ir.IntType(8), 8)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        out, words, values, n = args
        place = builder.bitcast(out, ir.VectorType(ir.DoubleType(), 8).as_pointer())
        count = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(octets, [octets]), "llvm.ctpop.v8i8"
        )
        total = cgutils.alloca_once_value(builder, builder.load(place, align=8))
        with cgutils.for_range(builder, n) as loop:
            word = builder.load(builder.gep(words, [loop.index]))
            counts = builder.call(count, [builder.bitcast(word, octets)])
            same = _everywhere(builder, builder.load(builder.gep(values, [loop.index])), 8)
            part = builder.fmul(builder.uitofp(counts, same.type), same, flags=_FLAGS)
            builder.store(builder.fadd(builder.load(total), part, flags=_FLAGS), total)
        builder.store(builder.load(total), place, align=8)
        return context.get_dummy_value()

    return types.none(out, words, values, types.int64), codegen


@intrinsic
def total(typing_context: Any, values: Any) -> Any:
    """Sum of the four."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        parts = [
            builder.extract_element(args[0], ir.Constant(ir.IntType(32), i)) for i in range(AT_ONCE)
        ]
        first = builder.fadd(parts[0], parts[2], flags=_FLAGS)
        second = builder.fadd(parts[1], parts[3], flags=_FLAGS)
        return builder.fadd(first, second, flags=_FLAGS)

    return types.float64(values), codegen


def _define(python_operator: Any, instruction: str, of_bits: bool = False) -> None:
    """Let an operator work on two :class:`Four`, or on their bits: no function is compiled."""
    kind, options = (_WORDS, {}) if of_bits else (_VECTOR, {"flags": _FLAGS})

    class Both(ConcreteTemplate):
        cases: ClassVar = [four(four, four)]

    def operate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        own = (builder.bitcast(each, kind) for each in args)
        return builder.bitcast(getattr(builder, instruction)(*own, **options), _VECTOR)

    infer_global(python_operator)(Both)
    lower_builtin(python_operator, four, four)(operate)


_define(operator.add, "fadd")
_define(operator.sub, "fsub")
_define(operator.mul, "fmul")
_define(operator.and_, "and_", of_bits=True)
_define(operator.or_, "or_", of_bits=True)
_define(operator.xor, "xor", of_bits=True)


@inlined
def fill(out, value, n):  # type: ignore[no-untyped-def]
    """``out`` = value."""
    for z in range(0, n, AT_ONCE):
        store(out, z, spread(value))


@inlined
def copy(out, x, n):  # type: ignore[no-untyped-def]
    """``out`` = x."""
    for z in range(0, n, AT_ONCE):
        store(out, z, load(x, z))


@inlined
def product(out, x, y, n):  # type: ignore[no-untyped-def]
    """``out`` = x * y; ``out`` may be one of the two."""
    for z in range(0, n, AT_ONCE):
        store(out, z, load(x, z) * load(y, z))


@inlined
def difference(out, x, y, n):  # type: ignore[no-untyped-def]
    """``out`` = x - y."""
    for z in range(0, n, AT_ONCE):
        store(out, z, load(x, z) - load(y, z))


@inlined
def add(out, x, n):  # type: ignore[no-untyped-def]
    """``out`` += x."""
    for z in range(0, n, AT_ONCE):
        store(out, z, load(out, z) + load(x, z))


@inlined
def add_times(out, x, factor, n):  # type: ignore[no-untyped-def]
    """``out`` += x * factor."""
    everywhere = spread(factor)
    for z in range(0, n, AT_ONCE):
        store(out, z, load(out, z) + load(x, z) * everywhere)


@inlined
def times(out, factor, n):  # type: ignore[no-untyped-def]
    """``out`` *= factor."""
    everywhere = spread(factor)
    for z in range(0, n, AT_ONCE):
        store(out, z, load(out, z) * everywhere)


@inlined
def whole(x, n):  # type: ignore[no-untyped-def]
    """Sum of x."""
    result = spread(0.0)
    for z in range(0, n, AT_ONCE):
        result = result + load(x, z)
    return total(result)


@inlined
def dot(x, y, n):  # type: ignore[no-untyped-def]
    """Sum of x * y."""
    result = spread(0.0)
    for z in range(0, n, AT_ONCE):
        result = result + load(x, z) * load(y, z)
    return total(result)


@inlined
def multiply(columns, vector, out, n):  # type: ignore[no-untyped-def]
    """``out`` = matrix @ vector, of a matrix that lies column by column; returns the sum.

    Sixteen rows and two columns at a time, as far as they go: sums need not wait for each other.
    """
    last = n - n % 16
    for a in range(0, last, 16):
        x0, x1, x2, x3 = spread(0.0), spread(0.0), spread(0.0), spread(0.0)
        y0, y1, y2, y3 = spread(0.0), spread(0.0), spread(0.0), spread(0.0)
        for z in range(0, n, 2):
            first, second = shift(columns, z * n + a), shift(columns, (z + 1) * n + a)
            one, other = spread(vector[z]), spread(vector[z + 1])
            x0, y0 = x0 + load(first, 0) * one, y0 + load(second, 0) * other
            x1, y1 = x1 + load(first, 4) * one, y1 + load(second, 4) * other
            x2, y2 = x2 + load(first, 8) * one, y2 + load(second, 8) * other
            x3, y3 = x3 + load(first, 12) * one, y3 + load(second, 12) * other
        store(out, a, x0 + y0)
        store(out, a + 4, x1 + y1)
        store(out, a + 8, x2 + y2)
        store(out, a + 12, x3 + y3)
    for a in range(last, n, AT_ONCE):
        even, odd = spread(0.0), spread(0.0)
        for z in range(0, n, 2):
            even = even + load(columns, z * n + a) * spread(vector[z])
            odd = odd + load(columns, (z + 1) * n + a) * spread(vector[z + 1])
        store(out, a, even + odd)
    return whole(out, n)


@inlined
def scale(vector, n):  # type: ignore[no-untyped-def]
    """Make the mean of a vector 1; leave zeros alone."""
    rescale(vector, whole(vector, n), n)


@inlined
def rescale(vector, its_sum, n):  # type: ignore[no-untyped-def]
    """Make the mean of a vector 1, given its sum; leave zeros alone."""
    if its_sum > 0.0:
        times(vector, n / its_sum, n)


def padded(array: NDArray[np.float64], axes: int = 1) -> NDArray[np.float64]:
    """An array with zeros added at the end of its last axes, up to a multiple of AT_ONCE."""
    first = array.ndim - axes
    out = room(*array.shape[:first], *(size + -size % AT_ONCE for size in array.shape[first:]))
    out[tuple(map(slice, array.shape))] = array
    return out


def room(*shape: int) -> NDArray[np.float64]:
    """Zeros that begin where a cache line does: what crosses lines takes longer."""
    size = math.prod(shape)
    whole = np.zeros(size + CACHE_LINE)
    first = -(whole.ctypes.data // whole.itemsize) % CACHE_LINE
    return whole[first : first + size].reshape(shape)
