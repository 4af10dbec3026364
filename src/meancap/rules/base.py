"""The protocol: a rule turns the gap m_c - m_u into a displacement g, and the guided mean is m_c + g.

    Ray     g = coefficient * direction, one coefficient per sample; starts as 1 * (m_c - m_u)
    Factor  a rule that changes the coefficient only: CFG, gates, clips, caps. It touches no large tensor
    Map     a rule that turns the direction: a function of the tensor g
    Chain   rules applied in order; `a | b` is first a, then b

Rules are frozen dataclasses: they print, compare, hash and parse. What a rule remembers between steps is a
value that goes in and comes out, never an attribute.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from ..notation import write
from ..prediction import Prediction, need_same_shapes
from ..schedules import Scale, at
from ..tensors import Lengths, Number, lengths, need_one_each, per_sample, promoted, vector

State = Any  # what a rule remembers; None for most
Value = TypeVar("Value")


class once(Generic[Value]):
    """A property worked out at its first use; the lock in functools' own would break a compiled graph."""

    def __init__(self, work: Callable[[Any], Value]) -> None:
        self.work, self.name, self.__doc__ = work, work.__name__, work.__doc__

    def __get__(self, owner: Any, _: type | None = None) -> Value:
        value = self.work(owner)
        if not torch.compiler.is_compiling():
            owner.__dict__[self.name] = value
        return value


@dataclass(frozen=True, eq=False)
class Ray:
    """A displacement g = coefficient * direction at one prediction."""

    p: Prediction
    coefficient: Number = 1.0
    turned: Tensor | None = None  # the direction, where it is no longer the gap
    asked: Number | None = None  # the coefficient before the first cap shortened it

    @property
    def direction(self) -> Tensor:
        return self.p.delta if self.turned is None else self.turned

    @once
    def lengths(self) -> Lengths:
        """|m_c|, |direction| and the component of m_c along it, taken once per direction."""
        return self.p.lengths() if self.turned is None else lengths(self.p.m_c, self.turned)

    @property
    def g(self) -> Tensor:
        return per_sample(self.coefficient, self.direction) * self.direction

    def scaled(self, coefficient: Number, asked: Number | None = None) -> Ray:
        """The same direction under another coefficient."""
        ray = Ray(self.p, coefficient, self.turned, self.asked if asked is None else asked)
        if not torch.compiler.is_compiling() and "lengths" in self.__dict__:
            ray.__dict__["lengths"] = self.lengths
        return ray


class Recorder(Protocol):
    """Whatever wants to see each displacement: see `meancap.Record`."""

    def begin(self, x: Tensor, weights: Sequence[tuple[float, ...]]) -> None: ...

    def add(self, ray: Ray) -> None: ...


class Rule:
    """A guidance rule. Subclass `Factor` or `Map`, or define `update` for a rule with state."""

    turns = True  # whether the direction may change; False lets velocities be guided without forming means
    caps = False  # whether the rule only limits a nominal displacement that others made
    multiplies = False  # whether the rule only multiplies what it is given, so that nothing stays nothing

    def init(self) -> State:
        """The state before the first step."""
        return None

    def update(self, ray: Ray, p: Prediction, state: State) -> tuple[Ray, State]:
        """The displacement after this rule, and the state after this step."""
        raise NotImplementedError(f"{type(self).__name__} must define update(ray, p, state)")

    def within_step(self, before: State, after: State) -> State:
        """The state that later evaluations of the same step see; by default the one the step began with."""
        return before

    @property
    def parts(self) -> tuple[Rule, ...]:
        return (self,)

    @property
    def has_state(self) -> bool:
        return False

    @property
    def remembers(self) -> bool:
        """Whether the state holds anything of the predictions; a step's index or scale does not count."""
        return self.has_state

    def idle(self, t: float, state: State = None) -> bool:
        """Whether at time t the guided mean is m_c and the next state known, whatever m_u is.

        A network need then not be asked for m_u. When in doubt, False. A chain asks it of its parts: one that
        makes nothing of any displacement it is given may say True.
        """
        return False

    def __or__(self, other: Rule) -> Chain:
        if not isinstance(other, Rule):
            return NotImplemented
        return Chain(self.parts + other.parts)

    def __str__(self) -> str:
        return write(self)


class Factor(Rule):
    """A rule that changes one number per sample."""

    turns = False

    def coefficient(self, ray: Ray, p: Prediction) -> Number:
        """The new coefficient of the ray."""
        raise NotImplementedError(f"{type(self).__name__} must define coefficient(ray, p)")

    def update(self, ray: Ray, p: Prediction, state: State) -> tuple[Ray, State]:
        return ray.scaled(self.coefficient(ray, p)), state


