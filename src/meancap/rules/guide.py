"""Applies a rule to a prediction: the guided mean, or the guided output in the network's own units.

`Stepper` is the one place that knows when a rule's state advances: **once per step, from the step's first
evaluation**. Later evaluations of a multi-stage step (Heun, RK4, a sampler that looks ahead) get the state
that `Rule.within_step` returns, and change nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from ..path import time
from ..prediction import Prediction, need_same_shapes
from ..tensors import Number, compiling, promoted, vector
from .rule import Displacement, Recorder, Rule, State

__all__ = ["Stepper", "displace", "guide", "guided_velocity", "respond"]

_LATEST = 1 - 2.0**-20


def displace(
    rule: Rule, p: Prediction, state: State = None, *, g: Displacement | Tensor | None = None
) -> tuple[Displacement, State]:
    """The displacement that `rule` makes of the gap, or of a nominal displacement `g`."""
    if isinstance(g, Tensor):
        need_same_shapes(x=p.shown, g=g)
        g = Displacement(p, 1.0, promoted(g).to(p.dtype))
    for name in rule.needs:
        if name not in p.extra:
            raise ValueError(
                f"{rule} needs the prediction {name!r}: add the network's output by p.beside({name}=output), "
                f"or give sample() beside(predict, {name}=other); a host that makes two predictions has none"
            )
    start = Displacement(p, _start(p) if compiling() else 1.0) if g is None else g
    before = rule.init() if state is None else state
    device = p.shown.device.type
    if _autocast(device):  # it would lower the precision of a matrix product
        with torch.autocast(device, enabled=False):
            return rule.update(start, p, before)
    return rule.update(start, p, before)


def _autocast(device: str) -> bool:
    """Whether torch lowers the precision of products on this device."""
    if hasattr(torch.amp, "is_autocast_available"):  # from torch 2.4; Forge has 2.3
        return torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
    return torch.is_autocast_cpu_enabled() if device == "cpu" else torch.is_autocast_enabled()


def _start(p: Prediction) -> Number:
    """1, with the times in it: torch makes a new graph for each value of an unused number."""
    one = vector(1.0, p.shown[:1])
    for t in (p.t, p.t_next):
        one = one + 0 * t if isinstance(t, Tensor) else one
    return one


def guide(
    rule: Rule, p: Prediction, state: State = None, *, g: Tensor | None = None, record: Recorder | None = None
) -> tuple[Tensor, State]:
    """The guided posterior mean m_c + g, and the rule's state after this evaluation.

    Pass `g` if the host has its own nominal displacement from m_c and the rule only limits it.
    The result is in the precision of the prediction, float32 at least; cast it back with `.to(dtype)`.
    """
    displacement, state = displace(rule, p, state, g=g)
    if record is not None:
        record.add(displacement, p, rule)
    return displacement.mean(), state


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
    the conditional output to it, and returns it bit for bit if nothing is cut; any other rule replaces it.
    """
    kind = dtype or (p.out_c if nominal is None else nominal).dtype
    if not kind.is_floating_point:
        raise TypeError(f"a guided output has a floating-point type; got {kind}")
    g = None
    if nominal is not None and rule.caps:  # -1 times the gap to the nominal output leads to it
        g = Displacement(replace(p, out_u=nominal, gap=None), -1.0)
    displacement, state = displace(rule, p, state, g=g)
    if record is not None:
        record.add(displacement, p, rule)
    return displacement.output(kind), state


def guided_velocity(
    rule: Rule,
    x: Tensor,
    t: float | Tensor,
    v_c: Tensor,
    v_u: Tensor,
    state: State = None,
    *,
    t_next: float | Tensor | None = None,
    extra: Mapping[str, Tensor] | None = None,
    dtype: torch.dtype | None = None,
    record: Recorder | None = None,
) -> tuple[Tensor, State]:
    """A pair: the guided velocity, and the rule's state after this evaluation.

    Velocities are data - noise. `t_next`, the end of the step, is for rules that depend on it (CFGPP);
    `extra`, further velocities by name, for rules that read them (perp_neg reads "negative").
    The velocity has the dtype of `v_c`, or `dtype`: pass float32 if the bound must hold to the last unit. Its
    own rounding remains: if x and (1 - t) v nearly cancel, that is more than a unit of the mean (`guide`
    returns the mean itself).
    """
    if rule.turns:  # at t = 1 the gap of the means vanishes and that of the velocities does not: just before
        t = time(t, x)
        t = t.clamp(max=_LATEST) if isinstance(t, Tensor) else min(t, _LATEST)
    p = Prediction.from_velocity(x, t, v_c, v_u)
    if extra is not None:
        p = p.beside(**extra)
    return respond(rule, p if t_next is None else p.until(t_next), state, dtype=dtype, record=record)


class Stepper:
    """A rule and its state over a run."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.begin()

    def begin(self) -> None:
        """Start a new run with the rule's initial state."""
        self._next = self._within = self.rule.init()
        self._keeps = self.rule.has_state

    def idle(self, t: float, *, first: bool = True) -> bool:
        """Whether the rule returns m_c at this evaluation whatever m_u is, so that m_u is not needed."""
        return self.rule.idle(t, self._next if first else self._within)

    def mean(self, p: Prediction, *, first: bool = True, record: Recorder | None = None) -> Tensor:
        """The guided mean; `first` is False in the later evaluations of one step."""
        g, after = displace(self.rule, p, self._next if first else self._within)
        if first and self._keeps:
            self._advance(after)
        if record is not None:
            record.add(g, p, self.rule)
        return g.mean()

    def output(
        self, p: Prediction, nominal: Tensor, *, first: bool = True, record: Recorder | None = None
    ) -> Tensor:
        """The guided output in place of a host's `nominal` one, in its precision."""
        state = self._next if first else self._within
        out, after = respond(self.rule, p, state, nominal=nominal, record=record)
        if first and self._keeps:
            self._advance(after)
        return out

    def _advance(self, after: State) -> None:
        self._within, self._next = self.rule.within_step(self._next, after), after
