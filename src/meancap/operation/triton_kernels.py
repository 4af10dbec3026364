# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""The operation in Triton: one kernel for samples that fit in registers, two for the others.

    m = a x + k out_c        the conditional mean, float32
    d = out_c - out_u        the direction in the network's own units, float32; with DIRECT it is out_u itself
    q, r, b                  <m, m>, <d, d> and <m, d> of each sample: float32 over RUN elements, then float64
    c                        the coefficient asked for, then what the cap leaves of it, float64
    out_c + c d              the result, or m + c k d with MEAN, rounded once more to the dtype asked for

Before it is multiplied, each run of m and d is divided by a power of two near its largest element, so that
every finite input is within float32's range. The cap is the one of `fraction`.

With LENGTHS a kernel measures, with WRITE it writes the result, and with both the cap stands between them.

A number is the 64 bits of a float, or a tensor with one entry per sample. Triton would pass a float as
float32; its bits travel as an integer that is not specialised on, so that no value causes a compilation.

Not run on a GPU: tests run this in Triton's interpreter and compile it for sm_80 and sm_90.
"""

from __future__ import annotations

import triton  # type: ignore[import-untyped,import-not-found,unused-ignore]
import triton.language as tl  # type: ignore[import-untyped,import-not-found,unused-ignore]

from .fraction import UNBOUNDED as _UNBOUNDED

PARTS = tl.constexpr(256)  # programs per sample at most; each of them folds the sums of all
UNBOUNDED = tl.constexpr(_UNBOUNDED)
RUN = tl.constexpr(32)  # elements in a float32 sum, all of them with one thread where tiles are large
FEW = tl.constexpr(512)  # rows shorter than this are summed in float64 throughout


@triton.jit
def _number(bits, at, step, row, here):
    """A number for each row: the float with these bits, or the entries of a tensor."""
    if at is None:
        v = tl.zeros_like(row).to(tl.float64) + bits.to(tl.int64).to(tl.float64, bitcast=True)
    else:
        v = tl.load(at + row * step, mask=here, other=0).to(tl.float64)
    return v


@triton.jit
def _rows(v, row, step, column, here):
    """A tile of samples in float32."""
    return tl.load(v + (row * step)[:, None] + column[None, :], mask=here, other=0).to(tl.float32)


@triton.jit
def _exponent(v):
    """The power of two near the largest element of each run, within what has an inverse."""
    top = tl.max(tl.max(tl.abs(v), axis=3), axis=1)
    return tl.minimum(tl.maximum((top.to(tl.int32, bitcast=True) >> 23) & 255, 1), 253) - 127


@triton.jit
def _divided(v, exponent):
    """v / 2^exponent."""
    return v * ((127 - exponent) << 23).to(tl.float32, bitcast=True)[:, None, :, None]


@triton.jit
def _sum(v, exponent):
    """The sum of each row of v 2^exponent: float32 over a run, float64 over the runs."""
    power = ((1023 + exponent).to(tl.int64) << 52).to(tl.float64, bitcast=True)
    return tl.sum(tl.sum(tl.sum(v, axis=3), axis=1).to(tl.float64) * power, axis=1)


@triton.jit
def _affine(x, w, a, k):
    """a x + k w; x is not looked at where a = 0."""
    a = a.to(tl.float32)[:, None] + tl.zeros_like(w)
    return tl.fma(w, k.to(tl.float32)[:, None] + tl.zeros_like(w), tl.where(a == 0, 0.0, a * x))


@triton.jit
def _sums(m, d, NEXT: tl.constexpr):
    """<m, m>, <d, d> and <m, d> of each row; NEXT elements that a thread reads at once stay together."""
    if m.shape[1] < FEW:
        m = m.to(tl.float64)
        d = d.to(tl.float64)
        q = tl.sum(m * m, axis=1)
        r = tl.sum(d * d, axis=1)
        b = tl.sum(m * d, axis=1)
    else:
        m = tl.reshape(m, (m.shape[0], RUN // NEXT, m.shape[1] // RUN, NEXT))
        d = tl.reshape(d, (d.shape[0], RUN // NEXT, d.shape[1] // RUN, NEXT))
        m_exponent = _exponent(m)
        d_exponent = _exponent(d)
        m = _divided(m, m_exponent)
        d = _divided(d, d_exponent)
        q = _sum(m * m, 2 * m_exponent)
        r = _sum(d * d, 2 * d_exponent)
        b = _sum(m * d, m_exponent + d_exponent)
    return q, r, b


@triton.jit
def _left(q, r, b, k, c, gamma, floor, BALL: tl.constexpr, MARGIN: tl.constexpr):
    """What a cap leaves of c: `fraction.kept`, worked out as in `host_kernels._left`."""
    size = k * k * r
    if BALL:
        toward = tl.where(c < 0, -k * b, k * b)
        room = q * ((gamma - 1) * (gamma + 1))
        above = floor * floor - q
    else:
        toward = tl.zeros_like(b)
        room = q * ((gamma - 1) * (gamma - 1))
        above = floor * floor
    room = tl.where((above > room) & (floor > 0), above, room)
    reach = tl.sqrt(toward * toward + size * room)
    limit = tl.where(toward > 0, room, reach - toward) / tl.where(toward > 0, toward + reach, size)
    endless = size == float("inf")
    limit = tl.where(endless, 0.0 * toward, limit)
    free = (c == 0) | (size == 0) | (gamma > UNBOUNDED) | (limit >= tl.abs(c))
    free = free | ((reach == float("inf")) & (endless == 0))
    return tl.where(free, c, tl.where(c < 0, -limit, limit) * (1 - MARGIN) + (c - c))


@triton.jit
def _limited(
    q, r, b, k, c, gamma, floor, numbers, batch, row, here,
    WRITE: tl.constexpr, BALL: tl.constexpr, MARGIN: tl.constexpr,
):  # fmt: skip
    """Stores |m|, |k||d|, the component of m along k d, and what the cap leaves of c; returns the last."""
    m = tl.sqrt(q)
    length = tl.sqrt(r)
    along = tl.where(length == 0, 0.0, b / length)
    along = tl.where(k < 0, -along, along)
    d = length * tl.abs(k)
    at = numbers + row
    tl.store(at, m, mask=here)
    tl.store(at + batch, d, mask=here)
    tl.store(at + 2 * batch, along, mask=here)
    if WRITE:
        c = _left(q, r, b, k, c, gamma, floor, BALL, MARGIN)
        tl.store(at + 3 * batch, c, mask=here)
    return c


@triton.jit
def _written(
    x, out_c, out_u, out, size, row, column, here, x_row, c_row, u_row, a, k, c,
    MEAN: tl.constexpr, DIRECT: tl.constexpr,
):  # fmt: skip
    """Writes a tile of the result."""
    base = _rows(out_c, row, c_row, column, here)
    d = _rows(out_u, row, u_row, column, here)
    if not DIRECT:  # where c is -1 the result is out_u, and nothing is added to it
        away = c.to(tl.float32)[:, None] + tl.zeros_like(base) == -1
        base, d = tl.where(away, d, base), tl.where(away, 0.0, base - d)
    if MEAN:  # from the m that was measured: x and k out_c may cancel, and d must not lose by it
        base = _affine(_rows(x, row, x_row, column, here), base, a, k)
        c = c * k
    c = c.to(tl.float32)[:, None] + tl.zeros_like(base)
    w = tl.where(c == 0, base, tl.fma(d, c, base))  # 0 * inf would put a NaN where nothing is added
    tl.store(out + (row * size)[:, None] + column[None, :], w.to(out.dtype.element_ty), mask=here)


@triton.jit
def _summed(
    x, out_c, out_u, row, column, here, x_row, c_row, u_row, a, k,
    NEXT: tl.constexpr, DIRECT: tl.constexpr,
):  # fmt: skip
    """The three sums over a tile."""
    conditional = _rows(out_c, row, c_row, column, here)
    d = _rows(out_u, row, u_row, column, here)
    if not DIRECT:
        d = conditional - d
    return _sums(_affine(_rows(x, row, x_row, column, here), conditional, a, k), d, NEXT)


_NUMBERS = ("a", "k", "c", "gamma", "floor")
_UNSPECIALISED = ["batch", *_NUMBERS, *(f"{name}_step" for name in _NUMBERS)]


@triton.jit(do_not_specialize=_UNSPECIALISED)
def whole_samples(
    x, out_c, out_u, out, numbers, batch, size, x_row, c_row, u_row,
    a: tl.int64, a_at, a_step, k: tl.int64, k_at, k_step, c: tl.int64, c_at, c_step,
    gamma: tl.int64, gamma_at, gamma_step, floor: tl.int64, floor_at, floor_step,
    ROWS: tl.constexpr, SIZE: tl.constexpr, NEXT: tl.constexpr, LENGTHS: tl.constexpr, WRITE: tl.constexpr,
    MEAN: tl.constexpr, DIRECT: tl.constexpr, BALL: tl.constexpr, MARGIN: tl.constexpr,
):  # fmt: skip
    """All of it, for `ROWS` samples of at most `SIZE` elements."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, SIZE)
    there = row < batch
    here = there[:, None] & (column < size)[None, :]
    a_each = _number(a, a_at, a_step, row, there)
    k_each = _number(k, k_at, k_step, row, there)
    coefficient = _number(c, c_at, c_step, row, there)
    if LENGTHS:
        q, r, b = _summed(
            x, out_c, out_u, row, column, here, x_row, c_row, u_row, a_each, k_each, NEXT, DIRECT
        )
        coefficient = _limited(
            q, r, b, k_each, coefficient,
            _number(gamma, gamma_at, gamma_step, row, there),
            _number(floor, floor_at, floor_step, row, there),
            numbers, batch, row, there, WRITE, BALL, MARGIN,
        )  # fmt: skip
    if WRITE:
        # Read again, from the cache: kept until here, they would leave the sums too few registers.
        _written(
            x, out_c, out_u, out, size, row, column, here, x_row, c_row, u_row,
            a_each, k_each, coefficient, MEAN, DIRECT,
        )  # fmt: skip


