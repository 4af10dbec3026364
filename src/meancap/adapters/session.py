"""A rule at work in a host, from call to call.

    out      what the network says, in the host's own units: the mean is m = a x + k out
    c, u     its conditional and its unconditional output
    nominal  the guided output that the host itself made of them

A rule that only caps keeps the host's nominal output and shortens its way from c; other chains replace it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..prediction import Prediction
from ..rules import Rule, parse
from ..rules.base import State, blend, displace
from ..tensors import Number, per_sample, promoted
from .record import RunRecord


@dataclass(frozen=True)
class Edge:
    """Where a host's convention meets ours, at one evaluation: m = a x + k out; unit x is on our path."""

    a: Number
    k: Number
    t: Number  # on the linear path, data at 1
    unit: Number = 1.0
    t_next: Number | None = None

    def mean(self, x: Tensor, out: Tensor) -> Tensor:
        return per_sample(self.a, x) * x + per_sample(self.k, x) * out

    def prediction(self, x: Tensor, c: Tensor, u: Tensor) -> Prediction:
        return Prediction(
            x if self.unit == 1 else per_sample(self.unit, x) * x,
            self.t,
            self.mean(x, c),
            self.mean(x, u),
            self.t_next,
            gap=per_sample(self.k, x) * (c - u),
        )


class Session:
    """One rule, its state between steps, and the record of what it did."""

    def __init__(self, rule: Rule | str, record: RunRecord | None = None) -> None:
        if isinstance(rule, str):
            rule = parse(rule)
        if not isinstance(rule, Rule):
            raise TypeError(
                f"a rule is needed, such as Cap(1.15) or CFG(7) | Cap(1.15); got {type(rule).__name__}"
            )
        self.rule = rule
        self.record = RunRecord() if record is None else record
        self.begin()

    def begin(self) -> None:
        """A new run: the rule forgets, and the record starts over."""
        self.state: State = self.rule.init()
        self.within: State = self.state
        self.record.restart()

    def guide(
        self, edge: Edge, x: Tensor, c: Tensor, u: Tensor, nominal: Tensor, *, first: bool = True
    ) -> Tensor:
        """The guided output, in the dtype of `nominal`. `first` is False in the later stages of one step."""
        with torch.autocast(x.device.type, enabled=False), torch.no_grad():
            out, after = respond(
                self.rule, edge, x, c, u, nominal, self.state if first else self.within, self.record
            )
        if first:
            self.within, self.state = self.rule.within_step(self.state, after), after
        return out


def respond(
    rule: Rule,
    edge: Edge,
    x: Tensor,
    c: Tensor,
    u: Tensor,
    nominal: Tensor,
    state: State,
    record: RunRecord | None = None,
) -> tuple[Tensor, State]:
    """What the host should use instead of `nominal`, and the rule's state after this evaluation."""
    x, base, low, wish = (promoted(v) for v in (x, c, u, nominal))
    p = edge.prediction(x, base, low)
    if rule.caps:
        way = wish - base
        ray, state = displace(rule, p, state, g=per_sample(edge.k, way) * way, record=record)
        return _shortened(nominal, base, way, ray.coefficient), state
    ray, state = displace(rule, p, state, record=record)
    if ray.turned is None:
        return blend(base, ray.coefficient, base - low).to(nominal.dtype), state
    if not isinstance(edge.k, Tensor) and edge.k == 0:
        return c.to(nominal.dtype), state  # the mean is x here, whatever the network says
    return (base + ray.g / per_sample(edge.k, base)).to(nominal.dtype), state


def _shortened(nominal: Tensor, base: Tensor, way: Tensor, share: Number) -> Tensor:
    """The share of the way from the conditional to the nominal output; the latter where all is kept."""
    if not isinstance(share, Tensor):
        return nominal if share == 1 else blend(base, share, way).to(nominal.dtype)
    whole = (share == 1).reshape(-1, *[1] * (nominal.dim() - 1))
    return torch.where(whole, nominal, blend(base, share, way).to(nominal.dtype))
