"""What a rule makes of a prediction: the guided mean, or the guided output in the network's own units.

`Stepper` is the one place that knows when a rule's state advances: **once per step, from the step's first
evaluation**. Later evaluations of a multi-stage step (Heun, RK4, a sampler that looks ahead) see the state
that `Rule.within_step` gives them, and change nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ...path import time
from ...prediction import Prediction, need_same_shapes
from ...tensors import Number, compiling, promoted, vector
from .base import Recorder, Rule, State, held_of
from .ray import Limit, Ray

_LATEST = 1 - 2.0**-20
_BY_DEVICE = hasattr(torch.amp, "is_autocast_available")  # from torch 2.4; Forge has 2.3


def displace(
    rule: Rule, p: Prediction, state: State = None, *, g: Tensor | None = None, nominal: Tensor | None = None
) -> tuple[Ray, State]:
    """The displacement that `rule` makes of the gap, of a nominal `g`, or of a host's `nominal` output."""
    turned = None
    if g is not None:
        need_same_shapes(x=p.shown, g=g)
        turned = promoted(g).to(p.dtype)
    c: Number = 1.0 if nominal is None else -1.0
    fixed: tuple[Number, Limit | None] | None = rule.fixed
    if compiling():  # a number would be part of the graph, and a change of it need another one
        c = _start(p) if g is None and nominal is None else c
        fixed = held_of(rule)
    if fixed is not None:
        factor, limit = fixed
        c = factor * c
        return Ray(p, c, turned, nominal, None if limit is None else c, limit), state
    if rule.needs:
        need_others(rule, p)
    device = p.shown.device.type
    if (
        torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
        if _BY_DEVICE
        else _autocast(device)
    ):
        with torch.autocast(device, enabled=False):  # it would lower the precision of a matrix product
            return displace(rule, p, state, g=g, nominal=nominal)
    return rule.update(Ray(p, c, turned, nominal), p, rule.init() if state is None else state)


def need_others(rule: Rule, p: Prediction) -> None:
    """One sentence where a rule looks at a prediction that was not given."""
    for name in rule.needs:
        if p.others is None or name not in p.others:
            raise ValueError(
                f"{rule} looks at the prediction {name!r}, which was not given: add the network's output to "
                f"a Prediction by p.beside({name}=output), or another predictor to sample() by "
                f"beside(predict, {name}=other); a host that makes two predictions has none"
            )


def _autocast(device: str) -> bool:
    """Whether torch 2.3 lowers the precision of products on this device."""
    return torch.is_autocast_cpu_enabled() if device == "cpu" else torch.is_autocast_enabled()


def _start(p: Prediction) -> Tensor:
    """1, with the times in it: torch makes a new graph for each value of an unused number."""
    one = vector(1.0, p.shown[:1])
    for t in (p.t, p.t_next):
        one = one + 0 * t if isinstance(t, Tensor) else one
    return one


def guide(
    rule: Rule, p: Prediction, state: State = None, *, g: Tensor | None = None, record: Recorder | None = None
) -> tuple[Tensor, State]:
    """The guided posterior mean m_c + g, and the rule's state after this evaluation.

    Pass `g` where the host has its own nominal displacement from m_c and the rule only limits it.
    The result is in the precision of the prediction, float32 at least; cast it back with `.to(dtype)`.
    """
    ray, state = displace(rule, p, state, g=g)
    m = ray.mean(measured=record is not None)
    if record is not None:
        record.add(ray)
    return m, state


def respond(
    rule: Rule,
    p: Prediction,
    state: State = None,
    *,
    nominal: Tensor | None = None,
    dtype: torch.dtype | None = None,
    record: Recorder | None = None,
) -> tuple[Tensor, State]:
    """The guided output in the network's own units, and the rule's state after this evaluation.

    `nominal` is the guided output that a host has made itself. A rule that only caps shortens the way from
    the conditional output to it, and returns it bit for bit where nothing is cut; any other rule replaces it.
    """
    ray, state = displace(rule, p, state, nominal=nominal if rule.caps else None)
    kind = dtype or (p.out_c if nominal is None else nominal).dtype
    if not kind.is_floating_point:
        raise TypeError(f"a guided output has a floating-point type; got {kind}")
    out = ray.output(kind, measured=record is not None)
    if record is not None:
        record.add(ray)
    return out, state


def guided_velocity(
    rule: Rule,
    x: Tensor,
    t: float | Tensor,
    v_c: Tensor,
    v_u: Tensor,
    state: State = None,
    *,
    t_next: float | Tensor | None = None,
    others: Mapping[str, Tensor] | None = None,
    dtype: torch.dtype | None = None,
    record: Recorder | None = None,
) -> tuple[Tensor, State]:
    """A pair: the guided velocity, and the rule's state after this evaluation.

    Velocities are data - noise. `t_next`, where the step will end, is for rules that depend on it (CFGPP);
    `others`, further velocities by name, for rules that look at them (perp_neg at "negative").
    The velocity has the dtype of `v_c`, or `dtype`: ask for float32 where the bound must hold to the last
    unit. Its own rounding remains: where x and (1 - t) v nearly cancel, that is more than a unit of the mean
    (`guide` writes the mean itself).
    """
    if rule.turns:  # at t = 1 the gap of the means vanishes and that of the velocities does not: just before
        t = time(t, x)
        t = t.clamp(max=_LATEST) if isinstance(t, Tensor) else min(t, _LATEST)
    p = Prediction.from_velocity(x, t, v_c, v_u)
    if others is not None:
        p = p.beside(**others)
    return respond(rule, p if t_next is None else p.until(t_next), state, dtype=dtype, record=record)


class Stepper:
    """A rule and its state over a run."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.begin()

    def begin(self) -> None:
        """A new run: the rule forgets."""
        self._next = self._within = self.rule.init()

    def idle(self, t: float, *, first: bool = True) -> bool:
        """Whether the rule surely leaves m_c alone at this evaluation, so that m_u need not be asked for."""
        return self.rule.idle(t, self._next if first else self._within)

    def mean(self, p: Prediction, *, first: bool = True, record: Recorder | None = None) -> Tensor:
        """The guided mean; `first` is False in the later evaluations of one step."""
        m, after = guide(self.rule, p, self._next if first else self._within, record=record)
        self._advance(after, first)
        return m

    def output(
        self, p: Prediction, nominal: Tensor, *, first: bool = True, record: Recorder | None = None
    ) -> Tensor:
        """The guided output in place of a host's `nominal` one, in its precision."""
        state = self._next if first else self._within
        out, after = respond(self.rule, p, state, nominal=nominal, record=record)
        self._advance(after, first)
        return out

    def _advance(self, after: State, first: bool) -> None:
        if first:
            self._within, self._next = self.rule.within_step(self._next, after), after