@triton.jit(do_not_specialize=["a", "a_step", "k", "k_step"])
def part_sums(
    x, out_c, out_u, sums, size, tiles, x_row, c_row, u_row,
    a: tl.int64, a_at, a_step, k: tl.int64, k_at, k_step,
    TILE: tl.constexpr, NEXT: tl.constexpr, DIRECT: tl.constexpr,
):  # fmt: skip
    """First of two: the three sums over one part of one sample."""
    row = tl.program_id(0).to(tl.int64) + tl.arange(0, 1)
    part = tl.program_id(1)
    a_each = _number(a, a_at, a_step, row, row >= 0)
    k_each = _number(k, k_at, k_step, row, row >= 0)
    q = tl.zeros((1,), tl.float64)
    r = tl.zeros((1,), tl.float64)
    b = tl.zeros((1,), tl.float64)
    for i in range(tiles):
        column = (part * tiles + i) * TILE + tl.arange(0, TILE)
        here = (column < size)[None, :]
        more_q, more_r, more_b = _summed(
            x, out_c, out_u, row, column, here, x_row, c_row, u_row, a_each, k_each, NEXT, DIRECT
        )
        q += more_q
        r += more_r
        b += more_b
    parts = tl.num_programs(1)
    at = sums + row * (3 * parts) + part
    tl.store(at, q)
    tl.store(at + parts, r)
    tl.store(at + 2 * parts, b)


