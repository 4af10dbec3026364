# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""The capped step in Triton: one kernel for samples that fit in registers, two for the others.

    m = x + (1 - t) v_c      the conditional mean, float32
    d = v_c - v_u            the gap of the velocities, float32
    q, a, b                  <m, m>, <d, d> and <m, d> of each sample: float32 over RUN elements, then float64
    c                        the coefficient asked for, then what the cap leaves of it, float64
    v = v_c + c d            the result, rounded once more to the dtype asked for

Before it is multiplied, each run of m and d is divided by a power of two near its largest element, so that
every finite input is within float32's range. The formulas are those of `rules.cap`.

A number is the 64 bits of a float, or a tensor with one entry per sample. Triton would pass a float as
float32; its bits travel as an integer that is not specialised on, so that no value causes a compilation.

Not run on a GPU: tests run this in Triton's interpreter and compile it for sm_80 and sm_90.
"""

from __future__ import annotations

import triton  # type: ignore[import-untyped,import-not-found,unused-ignore]
import triton.language as tl  # type: ignore[import-untyped,import-not-found,unused-ignore]

PARTS = tl.constexpr(256)  # programs per sample at most; each of them folds the sums of all
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
def _mean(x, v_c, rest):
    """x + rest v_c."""
    return tl.fma(v_c, rest.to(tl.float32)[:, None] + tl.zeros_like(v_c), x)


@triton.jit
def _sums(m, d, NEXT: tl.constexpr):
    """<m, m>, <d, d> and <m, d> of each row; NEXT elements that a thread reads at once stay together."""
    if m.shape[1] < FEW:
        m = m.to(tl.float64)
        d = d.to(tl.float64)
        q = tl.sum(m * m, axis=1)
        a = tl.sum(d * d, axis=1)
        b = tl.sum(m * d, axis=1)
    else:
        m = tl.reshape(m, (m.shape[0], RUN // NEXT, m.shape[1] // RUN, NEXT))
        d = tl.reshape(d, (d.shape[0], RUN // NEXT, d.shape[1] // RUN, NEXT))
        m_exponent = _exponent(m)
        d_exponent = _exponent(d)
        m = _divided(m, m_exponent)
        d = _divided(d, d_exponent)
        q = _sum(m * m, 2 * m_exponent)
        a = _sum(d * d, 2 * d_exponent)
        b = _sum(m * d, m_exponent + d_exponent)
    return q, a, b


@triton.jit
def _hypot(a, b):
    """sqrt(a^2 + b^2), without squares that overflow."""
    large = tl.maximum(tl.abs(a), tl.abs(b))
    small = tl.where(tl.abs(a) < tl.abs(b), tl.abs(a), tl.abs(b))
    share = tl.where(large == 0, small, small / large)
    return large * tl.sqrt(1 + share * share)


@triton.jit
def _share(m, d, along, c, gamma, floor, FLOOR: tl.constexpr, BALL: tl.constexpr, MARGIN: tl.constexpr):
    """Largest s in [0, 1] for which c s d stays inside: `rules.cap.largest_fraction` in float64."""
    g = tl.abs(c) * d
    if BALL:
        toward = tl.where(c < 0, -along, along)
        room = m * tl.sqrt((gamma - 1) * (gamma + 1))
        if FLOOR:
            above = tl.sqrt(tl.where(floor > m, (floor - m) * (floor + m), 0.0))
            room = tl.where(above > room, above, room)
    else:
        toward = 0.0 * along
        room = m * (gamma - 1)
        if FLOOR:
            room = tl.where(floor > room, floor, room)
    reach = _hypot(toward, room)
    s = tl.where(toward > 0, (room / g) * (room / (toward + reach)), (reach - toward) / g)
    s = tl.where(s < 1, s * (1 - MARGIN), tl.where(s >= 1, 1.0, s))
    return tl.where((g == 0) | (room == float("inf")) | (gamma == float("inf")), 1.0, s)


@triton.jit
def _limited(
    q, a, b, rest, c, gamma, floor, numbers, batch, row, here,
    FLOOR: tl.constexpr, BALL: tl.constexpr, MARGIN: tl.constexpr,
):  # fmt: skip
    """The coefficient of each row; it is written after |m|, |gap| and the component of m along the gap."""
    m = tl.sqrt(q)
    size = tl.sqrt(a)
    along = tl.where(size == 0, 0.0, b / size)
    d = size * rest
    s = _share(m, d, along, c, gamma, floor, FLOOR, BALL, MARGIN)
    c = tl.where(c == 0, c, c * s)  # nothing asked for is nothing granted, whatever the gap
    at = numbers + row
    tl.store(at, m, mask=here)
    tl.store(at + batch, d, mask=here)
    tl.store(at + 2 * batch, along, mask=here)
    tl.store(at + 3 * batch, c, mask=here)
    return c


@triton.jit
def _blend(v_c, d, c):
    """v_c + c d, but v_c where c is 0: 0 * inf would put a NaN where nothing is added."""
    c = c.to(tl.float32)[:, None]
    return tl.where(c == 0, v_c, tl.fma(d, c + tl.zeros_like(d), v_c))


_UNSPECIALISED = ["batch", "t", "c", "gamma", "floor", "t_step", "c_step", "gamma_step", "floor_step"]


@triton.jit(do_not_specialize=_UNSPECIALISED)
def whole_samples(
    x, v_c, v_u, out, numbers, batch, size, x_row, v_c_row, v_u_row,
    t: tl.int64, t_at, t_step, c: tl.int64, c_at, c_step,
    gamma: tl.int64, gamma_at, gamma_step, floor: tl.int64, floor_at, floor_step,
    ROWS: tl.constexpr, SIZE: tl.constexpr, NEXT: tl.constexpr,
    FLOOR: tl.constexpr, BALL: tl.constexpr, MARGIN: tl.constexpr,
):  # fmt: skip
    """The step for `ROWS` samples of at most `SIZE` elements."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, SIZE)
    there = row < batch
    here = there[:, None] & (column < size)[None, :]
    conditional = _rows(v_c, row, v_c_row, column, here)
    d = conditional - _rows(v_u, row, v_u_row, column, here)
    rest = 1 - _number(t, t_at, t_step, row, there)
    q, a, b = _sums(_mean(_rows(x, row, x_row, column, here), conditional, rest), d, NEXT)
    coefficient = _limited(
        q, a, b, rest, _number(c, c_at, c_step, row, there),
        _number(gamma, gamma_at, gamma_step, row, there), _number(floor, floor_at, floor_step, row, there),
        numbers, batch, row, there, FLOOR, BALL, MARGIN,
    )  # fmt: skip
    # Read again, from the cache: kept until here, they would leave the sums too few registers.
    conditional = _rows(v_c, row, v_c_row, column, here)
    v = _blend(conditional, conditional - _rows(v_u, row, v_u_row, column, here), coefficient)
    tl.store(out + (row * size)[:, None] + column[None, :], v.to(out.dtype.element_ty), mask=here)