class Map(Rule):
    """A rule that is a function of the tensor g."""

    def __call__(self, g: Tensor, p: Prediction) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__} must define __call__(g, p)")

    def update(self, ray: Ray, p: Prediction, state: State) -> tuple[Ray, State]:
        turned = self(ray.g, p) if len(p.x) else ray.g  # of no samples there is nothing to turn
        return Ray(p, turned=turned, asked=ray.asked), state


@dataclass(frozen=True)
class Chain(Rule):
    """Rules applied in order, each to the displacement that the one before it left."""

    rules: tuple[Rule, ...]

    @property
    def parts(self) -> tuple[Rule, ...]:
        return self.rules

    def __post_init__(self) -> None:
        object.__setattr__(self, "turns", any(part.turns for part in self.rules))
        object.__setattr__(self, "caps", all(part.caps for part in self.rules))
        object.__setattr__(self, "multiplies", all(part.multiplies for part in self.rules))

    @property
    def has_state(self) -> bool:
        return any(part.has_state for part in self.parts)

    @property
    def remembers(self) -> bool:
        return any(part.remembers for part in self.parts)

    def idle(self, t: float, state: State = None) -> bool:
        if self.remembers:
            return False
        nothing = False
        for part, before in zip(self.parts, self.init() if state is None else state, strict=True):
            nothing = part.idle(t, before) or (nothing and part.multiplies)
        return nothing

    def init(self) -> State:
        return tuple(part.init() for part in self.parts)

    def update(self, ray: Ray, p: Prediction, state: State) -> tuple[Ray, State]:
        states = []
        for part, before in zip(self.parts, state, strict=True):
            ray, after = part.update(ray, p, before)
            states.append(after)
        return ray, tuple(states)

    def within_step(self, before: State, after: State) -> State:
        return tuple(part.within_step(*pair) for part, *pair in zip(self.parts, before, after, strict=True))

    def __str__(self) -> str:
        return " | ".join(map(str, self.parts))


def exactly(scale: Scale, t: float, value: float) -> bool:
    """Whether a scale has this value at time t, as far as one can tell without waiting for a device."""
    found = at(scale, t)
    return not isinstance(found, Tensor) and found == value


def displace(
    rule: Rule, p: Prediction, state: State = None, *, g: Tensor | None = None, record: Recorder | None = None
) -> tuple[Ray, State]:
    """The displacement that `rule` makes of the gap, or of a nominal displacement `g` that the host made."""
    device = p.x.device.type
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        with torch.autocast(device, enabled=False):  # it would lower the precision of a matrix product
            return displace(rule, p, state, g=g, record=record)
    if g is not None:
        need_same_shapes(x=p.x, g=g)
        g = promoted(g)
    # In a compiled graph a number would be part of the graph, and a change of it need another one.
    start = _start(p) if torch.compiler.is_compiling() else 1.0
    ray, state = rule.update(Ray(p, start, g), p, rule.init() if state is None else state)
    if record is not None:
        record.add(ray)
    return ray, state


def _start(p: Prediction) -> Tensor:
    """1 for each sample, with the times in it: torch makes a new graph for each value of an unused number."""
    times = [v for v in (p.t, p.t_next) if isinstance(v, Tensor)]
    return sum((0 * v for v in times), start=vector(1.0, p.x))


def guide(
    rule: Rule, p: Prediction, state: State = None, *, g: Tensor | None = None, record: Recorder | None = None
) -> tuple[Tensor, State]:
    """The guided posterior mean m_c + g, and the rule's state after this evaluation.

    Pass `g` where the host has its own nominal displacement from m_c and the rule only limits it.
    The result is in the precision of the prediction, float32 at least; cast it back with `.to(dtype)`.
    """
    ray, state = displace(rule, p, state, g=g, record=record)
    return blend(p.m_c, ray.coefficient, ray.direction), state


def blend(base: Tensor, coefficient: Number, direction: Tensor, *, out: Tensor | None = None) -> Tensor:
    """base + coefficient * direction, by one formula whoever computed the coefficient."""
    if not isinstance(coefficient, Tensor):
        if coefficient == 0:  # 0 * inf would put a NaN where nothing is added
            return base
        one = base.shape[0] == 1
        coefficient = base.new_tensor([coefficient]) if one else base.new_full(base.shape[:1], coefficient)
    elif torch.compiler.is_compiling() and not coefficient.requires_grad:
        # A view with explicit strides makes the compiler store the coefficient; else it works it out anew for
        # every few elements, which costs more than everything else.
        coefficient = coefficient.contiguous().as_strided(coefficient.shape, (1,))
    need_one_each(base.shape[0], coefficient.numel())
    return torch.addcmul(base, direction, per_sample(coefficient, base), out=out)  # type: ignore[arg-type]
