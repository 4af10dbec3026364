"""The whole Euler trajectory in one compiled loop, by numba: two dimensions, few components, float32.

A block of samples stays in cache while all steps run over it; inside the block one loop does everything for
one sample, and the compiler turns it into vector code. The formulas are those of `sampler.Plan`; the cap is
`fast.capped_length`, as in every other step.

Only contraction, reciprocals and the sign of zero are left to the compiler: with numba's full fastmath it may
assume that nothing is NaN, and can then produce NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numba  # type: ignore[import-untyped,unused-ignore]
import numpy as np
import torch
from torch import Tensor

from meancap.cap import MARGINS
from meancap.fast import capped_length, compile_kernel

from .sampler import Plan

MOST = 12  # components; beyond it the compiler no longer unrolls the inner loops
_BLOCK = 256
_OPTIONS: dict[str, Any] = {"fastmath": {"contract", "nsz", "arcp"}, "error_model": "numpy", "nogil": True}
_HEAD = 7  # numbers of a step before those of its components

_TO_INTEGER = np.float32(1.5 * 2**23)  # adding it rounds a small float to an integer in the lowest bits
_FLOOR, _ROOF = np.float32(-100), np.float32(100)
_TINY, _LOW, _ZERO, _ONE = np.float32(1e-30), np.float32(-1e30), np.float32(0), np.float32(1)
_SHRINK = np.float32(1 - MARGINS[torch.float32])
# 2^f on [-1/2, 1/2] by a polynomial of degree 6: its error of 1e-8 is below half a unit.
_POWER = tuple(
    np.float32(c)
    for c in np.polynomial.Chebyshev.interpolate(np.exp2, 6, domain=[-0.5, 0.5])
    .convert(kind=np.polynomial.Polynomial)
    .coef
)
_C0, _C1, _C2, _C3, _C4, _C5, _C6 = _POWER


def _exp2(x: Any) -> Any:
    n = np.float32(np.float32(x + _TO_INTEGER) - _TO_INTEGER)
    f = np.float32(x - n)
    p = np.float32(_C6 * f + _C5)
    p = np.float32(p * f + _C4)
    p = np.float32(p * f + _C3)
    p = np.float32(p * f + _C2)
    p = np.float32(p * f + _C1)
    p = np.float32(p * f + _C0)
    return np.float32(p * np.int32((np.int32(n) + np.int32(127)) << np.int32(23)).view(np.float32))


exp2 = numba.njit(inline="always", **_OPTIONS)(_exp2)


def flow_plan(plan: Plan, x: Tensor, times: Sequence[float]) -> Tensor:
    """The end of the Euler flow from x (n, 2), float32 on the CPU."""
    run = _kernel(plan.inside, len(plan.means))
    steps, start = _steps(plan, times), np.ascontiguousarray(x.numpy())
    end = np.empty_like(start)
    workers = min(torch.get_num_threads(), max(1, len(start) // (16 * _BLOCK)))
    if workers == 1:
        run(start, end, steps)
        return torch.from_numpy(end)
    share = -(-len(start) // (workers * _BLOCK)) * _BLOCK
    with ThreadPoolExecutor(workers) as pool:
        parts = [slice(i, i + share) for i in range(0, len(start), share)]
        list(pool.map(lambda part: run(start[part], end[part], steps), parts))
    return torch.from_numpy(end)


def _steps(plan: Plan, times: Sequence[float]) -> np.ndarray[Any, np.dtype[np.float32]]:
    """One row per step: slope, share of the way, |nominal|, its sign, both caps (-1: none), components."""
    t = torch.tensor(times[:-1], dtype=torch.float64)[:, None, None]
    (slope, pull), (gain, bias) = plan.shares(t), plan.logits(t)
    parts = torch.cat([gain, bias.mT, pull * plan.means], 2).flatten(1)
    heads = []
    for here, there in pairwise(times):
        nominal, ball, displacement = plan.limits(here)
        way = 1.0 if there == 1 else (there - here) / (1 - here)
        heads.append([way, abs(nominal), math.copysign(1.0, nominal), ball, displacement**2, displacement])
    rows = torch.cat([slope.flatten(1), torch.tensor(heads, dtype=torch.float64), parts], 1)
    return np.asarray(rows.float().numpy())


@lru_cache(maxsize=32)
def _kernel(inside: int, k: int) -> Callable[..., None]:
    """The compiled loop for `inside` members among k components."""

    def run(start: Any, end: Any, steps: Any) -> None:
        state = np.empty(2 * _BLOCK, np.float32)  # one array: two would each have to be shown not to overlap
        for low in range(0, start.shape[0], _BLOCK):
            size = min(_BLOCK, start.shape[0] - low)
            for j in range(_BLOCK):  # a short block is filled up, so that all samples meet the same code
                state[j] = start[low + j, 0] if j < size else _ZERO
                state[_BLOCK + j] = start[low + j, 1] if j < size else _ZERO
            for i in range(steps.shape[0]):
                c = steps[i]
                for j in range(_BLOCK):
                    x, y = state[j], state[_BLOCK + j]
                    top_a, top_b = _LOW, _LOW
                    for n in range(inside):
                        o = _HEAD + 5 * n
                        z = np.float32(c[o] * x + c[o + 1] * y + c[o + 2])
                        top_a = z if z > top_a else top_a
                    for n in range(inside, k):
                        o = _HEAD + 5 * n
                        z = np.float32(c[o] * x + c[o + 1] * y + c[o + 2])
                        top_b = z if z > top_b else top_b
                    in_a, ax, ay, in_b, bx, by = _ZERO, _ZERO, _ZERO, _ZERO, _ZERO, _ZERO
                    for n in range(inside):
                        o = _HEAD + 5 * n
                        z = np.float32(c[o] * x + c[o + 1] * y + c[o + 2] - top_a)
                        e = exp2(z if z > _FLOOR else _FLOOR)
                        in_a = np.float32(in_a + e)
                        ax, ay = np.float32(ax + e * c[o + 3]), np.float32(ay + e * c[o + 4])
                    for n in range(inside, k):
                        o = _HEAD + 5 * n
                        z = np.float32(c[o] * x + c[o + 1] * y + c[o + 2] - top_b)
                        e = exp2(z if z > _FLOOR else _FLOOR)
                        in_b = np.float32(in_b + e)
                        bx, by = np.float32(bx + e * c[o + 3]), np.float32(by + e * c[o + 4])
                    per_a, per_b = np.float32(_ONE / in_a), np.float32(_ONE / in_b)
                    ax, ay = np.float32(ax * per_a), np.float32(ay * per_a)
                    ux, uy = np.float32(ax - bx * per_b), np.float32(ay - by * per_b)
                    z = np.float32(top_b - top_a)
                    z = z if z > _FLOOR else _FLOOR
                    odds = np.float32(exp2(z if z < _ROOF else _ROOF) * in_b)
                    mx, my = np.float32(c[0] * x + ax), np.float32(c[0] * y + ay)
                    per_u = np.float32(_ONE / np.sqrt(np.float32(ux * ux + uy * uy + _TINY)))
                    w = np.float32(c[3] * (mx * ux + my * uy) * per_u)
                    q = np.float32(mx * mx + my * my)
                    share = np.float32(c[2] * (odds / (in_a + odds)))
                    room = np.float32(_SHRINK * capped_length(w, np.float32(c[4] * q)) * per_u)
                    share = room if c[4] >= _ZERO and room < share else share
                    room = np.float32(_SHRINK * capped_length(_ZERO, np.float32(c[5] * q)) * per_u)
                    share = room if c[6] >= _ZERO and room < share else share
                    share = np.float32(share * c[3])
                    mx, my = np.float32(mx + share * ux), np.float32(my + share * uy)
                    # All of the way is the mean itself: x + (m - x) keeps only digits that x has.
                    state[j] = mx if c[1] == _ONE else np.float32(x + c[1] * (mx - x))
                    state[_BLOCK + j] = my if c[1] == _ONE else np.float32(y + c[1] * (my - y))
            for j in range(size):
                end[low + j, 0], end[low + j, 1] = state[j], state[_BLOCK + j]

    return compile_kernel(run, **_OPTIONS)  # type: ignore[no-any-return]
