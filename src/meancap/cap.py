"""The cap: how much of a displacement it keeps, from three lengths per sample.

The posterior-mean cap of Peng & Ma keeps the largest share of a displacement for which the guided mean stays
inside a convex set. With

    y   the conditional mean m_c, seen from the cap's anchor (the origin in the paper)
    g   the nominal displacement, c * direction
    s   the share of it that is kept, between 0 and 1

the two sets are

    ball            |y + s g| <= gamma |y|
    displacement        |s g| <= (gamma - 1) |y|

and either may be widened to a radius R that is always allowed: |y + s g| <= max(gamma |y|, R), and
|s g| <= max((gamma - 1) |y|, R).

**One quadratic.** Square the ball, subtract |y|^2 on both sides, and call what is left on the right room^2:

    s^2 |g|^2 + 2 s <y, g> <= room^2,    room^2 = max(gamma |y|, R)^2 - |y|^2

room^2 >= 0 because gamma >= 1: s = 0 is always inside. Divide by |g| and write `along` = <y, g> / |g| for the
component of y along g. The largest root is

    s = (reach - along) / |g|,    reach = sqrt(along^2 + room^2) = hypot(along, room)

If g points outward (along > 0) the difference cancels; multiplying by the conjugate gives the same number
without cancellation,

    s = room^2 / (|g| (along + reach)) = (room / |g|) (room / (along + reach))

and the two factors are computed apart, so that room^2 cannot leave floating point's range. The displacement
form is the same quadratic seen from m_c itself: along = 0 and room = max((gamma - 1) |y|, R).

**Why the result is a share.** The set is convex and contains y, so the shares inside it are an interval
[0, s]. Several caps intersect: the smallest of their shares is the largest that all of them allow.

**The edges.** A zero displacement (|g| = 0) keeps s = 1: anything else would jump at t = 1, where the gap of
the means vanishes. gamma = inf keeps s = 1. NaN stays NaN. room is |y| sqrt((gamma - 1)(gamma + 1)), because
gamma^2 - 1 cancels for gamma near 1.

**The margin.** Rounding of the lengths and of the stored result can lengthen a mean by a few units in the
last place, so a share below 1 is reduced by four of them. For gamma near 1 that is less than the rounding of
the stored mean, which then passes the bound by half a unit at most. A share of 1 is left alone, and the
nominal result comes back bit for bit.

**Derivatives.** While one is taken, both sides of every choice are computed: neither may divide by zero.

`lengths`, `cap_share` and `blend` are plain PyTorch: any device, float64, autograd, vmap, jvp, compile.
`meancap.fast` has the same three compiled by numba for plain CPU tensors; tests tie them together.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import sys
import warnings
from functools import cache, reduce
from types import ModuleType
from typing import NamedTuple

import torch
from torch import Tensor

from .tensors import Number, compiling, on_host, per_sample, scalar_dtype, scaled, transformed, vector

UNBOUNDED = 1e150  # a larger gamma is no cap: its square leaves float64's range
RUN = 128  # elements of a float32 sum at most: in a longer one a large element swallows the digits of others
# The part of a share below 1 that is given up to rounding: four units in the last place.
MARGINS = {dtype: 4 * torch.finfo(dtype).eps for dtype in (torch.float32, torch.float64)}
SMALLEST, LARGEST = 1e-12, 1e15  # lengths for which a float32 sum of squares is accurate


class Lengths(NamedTuple):
    """Two vectors per sample, reduced to what a cap needs; one float64 entry per sample each."""

    base: Tensor  # |base|
    direction: Tensor  # |direction|
    along: Tensor  # the component of base along direction, <base, direction> / |direction|; 0 if that is 0


def lengths(m: Tensor, d: Tensor) -> Lengths:
    """|m|, |d| and the component of m along d, for each sample."""
    fast = None if compiling() else import_fast()
    found: Lengths | None = None if fast is None else fast.lengths(m, m, d, 0.0, 1.0, True)
    if found is not None:
        return found
    m, d = m.flatten(1), d.flatten(1)
    if scalar_dtype(m.device) != torch.float64:
        return _scaled(m, d)
    if torch.float64 in (m.dtype, d.dtype):
        return _scaled(m.double(), d.double())
    run = math.gcd(m.shape[1], RUN)
    if run < 32 or not (m.dtype == d.dtype == torch.float32 and len(m) and on_host(m, d)):
        return _from_sums(m.double(), d.double())
    # On the host a copy in float64 costs more than everything else: short runs in float32, float64 over them.
    norms = (torch.linalg.vector_norm(v.view(len(v), -1, run), dim=2) for v in (m, d))
    q, r = (torch.linalg.vector_norm(v, dim=1, dtype=torch.float64) for v in norms)
    dot = (m * d).view(len(m), -1, run).sum(2).sum(1, dtype=torch.float64)
    accurate = (q > SMALLEST) & (q < LARGEST) & (r > SMALLEST) & (r < LARGEST)
    if bool(accurate.all()):
        return Lengths(q, r, dot / r)
    others = _from_sums(m.double(), d.double())
    return Lengths(*(torch.where(accurate, *pair) for pair in zip((q, r, dot / r), others, strict=True)))


def cap_share(
    seen: Lengths, c: Number, gamma: Number, floor: Number = 0.0, *, ball: bool = True, margin: float = 0.0
) -> Tensor:
    """The largest share in [0, 1] of c * direction that a cap keeps, for each sample.

    `seen` has |y|, |direction| and the component of y along the direction. A floor of 0 or less is none.
    A zero coefficient keeps 1, even if the direction is not finite.
    """
    fast = None if compiling() else import_fast()
    found: Tensor | None = None if fast is None else fast.share(seen, c, gamma, floor, ball, margin)
    if found is not None:
        return found
    c, gamma, floor = (vector(v, seen.base) if isinstance(v, Tensor) else v for v in (c, gamma, floor))
    sign = 1 - 2 * (c < 0)
    along = scaled(seen.along, sign) if ball else torch.zeros_like(seen.along)
    share = _largest_share(sign * c * seen.direction, along, _room(seen.base, gamma, floor, ball), margin)
    if isinstance(c, Tensor):
        return torch.where(c == 0, 1.0, share)
    return share if c != 0 else torch.ones_like(share)


def blend(base: Tensor, d: Tensor, c: Number, other: Tensor | None = None) -> Tensor:
    """base + c d for each sample; exactly `base` if c = 0, and exactly `other`, if given, if c = -1.

    The exact cases matter: 0 * inf would add a NaN, and base - (base - other) would round.
    """
    each = per_sample(c, d)
    if not isinstance(each, Tensor):
        if c == 0:
            return base
        return other if c == -1 and other is not None else torch.add(base, d, alpha=each)
    read = on_host(each)
    if read:  # a subnormal coefficient is rounded by more than the margin
        each = torch.where(each.abs() < torch.finfo(each.dtype).tiny, 0.0, each)
    result = torch.addcmul(base, d, each)
    if not read or bool(((each == 0) | (each == -1)).any()):
        result = torch.where(each == 0, base, result)
        if other is not None:
            result = torch.where(each == -1, other, result)
    return result


@cache
def import_fast() -> ModuleType | None:
    """The module compiled by numba, or None; a numba that does not work gives one warning."""
    if importlib.util.find_spec("numba") is None or sys.byteorder != "little":
        return None
    try:
        return importlib.import_module(".fast", __package__)
    except ImportError as error:  # numba's versions reject versions of NumPy that they do not know
        warnings.warn(f"guidance runs in plain PyTorch, because numba failed: {error}", stacklevel=2)
        return None


def _room(m: Tensor, gamma: Number, floor: Number, ball: bool) -> Tensor:
    """The root of max(gamma m, floor)^2 - m^2 for the ball; the radius for the displacement."""
    unbounded = gamma > UNBOUNDED  # keeps everything for every m, where inf * 0 would be NaN
    if isinstance(gamma, Tensor):
        gamma = torch.where(gamma > UNBOUNDED, 1.0, gamma)
    growth = ((gamma - 1) * (gamma + 1)) ** 0.5 if ball else gamma - 1
    room = m * growth
    if isinstance(floor, Tensor) or floor > 0:
        above = floor
        if ball:  # two roots, because the product may leave the range
            inside = m < floor
            above = _root(torch.where(inside, floor - m, 0.0)) * _root(torch.where(inside, floor + m, 0.0))
        room = torch.where(room < above, above, room)
    if isinstance(unbounded, Tensor):
        return torch.where(unbounded, math.inf, room)
    return torch.full_like(room, math.inf) if unbounded else room


def _largest_share(g: Tensor, along: Tensor, room: Tensor, margin: float) -> Tensor:
    """Largest s in [0, 1] with |y + s g|^2 <= |y|^2 + room^2, from |g| and the component of y along g."""
    free = (g == 0) | (room == math.inf)
    outward, followed = along > 0, transformed(g, along, room)
    if followed:
        g, room = torch.where(free, 1.0, g), torch.where(free, 1.0, room)
        along = torch.where((along == 0) & (room == 0), 1.0, along)
    reach = torch.hypot(along, room)
    total = torch.where(outward, along + reach, 1.0) if followed else along + reach
    s = torch.where(outward, (room / g) * (room / total), (reach - along) / g)
    return torch.where(free | (s >= 1), 1.0, s * (1 - margin))  # NaN stays NaN


def _root(v: Tensor) -> Tensor:
    """The square root; while a derivative is taken, that of 0 is 0."""
    if not transformed(v):
        return v.sqrt()
    return torch.where(v == 0, 0.0, torch.where(v == 0, 1.0, v).sqrt())


def _from_sums(m: Tensor, d: Tensor) -> Lengths:
    """The lengths from sums of squares in the precision of m and d."""
    q, r = (torch.linalg.vector_norm(v, dim=1) for v in (m, d))
    none, dot = r == 0, m * d
    # Few elements, many samples: whole columns are added faster than short rows.
    dot = reduce(torch.add, dot.unbind(1)) if m.shape[1] <= 8 else dot.sum(1)
    per = torch.where(none, 1.0, r) if transformed(r) else r
    return Lengths(q, r, torch.where(none, 0.0, dot / per))


def _scaled(m: Tensor, d: Tensor) -> Lengths:
    """The same after dividing each sample by a power of two near its largest element."""
    units = []
    for v in (m, d):
        largest = v.detach().abs().amax(1)
        exponent = torch.log2(torch.where(largest > 0, largest, 1.0)).floor()
        units.append(torch.where(largest.isfinite(), torch.exp2(exponent), 1.0))
    seen = _from_sums(m / units[0][:, None], d / units[1][:, None])
    return Lengths(seen.base * units[0], seen.direction * units[1], seen.along * units[0])
