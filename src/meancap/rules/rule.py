"""The protocol: a rule turns the gap m_c - m_u into a displacement g, and the guided mean is m_c + g.

    Ray     g = coefficient * direction, one coefficient per sample; starts as 1 * (m_c - m_u)
    Factor  a rule that changes the coefficient only: CFG, gates, clips, caps. It touches no large tensor
    Map     a rule that turns the direction: a function of the tensor g
    Chain   rules applied in order; `a | b` is first a, then b

Rules are frozen dataclasses: they print, compare, hash and parse. What a rule remembers between steps is a
value that goes in and comes out, never an attribute.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from torch import Tensor

from ...notation import write
from ...prediction import Prediction
from ...schedules import Fields, Scale, at, hold_values
from ...tensors import Number
from .ray import Limit, Ray

State = Any  # what a rule remembers; None for most


class Recorder(Protocol):
    """Whatever wants to see each displacement: see `meancap.Record`."""

    def begin(self, x: Tensor, weights: Sequence[tuple[float, ...]] | None) -> None: ...

    def add(self, ray: Ray) -> None: ...


class Rule(Fields):
    """A guidance rule. Subclass `Factor` or `Map`, or define `update` for a rule with state."""

    turns = True  # whether the direction may change
    caps = False  # whether the rule only limits a nominal displacement that others made
    multiplies = False  # whether the rule only multiplies what it is given, so that nothing stays nothing
    fixed: tuple[float, Limit | None] | None = None  # a factor, then a cap, if these are all it ever does
    needs: ClassVar[tuple[str, ...]] = ()  # names of the further predictions it looks at, such as "negative"

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
        object.__setattr__(self, "needs", names_needed(self.rules))
        if type(self) is Chain and (folded := _folded(self.rules)) is not None:
            fix(self, *folded)

    @property
    def has_state(self) -> bool:
        return any(part.has_state for part in self.parts)

    @property
    def remembers(self) -> bool:
        return any(part.remembers for part in self.parts)

    def idle(self, t: float, state: State = None) -> bool:
        if self.fixed is not None:
            return self.fixed[0] == 0
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
        if self.fixed is not None:
            return before
        return tuple(part.within_step(*pair) for part, *pair in zip(self.parts, before, after, strict=True))

    def __str__(self) -> str:
        return " | ".join(map(str, self.parts))


def fix(rule: Rule, factor: float, limit: Limit | None = None) -> None:
    """Says that all the rule ever does is to multiply by `factor` and then to cap, by these numbers."""
    object.__setattr__(rule, "fixed", (factor, limit))
    hold_values(rule, fixed=(factor, *((math.inf, 0.0) if limit is None else limit[:2])))


def held_of(rule: Rule) -> tuple[Number, Limit | None] | None:
    """`fixed`, from the tensor that holds its numbers for compiled graphs."""
    if rule.fixed is None or "fixed" not in rule.tensors:
        return rule.fixed
    held, limit = rule.tensors["fixed"], rule.fixed[1]
    return held[0], None if limit is None else Limit(held[1], held[2], limit.ball)


def _folded(rules: Iterable[Rule]) -> tuple[float, Limit | None] | None:
    """One factor and one cap that do what all these rules do, where a cap comes last if at all."""
    factor, limit = 1.0, None
    for rule in rules:
        if rule.fixed is None or limit is not None:
            return None
        factor, limit = factor * rule.fixed[0], rule.fixed[1]
    return factor, limit


def names_needed(rules: Iterable[Rule]) -> tuple[str, ...]:
    """The further predictions that any of these rules looks at, each once."""
    return tuple(dict.fromkeys(name for rule in rules for name in rule.needs))


def exactly(scale: Scale, t: float, value: float) -> bool:
    """Whether a scale has this value at time t, as far as one can tell without waiting for a device."""
    found = at(scale, t)
    return not isinstance(found, Tensor) and found == value
