# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""The three leaves of a step compiled by numba, for plain float32 and bfloat16 tensors on the CPU.

    lengths  |m|, |k d| and the component of m along k d, with m = a x + k c and d = c - u (or d = u)
    share    the share of a displacement that a cap keeps, one sample after the other
    blend    m + s k d, written in float32 or bfloat16

Each computes what the function that `meancap.cap.compiled` decorates computes in PyTorch, and returns None
for another device or type and for a derivative. Sums are float32 over runs of 128 elements and float64 over
the runs; few elements, and lengths beyond float32's accurate range, are summed in float64. No bit of a sample
depends on the batch.
"""

from __future__ import annotations

import math
from typing import Any

import numba  # type: ignore[import-untyped,unused-ignore]
import numpy as np
import torch
from torch import Tensor

from .cap import LARGEST, RUN, SMALLEST, UNBOUNDED, Lengths
from .tensors import Number, unpack_dual

if getattr(numba.config, "DISABLE_JIT"):  # noqa: B009
    raise ImportError("NUMBA_DISABLE_JIT is set")

_EXACT: dict[str, Any] = {"error_model": "numpy", "nogil": True}
_SUMMED: dict[str, Any] = {**_EXACT, "fastmath": {"contract", "nsz", "arcp", "reassoc"}}
_CACHE = __name__.startswith("meancap.")  # ComfyUI imports it under another name, which a cache would keep
_ZERO, _NORMAL = np.float32(-0.0), np.finfo(np.float32).tiny  # adding -0 changes no bit, not even of a -0


def compile_kernel(kernel: Any, **options: Any) -> Any:
    """Compiled once per machine if numba finds a place for its cache, otherwise once per process."""
    options = {**_EXACT, **options}
    try:
        return numba.njit(cache=_CACHE, **options)(kernel)
    except RuntimeError:
        return numba.njit(**options)(kernel)


@numba.njit(inline="always", **_EXACT)
def capped_length(along, room):
    """The scalar statement of the cap: the largest length l with l^2 + 2 along l <= room (a square)."""
    reach = math.sqrt(along * along + room)
    return room / (along + reach) if along > 0 else reach - along


def _widen(v):
    """An element as float32; a bfloat16 comes as 16 bits, which a shift widens."""


@numba.extending.overload(_widen, inline="always")
def _typed_widen(v):
    return (lambda v: np.int32(v << 16).view(np.float32)) if v == numba.int16 else (lambda v: v)


def _narrow(v, like):
    """A float32 as an element like `like`; rounded to nearest, ties to even, and a NaN stays one."""


@numba.extending.overload(_narrow, inline="always")
def _typed_narrow(v, like):
    def rounded(v, like):
        bits = np.float32(v).view(np.int32)
        up = bits + 0x7FFF + ((bits >> 16) & 1)
        return np.int16(up >> 16) if v == v else np.int16(0x7FC0)

    return rounded if like == numba.int16 else lambda v, like: v


def _at(v, i):
    """The number of sample i: v itself, or one of an array."""


@numba.extending.overload(_at, inline="always")
def _typed_at(v, i):
    return (lambda v, i: v[i]) if isinstance(v, numba.types.Array) else (lambda v, i: v)


@numba.njit(**_EXACT)  # without fastmath: the same bits as `path.mean_of`, which the bound is stated for
def _pair(x, c, u, a, k, direct):
    """m = a x + k c and d at one element; x may be anything if a = 0."""
    scaled = _ZERO if a == _ZERO else a * _widen(x)
    return scaled + k * _widen(c), _widen(u) if direct else _widen(c) - _widen(u)


@numba.njit(inline="always", **_SUMMED)
def _sums(x, c, u, i, first, a, k, direct):
    """<m, m>, <d, d> and <m, d> of sample i from `first`, in float64: accurate for all float32 elements."""
    q, r, b = 0.0, 0.0, 0.0
    for j in range(first, c.shape[1]):
        m, d = _pair(x[i, j], c[i, j], u[i, j], a, k, direct)
        m, d = np.float64(m), np.float64(d)
        q, r, b = q + m * m, r + d * d, b + m * d
    return q, r, b


@numba.njit(forceinline=True, **_SUMMED)  # called, it would round otherwise in the process that compiles it
def _sums_by_runs(x, c, u, i, a, k, direct):
    """The same of all elements: float32 in a run, float64 over the runs and where float32 is inaccurate."""
    end = c.shape[1] // RUN * RUN
    q, r, b = _sums(x, c, u, i, end, a, k, direct)
    for start in range(0, end, RUN):
        some_q, some_r, some_b = _ZERO, _ZERO, _ZERO
        for j in range(start, start + RUN):
            m, d = _pair(x[i, j], c[i, j], u[i, j], a, k, direct)
            some_q, some_r, some_b = some_q + m * m, some_r + d * d, some_b + m * d
        q, r, b = q + float(some_q), r + float(some_r), b + float(some_b)
    if SMALLEST < math.sqrt(q) < LARGEST and SMALLEST < math.sqrt(r) < LARGEST:
        return q, r, b
    return _sums(x, c, u, i, 0, a, k, direct)


@compile_kernel
def _lengths(x, c, u, a, k, direct, m, d, along):
    for i in range(len(c)):
        a_i, k_i = np.float32(_at(a, i)), np.float32(_at(k, i))
        if c.shape[1] < RUN:
            m[i], d[i], along[i] = _sums(x, c, u, i, 0, a_i, k_i, direct)
        else:
            m[i], d[i], along[i] = _sums_by_runs(x, c, u, i, a_i, k_i, direct)
    for i in range(len(c)):  # a loop of its own: the compiler computes the roots of several samples at once
        k_i, length = np.float32(_at(k, i)), math.sqrt(d[i])
        m[i], d[i] = math.sqrt(m[i]), abs(k_i) * length
        along[i] = 0.0 if length == 0 else along[i] / (-length if k_i < 0 else length)


@compile_kernel
def _share(m, d, along, c, gamma, floor, ball, margin, found):
    for i in range(len(found)):
        c_i, gamma_i, floor_i = _at(c, i), _at(gamma, i), _at(floor, i)
        toward = (-along[i] if c_i < 0 else along[i]) if ball else 0.0
        length = abs(c_i) * d[i]
        room = m[i] * (math.sqrt((gamma_i - 1) * (gamma_i + 1)) if ball else gamma_i - 1)
        above = math.sqrt(max(floor_i - m[i], 0.0)) * math.sqrt(floor_i + m[i]) if ball else floor_i
        room = above if floor_i > 0 and above > room else room
        unit = max(abs(toward), room) or 1.0  # lengths relative to it have squares within range
        limit = unit * capped_length(toward / unit, room / unit * (room / unit))
        free = (c_i == 0) | (length == 0) | (gamma_i > UNBOUNDED) | (room == math.inf) | (limit >= length)
        found[i] = 1.0 if free else limit / length * (1 - margin)


@compile_kernel
def _blend(x, c, u, a, k, s, found):
    for i in range(len(c)):
        a_i, k_i, s_i = np.float32(_at(a, i)), np.float32(_at(k, i)), _at(s, i)
        w = np.float32(s_i * _at(k, i))
        w = w if abs(w) >= _NORMAL else w - w  # a subnormal is rounded by more than the margin: 0, or NaN
        for j in range(c.shape[1]):
            m, d = _pair(x[i, j], c[i, j], u[i, j], a_i, k_i, False)
            away, _ = _pair(x[i, j], u[i, j], u[i, j], a_i, k_i, False)
            v = away if s_i == -1 else m + w * d
            found[i, j] = _narrow(m if w == _ZERO else v, found[i, j])


def lengths(base: Tensor, direction: Tensor) -> Lengths | None:
    """`meancap.cap.lengths`."""
    found = np.empty((3, len(base)))
    done = _run(_lengths, (base, base, direction, 0.0, 1.0), True, *found)
    return Lengths(*torch.from_numpy(found).unbind(0)) if done else None


def gap_lengths(p: Any) -> Lengths | None:
    """`meancap.Prediction.lengths`."""
    if p.gap is not None:
        return None
    found = np.empty((3, len(p.state)))
    done = _run(_lengths, (p.state, p.out_c, p.out_u, p.a, p.k), False, *found)
    return Lengths(*torch.from_numpy(found).unbind(0)) if done else None


def share(
    seen: Lengths, c: Number, gamma: Number, floor: Number = 0.0, *, ball: bool = True, margin: float = 0.0
) -> Tensor | None:
    """`meancap.cap.cap_share`."""
    found = np.empty(len(seen.base))
    return torch.from_numpy(found) if _run(_share, (*seen, c, gamma, floor), ball, margin, found) else None


def guided_mean(g: Any) -> Tensor | None:
    """`meancap.rules.Displacement.mean` along the gap."""
    p, c = g.p, g.share * g.nominal
    if g.direction is not None or p.gap is not None:
        return None
    found = torch.empty(p.out_c.shape, dtype=p.dtype)
    return found if _run(_blend, (p.state, p.out_c, p.out_u, p.a, p.k, c, found)) else None


def guided_output(g: Any, dtype: torch.dtype) -> Tensor | None:
    """`meancap.rules.Displacement.output` along the gap."""
    p, c = g.p, g.share * g.nominal
    if g.direction is not None or p.gap is not None:
        return None
    found = torch.empty(p.out_c.shape, dtype=dtype)
    return found if _run(_blend, (p.out_c, p.out_c, p.out_u, 0.0, 1.0, c, found)) else None


def _run(kernel: Any, values: tuple[Any, ...], *rest: Any) -> bool:
    """Calls a kernel with tensors as (samples, size) and numbers as a float or one for each, if it can."""
    samples, arrays = len(values[0]), list[Any]()
    for v in values:
        if not isinstance(v, Tensor):
            arrays.append(float(v))
            continue
        half, large = v.dtype == torch.bfloat16, v.dim() > 1
        fits = (samples and (half or v.dtype == torch.float32)) if large else v.numel() in (1, samples)
        if not fits or type(v) is not Tensor or unpack_dual(v).tangent is not None:
            return False
        try:  # on another device, with a gradient, or inside torch.func a tensor has no array
            array = (v.view(torch.int16) if half and large else v).numpy()
        except (RuntimeError, TypeError):
            return False
        if large:
            arrays.append(np.ascontiguousarray(array).reshape(samples, -1))
        else:
            arrays.append(np.ascontiguousarray(array, np.float64) if array.size == samples else float(v))
    kernel(*arrays, *rest)
    return True
