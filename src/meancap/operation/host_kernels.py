# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""The loops of `host`, compiled by numba.

    x, c, u      state and the two outputs, (batch, size): float32, or the 16 bits of a bfloat16;
                 where `direct` is set, u is the direction d itself
    numbers      a, k, coefficient, gamma, floor: (5, batch), or (5, 1) where all samples share them; float64
    results      |m|, |k||d|, the component of m along k d, coefficient: (4, batch), float64
    sums         <m, m>, <d, d>, <m, d> of each chunk of a long sample: (batch, chunks, 3), float64

Reordering is left to the compiler in the sums alone. Products and sums are contracted where `fused` says so,
and nowhere else, so that an element gets the same bits in vector code and in what remains of a loop.
"""

from __future__ import annotations

import math
from typing import Any

import numba  # type: ignore[import-untyped,unused-ignore]
import numpy as np

from .fraction import UNBOUNDED
from .host_memory import ahead, fused, halves, pointer, read, read_pair, write, write_pair
from .reference import LARGEST, RUN, SMALLEST

CHUNK = 32768  # elements of a sample that one thread takes at a time
FEW = 16  # elements of a sample up to which samples are summed side by side
BLOCK = 256  # of such samples at a time
MEASURE, WRITE, FOLD, LENGTHS = 1, 2, 4, 8  # stages; with FOLD the sums of the chunks are known

_EXACT: dict[str, Any] = {"error_model": "numpy", "nogil": True}
_SUMMED: dict[str, Any] = {**_EXACT, "fastmath": {"contract", "nsz", "arcp", "reassoc"}}
_ZERO, _AWAY = np.float32(0), np.float32(-1)


def _compiled(run):
    """Compiled once per machine where numba finds a place for its cache, once per process elsewhere."""
    try:
        # A cached kernel names its module, and ComfyUI imports this package under the name of its folder:
        # read by the package's own name, or from a folder that was moved, it could not be loaded.
        return numba.njit(cache=__name__.startswith("meancap."), **_EXACT)(run)
    except RuntimeError:
        return numba.njit(**_EXACT)(run)


def _inlined(function):
    return numba.njit(inline="always", **_EXACT)(function)


@_inlined
def _tensors(at, like):
    """x, c, u and the result, from their addresses and an example of an element of x, of c, of the result."""
    return pointer(at[0], like[0]), pointer(at[1], like[1]), pointer(at[2], like[1]), pointer(at[3], like[2])


@_inlined
def _blend(c, u, coefficient, direct):
    """c + coefficient d, but c for 0 and u for -1: 0 * inf would put a NaN where nothing is added."""
    w = fused(coefficient, u if direct else c - u, c)
    w = u if (coefficient == _AWAY) & (not direct) else w
    return c if coefficient == _ZERO else w


@_inlined
def _affine(x, out, a, k):
    """a x + k out; what x holds does not matter where a = 0."""
    scaled = a * x
    scaled = _ZERO if a == _ZERO else scaled
    return fused(k, out, scaled)


@_inlined
def _mean(x, c, u, a, k, coefficient, direct):
    """m + coefficient k d, from the m that was measured: x and k c may cancel, and d must not lose by it."""
    m = _affine(x, c, a, k)
    w = fused(coefficient * k, u if direct else c - u, m)
    w = _affine(x, u, a, k) if (coefficient == _AWAY) & (not direct) else w
    return m if coefficient == _ZERO else w


@_inlined
def _lengths(q, r, b, k):
    """|m|, |k||d| and the component of m along k d."""
    d = math.sqrt(r)
    along = b / d
    along = 0.0 if d == 0 else along
    return math.sqrt(q), abs(k) * d, -along if k < 0 else along


@_inlined
def _left(q, r, b, k, c, gamma, floor, ball, margin):
    """What a cap leaves of c: c `fraction.kept` from <m, m>, <d, d> and <m, d>, by one root and one quotient.

    `limit` is the largest |c'|, the root of |k d|^2 c'^2 + 2 <m, k d> c' = room. m, d and k are float32
    numbers, so that products of such sums are finite but for room, which is without end where they are not.
    """
    size = k * k * r
    toward = (-k * b if c < 0 else k * b) if ball else 0.0
    room = q * ((gamma - 1) * (gamma + 1) if ball else (gamma - 1) * (gamma - 1))
    above = floor * floor - q if ball else floor * floor
    room = above if (above > room) & (floor > 0) else room
    reach = math.sqrt(toward * toward + size * room)
    limit = (room if toward > 0 else reach - toward) / (toward + reach if toward > 0 else size)
    endless = size == math.inf  # of an infinite displacement a ball says nothing; no length allows it
    limit = 0.0 * toward if endless else limit
    free = (
        (c == 0)
        | (size == 0)
        | (gamma > UNBOUNDED)
        | (limit >= abs(c))
        | ((reach == math.inf) & (not endless))
    )
    # Nothing asked for is nothing granted, whatever the gap; what is not finite stays so.
    return c if free else math.copysign(limit * (1 - margin), c) + (c - c)


@numba.njit(**_SUMMED)
def _summed(x, c, u, first, last, a, k, direct):
    """The three sums over a chunk: float32 over runs, float64 over the runs."""
    q, r, b = 0.0, 0.0, 0.0
    for start in range(first, last, RUN):
        some_q, some_r, some_b = _ZERO, _ZERO, _ZERO
        low, high = start, min(start + RUN, last)
        if halves(x) and halves(c):
            low = high - (high - start) % 2
            xs, cs, us = ahead(x, start), ahead(c, start), ahead(u, start)
            for j in range((low - start) // 2):
                (x1, x2), (c1, c2), (u1, u2) = read_pair(xs, j), read_pair(cs, j), read_pair(us, j)
                m1, m2 = _affine(x1, c1, a, k), _affine(x2, c2, a, k)
                d1, d2 = u1 if direct else c1 - u1, u2 if direct else c2 - u2
                some_q += m1 * m1 + m2 * m2
                some_r += d1 * d1 + d2 * d2
                some_b += m1 * d1 + m2 * d2
        for j in range(low, high):
            conditional = read(c, j)
            m = _affine(read(x, j), conditional, a, k)
            d = read(u, j) if direct else conditional - read(u, j)
            some_q += m * m
            some_r += d * d
            some_b += m * d
        q += some_q
        r += some_r
        b += some_b
    return q, r, b


@numba.njit(**_SUMMED)
def _summed_apart(x, c, u, first, last, a, k, direct):
    """The three sums in float64: right for every m and d that float32 holds."""
    q, r, b = 0.0, 0.0, 0.0
    for j in range(first, last):
        conditional = read(c, j)
        m = np.float64(_affine(read(x, j), conditional, a, k))
        d = np.float64(read(u, j) if direct else conditional - read(u, j))
        q += m * m
        r += d * d
        b += m * d
    return q, r, b


@numba.njit(**_EXACT)
def _written(x, c, u, out, first, last, a, k, coefficient, mean, direct):
    """Writes a part of one sample."""
    if mean:
        for j in range(first, last):
            write(out, j, _mean(read(x, j), read(c, j), read(u, j), a, k, coefficient, direct))
        return
    if halves(c) and halves(out):
        cs, us, outs = ahead(c, first), ahead(u, first), ahead(out, first)
        for j in range((last - first) // 2):
            (c1, c2), (u1, u2) = read_pair(cs, j), read_pair(us, j)
            w1, w2 = _blend(c1, u1, coefficient, direct), _blend(c2, u2, coefficient, direct)
            write_pair(outs, j, w1, w2)
        first = last - (last - first) % 2
    for j in range(first, last):
        write(out, j, _blend(read(c, j), read(u, j), coefficient, direct))


@_compiled
def whole(at, like, numbers, sums, results, size, first, last, stage, ball, margin, mean, direct):
    """Samples first to last, each by itself: a short one is still in the cache when it is written."""
    x, c, u, out = _tensors(at, like)
    for i in range(first, last):
        n = 0 if numbers.shape[1] == 1 else i
        a, k = numbers[0, n], numbers[1, n]
        start, end = i * size, i * size + size
        if stage & MEASURE:
            q, r, b = 0.0, 0.0, 0.0
            for part in range(-(-size // CHUNK)):
                if stage & FOLD:
                    more = sums[i, part, 0], sums[i, part, 1], sums[i, part, 2]
                else:
                    low = start + part * CHUNK
                    more = _summed(x, c, u, low, min(low + CHUNK, end), np.float32(a), np.float32(k), direct)
                q, r, b = q + more[0], r + more[1], b + more[2]
            if not (SMALLEST < math.sqrt(q) < LARGEST and SMALLEST < math.sqrt(r) < LARGEST):
                q, r, b = _summed_apart(x, c, u, start, end, np.float32(a), np.float32(k), direct)
            results[0, i], results[1, i], results[2, i] = _lengths(q, r, b, k)
            results[3, i] = _left(q, r, b, k, numbers[2, n], numbers[3, n], numbers[4, n], ball, margin)
        if stage & WRITE:
            coefficient = np.float32(results[3, i])
            for part in range(-(-size // CHUNK) - 1, -1, -1):  # what was read last is nearest in the caches
                low = start + part * CHUNK
                high = min(low + CHUNK, end)
                _written(x, c, u, out, low, high, np.float32(a), np.float32(k), coefficient, mean, direct)


@_compiled
def parts(at, like, numbers, sums, results, size, first, last, stage, ball, margin, mean, direct):
    """The sums or the elements of chunks first to last, counted over all samples."""
    x, c, u, out = _tensors(at, like)
    for n in range(first, last):
        i, part = n // sums.shape[1], n % sums.shape[1]
        low = i * size + part * CHUNK
        high = min(low + CHUNK, i * size + size)
        column = 0 if numbers.shape[1] == 1 else i
        a, k = np.float32(numbers[0, column]), np.float32(numbers[1, column])
        if stage & MEASURE:
            sums[i, part, 0], sums[i, part, 1], sums[i, part, 2] = _summed(x, c, u, low, high, a, k, direct)
        if stage & WRITE:
            _written(x, c, u, out, low, high, a, k, np.float32(results[3, i]), mean, direct)


# Rows of a block of samples of few elements: a, k, c, gamma, floor; <m, m>, <d, d>, <m, d>; what c became.
_C, _GAMMA, _FLOOR, _SUMS, _LEFT = 2 * BLOCK, 3 * BLOCK, 4 * BLOCK, 5 * BLOCK, 8 * BLOCK


def _few_summing(affine):
    """Writes the three sums of n samples, in float64."""

    @numba.njit(**_EXACT)
    def summed(x, c, u, size, n, block, direct):
        for i in range(n):
            a, k = np.float32(read(block, i)), np.float32(read(block, i + BLOCK))
            q, r, b = 0.0, 0.0, 0.0
            for j in range(i * size, i * size + size):
                conditional = read(c, j)
                m = np.float64(affine(read(x, j), conditional, a, k))
                d = np.float64(read(u, j) if direct else conditional - read(u, j))
                q += m * m
                r += d * d
                b += m * d
            write(block, i + _SUMS, q)
            write(block, i + _SUMS + BLOCK, r)
            write(block, i + _SUMS + 2 * BLOCK, b)

    return summed


# Where all samples share their numbers, a is not 0 (x is c then): no choice, and the loop is vector code.
_few_summed = _few_summing(_inlined(lambda x, out, a, k: fused(k, out, a * x)))
_few_summed_apart = _few_summing(_affine)


@numba.njit(**_EXACT)
def _few_left(n, block, ball, margin):
    """Writes what the cap leaves of n coefficients."""
    for i in range(n):
        q, r, b = read(block, i + _SUMS), read(block, i + _SUMS + BLOCK), read(block, i + _SUMS + 2 * BLOCK)
        k, c, gamma, floor = (
            read(block, i + BLOCK), read(block, i + _C), read(block, i + _GAMMA), read(block, i + _FLOOR)
        )  # fmt: skip
        write(block, i + _LEFT, _left(q, r, b, k, c, gamma, floor, ball, margin))


@numba.njit(**_EXACT)
def _few_lengths(n, block, results, batch):
    """Copies n samples' lengths and coefficients to the results."""
    for i in range(n):
        q, r, b = read(block, i + _SUMS), read(block, i + _SUMS + BLOCK), read(block, i + _SUMS + 2 * BLOCK)
        m, d, along = _lengths(q, r, b, read(block, i + BLOCK))
        write(results, i, m)
        write(results, i + batch, d)
        write(results, i + 2 * batch, along)
        write(results, i + 3 * batch, read(block, i + _LEFT))