@triton.jit(do_not_specialize=["parts", *_UNSPECIALISED])
def part_results(
    sums, parts, x, out_c, out_u, out, numbers, batch, size, tiles, x_row, c_row, u_row,
    a: tl.int64, a_at, a_step, k: tl.int64, k_at, k_step, c: tl.int64, c_at, c_step,
    gamma: tl.int64, gamma_at, gamma_step, floor: tl.int64, floor_at, floor_step,
    TILE: tl.constexpr, LENGTHS: tl.constexpr, WRITE: tl.constexpr,
    MEAN: tl.constexpr, DIRECT: tl.constexpr, BALL: tl.constexpr, MARGIN: tl.constexpr,
):  # fmt: skip
    """Second of two: every program folds all sums of its sample, and writes its part."""
    row = tl.program_id(0).to(tl.int64) + tl.arange(0, 1)
    part = tl.program_id(1)
    there = row >= 0
    a_each = _number(a, a_at, a_step, row, there)
    k_each = _number(k, k_at, k_step, row, there)
    coefficient = _number(c, c_at, c_step, row, there)
    if LENGTHS:
        index = tl.arange(0, PARTS)[None, :]
        at = sums + (row * (3 * parts))[:, None] + index
        coefficient = _limited(
            tl.sum(tl.load(at, mask=index < parts, other=0), axis=1),
            tl.sum(tl.load(at + parts, mask=index < parts, other=0), axis=1),
            tl.sum(tl.load(at + 2 * parts, mask=index < parts, other=0), axis=1),
            k_each, coefficient,
            _number(gamma, gamma_at, gamma_step, row, there),
            _number(floor, floor_at, floor_step, row, there),
            numbers, batch, row, part + tl.arange(0, 1) == 0, WRITE, BALL, MARGIN,
        )  # fmt: skip
    if WRITE:
        for i in range(tiles):
            column = (part * tiles + i) * TILE + tl.arange(0, TILE)
            here = (column < size)[None, :]
            _written(
                x, out_c, out_u, out, size, row, column, here, x_row, c_row, u_row,
                a_each, k_each, coefficient, MEAN, DIRECT,
            )  # fmt: skip
