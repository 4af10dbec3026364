# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Elements in memory as numba's compiled code reads and writes them: by pointer, bfloat16 among them.

A tensor's address costs nothing to ask for, its view as an array microseconds. The types of the elements come
from example values: a float32, a float64, or an int16 for the bits of a bfloat16. Two of these are read as
one word, whose lower half comes first in memory: machines of another order take the reference (`dispatch`).
"""

from __future__ import annotations

from typing import Any

import numba  # type: ignore[import-untyped,unused-ignore]
from llvmlite import ir  # type: ignore[import-untyped,unused-ignore]
from numba.extending import intrinsic  # type: ignore[import-untyped,unused-ignore]

_WORD = ir.IntType(32)


def _intrinsic(function) -> Any:
    """A function whose machine code is written out here."""
    return intrinsic(function)


def _bits(n: int) -> ir.Constant:
    return ir.Constant(_WORD, n)


def _rounded(builder, v):
    """The bits of a float32 whose upper half is the nearest bfloat16, ties to even; a NaN stays one."""
    bits = builder.bitcast(v, _WORD)
    odd = builder.and_(builder.lshr(bits, _bits(16)), _bits(1))
    near = builder.add(bits, builder.add(odd, _bits(0x7FFF)))
    return builder.select(builder.fcmp_unordered("uno", v, v), builder.or_(bits, _bits(1 << 22)), near)


def _pair(builder, at, j):
    """The address of the 32 bits that hold elements 2 j and 2 j + 1 of bfloat16s."""
    return builder.gep(builder.bitcast(at, _WORD.as_pointer()), [j], inbounds=True)


@_intrinsic
def pointer(_, address, like):
    """The address as a pointer to elements of the type of `like`."""
    kind = numba.types.CPointer(numba.types.unliteral(like))

    def code(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return kind(numba.int64, like), code


@_intrinsic
def ahead(_, at, n):
    """The pointer n elements further on."""

    def code(context, builder, signature, arguments):
        return builder.gep(arguments[0], [arguments[1]], inbounds=True)

    return at(at, numba.int64), code


@_intrinsic
def taken(_, at):
    """The integer there, which is one more afterwards: no two threads get the same."""

    def code(context, builder, signature, arguments):
        return builder.atomic_rmw("add", arguments[0], ir.Constant(ir.IntType(64), 1), "monotonic")

    return at.dtype(at), code


@_intrinsic
def read(_, at, i):
    """Element i; a bfloat16 is widened to float32."""
    half = at.dtype == numba.int16

    def code(context, builder, signature, arguments):
        v = builder.load(builder.gep(arguments[0], [arguments[1]], inbounds=True))
        if half:
            v = builder.bitcast(builder.shl(builder.zext(v, _WORD), _bits(16)), ir.FloatType())
        return v

    return (numba.float32 if half else at.dtype)(at, numba.int64), code


@_intrinsic
def write(_, at, i, v):
    """Writes element i; a bfloat16 is rounded to nearest, ties to even, and a NaN stays one."""
    half = at.dtype == numba.int16

    def code(context, builder, signature, arguments):
        v = arguments[2]
        if half:
            v = builder.trunc(builder.lshr(_rounded(builder, v), _bits(16)), ir.IntType(16))
        builder.store(v, builder.gep(arguments[0], [arguments[1]], inbounds=True))
        return context.get_dummy_value()

    return numba.void(at, numba.int64, numba.float32 if half else at.dtype), code


@_intrinsic
def fused(_, a, b, c):
    """a b + c in float32, rounded once where the machine can do that."""

    def code(context, builder, signature, arguments):
        kind = ir.FloatType()
        call = builder.module.declare_intrinsic("llvm.fmuladd", [kind], ir.FunctionType(kind, [kind] * 3))
        return builder.call(call, arguments)

    return numba.float32(numba.float32, numba.float32, numba.float32), code


@_intrinsic
def halves(_, at):
    """Whether the elements are bfloat16s, which the compiler knows."""
    known = ir.Constant(ir.IntType(1), at.dtype == numba.int16)
    return numba.boolean(at), lambda context, builder, signature, arguments: known


@_intrinsic
def read_pair(_, at, j):
    """Elements 2 j and 2 j + 1 of bfloat16s: two at a time, nothing need be moved from lane to lane."""

    def code(context, builder, signature, arguments):
        bits = builder.load(_pair(builder, *arguments), align=2)
        words = builder.shl(bits, _bits(16)), builder.and_(bits, _bits(0xFFFF0000))
        both = [builder.bitcast(v, ir.FloatType()) for v in words]
        return context.make_tuple(builder, signature.return_type, both)

    return numba.types.UniTuple(numba.float32, 2)(at, numba.int64), code


@_intrinsic
def write_pair(_, at, j, v, w):
    """Writes elements 2 j and 2 j + 1 of bfloat16s."""

    def code(context, builder, signature, arguments):
        low = builder.lshr(_rounded(builder, arguments[2]), _bits(16))
        high = builder.and_(_rounded(builder, arguments[3]), _bits(0xFFFF0000))
        builder.store(builder.or_(low, high), _pair(builder, *arguments[:2]), align=2)
        return context.get_dummy_value()

    return numba.void(at, numba.int64, numba.float32, numba.float32), code