@numba.njit(**_EXACT)
def _few_written(x, c, u, out, size, n, block, coefficient, mean, direct):
    """Writes n samples."""
    for i in range(n):
        for j in range(i * size, i * size + size):
            each = np.float32(read(block, i + coefficient))
            if mean:
                a, k = np.float32(read(block, i)), np.float32(read(block, i + BLOCK))
                w = _mean(read(x, j), read(c, j), read(u, j), a, k, each, direct)
            else:
                w = _blend(read(c, j), read(u, j), each, direct)
            write(out, j, w)


@_compiled
def few(at, like, numbers, sums, results, size, first, last, stage, ball, margin, mean, direct):
    """Samples first to last, of a few elements each: side by side in float64, a block of them at a time."""
    x, c, u, out = _tensors(at, like)
    shared = numbers.shape[1] == 1
    rows = np.empty((9, BLOCK))
    block = pointer(rows.ctypes.data, 0.0)
    for low in range(first, last, BLOCK):
        n = min(BLOCK, last - low)
        if low == first or not shared:
            for row in range(5):
                for i in range(BLOCK):
                    rows[row, i] = numbers[row, 0 if shared else min(low + i, last - 1)]
        start = low * size
        xs, cs, us, outs = ahead(x, start), ahead(c, start), ahead(u, start), ahead(out, start)
        if stage & MEASURE:
            if not shared:
                _few_summed_apart(xs, cs, us, size, n, block, direct)
            elif size == 2:  # so that the compiler knows
                _few_summed(xs, cs, us, 2, n, block, direct)
            else:
                _few_summed(xs, cs, us, size, n, block, direct)
            _few_left(n, block, ball, margin)
            if stage & LENGTHS:
                _few_lengths(n, block, ahead(pointer(results.ctypes.data, 0.0), low), results.shape[1])
        if stage & WRITE:
            left = _LEFT if stage & MEASURE else _C
            if size == 2:
                _few_written(xs, cs, us, outs, 2, n, block, left, mean, direct)
            else:
                _few_written(xs, cs, us, outs, size, n, block, left, mean, direct)
