"""A condition and a rule as plain numbers, for engines that sample without forming a `Prediction`.

    n_A, n_B   posterior mean of mu over the members A, and over the other components B
    P_B        probability of B at (x, t)
    m_c        slope x + pull n_A,   slope = t s^2 / C,  pull = (1 - t)^2 / C,  C = (1 - t)^2 + t^2 s^2
    u          pull (n_A - n_B), so that  m_c - m_u = P_B u
    g          +- min(|nominal| P_B, reach / |u|) u, where caps leave the lengths
               reach = sqrt(ball |m_c|^2 + w^2) -+ w,  w the component of m_c along u     (Cap)
               reach = displacement |m_c|                                                 (CapDisplacement)

The caps bound the length of g along u and not a multiple of the gap, so nothing is divided by P_B, which
vanishes where the condition is certain.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..rules import CFG, Cap, CapDisplacement, Interval, Rule
from ..schedules import at
from .condition import Condition

LARGEST = 1e6  # beyond it float32 squares and logits lose what they are compared with


class Stage(NamedTuple):
    """All numbers of one evaluation at time t; tensors are float64, members first."""

    t: float
    slope: float
    pull: float
    gain: Tensor  # logits in base 2 are gain @ x + bias, (K, d)
    bias: Tensor  # (K,)
    nominal: float  # what the rule asks for: a multiple of the gap
    ball: float | None  # gamma^2 - 1 of the tightest `Cap`
    displacement: float | None  # gamma - 1 of the tightest `CapDisplacement`


@dataclass(frozen=True, eq=False)
class Plan:
    """A mixture with one width, its members first, under a rule that is CFG, intervals and plain caps."""

    means: Tensor  # (K, d), float64 on the CPU
    log_weights: Tensor  # (K,)
    inside: int
    std: float
    parts: tuple[Rule, ...]

    def stage(self, t: float) -> Stage:
        (slope, pull), (gain, bias) = self.shares(t), self.logits(t)
        return Stage(t, slope, pull, gain, bias, *self.limits(t))

    def shares(self, t: Any) -> tuple[Any, Any]:
        """Slope and pull at t, a number or numbers."""
        c = self._spread(t)
        return t * self.std**2 / c, (1 - t) ** 2 / c

    def logits(self, t: Any) -> tuple[Tensor, Tensor]:
        """Gain (K, d) and bias (K,) at t; for times of shape (n, 1, 1) it is (n, K, d) and (n, 1, K)."""
        c = self._spread(t)
        gain = t / c / math.log(2) * self.means
        bias = (self.log_weights - t * t / (2 * c) * (self.means**2).sum(1)) / math.log(2)
        return gain, bias

    def _spread(self, t: Any) -> Any:
        return (1 - t) ** 2 + (t * self.std) ** 2

    def limits(self, t: float) -> tuple[float, float | None, float | None]:
        """The nominal multiple of the gap at t, and the room of the tightest cap of each kind."""
        nominal, ball, displacement = 1.0, math.inf, math.inf
        for part in self.parts:
            if isinstance(part, CFG):
                nominal *= float(at(part.scale, t)) - 1
            elif isinstance(part, Interval):
                nominal *= part.lo <= t <= part.hi
            elif isinstance(part, Cap):
                gamma = float(at(part.gamma, t))
                if not gamma >= 1:
                    raise ValueError(f"{part} needs gamma >= 1 at every time; it is {gamma} at t = {t}")
                if isinstance(part, CapDisplacement):
                    displacement = min(displacement, gamma - 1)
                else:
                    ball = min(ball, (gamma - 1) * (gamma + 1))
        return nominal, _finite(ball), _finite(displacement)


def plan(condition: Condition, rule: Rule) -> Plan | None:
    """The numbers of this pair, or None where only the library's own loop can run it."""
    mixture = condition.mixture
    means, weights = mixture.means.detach().double().cpu(), mixture.weights.detach().double().cpu()
    least, most = mixture.variances.aminmax()
    if least != most or means.abs().max() > LARGEST or not _plain(rule):
        return None
    used = weights > 0
    members = condition.inside.cpu() & used
    order = torch.cat([members.nonzero(), (~members & used).nonzero()])[:, 0]
    return Plan(means[order], weights[order].log(), int(members.sum()), math.sqrt(float(most)), rule.parts)


def _plain(rule: Rule) -> bool:
    """Whether the chain is CFG and intervals, then caps without options; CFG after a cap differs."""
    capped = False
    for part in rule.parts:
        if isinstance(part, Cap) and type(part) in (Cap, CapDisplacement) and part == type(part)(part.gamma):
            capped = True
        elif type(part) is not Interval and (type(part) is not CFG or capped):
            return False
    return True


def _finite(room: float) -> float | None:
    return None if room == math.inf else room
