"""Rules that count steps: gates by step index, a first phase, a start from zero.

The index is state: it advances once per step, and every evaluation of a multi-stage step sees the same one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from ..notation import write
from ..prediction import Prediction
from .rule import Displacement, Rule, State, names_needed
from .spaces import conditional_in, need_flags, need_whole_numbers


class StepValue(NamedTuple):
    """What the first evaluation of a step found, for the step's later evaluations to use unchanged."""

    value: Any


class _Counting(Rule):
    """A rule whose state is the index of the step."""

    has_state = True

    def init(self) -> State:
        return 0

    def update(self, g: Displacement, p: Prediction, state: State) -> tuple[Displacement, State]:
        return self.on_step(g, p, state), state + 1

    def on_step(self, g: Displacement, p: Prediction, index: int) -> Displacement:
        raise NotImplementedError(f"{type(self).__name__} must define on_step(g, p, index)")


@dataclass(frozen=True)
class StepInterval(_Counting):
    """Guidance only in the steps from `first` to `last`, both included and counted from 0."""

    first: int
    last: int

    turns = False
    reads_m_u = False

    def __post_init__(self) -> None:
        need_whole_numbers(self, "first", "last")
        if self.first > self.last:
            raise ValueError(f"StepInterval needs first <= last; got {self.first} and {self.last}")

    def idle(self, t: float, state: State = None) -> bool:
        return not self.first <= (state or 0) <= self.last

    def on_step(self, g: Displacement, p: Prediction, index: int) -> Displacement:
        return g if self.first <= index <= self.last else g.times(0.0)


@dataclass(frozen=True)
class ZeroInit(_Counting):
    """Zero velocity in the first `steps` steps, so that the mean is x there; put it last (CFG-Zero*)."""

    steps: int = 1

    def __post_init__(self) -> None:
        need_whole_numbers(self, "steps")

    def on_step(self, g: Displacement, p: Prediction, index: int) -> Displacement:
        return g if index >= self.steps else g.turn(-conditional_in(p, "velocity"))


@dataclass(frozen=True)
class Phases(Rule):
    """The rule `early` in the first `steps` steps, `late` from then on.

    With `together` the late rule's state follows the early steps as well, so that its memory is filled.
    """

    steps: int
    early: Rule
    late: Rule
    together: bool = True

    has_state = True

    def __post_init__(self) -> None:
        need_whole_numbers(self, "steps")
        for name in ("early", "late"):
            if not isinstance(getattr(self, name), Rule):
                raise ValueError(
                    f"Phases needs a rule for {name}, such as CFG(4); got {getattr(self, name)!r}"
                )
        need_flags(self, "together")
        object.__setattr__(self, "turns", self.early.turns or self.late.turns)
        object.__setattr__(self, "needs", names_needed((self.early, self.late)))

    def idle(self, t: float, state: State = None) -> bool:
        index, early, late = self.init() if state is None else state
        now, its_state = (self.early, early) if index < self.steps else (self.late, late)
        return not (self.early.has_state or self.late.has_state) and now.idle(t, its_state)

    def init(self) -> State:
        return 0, self.early.init(), self.late.init()

    def update(self, g: Displacement, p: Prediction, state: State) -> tuple[Displacement, State]:
        index, early, late = state
        if index >= self.steps:
            result, late = self.late.update(g, p, late)
            return result, (index + 1, early, late)
        result, early = self.early.update(g, p, early)
        if self.together:
            _, late = self.late.update(g, p, late)
        return result, (index + 1, early, late)

    def within_step(self, before: State, after: State) -> State:
        early = self.early.within_step(before[1], after[1])
        return before[0], early, self.late.within_step(before[2], after[2])

    def __str__(self) -> str:
        together = "" if self.together else ", together=False"
        return f"Phases({write(self.steps)}, {self.early}, {self.late}{together})"
