"""Rules with memory: what they do now depends on what the trajectory did before.

Sliding   sliding-mode control of the velocity gap e (CFG-Ctrl, Wang et al. 2026)
              s = (e - e') + rate e',   e <- e - gain sign(s),   e' the corrected gap of the last step
Feedback  a running estimate L of log p(condition | x), and the scale that follows from it
          (FBG, Koulischer et al. 2025), in the variance-exploding coordinates y = x / t, sigma = (1 - t) / t
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ...operation import lengths
from ...prediction import Prediction
from ...schedules import Scale, finite, finite_scale, value_of
from ...tensors import Number, per_sample, promoted, scalar_dtype, vector
from ..protocol.base import Rule, State
from ..protocol.ray import Ray
from .phases import Held
from .spaces import elapsed, rest


@dataclass(frozen=True)
class Sliding(Rule):
    """Sliding-mode control of the velocity gap; put FromUnconditional(scale) after it.

    switching='sign' is the official code, element by element; 'unit' divides s by its length instead, so that
    the correction of a sample has length `gain` whatever its size.
    """

    rate: float = 5.0
    gain: float = 0.2
    switching: str = "sign"

    def __post_init__(self) -> None:
        finite(self, "rate", "gain")
        if self.switching not in ("sign", "unit"):
            raise ValueError(f"Sliding switches by 'sign' or by 'unit' vector; got {self.switching!r}")

    @property
    def has_state(self) -> bool:
        return True

    def update(self, ray: Ray, p: Prediction, state: State) -> tuple[Ray, State]:
        unit = per_sample(rest(p.t), p.x)
        e = ray.g / unit
        before = e if state is None else state
        e = e - self.gain * self._switch((e - before) + self.rate * before)
        return Ray(p, turned=unit * e, asked=ray.asked), e

    def _switch(self, s: Tensor) -> Tensor:
        if self.switching == "sign":
            return s.sign()
        length = lengths(s, s).m
        return s * per_sample(torch.where(length == 0, 0.0, 1 / length), s)


class Seen(NamedTuple):
    """The last evaluation, and the log posterior that it used."""

    log_posterior: Tensor
    x: Tensor
    t: Number
    m_c: Tensor
    m_u: Tensor


@dataclass(frozen=True)
class Feedback(Rule):
    """Scale e^L / (e^L - (1 - pi)) + plus, where L follows how well the two models foresaw the last step.

    L starts at 0 and after a step sigma -> sigma' becomes

        L - tau / (2 s^2) (|y' - mu_c|^2 - |y' - mu_u|^2) + delta

    with mu = r y + (1 - r) m, r = (sigma' / sigma)^2, s^2 = sigma'^2 (1 - r). It stays below 3, and above the
    value at which the scale would pass `most`. `fbg` works delta and tau out from a grid.
    """

    pi: float
    delta: float
    tau: float
    most: float = 10.0
    plus: Scale = 0.0

    turns = False

    def __post_init__(self) -> None:
        finite(self, "pi", "delta", "tau", "most")
        finite_scale(self, "plus")
        if not 0 < self.pi < 1:
            raise ValueError(f"Feedback needs pi between 0 and 1, without them; got {self.pi}")
        if not self.most > 1:
            raise ValueError(f"Feedback needs a largest scale above 1; got {self.most}")

    @property
    def has_state(self) -> bool:
        return True

    def update(self, ray: Ray, p: Prediction, state: State) -> tuple[Ray, State]:
        if isinstance(state, Held):
            log_posterior = state.value
        elif state is None:
            log_posterior = torch.zeros(p.x.shape[0], dtype=scalar_dtype(p.x.device), device=p.x.device)
        else:
            log_posterior = self._followed(state, p)
        odds = log_posterior.exp()
        scale = odds / (odds - (1 - self.pi)) + value_of(self, "plus", p.t)
        now = Seen(log_posterior, promoted(p.x), p.t, p.m_c, p.m_u)
        return ray.scaled((scale - 1) * ray.coefficient), now

    def within_step(self, before: State, after: State) -> State:
        return Held(after.log_posterior)  # the scale of a step holds for all its evaluations

    def _followed(self, last: Seen, p: Prediction) -> Tensor:
        """The log posterior after the step from the last evaluation to this one."""
        variance = (rest(p.t) / elapsed(p.t)) ** 2  # sigma'^2
        # r and r y stay finite from t = 0 on, where sigma and y do not.
        r = variance * (last.t / rest(last.t)) ** 2
        pulled = variance * last.t / rest(last.t) ** 2
        x = promoted(p.x)
        y = x / per_sample(elapsed(p.t), x) - per_sample(pulled, x) * last.x
        errors = [lengths(y - per_sample(1 - r, y) * m, x).m.square() for m in (last.m_c, last.m_u)]
        spread = vector(2 * variance * (1 - r), y)
        evidence = self.tau / spread * (errors[0] - errors[1])
        lowest = math.log((1 - self.pi) * self.most / (self.most - 1))
        return (last.log_posterior - evidence + self.delta).clamp(lowest, 3.0)
