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

R is not known from one prediction. It starts at 1 (at t = 0 no state tells anything), and
`meancap.sampling.ratio_tracker` follows it along the run. FBG (`fbg`, Koulischer et al. 2025) has the same
scale and follows R by the evidence of a stochastic step alone, which lacks the trace term of an ODE.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from ..cap import lengths
from ..prediction import Prediction
from ..schedules import Scale, at
from ..tensors import Number, per_sample, promoted, scalar_dtype, vector
from .methods import method
from .rule import Displacement, Factor, Rule, State
from .spaces import need_law, part, time_left, time_passed
from .time import Steps, StepValue, grid_of


def feedback_scale(log_ratio: Tensor, pi: float, most: float = math.inf) -> Tensor:
    """lambda* = R / (R - (1 - pi)), `most` where R is so low that it would be larger; at least 1."""
    surplus = -(math.log1p(-pi) - log_ratio).expm1()  # 1 - (1 - pi) / R
    return (1 / surplus.clamp(min=1 / most).abs()).clamp(min=1.0)  # abs: rounding may leave -0.0


@method(
    name="density_feedback",
    call="sample(predict, density_feedback(0.6), x, times)",
    confidence="derived",
    kind="solver",
)
@part(
    "0 < pi < 1", "0 < gain < most", "1 < most", "0 < temperature", "1 <= every", probe=("difference", "none")
)
class DensityFeedback(Factor):
    """Density-ratio feedback (DRF). For a condition of which a share pi of the labels is right.

    The scale is gain lambda*(R^(1 / temperature), pi), from 1 to `most`.

    probe   how the loop takes the trace that an ODE needs: 'difference' (one more evaluation), or 'none',
            which is wrong on an ODE by that term
    every   a fresh probe in every so many steps
    until   R is followed up to this time and held from then on

    formula: scale = R / (R - (1 - pi)), R = p(x | condition) / p(x) followed along the run; ODE: d log R/dt =
        -tr(grad D)/(1-t) + (w - v_c).s_c - (w - v_u).s_u; memoryless step: log R += (1-r) D.(y' - r y -
        (1-r)(m_c + m_u)/2)/s^2
    space: any
    source: this package; the scale is FBG's (Koulischer et al. 2025), Ito density estimators are SuperDiff's
    evidence: exact on mixtures with a label leak; studies/feedback has the figures
    use when: samples need unlike amounts of guidance and a second evaluation per step is affordable
    state: log R of each sample and the last prediction, kept by the loop
    notes:
        - FBG leaves the trace out, which is right for its stochastic sampler and wrong on an ODE
        - on networks that learned from wrong labels a tuned fixed scale is better: studies/label_noise
    """

    pi: float
    most: float = 20.0
    gain: float = 1.0
    temperature: float = 1.0
    probe: str = "difference"
    every: int = 1
    until: float = 1.0

    sets_scale = True
    has_state = True

    @property
    def lowest(self) -> float:
        """The log R at which the scale reaches `most`: lower values give the same scale."""
        return self.temperature * (math.log1p(-self.pi) - math.log1p(-self.gain / self.most))

    def factor(self, g: Displacement, p: Prediction) -> Number:
        log_ratio = p.extra.get("log_ratio")
        if log_ratio is None:
            raise TypeError(
                f"{self} needs the log density ratio of each state, which only sample() and trajectory() "
                "track; in a host's own loop use fbg(steps)"
            )
        scale = self.gain * feedback_scale(log_ratio / self.temperature, self.pi, self.most / self.gain)
        return scale.clamp(min=1.0) - 1


class _FeedbackState(NamedTuple):
    """The last evaluation, and the log posterior that it used."""

    log_posterior: Tensor
    x: Tensor
    t: Number
    m_c: Tensor
    m_u: Tensor


