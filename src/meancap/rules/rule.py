"""The protocol: a rule turns the gap m_c - m_u into a displacement g, and the guided mean is m_c + g.

    Displacement  g = share * nominal * direction, one number per sample each; starts as 1 * (m_c - m_u)
    Factor        a rule that multiplies the coefficient: CFG, gates, clips, caps. It reads no large tensor
    Map           a rule that turns the direction: a function of the tensor g
    Chain         rules applied in order; `a | b` is first a, then b
    guide         a rule applied to a prediction: the guided mean; `respond` returns the guided output instead
    Stepper       a rule and its state over a run

Rules are frozen dataclasses: they print, compare, hash and parse. What a rule remembers between steps is a
value that goes in and comes out, never an attribute. `Stepper` is the one place that knows when it advances:
**once per step, from the step's first evaluation**. Later evaluations of a multi-stage step (Heun, RK4, a
sampler that looks ahead) get the state that `Rule.within_step` returns, and change nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass, replace
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from ..cap import Lengths, blend, compiled, lengths
from ..notation import write
from ..prediction import Prediction, need_same_shapes, time
from ..tensors import Number, compiling, magnitude, promoted, scalar_dtype, scaled, vector

__all__ = [
    "Chain", "Displacement", "Factor", "Map", "Recorder", "Rule", "State", "Stepper", "displace", "guide",
    "guided_velocity", "respond",
]  # fmt: skip

State = Any  # what a rule remembers; None for most
_LATEST = 1 - 2.0**-20


@dataclass(eq=False)
class Displacement:
    """g = share * nominal * direction, a displacement of the conditional mean of a prediction p.

    nominal    the coefficient that rules made, one number per sample, before any cap; it starts as 1
    direction  a tensor, or None for the gap of p itself, which most rules never turn
    share      the part of it that caps keep, in [0, 1]
    """

    p: Prediction
    nominal: Number = 1.0
    direction: Tensor | None = None
    share: Number = 1.0
    measured: Lengths | None = None  # `lengths`, once they are known

    @classmethod
    def toward_output(cls, p: Prediction, nominal: Tensor) -> Displacement:
        """The displacement that leads from the conditional output to another one.

        -1 times the gap from that output to the conditional one, so that a share of 1 returns its bits.
        """
        return cls(replace(p, out_u=nominal, gap=None), -1.0)

    @property
    def coefficient(self) -> Number:
        """share * nominal."""
        return self.share * self.nominal

    @property
    def toward(self) -> Tensor:
        """The direction as a tensor."""
        return self.p.delta if self.direction is None else self.direction

    @property
    def vector(self) -> Tensor:
        """g as a tensor."""
        return scaled(self.toward, self.coefficient)

    @property
    def lengths(self) -> Lengths:
        """|m_c|, |direction| and the component of m_c along it, for each sample."""
        if self.measured is None:
            along_gap = self.direction is None
            self.measured = self.p.lengths if along_gap else lengths(self.p.m_c, self.toward)
        return self.measured

    @property
    def length(self) -> Tensor:
        """|g|, for each sample."""
        return magnitude(self.coefficient) * self.lengths.direction

    def times(self, factor: Number) -> Displacement:
        """The same direction with the nominal coefficient multiplied."""
        if isinstance(factor, Tensor):
            factor = factor.to(scalar_dtype(factor.device))
        return Displacement(self.p, factor * self.nominal, self.direction, self.share, self.measured)

    def turn(self, g: Tensor) -> Displacement:
        """Another displacement of the same mean, from a tensor."""
        return Displacement(self.p, 1.0, g)

    @compiled("guided_mean")
    def mean(self) -> Tensor:
        """The guided mean m_c + g, in the precision of the prediction."""
        # From m_c and not from the output: x and k out may cancel, and the displacement must not lose by it.
        p, exact = self.p, self.direction is None and self.p.gap is None
        return blend(p.m_c, self.toward, self.coefficient, p.m_u if exact else None)

    @compiled("guided_output")
    def output(self, dtype: torch.dtype) -> Tensor:
        """The guided output of the network, in its own units: out_c + g / k."""
        p, c = self.p, self.coefficient
        if self.direction is None and p.gap is None:
            return blend(p.conditional, p.difference, c, p.out_u).to(dtype)
        k = vector(p.k, p.state)
        back = torch.where(k == 0, 0.0, 1 / k)  # with k = 0 the mean is x, for every output
        return blend(p.conditional, self.toward, back * c).to(dtype)


class Recorder(Protocol):
    """An object that sees each displacement: see `meancap.Record`."""

    def begin(self, x: Tensor, weights: Sequence[tuple[float, ...]] | None) -> None: ...

    def add(self, g: Displacement, p: Prediction, rule: Rule) -> None: ...


class Rule:
    """A guidance rule. Subclass `Factor` or `Map`, or define `update` for a rule with state."""

    turns: bool = True  # whether the direction may change
    caps: bool = False  # whether the rule only limits a displacement that other rules made
    sets_scale: bool = (
        False  # whether it sets how strong guidance is, as every rule with a field `scale` does
    )
    has_state: bool = False  # whether it remembers anything from step to step
    reads_m_u: bool = True  # whether it reads m_u, or turns a zero g into another
    needs: ClassVar[tuple[str, ...]] = ()  # names of the extra outputs that it reads, such as "negative"

    def __init_subclass__(cls, **options: Any) -> None:
        """Every rule is shown as its text: a dataclass keeps the __repr__ that its class has already."""
        super().__init_subclass__(**options)
        if "__repr__" not in vars(cls):
            type.__setattr__(cls, "__repr__", Rule.__repr__)
        if "scale" in cls.__annotations__ and "sets_scale" not in vars(cls):
            cls.sets_scale = True

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
        """Whether at time t neither the result nor the next state depends on m_u.

        The network then need not compute m_u. Return False if in doubt. A chain is idle if one part is, no
        later one reads m_u or they are factors that keep zero at zero, and no other part has a state of m_u.
        """
        return False

    def __or__(self, other: Rule | str) -> Chain:
        if isinstance(other, str):
            from .grammar import parse  # which reads this module

            other = parse(other)
        if not isinstance(other, Rule):
            kind = type(other).__name__
            raise TypeError(
                f"| joins rules, such as CFG(7) | Cap(1.1); got a {kind}: make it a Factor or a Map"
            )
        return Chain(self.parts + other.parts)

    def __repr__(self) -> str:
        return str(self) if is_dataclass(self) else super().__repr__()

    def __str__(self) -> str:
        if not is_dataclass(self):
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
        factor = self.factor(g, p)
        if isinstance(factor, Tensor):
            return g.times(factor), state
        return replace(g, nominal=factor * g.nominal), state


class Map(Rule):
    """A rule that is a function of the tensor g."""

    def __call__(self, g: Tensor, p: Prediction) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__} must define __call__(g, p)")

    def update(self, g: Displacement, p: Prediction, state: State) -> tuple[Displacement, State]:
        return g.turn(self(g.vector, p) if len(p.state) else g.vector), state


@dataclass(frozen=True)
class Chain(Rule):
    """Rules applied in order, each to the displacement that the one before it returned."""

    rules: tuple[Rule, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "turns", any(part.turns for part in self.rules))
        object.__setattr__(self, "caps", all(part.caps for part in self.rules))
        object.__setattr__(self, "sets_scale", any(part.sets_scale for part in self.rules))
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


def displace(
    rule: Rule,
    p: Prediction,
    state: State = None,
    *,
    g: Displacement | Tensor | None = None,
    record: Recorder | None = None,
) -> tuple[Displacement, State]:
    """The displacement that `rule` makes of the gap, or of a nominal displacement `g`, and the next state."""
    device = p.state.device.type
    if _autocast(device):
        with torch.autocast(device, enabled=False):  # it would lower the precision of a matrix product
            return displace(rule, p, state, g=g, record=record)
    for name in rule.needs:
        if name not in p.extra:
            raise ValueError(
                f"{rule} needs the prediction {name!r}: add the network's output by p.beside({name}=output), "
                f"or give sample() beside(predict, {name}=other); a host that makes two predictions has none"
            )
    if g is None:
        g = Displacement(p, _one(p) if compiling() else 1.0)
    elif isinstance(g, Tensor):
        need_same_shapes(x=p.state, g=g)
        g = Displacement(p, 1.0, promoted(g).to(p.dtype))
    displacement, state = rule.update(g, p, rule.init() if state is None else state)
    if record is not None:
        record.add(displacement, p, rule)
    return displacement, state


def _autocast(device: str) -> bool:
    """Whether torch lowers the precision of products on this device."""
    if hasattr(torch.amp, "is_autocast_available"):  # from torch 2.4; Forge has 2.3
        return torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
    return torch.is_autocast_cpu_enabled() if device == "cpu" else torch.is_autocast_enabled()


def _one(p: Prediction) -> Number:
    """1, with the times in it: torch makes a new graph for each value of an unused number."""
    one = vector(1.0, p.state[:1])
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
    displacement, state = displace(rule, p, state, g=g, record=record)
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
    if nominal is not None and rule.caps:
        g = Displacement.toward_output(p, nominal)
    displacement, state = displace(rule, p, state, g=g, record=record)
    return displacement.output(kind), state


def guided_velocity(
    rule: Rule,
    x: Tensor,
    t: Number,
    v_c: Tensor,
    v_u: Tensor,
    state: State = None,
    *,
    t_next: Number | None = None,
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

    def idle(self, t: float, *, first: bool = True) -> bool:
        """Whether the rule returns m_c at this evaluation whatever m_u is, so that m_u is not needed."""
        return self.rule.idle(t, self._next if first else self._within)

    def mean(self, p: Prediction, *, first: bool = True, record: Recorder | None = None) -> Tensor:
        """The guided mean; `first` is False in the later evaluations of one step."""
        g, after = displace(self.rule, p, self._next if first else self._within, record=record)
        if first and self.rule.has_state:
            self._advance(after)
        return g.mean()

    def output(
        self, p: Prediction, nominal: Tensor, *, first: bool = True, record: Recorder | None = None
    ) -> Tensor:
        """The guided output in place of a host's `nominal` one, in its precision."""
        state = self._next if first else self._within
        out, after = respond(self.rule, p, state, nominal=nominal, record=record)
        if first and self.rule.has_state:
            self._advance(after)
        return out

    def _advance(self, after: State) -> None:
        self._within, self._next = self.rule.within_step(self._next, after), after