@triton.jit(do_not_specialize=["t", "t_step"])
def part_sums(
    x, v_c, v_u, sums, size, tiles, x_row, v_c_row, v_u_row, t: tl.int64, t_at, t_step,
    TILE: tl.constexpr, NEXT: tl.constexpr,
):  # fmt: skip
    """First of two: the three sums over one part of one sample."""
    row = tl.program_id(0).to(tl.int64) + tl.arange(0, 1)
    part = tl.program_id(1)
    rest = 1 - _number(t, t_at, t_step, row, row >= 0)
    q = tl.zeros((1,), tl.float64)
    a = tl.zeros((1,), tl.float64)
    b = tl.zeros((1,), tl.float64)
    for i in range(tiles):
        column = (part * tiles + i) * TILE + tl.arange(0, TILE)
        here = (column < size)[None, :]
        conditional = _rows(v_c, row, v_c_row, column, here)
        d = conditional - _rows(v_u, row, v_u_row, column, here)
        more_q, more_a, more_b = _sums(_mean(_rows(x, row, x_row, column, here), conditional, rest), d, NEXT)
        q += more_q
        a += more_a
        b += more_b
    parts = tl.num_programs(1)
    at = sums + row * (3 * parts) + part
    tl.store(at, q)
    tl.store(at + parts, a)
    tl.store(at + 2 * parts, b)


@triton.jit(do_not_specialize=_UNSPECIALISED)
def part_velocities(
    sums, v_c, v_u, out, numbers, batch, size, tiles, v_c_row, v_u_row,
    t: tl.int64, t_at, t_step, c: tl.int64, c_at, c_step,
    gamma: tl.int64, gamma_at, gamma_step, floor: tl.int64, floor_at, floor_step,
    TILE: tl.constexpr, FLOOR: tl.constexpr, BALL: tl.constexpr, MARGIN: tl.constexpr,
):  # fmt: skip
    """Second of two: every program folds all sums of its sample, and writes its part."""
    row = tl.program_id(0).to(tl.int64) + tl.arange(0, 1)
    part = tl.program_id(1)
    parts = tl.num_programs(1)
    index = tl.arange(0, PARTS)[None, :]
    at = sums + (row * (3 * parts))[:, None] + index
    there = row >= 0
    rest = 1 - _number(t, t_at, t_step, row, there)
    coefficient = _limited(
        tl.sum(tl.load(at, mask=index < parts, other=0), axis=1),
        tl.sum(tl.load(at + parts, mask=index < parts, other=0), axis=1),
        tl.sum(tl.load(at + 2 * parts, mask=index < parts, other=0), axis=1),
        rest, _number(c, c_at, c_step, row, there),
        _number(gamma, gamma_at, gamma_step, row, there), _number(floor, floor_at, floor_step, row, there),
        numbers, batch, row, part + tl.arange(0, 1) == 0, FLOOR, BALL, MARGIN,
    )  # fmt: skip
    for i in range(tiles):
        column = (part * tiles + i) * TILE + tl.arange(0, TILE)
        here = (column < size)[None, :]
        conditional = _rows(v_c, row, v_c_row, column, here)
        v = _blend(conditional, conditional - _rows(v_u, row, v_u_row, column, here), coefficient)
        tl.store(out + (row * size)[:, None] + column[None, :], v.to(out.dtype.element_ty), mask=here)