@part("0 < pi < 1", "1 < most")
class Feedback(Rule):
    """The scale of `fbg` plus `plus`, which computes delta and tau from a grid.

    With mu = r y + (1 - r) m, r = (sigma' / sigma)^2 and s^2 = sigma'^2 (1 - r) in its formula, L stays below
    3, and above the value at which the scale would pass `most`.
    """

    pi: float
    delta: float
    tau: float
    most: float = 10.0
    plus: Scale = 0.0

    sets_scale = True
    turns = False
    has_state = True

    def update(self, g: Displacement, p: Prediction, state: State) -> tuple[Displacement, State]:
        if isinstance(state, StepValue):
            log_posterior = state.value
        elif state is None:
            log_posterior = torch.zeros(p.x.shape[0], dtype=scalar_dtype(p.x.device), device=p.x.device)
        else:
            log_posterior = self._followed(state, p)
        odds = log_posterior.exp()
        scale = odds / (odds - (1 - self.pi)) + at(self.plus, p.t)
        now = _FeedbackState(log_posterior, promoted(p.x), p.t, p.m_c, p.m_u)
        return g.times(scale - 1), now

    def within_step(self, before: State, after: State) -> State:
        return StepValue(after.log_posterior)  # the scale of a step holds for all its evaluations

    def _followed(self, last: _FeedbackState, p: Prediction) -> Tensor:
        """The log posterior after the step from the last evaluation to this one."""
        variance = (time_left(p.t) / time_passed(p.t)) ** 2  # sigma'^2
        # r and r y stay finite from t = 0 on, where sigma and y do not.
        r = variance * (last.t / time_left(last.t)) ** 2
        pulled = variance * last.t / time_left(last.t) ** 2
        x = promoted(p.x)
        y = x / per_sample(time_passed(p.t), x) - per_sample(pulled, x) * last.x
        errors = [lengths(y - per_sample(1 - r, y) * m, x).base.square() for m in (last.m_c, last.m_u)]
        spread = vector(2 * variance * (1 - r), y)
        evidence = self.tau / spread * (errors[0] - errors[1])
        lowest = math.log((1 - self.pi) * self.most / (self.most - 1))
        return (last.log_posterior - evidence + self.delta).clamp(lowest, 3.0)


@method(call="fbg(20)", unit=False, check=(0.310526, -1.231579, 0.689474, 0.431579))
def fbg(
    times: int | float | Sequence[float],
    *,
    pi: float = 0.95,
    t0: float = 0.5,
    t1: float = 0.4,
    most: float = 10.0,
    constant: float = 1.0,
    interval: Sequence[float] | None = None,
) -> Rule:
    """Feedback guidance (FBG). `constant` adds CFG, within an interval of sigma.

    t0 and t1 are step positions counted from the data end: where the scale would reach 3 by itself, and where
    the evidence of a step is weighed against that drift.

    formula: scale = e^L / (e^L - (1 - pi)); L -= tau/(2 s^2)(|y' - mu_c|^2 - |y' - mu_u|^2) - delta after
        each step, y = x/t
    space: mean
    source: Koulischer et al., NeurIPS 2025, arXiv 2506.06085
    evidence: FelixKoulischer/FBG_using_edm2 @ 0049f951
    use when: samples need unlike amounts of guidance and an estimate without further evaluations is wanted
    state: the log posterior L of each sample and its last prediction
    defaults:
        - EDM2, 64 steps: pi 0.95, t0 0.5, t1 0.4, most 10 (function defaults)
        - EDM2, best FD-DINOv2: pi 0.999, t0 0.556, t1 0.429 (its README)
        - EDM2, hybrid: constant 2.6, interval (0.48, 6.84), t1 0.492 (its README)
        - text to image: pi 0.85, t0 0.75, t1 0.5 (second-hand)
    notes:
        - the code rounds delta and tau to four decimals; ours does not
    """
    for law in ("0 < pi < 1", "0 <= t0 < 1", "0 <= t1 < 1"):
        need_law("fbg", law, pi=pi, t0=t0, t1=t1)
    grid = grid_of(times)
    count = len(grid) - 1
    delta = math.log((1 - pi) * 3 / 2) / ((1 - t0) * count)
    # Transition variances from the data end; the step that ends at the data has none.
    noise = [((1 - t) / t) ** 2 if t else math.inf for t in grid]
    spans = [after * (1 - after / before) for before, after in pairwise(noise)][::-1]
    below = min(int(t1 * count), count - 1)
    above, share = min(below + 1, count - 1), t1 * count - below
    tau = abs(2 * ((1 - share) * spans[below] + share * spans[above]) * delta / 10)
    plus: Scale = constant - 1
    if interval is not None:
        low, high = interval
        plus = Steps((0.0, 1 / (1 + high), 1 / (1 + low)), (0.0, constant - 1, 0.0))
    return Feedback(pi, delta, tau, most - (constant - 1), plus)


# Parts that are methods by themselves.
density_feedback = DensityFeedback
