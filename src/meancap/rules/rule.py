"""The protocol: a rule turns the gap m_c - m_u into a displacement g, and the guided mean is m_c + g.

    Displacement  g = coefficient * direction, one coefficient per sample; starts as 1 * (m_c - m_u)
    Factor        a rule that multiplies the coefficient: CFG, gates, clips, caps. It reads no large tensor
    Map           a rule that turns the direction: a function of the tensor g
    Chain         rules applied in order; `a | b` is first a, then b

Rules are frozen dataclasses: they print, compare, hash and parse. What a rule remembers between steps is a
value that goes in and comes out, never an attribute.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from ..cap import Lengths, blend, fast_leaves, lengths
from ..notation import write
from ..prediction import Prediction
from ..schedules import Scale, at
from ..tensors import Number, need_one_each, per_sample, scalar_dtype, vector

__all__ = ["Chain", "Displacement", "Factor", "Map", "Recorder", "Rule", "State"]

State = Any  # what a rule remembers; None for most


class Displacement:
    """A displacement g = coefficient * direction of the conditional mean of a prediction p.

    direction   a tensor, or None for the gap of p: the result is then written in the network's own units
    requested   the coefficient before the first cap shortened it, or None
    bound       the longest mean that the last rule permits, one per sample, or None
    """

    def __init__(
        self,
        p: Prediction,
        coefficient: Number = 1.0,
        direction: Tensor | None = None,
        requested: Number | None = None,
        bound: Tensor | None = None,
        lengths: Lengths | None = None,
    ) -> None:
        self.p, self.coefficient, self.requested, self.bound = p, coefficient, requested, bound
        self._lengths = lengths
        self.direction = p.gap if direction is None else direction
        if isinstance(coefficient, Tensor) and coefficient.shape != p.shown.shape[:1]:
            need_one_each(len(p.shown), coefficient.numel())

    @property
    def toward(self) -> Tensor:
        """The direction as a tensor."""
        return self.p.delta if self.direction is None else self.direction

    @property
    def vector(self) -> Tensor:
        """g as a tensor."""
        return per_sample(self.coefficient, self.toward) * self.toward

    @property
    def lengths(self) -> Lengths:
        """|m_c|, |direction| and the component of m_c along it, for each sample."""
        if self.direction is self.p.gap:
            return self.p.lengths
        if self._lengths is None:
            self._lengths = lengths(self.p.m_c, self.toward)
        return self._lengths

    def times(self, factor: Number) -> Displacement:
        """The same direction with the coefficient multiplied."""
        if isinstance(factor, Tensor):
            factor = factor.to(scalar_dtype(factor.device))
        c = factor * self.coefficient
        return Displacement(self.p, c, self.direction, self.requested, None, self._lengths)

    def capped(self, share: Tensor, bound: Tensor | None = None) -> Displacement:
        """The share of it that a cap keeps; remembers what was requested and the bound."""
        requested = self.coefficient if self.requested is None else self.requested
        c = share * self.coefficient
        return Displacement(self.p, c, self.direction, requested, bound, self._lengths)

    def turn(self, g: Tensor) -> Displacement:
        """Another displacement of the same mean, from a tensor."""
        return Displacement(self.p, 1.0, g, self.requested)

    def mean(self) -> Tensor:
        """The guided mean m_c + g, in the precision of the prediction."""
        p, c = self.p, self.coefficient
        if self.direction is not None:
            return blend(p.m_c, self.direction, c)
        if isinstance(p.k, float) and p.k == 1 and isinstance(p.a, float) and p.a == 0:
            return self._output(p.dtype)
        fast = fast_leaves(p.shown, p.out_c, p.out_u, numbers=(c, p.a, p.k))
        if fast is None or (bool((c == -1).any()) if isinstance(c, Tensor) else c == -1):
            return blend(p.m_c, p.delta, c, p.m_u)
        # From m_c and not from the output: x and k out may cancel, and the displacement must not lose by it.
        result: Tensor = fast.blend(p.m_c, p.out_c, p.out_u, c * p.k, p.dtype)
        return result

    def output(self, dtype: torch.dtype) -> Tensor:
        """The guided output of the network, in its own units: out_c + g / k."""
        p = self.p
        if self.direction is None:
            return self._output(dtype)
        base, k = p.conditional, vector(p.k, p.shown)
        back = torch.where(k == 0, 0.0, 1 / k)  # with k = 0 the mean is x, for every output
        return blend(base, self.direction, back * vector(self.coefficient, p.shown)).to(dtype)

    def _output(self, dtype: torch.dtype) -> Tensor:
        p, c = self.p, self.coefficient
        fast = fast_leaves(p.out_c, p.out_u, numbers=(c,))
        if fast is not None and dtype in (torch.float32, torch.bfloat16):
            result: Tensor = fast.blend(p.out_c, p.out_c, p.out_u, c, dtype, exact=True)
            return result
        return blend(p.conditional, p.difference, c, p.out_u).to(dtype)


class Recorder(Protocol):
    """An object that sees each displacement: see `meancap.Record`."""

    def begin(self, x: Tensor, weights: Sequence[tuple[float, ...]] | None) -> None: ...

    def add(self, g: Displacement, p: Prediction, rule: Rule) -> None: ...


class Rule:
    """A guidance rule. Subclass `Factor` or `Map`, or define `update` for a rule with state."""

    turns: bool = True  # whether the direction may change
    caps: bool = False  # whether the rule only limits a displacement that other rules made
    has_state: bool = False  # whether it remembers anything from step to step
    reads_m_u: bool = (
        True  # whether it reads m_u, or turns a zero g into another; False keeps g known without m_u
    )
    needs: ClassVar[tuple[str, ...]] = ()  # names of the extra outputs that it reads, such as "negative"

    def init(self) -> State:
        """The state before the first step."""
        return None

    def update(self, g: Displacement, p: Prediction, state: State) -> tuple[Displacement, State]:
        """The displacement after this rule, and the state after this step."""
        raise NotImplementedError(f"{type(self).__name__} must define update(g, p, state)")

    def within_step(self, before: State, after: State) -> State:
        """The state for later evaluations of the same step; by default the one that the step began with."""
        return before

    @property
    def parts(self) -> tuple[Rule, ...]:
        return (self,)

    def idle(self, t: float, state: State = None) -> bool:
        """Whether at time t neither the result nor the next state depends on m_u: it is zero, or remembered.

        The network then need not compute m_u. Return False if in doubt. A chain is idle if one part is, no
        later one reads m_u or they are factors that keep zero at zero, and no other part has a state of m_u.
        """
        return False

    def __or__(self, other: Rule) -> Chain:
        if not isinstance(other, Rule):
            kind = type(other).__name__
            raise TypeError(
                f"| joins rules, such as CFG(7) | Cap(1.1); got a {kind}: make it a Factor or a Map"
            )
        return Chain(self.parts + other.parts)

    def __str__(self) -> str:
        if not dataclasses.is_dataclass(self):
            name = type(self).__name__
            raise TypeError(f"{name} cannot be printed: write @dataclass(frozen=True) above class {name}")
        return write(self)


class Factor(Rule):
    """A rule that multiplies one number per sample."""

    turns = False

    def factor(self, g: Displacement, p: Prediction) -> Number:
        """The factor of the coefficient."""
        raise NotImplementedError(f"{type(self).__name__} must define factor(g, p)")

    def update(self, g: Displacement, p: Prediction, state: State) -> tuple[Displacement, State]:
        return g.times(self.factor(g, p)), state


class Map(Rule):
    """A rule that is a function of the tensor g."""

    def __call__(self, g: Tensor, p: Prediction) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__} must define __call__(g, p)")

    def update(self, g: Displacement, p: Prediction, state: State) -> tuple[Displacement, State]:
        return g.turn(self(g.vector, p) if len(p.shown) else g.vector), state


@dataclasses.dataclass(frozen=True)
class Chain(Rule):
    """Rules applied in order, each to the displacement that the one before it returned."""

    rules: tuple[Rule, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "turns", any(part.turns for part in self.rules))
        object.__setattr__(self, "caps", all(part.caps for part in self.rules))
        object.__setattr__(self, "has_state", any(part.has_state for part in self.rules))
        object.__setattr__(self, "needs", names_needed(self.rules))

    @property
    def parts(self) -> tuple[Rule, ...]:
        return self.rules

    def idle(self, t: float, state: State = None) -> bool:
        independent = zero = False  # of m_u
        for part, before in zip(self.rules, self.init() if state is None else state, strict=True):
            if part.idle(t, before):
                independent, zero = True, not part.turns
            elif part.reads_m_u and part.has_state:
                return False
            elif part.reads_m_u:
                independent = zero = zero and isinstance(part, Factor)
        return independent

    def init(self) -> State:
        return tuple(part.init() for part in self.rules)

    def update(self, g: Displacement, p: Prediction, state: State) -> tuple[Displacement, State]:
        states = []
        for part, before in zip(self.rules, state, strict=True):
            g, after = part.update(g, p, before)
            states.append(after)
        return g, tuple(states)

    def within_step(self, before: State, after: State) -> State:
        return tuple(part.within_step(*pair) for part, *pair in zip(self.rules, before, after, strict=True))

    def __str__(self) -> str:
        return " | ".join(map(str, self.rules))


def names_needed(rules: Iterable[Rule]) -> tuple[str, ...]:
    """The extra outputs that any of these rules reads, each once."""
    return tuple(dict.fromkeys(name for rule in rules for name in rule.needs))


def exactly(scale: Scale, t: float, value: float) -> bool:
    """Whether a scale has this value at time t, as far as one can tell without waiting for a device."""
    found = at(scale, t)
    return not isinstance(found, Tensor) and found == value
