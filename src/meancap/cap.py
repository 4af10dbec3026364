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

**A smooth cap** replaces min(s, 1) by a C1 function of the root s that never exceeds it,

    min(s, 1) - max(w - |s - 1|, 0)^2 / (4 w)

Its two sides meet with value 1 - w/4 and slope 1/2 at s = 1, and it is min(s, 1) itself if |s - 1| >= w. It
needs roots of up to 1 + w, and w <= 1, but a share ends at 1. The root for twice the displacement is s / 2,
so 2 min(s / 2, 1) = min(s, 2) is far enough: the smooth cap doubles the displacement, and its share.

**The edges.** A zero displacement (|g| = 0) keeps s = 1: anything else would jump at t = 1, where the gap of
the means vanishes. gamma = inf keeps s = 1. NaN stays NaN. room is |y| sqrt((gamma - 1)(gamma + 1)), because
gamma^2 - 1 cancels for gamma near 1.

**The margin.** Rounding of the lengths and of the stored result can lengthen a mean by a few units in the
last place, so a share below 1 is reduced by four of them. For gamma near 1 that is less than the rounding of
the stored mean, which then passes the bound by half a unit at most. A share of 1 is left alone, and the
nominal result comes back bit for bit.

**Derivatives.** While one is taken, both sides of every choice are computed: neither may divide by zero.

Functions under `compiled` are plain PyTorch: any device, float64, autograd, vmap, jvp, compile. For plain
CPU tensors `meancap.fast` has the same compiled by numba; tests tie them together.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import math
import sys
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import NamedTuple, ParamSpec, TypeVar

import torch
from torch import Tensor

from .tensors import Number, compiling, on_host, per_sample, scalar_dtype, scaled, transformed, vector

UNBOUNDED = 1e150  # a larger gamma is no cap: its square leaves float64's range
RUN = 128  # elements of a float32 sum at most: in a longer one a large element swallows the digits of others
# The part of a share below 1 that is given up to rounding: four units in the last place.
MARGINS = {dtype: 4 * torch.finfo(dtype).eps for dtype in (torch.float32, torch.float64)}
SMALLEST, LARGEST = 1e-12, 1e15  # lengths for which a float32 sum of squares is accurate

_norm: Callable[..., Tensor] = torch.linalg.vector_norm
_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")


@functools.cache
def import_fast() -> ModuleType | None:
    """The module compiled by numba, or None; a numba that does not work gives one warning."""
    if importlib.util.find_spec("numba") is None or sys.byteorder != "little":
        return None
    try:
        return importlib.import_module(".fast", __package__)
    except ImportError as error:  # numba's versions reject versions of NumPy that they do not know
        warnings.warn(f"guidance runs in plain PyTorch, because numba failed: {error}", stacklevel=2)
        return None


def compiled(name: str) -> Callable[[Callable[_Given, _Result]], Callable[_Given, _Result]]:
    """Decorates the PyTorch form of `meancap.fast.name`, which runs instead wherever it can.

    This is the only place that chooses between the two.
    """

    def decorate(reference: Callable[_Given, _Result]) -> Callable[_Given, _Result]:
        @functools.wraps(reference)
        def chosen(*args: _Given.args, **kwargs: _Given.kwargs) -> _Result:
            fast = None if compiling() else import_fast()
            result: _Result | None = None if fast is None else getattr(fast, name)(*args, **kwargs)
            return reference(*args, **kwargs) if result is None else result

        return chosen

    return decorate


class Lengths(NamedTuple):
    """Two vectors per sample, reduced to what a cap needs; one float64 entry per sample each."""

    base: Tensor  # |base|
    direction: Tensor  # |direction|
    along: Tensor  # the component of base along direction, <base, direction> / |direction|; 0 if that is 0


