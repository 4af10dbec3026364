"""Density-ratio feedback: each sample's scale from how much likelier the model finds it with the condition.

    R        p(x | condition) / p(x), both as the model has them, at the state x and time t
    pi       the share of the condition's training data with a right label
    A        the data that the condition means

If a share 1 - pi of the labels is random, a model learns at every t

    p(x | condition) = pi p(x | A) + (1 - pi) p(x),
    p(x | A)         = (p(x | condition) - (1 - pi) p(x)) / pi.

The score of the second line is s_u + lambda (s_c - s_u), the form of guidance, with

    lambda* = R / (R - (1 - pi))

which follows by differentiating: grad p_c = p_c s_c, grad p = p s_u, divided by p_c - (1 - pi) p. It is large
where the condition is unlikely at x, R near its least value 1 - pi, and 1 where it is certain. No fixed scale
does that: it is too weak for the first samples and too strong for the last.

R is not known from one prediction. It starts at 1 (at t = 0 no state tells anything) and is followed along
the run, for which it needs the loop: see `meancap.sampling.tracking`. So this rule needs `sample` or
`trajectory` and reads `Prediction.log_ratio`; a host's pipeline does not give it.

FBG (Koulischer et al. 2025, the rule `Feedback`) has the same scale. It follows R by the evidence of a
stochastic step alone, with a drift and a weight worked out from the grid; that evidence lacks the trace term
of an ODE. Here both samplers have their own exact form, and nothing depends on the grid.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from ...prediction import Prediction
from ...schedules import finite
from ...tensors import Number
from ..protocol.base import Factor
from ..protocol.ray import Ray

PROBES = ("difference", "derivative", "none")


def feedback_scale(log_ratio: Tensor, pi: float, most: float = math.inf) -> Tensor:
    """lambda* = R / (R - (1 - pi)), `most` where R is so low that it would be larger; at least 1."""
    surplus = -(math.log1p(-pi) - log_ratio).expm1()  # 1 - (1 - pi) / R
    return (1 / surplus.clamp(min=1 / most).abs()).clamp(min=1.0)  # abs: rounding may leave -0.0


@dataclass(frozen=True)
class DensityFeedback(Factor):
    """Scale gain * lambda*(R^(1 / temperature), pi), from 1 to `most`.

    probe   how the loop takes the trace that an ODE needs: 'difference' (one more evaluation),
            'derivative' (autograd through `predict`), or 'none', which is wrong on an ODE by that term
    every   a fresh probe in every so many steps
    until   R is followed up to this time and held from then on
    """

    pi: float
    most: float = 20.0
    gain: float = 1.0
    temperature: float = 1.0
    probe: str = "difference"
    every: int = 1
    until: float = 1.0

    remembers = True
    has_state = True

    def __post_init__(self) -> None:
        finite(self, "pi", "most", "gain", "temperature", "until")
        if not 0 < self.pi < 1:
            raise ValueError(f"DensityFeedback needs pi between 0 and 1, without them; got {self.pi}")
        if not self.most > max(self.gain, 1.0) or not (self.gain > 0 and self.temperature > 0):
            raise ValueError(
                "DensityFeedback needs gain and temperature above 0, and most above 1 and above gain; got "
                f"gain {self.gain}, temperature {self.temperature}, most {self.most}"
            )
        if self.probe not in PROBES:
            raise ValueError(f"DensityFeedback probes by {', '.join(PROBES)}; got {self.probe!r}")
        if not (self.every >= 1 and self.every % 1 == 0):
            raise ValueError(f"DensityFeedback probes every so many steps, at least 1; got {self.every}")
        object.__setattr__(self, "every", int(self.every))

    @property
    def lowest(self) -> float:
        """The log R at which the scale reaches `most`: lower values give the same scale."""
        return self.temperature * (math.log1p(-self.pi) - math.log1p(-self.gain / self.most))

    def coefficient(self, ray: Ray, p: Prediction) -> Number:
        if p.log_ratio is None:
            raise TypeError(
                f"{self} needs the log density ratio of each state, which sample() and trajectory() follow; "
                "a host's own loop does not: use fbg(steps) there"
            )
        scale = self.gain * feedback_scale(p.log_ratio / self.temperature, self.pi, self.most / self.gain)
        return (scale.clamp(min=1.0) - 1) * ray.coefficient
