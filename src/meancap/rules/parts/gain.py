"""Rules that weigh the displacement by one number: plain gains, other base points, other units.

CFG                g <- (scale - 1) g                 from m_c (scale.py)
Gain               g <- scale g                       from m_c
FromUnconditional  g <- scale g - (m_c - m_u)         from m_u: m = m_u + scale g
Balanced           m = m_u + s g with the s that makes s |g| a multiple of the unconditional prediction
CFGPP              CFG with the scale that makes an Euler step the CFG++ step t -> s
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...operation import lengths
from ...prediction import Prediction
from ...schedules import Scale, finite, finite_scale, value_of
from ...tensors import Number, magnitude, per_sample
from ..protocol.base import Factor, Rule, State, exactly
from ..protocol.ray import Ray
from .phases import Held
from .spaces import elapsed, known_space, stretch, unconditional

# A shorter gap has no direction left in float32, and its inverse no room.
_NO_GAP = 1e-30


@dataclass(frozen=True)
class Gain(Factor):
    """g <- scale g. Scale 0 is the conditional prediction."""

    scale: Scale

    multiplies = True

    def __post_init__(self) -> None:
        finite_scale(self, "scale")

    def idle(self, t: float, state: State = None) -> bool:
        return exactly(self.scale, t, 0.0)

    def coefficient(self, ray: Ray, p: Prediction) -> Number:
        return value_of(self, "scale", p.t) * ray.coefficient


@dataclass(frozen=True)
class FromUnconditional(Rule):
    """Counts scale g from the unconditional prediction: m = m_u + scale g.

    For g = m_c - m_u this is CFG. Once g has been clipped, projected or switched the two differ: the base is
    then the unconditional prediction, and scale 1 does not give the conditional one.
    """

    scale: Scale

    turns = False  # a direction that is still the gap stays the gap

    def __post_init__(self) -> None:
        finite_scale(self, "scale")

    def update(self, ray: Ray, p: Prediction, state: State) -> tuple[Ray, State]:
        total = value_of(self, "scale", p.t) * ray.coefficient
        if ray.turned is None:
            return ray.scaled(total - 1), state
        g = per_sample(total, ray.turned) * ray.turned
        return Ray(p, turned=g - p.delta, asked=ray.asked), state


@dataclass(frozen=True)
class Balanced(Rule):
    """m = m_u + s g with s = gamma |u| / |g|, between `least` and `most`; u is unconditional (Auto-MOG).

    Both lengths are taken in `space`: velocities, or means.
    """

    gamma: float = 1.0
    least: float = 1.0
    most: float = 20.0
    space: str = "velocity"

    turns = False

    def __post_init__(self) -> None:
        finite(self, "gamma", "least", "most")
        known_space(self, "velocity", "mean")
        if not 0 <= self.least <= self.most:
            raise ValueError(f"Balanced needs 0 <= least <= most; got {self.least} and {self.most}")

    def update(self, ray: Ray, p: Prediction, state: State) -> tuple[Ray, State]:
        whole = lengths(unconditional(p, self.space), p.delta).m
        length = magnitude(ray.coefficient) * ray.lengths.d
        scale = (self.gamma * torch.where(length == 0, 0.0, whole / length)).clamp(self.least, self.most)
        return _FROM_UNCONDITIONAL.update(ray.scaled(scale * ray.coefficient), p, state)


_FROM_UNCONDITIONAL = FromUnconditional(1.0)


@dataclass(frozen=True)
class Normalise(Factor):
    """g <- g / |g|^gamma, the length taken in `space`; gamma 1 leaves a direction only (beta-CFG)."""

    gamma: float = 1.0
    space: str = "noise"

    def __post_init__(self) -> None:
        finite(self, "gamma")
        known_space(self)

    def coefficient(self, ray: Ray, p: Prediction) -> Number:
        c = ray.coefficient
        length = stretch(elapsed(p.t), self.space) * magnitude(c) * ray.lengths.d
        none = length < _NO_GAP
        return torch.where(none, 0.0, c * torch.where(none, 1.0, length) ** -self.gamma)


@dataclass(frozen=True)
class CFGPP(Rule):
    """CFG++ (Chung et al. 2024) as CFG with a scale that depends on the step t -> s.

    renoise='noise'     x' = s m + (1 - s) n_u, the DDIM algebra:   CFG scale = scale (1 - t) s / (s - t)
    renoise='velocity'  x' = m - (1 - s) v_u, as in the ADG code:   CFG scale = scale (1 - t) / (s - t)

    Here m = m_u + scale (m_c - m_u), scale in [0, 1]. All evaluations of a step use the scale of the first.
    """

    scale: Scale
    renoise: str = "noise"

    turns = False

    def __post_init__(self) -> None:
        finite_scale(self, "scale")
        if self.renoise not in ("noise", "velocity"):
            raise ValueError(f"CFGPP renoises by 'noise' or 'velocity'; got {self.renoise!r}")

    @property
    def has_state(self) -> bool:
        return True

    @property
    def remembers(self) -> bool:
        return False  # the state is the scale of the step

    def update(self, ray: Ray, p: Prediction, state: State) -> tuple[Ray, State]:
        scale = state.value if isinstance(state, Held) else self._scale(p)
        return ray.scaled((scale - 1) * ray.coefficient), scale

    def within_step(self, before: State, after: State) -> State:
        return Held(after)

    def _scale(self, p: Prediction) -> Number:
        t, s = p.t, p.t_next
        if s is None:
            raise ValueError(
                "CFGPP needs the time at which the step ends: use sample(), or pass t_next (Prediction.until)"
            )
        if not (isinstance(s, Tensor) or isinstance(t, Tensor)) and s <= t:
            raise ValueError(f"CFGPP needs a step that moves towards the data; got t={t} and t_next={s}")
        scale = value_of(self, "scale", t) * (1 - t) / (s - t)
        return scale * s if self.renoise == "noise" else scale
