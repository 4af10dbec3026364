"""How much of a displacement a cap keeps: the one statement of the cap, from three lengths per sample.

The posterior-mean cap of Peng & Ma asks for the largest share of a displacement that keeps the guided mean
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

Where g points outward (along > 0) the difference cancels; multiplying by the conjugate gives the same number
without cancellation,

    s = room^2 / (|g| (along + reach)) = (room / |g|) (room / (along + reach))

and the two factors are taken apart, so that room^2 cannot leave floating point's range. The displacement form
is the same quadratic seen from m_c itself: along = 0 and room = max((gamma - 1) |y|, R).

**Why the answer is a share.** The set is convex and holds y, so the shares inside it are an interval [0, s].
Several caps intersect: the smallest of their shares is the largest that all of them allow.

**The edges.** No displacement (|g| = 0) keeps s = 1: anything else would jump at t = 1, where the gap of the
means vanishes. gamma = inf keeps s = 1. NaN stays NaN. room is formed as |y| sqrt((gamma - 1)(gamma + 1)),
because gamma^2 - 1 cancels for gamma near 1.

**The margin.** Rounding of the lengths and of the stored result can lengthen a mean by a few units in the
last place, so a share below 1 is made shorter by four of them. A share of 1 is left alone, and the nominal
result comes back bit for bit.

**In the kernels.** `host_kernels` and `triton_kernels` have <y, y>, <d, d> and <y, d> of float32 numbers in
float64, whose products are finite. They solve the same quadratic for the coefficient itself, by one root and
one quotient; tests tie them to this file at 1e-11.

**Derivatives.** Where one is taken, both sides of every choice are worked out: neither may divide by zero.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..tensors import Number, magnitude, power, transformed

UNBOUNDED = 1e150  # a gamma beyond this is none: its square leaves float64's range
_MARGIN, _MARGIN_64 = (4 * torch.finfo(dtype).eps for dtype in (torch.float32, torch.float64))


def margin_of(dtype: torch.dtype) -> float:
    """The part of a share below 1 that is given up to rounding: four units of float32, or of float64."""
    return _MARGIN_64 if dtype == torch.float64 else _MARGIN


def largest_fraction(g: Tensor, along: Tensor, room: Tensor, margin: float = 0.0) -> Tensor:
    """Largest s in [0, 1] with |y + s g|^2 <= |y|^2 + room^2, from |g| and the component of y along g."""
    free = (g == 0) | (room == math.inf)
    outward, followed = along > 0, transformed(g, along, room)
    if followed:
        g, room = torch.where(free, 1.0, g), torch.where(free, 1.0, room)
        along = torch.where((along == 0) & (room == 0), 1.0, along)
    reach = torch.hypot(along, room)
    total = torch.where(outward, along + reach, 1.0) if followed else along + reach
    s = torch.where(outward, (room / g) * (room / total), (reach - along) / g)
    s = torch.where(s < 1, s * (1 - margin), s.clamp(max=1))
    return torch.where(free, 1.0, s)


def root(v: Tensor) -> Tensor:
    """The square root; where a derivative is taken, that of 0 is 0."""
    if not transformed(v):
        return v.sqrt()
    return torch.where(v == 0, 0.0, torch.where(v == 0, 1.0, v).sqrt())


def room_of(m: Tensor, gamma: Number, floor: Number, ball: bool) -> Tensor:
    """How far a cap lets the mean go: the root of max(gamma m, floor)^2 - m^2, or the displacement's radius.

    A floor of 0 or less is no floor.
    """
    growth = power((gamma - 1) * (gamma + 1), 0.5) if ball else gamma - 1
    room = m * growth
    if isinstance(floor, Tensor) or floor > 0:
        above = root(torch.where(m < floor, (floor - m) * (floor + m), 0.0)) if ball else floor
        room = torch.where(room < above, above, room)
    if isinstance(gamma, Tensor):  # an endless gamma lets all pass, whatever m is; inf * 0 would be NaN
        return torch.where(gamma > UNBOUNDED, math.inf, room)
    return torch.full_like(room, math.inf) if gamma > UNBOUNDED else room


def kept(
    m: Tensor, d: Tensor, along: Tensor, c: Number, gamma: Number, floor: Number, *, ball: bool, margin: float
) -> Tensor:
    """The share of c * direction that a cap keeps, from |y|, |direction| and the component of y along it."""
    if not ball:
        toward = torch.zeros_like(along)
    elif isinstance(c, Tensor):
        toward = torch.where(c < 0, -along, along)
    else:
        toward = -along if c < 0 else along
    return largest_fraction(magnitude(c) * d, toward, room_of(m, gamma, floor, ball), margin)