@compiled("lengths")
def lengths(base: Tensor, direction: Tensor) -> Lengths:
    """|base|, |direction| and the component of base along direction, for each sample."""
    dtype = torch.promote_types(torch.promote_types(base.dtype, direction.dtype), torch.float32)
    m, d = base.flatten(1).to(dtype), direction.flatten(1).to(dtype)
    if not on_host(m, d):
        wide = scalar_dtype(m.device)
        return _lengths_in_units(m, d) if dtype == wide else _lengths(m.to(wide), d.to(wide))
    q, r, dot = _sums(m, d)
    power = 1 if dtype == torch.float32 else 8  # float64 has eight times as many decades
    shortest, longest = torch.stack([q, r]).aminmax(dim=0)
    accurate = (shortest > SMALLEST**power) & (longest < LARGEST**power)
    direct = Lengths(q, r, dot / r)
    if bool(accurate.all()):
        return direct
    others = _lengths_in_units(m, d)
    return Lengths(*(torch.where(accurate, *pair) for pair in zip(direct, others, strict=True)))


def _sums(m: Tensor, d: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """|m|, |d| and <m, d> in the widest precision; narrower elements are first summed in short runs."""
    size, wide = m.shape[1], scalar_dtype(m.device)
    dot, parts = m * d, [m, d]
    if m.dtype != wide:
        run = size if size <= RUN else math.gcd(size, RUN)
        runs = len(m), size // run, run
        dot, parts = dot.reshape(runs).sum(2), [_norm(v.reshape(runs), dim=2) for v in parts]
    q, r = (_norm(v, dim=1, dtype=wide) for v in parts)
    return q, r, dot.sum(1, dtype=wide)


def _lengths(m: Tensor, d: Tensor) -> Lengths:
    """The lengths from these sums."""
    q, r, dot = _sums(m, d)
    none = r == 0
    per = torch.where(none, 1.0, r) if transformed(r) else r
    return Lengths(q, r, torch.where(none, 0.0, dot / per))


def _lengths_in_units(m: Tensor, d: Tensor) -> Lengths:
    """The same in units of a power of two near each sample's largest element: no square leaves the range."""
    units = []
    for v in (m, d):
        largest = v.detach().abs().amax(1)
        exponent = torch.log2(torch.where(largest > 0, largest, 1.0)).floor()
        units.append(torch.where(largest.isfinite(), torch.exp2(exponent), 1.0))
    seen = _lengths(m / units[0][:, None], d / units[1][:, None])
    return Lengths(seen.base * units[0], seen.direction * units[1], seen.along * units[0])


@compiled("share")
def cap_share(
    seen: Lengths, c: Number, gamma: Number, floor: Number = 0.0, *, ball: bool = True, margin: float = 0.0
) -> Tensor:
    """The largest share in [0, 1] of c * direction that a cap keeps, for each sample.

    `seen` has |y|, |direction| and the component of y along the direction. A floor of 0 or less is none.
    A zero coefficient keeps 1, even if the direction is not finite.
    """
    c, gamma, floor = (vector(v, seen.base) if isinstance(v, Tensor) else v for v in (c, gamma, floor))
    sign = 1 - 2 * (c < 0)
    along = scaled(seen.along, sign) if ball else torch.zeros_like(seen.along)
    share = _largest_share(sign * c * seen.direction, along, _room(seen.base, gamma, floor, ball), margin)
    if isinstance(c, Tensor):
        return torch.where(c == 0, 1.0, share)
    return share if c != 0 else torch.ones_like(share)


def smooth_share(
    seen: Lengths, c: Number, gamma: Number, floor: Number, width: float, *, ball: bool, margin: float
) -> Tensor:
    """The share of a smooth cap, which differs from `cap_share` if the root is within `width` of 1."""
    s = 2 * cap_share(seen, 2 * c, gamma, floor, ball=ball, margin=margin)
    near = (width - (s - 1).abs()).clamp(min=0)
    return s.clamp(max=1) - near * near / (4 * width)


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
