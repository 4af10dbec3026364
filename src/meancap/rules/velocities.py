"""Guidance for hosts that speak velocities (data - noise).

A rule that only changes a coefficient c is applied to the velocities themselves, v = v_c + c (v_c - v_u), and
needs nothing of the means but their lengths. These stay regular at t = 1, where the gap of the means vanishes
and that of the velocities does not.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .. import path
from ..prediction import Prediction, need_same_shapes
from ..tensors import (
    Lengths,
    Number,
    is_plain,
    lengths,
    paired_lengths,
    per_sample,
    promoted,
    scaled_gap,
    vector,
)
from . import fused
from .base import Recorder, Rule, State, blend, displace, once
from .traced import traced_lengths

_LATEST = 1 - 2.0**-20


def guided_velocity(
    rule: Rule,
    x: Tensor,
    t: float | Tensor,
    v_c: Tensor,
    v_u: Tensor,
    state: State = None,
    *,
    t_next: float | Tensor | None = None,
    dtype: torch.dtype | None = None,
    record: Recorder | None = None,
) -> tuple[Tensor, State]:
    """The guided velocity, and the rule's state after this evaluation.

    `t_next`, where the step will end, is for rules that depend on it (CFGPP). The result has the dtype of
    `v_c`, or `dtype`: ask for float32 where the bound must hold to the last unit.
    """
    need_same_shapes(x=x, v_c=v_c, v_u=v_u)
    t = path.time(t, x)
    s = None if t_next is None else path.time(t_next, x, "t_next")
    dtype = dtype or v_c.dtype
    if not rule.turns:
        p = Velocities(x, t, v_c, v_u, s)
        if fused.serves(rule, p):
            return fused.guided(rule, p, state, dtype, record)
        ray, state = displace(rule, p, state, record=record)
        return p.blended(ray.coefficient).to(dtype), state
    # The gap of the means vanishes at t = 1 while that of the velocities does not: turn it just before.
    t = t.clamp(max=_LATEST) if isinstance(t, Tensor) else min(t, _LATEST)
    p = Velocities(promoted(x), t, v_c, v_u, s)
    ray, state = displace(rule, p, state, record=record)
    return (p.velocity_c + ray.g / per_sample(1 - t, p.velocity_c)).to(dtype), state


class Velocities(Prediction):
    """A prediction stated by velocities, whose means are formed only when somebody asks for them."""

    v_c: Tensor
    v_u: Tensor

    def __init__(self, x: Tensor, t: Number, v_c: Tensor, v_u: Tensor, t_next: Number | None = None) -> None:
        if torch.float64 in (x.dtype, v_c.dtype, v_u.dtype):
            x, v_c, v_u = x.double(), v_c.double(), v_u.double()
        for name, value in (("x", x), ("t", t), ("v_c", v_c), ("v_u", v_u), ("t_next", t_next)):
            object.__setattr__(self, name, value)

    @once
    def velocity_c(self) -> Tensor:
        return promoted(self.v_c)

    @once
    def velocity_gap(self) -> Tensor:
        return self.velocity_c - self.v_u

    @once
    def m_c(self) -> Tensor:
        return path.mean_from_velocity(promoted(self.x), self.t, self.velocity_c)

    @once
    def m_u(self) -> Tensor:
        return path.mean_from_velocity(promoted(self.x), self.t, promoted(self.v_u))

    @property
    def delta(self) -> Tensor:
        return per_sample(1 - self.t, self.velocity_gap) * self.velocity_gap

    def lengths(self) -> Lengths:
        if torch.compiler.is_compiling():
            found = traced_lengths(self.x, vector(self.t, self.x), self.v_c, self.v_u)
            return scaled_gap(found, 1 - self.t)
        v_c = self.velocity_c
        plain = is_plain(v_c) and not (self.x.requires_grad or self.v_u.requires_grad)
        found = self._in_one_buffer(v_c) if plain else lengths(self.m_c, self.velocity_gap)
        return scaled_gap(found, 1 - self.t)

    def _in_one_buffer(self, v_c: Tensor) -> Lengths:
        """Mean and gap side by side: one pass measures both, and the products' memory takes the result."""
        pair = v_c.new_empty(2, *v_c.shape)
        path.mean_from_velocity(self.x, self.t, v_c, out=pair[0])
        self.__dict__["velocity_gap"] = torch.sub(v_c, self.v_u, out=pair[1])
        self.__dict__["result"] = products = torch.empty_like(v_c)
        return paired_lengths(pair.flatten(2), products.flatten(1))

    def blended(self, coefficient: Number) -> Tensor:
        """v_c + coefficient (v_c - v_u), in float32 at least."""
        result = None if torch.compiler.is_compiling() else self.__dict__.pop("result", None)
        return blend(self.velocity_c, coefficient, self.velocity_gap, out=result)
