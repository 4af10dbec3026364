"""The operation in plain PyTorch: any device, float64, autograd, tangents, vmap. The others are tied to it.

Lengths are summed in float64; a device without it divides by a power of two first. On the host, where a copy
in float64 costs more than everything else, long float32 samples are summed in float32 over runs of at most
128 elements and in float64 over the runs; samples whose lengths leave float32's comfortable range are done
again in float64. Runs are short, because in a long float32 sum one large element swallows the digits of the
others.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from ..tensors import Number, on_host, per_sample, scalar_dtype, transformed, vector, working_dtype
from .fraction import UNBOUNDED, kept, root
from .request import Found, Request

RUN = 128  # elements of a float32 sum at most
SMALLEST, LARGEST = 1e-12, 1e15  # lengths that a float32 sum of squares can be trusted with


def mean_of(x: Tensor, out: Tensor, a: Number, k: Number, dtype: torch.dtype) -> Tensor:
    """a x + k out in this precision; x is not looked at where a = 0."""
    out = out.to(dtype)
    if not isinstance(a, Tensor) and a == 0:
        return per_sample(k, out) * out
    base = x.to(dtype)
    if isinstance(a, Tensor):
        each = torch.as_tensor(per_sample(a, out))
        base = torch.where(each == 0, 0.0, each * base)
    elif a != 1:
        base = a * base
    if isinstance(k, Tensor):
        return torch.addcmul(base, out, per_sample(k, out))  # type: ignore[arg-type]
    return torch.add(base, out, alpha=k)


def run(request: Request) -> tuple[Tensor, Found]:
    """The result, the three lengths and the coefficient that is left."""
    x, out_c, other, (a, k, *limits) = request[:4]
    dtype = working_dtype(x, out_c, other)
    out_c = out_c.to(dtype)
    d = other.to(dtype) if request.direct else out_c - other
    m = mean_of(x, out_c, a, k, dtype) if request.capped or request.mean else out_c
    found = _measured(m, d, k) if request.capped else ()
    left = _left(request, *found, *limits) if found else vector(limits[0], d)
    if request.dtype is None:
        return out_c, (*found, left)
    # A mean is written from the m that was measured: x and k out_c may cancel, and d must not lose by it.
    base, step = (m, left * vector(k, d)) if request.mean else (out_c, left)
    del m  # as large as the state
    each, which = (v.to(dtype).reshape(-1, *[1] * (d.dim() - 1)) for v in (step, left))
    result = torch.addcmul(base, d, each)
    if not on_host(which) or bool(((which == 0) | (which == -1)).any()):
        result = torch.where(which == 0, base, result)  # 0 * inf would put a NaN where nothing is added
        if not request.direct:
            away = mean_of(x, other, a, k, dtype) if request.mean else other.to(dtype)
            result = torch.where(which == -1, away, result)
    return result.to(request.dtype), (*found, left)


def _left(
    request: Request, m: Tensor, d: Tensor, along: Tensor, c: Number, gamma: Number, floor: Number
) -> Tensor:
    """What the cap leaves of the coefficient; nothing asked for is nothing granted."""
    c, gamma, floor = (vector(v, m) if isinstance(v, Tensor) else v for v in (c, gamma, floor))
    if not isinstance(gamma, Tensor) and gamma > UNBOUNDED:
        return vector(c, m)
    left = c * kept(m, d, along, c, gamma, floor, ball=request.ball, margin=request.margin)
    if isinstance(c, Tensor):
        return torch.where(c == 0, 0.0, left)
    return left if c != 0 else torch.zeros_like(left)


def _measured(m: Tensor, d: Tensor, k: Number) -> tuple[Tensor, Tensor, Tensor]:
    """|m|, |k d| and the component of m along k d."""
    length, gap, along = _lengths(m.flatten(1), d.flatten(1))
    if not isinstance(k, Tensor):
        return length, abs(k) * gap, -along if k < 0 else along
    k = vector(k, m)
    return length, k.abs() * gap, torch.where(k < 0, -along, along)


def _lengths(m: Tensor, d: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """|m|, |d| and <m, d> / |d| (0 where d = 0) of flattened samples."""
    if scalar_dtype(m.device) != torch.float64:
        return _scaled(m, d)
    if m.dtype != torch.float32 or not (on_host(m, d) and (run := _run_length(m.shape[1])) and len(m)):
        return _exact(m, d)
    norms = (torch.linalg.vector_norm(v.view(len(v), -1, run), dim=2) for v in (m, d))
    q, a = (torch.linalg.vector_norm(v, dim=1, dtype=torch.float64) for v in norms)
    dot = (m * d).view(len(m), -1, run).sum(2).sum(1, dtype=torch.float64)
    quick, both = (q, a, dot / a), torch.stack([q, a])
    trusted = ((both > SMALLEST) & (both < LARGEST)).all(0)
    if bool(trusted.all()):
        return quick
    return tuple(torch.where(trusted, u, v) for u, v in zip(quick, _exact(m, d), strict=True))  # type: ignore[return-value]


def _exact(m: Tensor, d: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """In float64 throughout: right for every finite float32 input."""
    axis = 1
    if m.shape[1] <= 8:  # few elements, many samples: whole columns are added faster than short rows
        m, d, axis = m.T.contiguous(), d.T.contiguous(), 0
    m, d = m.double(), d.double()
    return _from_squares((m * m).sum(axis), (d * d).sum(axis), (m * d).sum(axis))


def _scaled(m: Tensor, d: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Without float64: each sample is first divided by a power of two near its largest element."""
    units = []
    for v in (m, d):
        exponent = torch.frexp(v.abs().amax(1)).exponent.clamp(-125, 127)
        units.append(torch.ldexp(torch.ones_like(v[:, 0]), exponent - 1))
    (m_unit, d_unit), m, d = units, m / units[0][:, None], d / units[1][:, None]
    q, a, along = _from_squares((m * m).sum(1), (d * d).sum(1), (m * d).sum(1))
    return q * m_unit, a * d_unit, along * m_unit


def _from_squares(q: Tensor, a: Tensor, dot: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    d = root(a)
    none = d == 0
    return root(q), d, torch.where(none, 0.0, dot / (torch.where(none, 1.0, d) if transformed(d) else d))


@lru_cache(maxsize=256)
def _run_length(size: int) -> int:
    """The longest run that divides `size`, or 0 where float64 is as good."""
    return 0 if size < 4 * RUN else next((b for b in range(RUN, 31, -1) if size % b == 0), 0)
