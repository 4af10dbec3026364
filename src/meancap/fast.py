# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""The three leaves of a step compiled by numba, for plain float32 and bfloat16 tensors on the CPU.

    gram    |m|, |k d| and the component of m along k d, with m = a x + k c and d = c - u (or d = u)
    share   the share of a displacement that a cap keeps, one sample after the other
    blend   m + coefficient k d, written in float32 or bfloat16

Each computes what `meancap.cap` computes in PyTorch, and returns None for other tensors: another device or
type, or a derivative. Sums are float32 over runs of 128 elements and float64 over the runs; samples of few
elements, and those whose lengths leave float32's accurate range, are summed in float64. Every loop handles
one sample by itself, so no bit depends on the batch. A bfloat16 is read as 16 bits and widened by a shift.
"""

from __future__ import annotations

import math
from typing import Any

import numba  # type: ignore[import-untyped,unused-ignore]
import numpy as np
import torch
from torch import Tensor

from .cap import LARGEST, RUN, SMALLEST, UNBOUNDED, Lengths
from .tensors import Number, need_one_each, unpack_dual

if getattr(numba.config, "DISABLE_JIT"):  # noqa: B009
    raise ImportError("NUMBA_DISABLE_JIT is set")

_EXACT: dict[str, Any] = {"error_model": "numpy", "nogil": True}
_SUMMED: dict[str, Any] = {**_EXACT, "fastmath": {"contract", "nsz", "arcp", "reassoc"}}
# A cached kernel names its module; ComfyUI imports this package under the name of its folder.
_CACHE = __name__.startswith("meancap.")
_ZERO, _NORMAL = np.float32(-0.0), np.finfo(np.float32).tiny  # adding -0 changes no bit, not even of a -0


def _compile(kernel):
    """Compiled once per machine if numba finds a place for its cache, otherwise once per process."""
    try:
        return numba.njit(cache=_CACHE, **_EXACT)(kernel)
    except RuntimeError:
        return numba.njit(**_EXACT)(kernel)


@numba.njit(inline="always", **_EXACT)
def capped_length(along, room):
    """The scalar statement of the cap: the largest length l with l^2 + 2 along l <= room (a square)."""
    reach = math.sqrt(along * along + room)
    return room / (along + reach) if along > 0 else reach - along


def _widen(v):
    """An element as float32."""


@numba.extending.overload(_widen, inline="always")
def _typed_widen(v):
    if v == numba.int16:
        return lambda v: np.int32(np.int32(v) << np.int32(16)).view(np.float32)
    return lambda v: v


def _narrow(v, like):
    """A float32 as an element like `like`; rounded to nearest, ties to even, and a NaN stays one."""


@numba.extending.overload(_narrow, inline="always")
def _typed_narrow(v, like):
    def rounded(v, like):
        bits = np.float32(v).view(np.int32)
        last = np.int32(np.int32(bits >> np.int32(16)) & np.int32(1))
        up = np.int32(np.int32(bits + np.int32(0x7FFF)) + last)
        return np.int16(np.int32(up >> np.int32(16))) if v == v else np.int16(0x7FC0)

    return rounded if like == numba.int16 else lambda v, like: v


@numba.njit(**_EXACT)  # without fastmath: the same bits as `path.mean_of`, which the bound is stated for
def _pair(x, c, u, a, k, direct):
    """m = a x + k c and d at one element; x may be anything if a = 0."""
    scaled = _ZERO if a == _ZERO else a * x
    return scaled + k * c, u if direct else c - u


@numba.njit(forceinline=True, **_SUMMED)  # called, it would round otherwise in the process that compiles it
def _sums_of_runs(x, c, u, i, a, k, direct):
    """<m, m>, <d, d> and <m, d> of the whole runs of sample i: float32 in a run, float64 over the runs."""
    q, r, b = 0.0, 0.0, 0.0
    for start in range(0, c.shape[1] // RUN * RUN, RUN):
        some_q, some_r, some_b = _ZERO, _ZERO, _ZERO
        for j in range(start, start + RUN):
            m, d = _pair(_widen(x[i, j]), _widen(c[i, j]), _widen(u[i, j]), a, k, direct)
            some_q += m * m
            some_r += d * d
            some_b += m * d
        q, r, b = q + float(some_q), r + float(some_r), b + float(some_b)
    return q, r, b


@numba.njit(inline="always", **_SUMMED)
def _sums(x, c, u, i, first, a, k, direct):
    """The same of the elements from `first`, in float64: accurate for every m and d that float32 holds."""
    q, r, b = 0.0, 0.0, 0.0
    for j in range(first, c.shape[1]):
        m, d = _pair(_widen(x[i, j]), _widen(c[i, j]), _widen(u[i, j]), a, k, direct)
        m, d = np.float64(m), np.float64(d)
        q, r, b = q + m * m, r + d * d, b + m * d
    return q, r, b


@_compile
def _gram(x, c, u, a, k, direct, found):
    for i in range(len(c)):
        a_i, k_i = np.float32(a[i if len(a) > 1 else 0]), np.float32(k[i if len(k) > 1 else 0])
        q, r, b = _sums(x, c, u, i, c.shape[1] // RUN * RUN, a_i, k_i, direct)
        if c.shape[1] >= RUN:
            more_q, more_r, more_b = _sums_of_runs(x, c, u, i, a_i, k_i, direct)
            q, r, b = q + more_q, r + more_r, b + more_b
            if not (SMALLEST < math.sqrt(q) < LARGEST and SMALLEST < math.sqrt(r) < LARGEST):
                q, r, b = _sums(x, c, u, i, 0, a_i, k_i, direct)
        d = math.sqrt(r)
        along = 0.0 if d == 0 else b / d
        found[0, i], found[1, i], found[2, i] = math.sqrt(q), abs(k_i) * d, -along if k_i < 0 else along


@_compile
def _share(m, d, along, c, gamma, floor, ball, margin, found):
    for i in range(len(found)):
        c_i, gamma_i = c[i if len(c) > 1 else 0], gamma[i if len(gamma) > 1 else 0]
        floor_i = floor[i if len(floor) > 1 else 0]
        toward = (-along[i] if c_i < 0 else along[i]) if ball else 0.0
        length = abs(c_i) * d[i]
        room = m[i] * (math.sqrt((gamma_i - 1) * (gamma_i + 1)) if ball else gamma_i - 1)
        above = math.sqrt(max(floor_i - m[i], 0.0)) * math.sqrt(floor_i + m[i]) if ball else floor_i
        room = above if floor_i > 0 and above > room else room
        unit = max(abs(toward), room) or 1.0  # lengths relative to it have squares within range
        limit = unit * capped_length(toward / unit, room / unit * (room / unit))
        free = (c_i == 0) | (length == 0) | (gamma_i > UNBOUNDED) | (room == math.inf) | (limit >= length)
        found[i] = 1.0 if free else limit / length * (1 - margin)


@_compile
def _blend(x, c, u, a, k, coefficient, found):
    for i in range(len(c)):
        k_i, c_i = k[i if len(k) > 1 else 0], coefficient[i if len(coefficient) > 1 else 0]
        a_i, w = np.float32(a[i if len(a) > 1 else 0]), np.float32(c_i * k_i)
        w = w if abs(w) >= _NORMAL else w - w  # a subnormal is rounded by more than the margin: 0, or NaN
        for j in range(c.shape[1]):
            state, conditional, other = _widen(x[i, j]), _widen(c[i, j]), _widen(u[i, j])
            m, d = _pair(state, conditional, other, a_i, np.float32(k_i), False)
            away, _ = _pair(state, other, other, a_i, np.float32(k_i), False)
            v = away if c_i == -1 else m + w * d
            found[i, j] = _narrow(m if w == _ZERO else v, found[i, j])


def gram(x: Tensor, c: Tensor, u: Tensor, a: Number, k: Number, direct: bool = False) -> Lengths | None:
    """The lengths of every sample; with `direct` u is the direction itself."""
    found = np.empty((3, c.shape[0]))
    done = _run(_gram, c.shape[0], (x, c, u, a, k), direct, found)
    return Lengths(*torch.from_numpy(found).unbind(0)) if done else None


def share(seen: Lengths, c: Number, gamma: Number, floor: Number, ball: bool, margin: float) -> Tensor | None:
    """The share of c * direction that the cap keeps, for every sample."""
    found = np.empty(seen.m.shape[0])
    done = _run(_share, len(found), (*seen, c, gamma, floor), ball, margin, found)
    return torch.from_numpy(found) if done else None


def blend(
    x: Tensor, c: Tensor, u: Tensor, a: Number, k: Number, coefficient: Number, dtype: torch.dtype
) -> Tensor | None:
    """m + coefficient k (c - u) with m = a x + k c; m itself for 0, and exactly a x + k u for -1."""
    found = torch.empty(c.shape, dtype=dtype)
    return found if _run(_blend, c.shape[0], (x, c, u, a, k, coefficient, found)) else None


def _run(kernel: Any, samples: int, values: tuple[Number, ...], *rest: Any) -> bool:
    """Calls a kernel with tensors as (batch, size) and numbers as one for all or one each, if it can."""
    arrays = []
    for v in values:
        if not isinstance(v, Tensor):
            arrays.append(np.array([v], np.float64))
            continue
        followed = (v.requires_grad and torch.is_grad_enabled()) or unpack_dual(v).tangent is not None
        wide = v.dtype not in (torch.float32, torch.bfloat16)
        if followed or type(v) is not Tensor or not v.is_cpu or (v.dim() > 1 and (wide or not samples)):
            return False
        try:  # under vmap, jvp and grad of torch.func a tensor has no storage of its own
            array = (v.view(torch.int16) if v.dtype == torch.bfloat16 else v).numpy()
        except RuntimeError:
            return False
        if v.dim() > 1:
            arrays.append(np.ascontiguousarray(array).reshape(samples, -1))
        else:
            if array.size != samples:
                need_one_each(samples, array.size)
            arrays.append(np.ascontiguousarray(array.reshape(-1), np.float64))
    kernel(*arrays, *rest)
    return True
