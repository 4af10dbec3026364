"""Millions of guided samples of a mixture: the flow of `meancap.sample`, by the fastest engine.

    numba     one compiled loop: Euler, two dimensions, few components of one width, float32 on the CPU
    library   the loop of `meancap.sampling` in chunks: every mixture and every rule

The engines agree up to rounding, and each handles every sample by itself: neither the chunk nor the number of
threads matters. Memory beyond x and the result is that of one chunk. `Plan` has the numbers of a condition
and a rule for the compiled loop:

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
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from meancap.cap import import_fast
from meancap.extras import pip_command
from meancap.rules import CFG, Cap, CapDisplacement, Interval, Rule
from meancap.sampling import StepMethod, Times, euler, trajectory
from meancap.sampling.grids import checked
from meancap.schedules import at

from .condition import Condition

ENGINES = ("numba", "library")
_LARGEST = 1e6  # beyond it float32 squares and logits lose what they are compared with
_CHUNK = 32768
_NUMBERS = 2**24  # in the largest tensor that the library's loop may form for one chunk


@dataclass(frozen=True, eq=False)
class Plan:
    """A mixture with one width, its members first, under a rule that is CFG, intervals and plain caps."""

    means: Tensor  # (K, d), float64 on the CPU
    log_weights: Tensor  # (K,)
    inside: int
    std: float
    parts: tuple[Rule, ...]

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

    def limits(self, t: float) -> tuple[float, float, float]:
        """The nominal multiple of the gap at t, and the room of the tightest caps, -1 for none."""
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
        ball, displacement = (-1.0 if room == math.inf else room for room in (ball, displacement))
        return nominal, ball, displacement


def _plan(condition: Condition, rule: Rule) -> Plan | None:
    """The numbers of this pair, or None if only the library's own loop can run it."""
    mixture = condition.mixture
    means, weights = mixture.means.detach().double().cpu(), mixture.weights.detach().double().cpu()
    least, most = mixture.variances.aminmax()
    if least != most or means.abs().max() > _LARGEST or not _plain(rule):
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


def flow(
    condition: Condition,
    rule: Rule,
    x: Tensor,
    times: Sequence[float],
    step: StepMethod = euler,
    *,
    engine: str | None = None,
) -> Tensor:
    """The end of the guided flow from x (n, d) through `times`, in the precision of x."""
    grid = checked(times)
    if x.ndim != 2 or x.shape[1] != condition.mixture.means.shape[1]:
        raise ValueError(f"flow takes x (n, {condition.mixture.means.shape[1]}); got {tuple(x.shape)}")
    plan = _usable_plan(condition, rule, x, grid, step)
    _need_engine(engine, plan, rule)
    if engine == "library" or plan is None:
        return _by_library(condition, rule, x, grid, step)
    loop, x = _compiled_loop(), x.detach()
    assert loop is not None
    near = torch.linalg.vector_norm(x, dim=1) <= _LARGEST
    if near.all():
        return loop.flow_plan(plan, x, grid)  # type: ignore[no-any-return]
    end = torch.empty_like(x)
    end[near] = loop.flow_plan(plan, x[near], grid)
    end[~near] = _by_library(condition, rule, x[~near], grid, step)
    return end


def engine_for(
    condition: Condition, rule: Rule, x: Tensor, times: Sequence[float], step: StepMethod = euler
) -> str:
    """The engine that `flow` chooses."""
    return "library" if _usable_plan(condition, rule, x, checked(times), step) is None else "numba"


def _usable_plan(condition: Condition, rule: Rule, x: Tensor, grid: Times, step: StepMethod) -> Plan | None:
    """The plan, if the compiled loop can run it from x."""
    if step is not euler or x.dtype != torch.float32 or x.device.type != "cpu" or x.shape[1] != 2:
        return None
    if x.requires_grad and torch.is_grad_enabled():
        return None
    plan, loop = _plan(condition, rule), _compiled_loop()
    if plan is None or loop is None or len(plan.means) > loop.MOST:
        return None
    return None if any(abs(plan.limits(t)[0]) > _LARGEST for t in grid[:-1]) else plan


def _compiled_loop() -> ModuleType | None:
    """The loop compiled by numba, if numba works here."""
    if import_fast() is None:
        return None
    from . import mixture_loop

    return mixture_loop


def _need_engine(engine: str | None, plan: Plan | None, rule: Rule) -> None:
    if engine not in (None, *ENGINES):
        raise ValueError(f"the engines are {', '.join(ENGINES)}; got {engine!r}")
    if engine == "numba" and _compiled_loop() is None:
        raise ModuleNotFoundError(f"the numba engine needs numba; run {pip_command('fast')}", name="numba")
    if engine == "numba" and plan is None:
        raise ValueError(
            f"the numba engine cannot run {rule} on this mixture, start and solver; leave engine out"
        )


def _by_library(condition: Condition, rule: Rule, x: Tensor, grid: Times, step: StepMethod) -> Tensor:
    size = max(1, min(_CHUNK, _NUMBERS // condition.mixture.means.numel()))
    ends = []
    for part in torch.split(x, size):
        for one in trajectory(condition.predict, rule, part, grid, step):
            part = one.x_next
        ends.append(part)
    return torch.cat(ends) if ends else x.clone()
