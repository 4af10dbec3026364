"""Rules whose strength depends on the time or the step alone (noise at t = 0, data at 1).

Papers that count progress in steps mean t on a uniform grid; `by_step` states their schedule on any other.
The index of a step is state: it advances once per step, and all evaluations of a step see the same one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from ..notation import write
from ..prediction import Prediction
from ..schedules import Exponential, Piecewise, Scale, Schedule, at
from ..tensors import Number
from .methods import form, method
from .rule import Displacement, Rule, State, names_needed
from .scale import CFG, Interval
from .spaces import conditional_in, need_law, need_text, part

_SHAPES: dict[str, Callable[[Tensor], Tensor]] = {
    "linear": lambda t: 2 * t,
    "cosine": lambda t: 1 - torch.cos(math.pi * t),
    "inverse-linear": lambda t: 2 * (1 - t),
    "sine": lambda t: 1 + torch.cos(math.pi * t),
    "V": lambda t: 2 * (1 - 2 * t).abs(),
    "Lambda": lambda t: 2 * (1 - (1 - 2 * t).abs()),
    "powered-cosine": lambda t: (1 - torch.cos(math.pi * t)) / 2,
}


_ROUNDING = 2.0**-20  # a time that a host rounds to float32 still finds its step
_INTERVALS = 1000  # of the trapezoid rule


@method(
    call="CFG(Ramp({scale}, shape='linear'))",
    confidence="second-hand",
    unit=False,
    check=(0.74, -2.52, 0.26, 1.72),
)
@part("0 < power", shape=_SHAPES, on=("scale", "gain"))
class Ramp(Schedule):
    """Weight schedulers. Shapes of mean 1 on [0, 1], except 'powered-cosine'.

    shape  'linear', 'cosine' (rising), 'inverse-linear', 'sine' (falling), 'V', 'Lambda', 'powered-cosine'
    on     'scale': scale * shape, from the unconditional model on; 'gain': 1 + (scale - 1) * shape, from the
           conditional one on
    least  the weight never falls below this ('clamp-linear' is linear with a least)
    power  of the time, for 'powered-cosine'

    formula: linear 2t, cosine 1 - cos(pi t), inverse-linear 2(1 - t), sine 1 + cos(pi t), V 2|1 - 2t|,
        Lambda 2(1 - |1 - 2t|), powered-cosine (1 - cos(pi t^power))/2; times scale or scale - 1
    space: any
    source: Wang et al., TMLR 2024, arXiv 2404.13040
    evidence: two independent transcriptions; no repository found
    use when: you want a published shape of the scale over time, most of them with the mean of a fixed scale
    defaults:
        - SD1.5, SDXL, SD3: clamp-linear with least 2, 4, 0.5 (transcriptions)
        - ImageNet 256: powered-cosine with power 4 (transcriptions)
    notes:
        - the paper's equation and its reported magnitudes disagree on whether it is on='scale' or 'gain'
    """

    scale: float
    shape: str = "linear"
    on: str = "scale"
    least: float | None = None
    power: float = 1.0

    def curve(self, t: Tensor) -> Tensor:
        shape = _SHAPES[self.shape](t**self.power)
        weight = self.scale * shape if self.on == "scale" else 1 + (self.scale - 1) * shape
        return weight if self.least is None else weight.clamp(min=self.least)


@part()
class Decay(Schedule):
    """scale (1 - t)^power, but at least `least`."""

    scale: float
    power: float = 4.0
    least: float = 1.0

    def curve(self, t: Tensor) -> Tensor:
        return (self.scale * (1 - t) ** self.power).clamp(min=self.least)


@part("1 <= a", "1 <= b")
class Beta(Schedule):
    """scale times the density of the Beta(a, b) law at t; 0 at both ends for a, b > 1."""

    scale: float
    a: float = 2.0
    b: float = 2.0

    def curve(self, t: Tensor) -> Tensor:
        total = math.exp(math.lgamma(self.a + self.b) - math.lgamma(self.a) - math.lgamma(self.b))
        return self.scale * total * t ** (self.a - 1) * (1 - t) ** (self.b - 1)


@part("0 < k", "0 < sigma")
class Temper(Schedule):
    """(r s^2 + 1) / (r s^2 / k + 1) with r = t^2 / (1 - t)^2: 1 at the noise, k at the data.

    For data of variance s^2 it is the score of variance s^2 / k over that of s^2: k > 1 sharpens.
    """

    k: float = 0.95
    sigma: float = 1.0

    def curve(self, t: Tensor) -> Tensor:
        signal, rest = self.sigma * self.sigma * t * t, (1 - t) * (1 - t)
        return (signal + rest) / (signal / self.k + rest)


@part("0 < low <= high")
class DG(Schedule):
    """1 + C (scale - 1) f with f = (1 - A) sqrt(A) / beta, for a VP process with diffusion time u.

    beta runs linearly from `low` at the data, u = 0, to `high` at the noise, u = 1, and A = exp(-integral of
    beta). C makes the mean weight over u the scale. Our t is the u with sqrt(A / (1 - A)) = t / (1 - t).
    """

    scale: float
    low: float = 0.1
    high: float = 20.0
    _mean: ClassVar[float]  # of the density over u, worked out once

    def __post_init__(self) -> None:
        object.__setattr__(self, "_mean", _average(self.low, self.high))

    def curve(self, t: Tensor) -> Tensor:
        # -log A = log(1 + (1 - t)^2 / t^2), but regular at t = 0.
        signal, rest = t * t, (1 - t) * (1 - t)
        share = signal / (signal + rest)
        log_a = share.clamp(min=1e-30).log()
        # u in [0, 1] solves low u + (high - low) u^2 / 2 = -log A.
        root = (self.low * self.low - 2 * (self.high - self.low) * log_a).sqrt()
        u = (-2 * log_a / (self.low + root)).clamp(max=1.0)
        return 1 + (self.scale - 1) * _density(u, self.low, self.high) / self._mean


def _density(u: Tensor, low: float, high: float) -> Tensor:
    """f at diffusion time u."""
    a = torch.exp(-(low * u + (high - low) * u * u / 2))
    return (1 - a) * a.sqrt() / (low + (high - low) * u)


def _average(low: float, high: float) -> float:
    """Its mean over u, by the trapezoid rule; it vanishes at u = 0."""
    values = _density(torch.arange(1, _INTERVALS + 1, dtype=torch.float64) / _INTERVALS, low, high)
    return float(values.sum() - values[-1] / 2) / _INTERVALS


@dataclass(frozen=True)
class Steps(Piecewise):
    """values[i] from times[i] until the next time; the first value before the first time."""

    def curve(self, t: Tensor) -> Tensor:
        passed, _, values = self.place(t + _ROUNDING)
        return values[(passed - 1).clamp(min=0)]


def by_step(schedule: Schedule, times: Sequence[float]) -> Steps:
    """A schedule of progress i / (N - 1) by step, on the grid of N steps with these N + 1 times."""
    count = len(times) - 1
    if count < 2:
        raise ValueError(f"a schedule by step needs a grid of two steps or more; got {len(times)} times")
    return Steps(times[:-1], [float(schedule(i / (count - 1))) for i in range(count)])  # type: ignore[arg-type]


@part("first <= last")
class StepInterval(Rule):
    """Guidance only in the steps from `first` to `last`, both included and counted from 0."""

    first: int
    last: int

    turns = False
    has_state = True  # the index of the step
    reads_m_u = False

    def idle(self, t: float, state: State = None) -> bool:
        return not self.first <= (state or 0) <= self.last

    def init(self) -> State:
        return 0

    def update(self, g: Displacement, p: Prediction, state: State) -> tuple[Displacement, State]:
        return g if self.first <= state <= self.last else g.times(0.0), state + 1


@part()
class ZeroInit(Rule):
    """Zero velocity in the first `steps` steps, so that the mean is x there; put it last (CFG-Zero*)."""

    steps: int = 1

    has_state = True  # the index of the step

    def init(self) -> State:
        return 0

    def update(self, g: Displacement, p: Prediction, state: State) -> tuple[Displacement, State]:
        return g if state >= self.steps else g.turn(-conditional_in(p, "velocity")), state + 1


@part()
class Phases(Rule):
    """The rule `early` in the first `steps` steps, `late` from then on.

    With `together` the late rule's state follows the early steps as well, so that its memory is filled.
    """

    steps: int
    early: Rule
    late: Rule
    together: bool = True

    sets_scale = True
    has_state = True

    def __post_init__(self) -> None:
        for rule in (self.early, self.late):
            if not isinstance(rule, Rule):
                raise ValueError(f"Phases needs two rules, such as CFG(1) and CFG(4); got {rule!r}")
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


class StepValue(NamedTuple):
    """What the first evaluation of a step found, for the step's later evaluations to use unchanged."""

    value: Any


@method(name="cfgpp", call="cfgpp(0.6)", unit=False, check=(0.46, -1.68, 0.54, 0.88))
@part(form=("published", "adg"))
class CFGPP(Rule):
    """CFG++. Guided denoising, unconditional renoising; the scale is in [0, 1].

    form='adg' renoises by the velocity, as the baseline in ADG's code does. All evaluations of a step use the
    scale of the first.

    formula: x' = s m + (1 - s) n_u, m = m_u + scale (m_c - m_u): Euler at CFG scale scale (1 - t) s / (s - t)
    space: any
    source: Chung et al., ICLR 2025, arXiv 2406.08070
    evidence: CFGpp-diffusion/CFGpp @ 80353525; the flow form agrees with ComfyUI's euler_cfg_pp
    use when: you want a scale between 0 and 1 with Euler or DDIM, at a fixed number of steps
    state: the scale of the step, for its later evaluations
    defaults:
        - SDXL and others: scale 0.6, in [0, 1], about CFG 7.5; Lightning 1 (its README)
    notes:
        - a fixed scale is not a fixed strength: on N equal steps the CFG scale peaks at scale * N / 4
        - jinc7461/ADG @ b5fad684 lacks the factor s: x' = m - (1 - s) v_u, a first step N times stronger
    """

    scale: Scale
    form: str = "published"

    turns = False
    has_state = True  # the scale of the step
    reads_m_u = False

    def update(self, g: Displacement, p: Prediction, state: State) -> tuple[Displacement, State]:
        scale = state.value if isinstance(state, StepValue) else self._scale(p)
        return g.times(scale - 1), scale

    def within_step(self, before: State, after: State) -> State:
        return StepValue(after)

    def _scale(self, p: Prediction) -> Number:
        t, s = p.t, p.t_next
        if s is None:
            raise ValueError(
                "CFGPP needs the time at which the step ends: use sample(), or pass t_next (Prediction.until)"
            )
        if not (isinstance(s, Tensor) or isinstance(t, Tensor)) and s <= t:
            raise ValueError(f"CFGPP needs a step that moves towards the data; got t={t} and t_next={s}")
        scale = at(self.scale, t) * (1 - t) / (s - t)
        return scale * s if self.form == "published" else scale


# More would not be sampled, and a schedule of them could not be written down and read again.
_MOST_STEPS = 10_000


def grid_of(times: int | float | Sequence[float]) -> tuple[float, ...]:
    """A grid from noise to data, or that many equal steps."""
    if isinstance(times, (int, float)):
        if not (1 <= times <= _MOST_STEPS and times % 1 == 0):
            raise ValueError(
                f"a grid is its times, or a whole number of equal steps up to {_MOST_STEPS}; got {times}"
            )
        return tuple(i / int(times) for i in range(int(times) + 1))
    grid = tuple(float(t) for t in times)
    if len(grid) < 2 or grid[0] < 0 or grid[-1] > 1 or any(not b > a for a, b in pairwise(grid)):
        raise ValueError(f"a grid is two times or more, increasing within [0, 1]; got {list(grid[:8])}")
    return grid


@method(call="c2fg({scale}, 0.2)", unit=False, check=(0.96663, -3.199889, 0.03337, 2.399889))
def c2fg(scale: float, rate: float) -> Rule:
    """C2FG: exponentially growing scale. The scale grows as exp(rate t).

    formula: scale(t) = scale exp(rate t)
    space: any
    source: Gao et al., CVPR 2026, arXiv 2603.08155
    evidence: second-hand; a full note on the paper, an article and a third-party implementation agree; no
        repository found
    use when: guidance should grow towards the data and one rate can be tuned
    defaults:
        - DiT-XL/2 256: scale 1, rate ln 2 (paper note: FID 2.07)
        - SiT-XL/2 + REPA: scale 1, rate 1 (SDE); 1.8, 0.03 in an interval (paper note: FID 1.51; 1.41)
        - SiT-XL/2 + REPA, 50 steps: scale 1.7, rate 0.15 (paper note: FID 3.20 SDE, 3.25 ODE)
        - SD1.5: scale 5, rate 0.2 (paper note)
        - SD3.5: rate 0.2 (PMC paper)
    notes:
        - progress is t here; the PMC paper says 'on the shifted sigma grid', which we read as t
        - for plain SiT no published rate was found
    """
    return CFG(Exponential(scale, rate))


@method(call="limited_interval({scale}, 0.19, 1.61)", check=(0.9, -3.0, 0.1, 2.2))
def limited_interval(scale: Scale, low: float, high: float) -> Rule:
    """Guidance in a limited interval of noise levels. Noise levels are sigma = (1 - t) / t.

    formula: scale while low <= sigma <= high with sigma = (1 - t)/t; conditional elsewhere
    space: any
    source: Kynkäänniemi et al., NeurIPS 2024, arXiv 2404.07724
    evidence: kynkaat/guidance-interval
    use when: guidance hurts at the highest noise levels or is idle at the lowest, where it saves calls
    defaults:
        - EDM2-XXL 512: scale 2, sigma (0.19, 1.61], 32 Heun steps (its code: FID 1.40 against 1.81)
        - SDXL: scale 16, sigma (0.28, 5.42] (two secondary sources)
        - SiT-XL/2 + REPA: scale 1.8, Interval(0.3, 1) (REPA README: FID 1.42)
        - BAGEL: Interval(0.4, 1) (its code)
    notes:
        - the code decides by step index, both ends included, once per step: CFG(2) | StepInterval(17, 22)
        - diffusers' start and stop are step fractions; Lumina's and Z-Image's truncations switch off late
    """
    need_law("limited_interval", "0 <= low < high (noise levels)", low=low, high=high)
    return CFG(scale) | Interval(1 / (1 + high), 1 / (1 + low))


@method(call="tv_cfg({scale}, 50)", check=(1.26, -4.08, -0.26, 3.28))
def tv_cfg(scale: float, times: int | float | Sequence[float], *, slope: str = "paper") -> Rule:
    """Stage-wise triangle (TV-CFG). A triangle over the steps of a grid, or of a number of equal steps.

    formula: 1 + 2 (scale - 1) n / M up to step M = ceil(N/2), then (N - n)/(N - M); of time mean scale
    space: any
    source: Jin, Shi & Gu, ICLR 2026, arXiv 2509.22007
    evidence: ppposition/pmc cfg_schedules.TVCFG; the paper's fall is second-hand
    use when: guidance should be strongest in the middle of the run and keep its mean
    defaults:
        - SiT-XL/2 256: scale 1.5 to 2.5, 50 steps (PMC paper)
    notes:
        - the repository falls as (N - n)/M, which differs for odd N: slope='repo'
    """
    need_text("tv_cfg", ("paper", "repo"), slope=slope)
    grid = grid_of(times)
    count = len(grid) - 1
    peak = math.ceil(count / 2)
    fall = count - peak if slope == "paper" else peak
    raw = [1 + 2 * (scale - 1) * (n / peak if n <= peak else (count - n) / fall) for n in range(count)]
    spans = [b - a for a, b in pairwise(grid)]
    # fsum: sum() rounds otherwise from Python 3.12 on, and the numbers are printed.
    average = math.fsum(r * d for r, d in zip(raw, spans, strict=True)) / math.fsum(spans)
    if average == 0:
        raise ValueError(f"tv_cfg({scale}) on this grid averages to zero and cannot be normalised")
    return CFG(Steps(grid[:-1], tuple(scale / average * r for r in raw)))


@method(unit=False, check=(0.9, -3.0, 0.1, 2.2))
def early_high(scale: float, *, switch: float = 0.5, late: float = 0.0) -> Rule:
    """High early, unconditional late.

    formula: scale for t < switch, late from then on
    space: any
    source: Ventura et al. 2026, arXiv 2602.00716
    evidence: second-hand; comfy-cfg-megapack; a reading note on the paper's version 4 agrees
    use when: fixed guidance leaves too little variety and the condition is settled early
    defaults:
        - any: switch after 50 to 70 % of the steps, late 0 (comfy-cfg-megapack)
    notes:
        - the paper counts from the conditional prediction: late 0 here is its -1
        - the switch is a time here, and a share of the steps there: the same on a uniform grid
    """
    need_law("early_high", "0 < switch < 1 (a time)", switch=switch)
    return CFG(Steps((0.0, switch), (scale, late)))


@method(check=(1.522027, -4.86608, -0.522027, 4.06608))
def dg_cfg(scale: float, *, low: float = 0.1, high: float = 20.0) -> Rule:
    """Analytic schedule (DG-CFG). For a variance-preserving model with beta from low to high.

    formula: scale(u) = 1 + C (scale - 1) (1 - A) sqrt(A) / beta(u), of mean scale over the diffusion time u
    space: any
    source: Jiang & Ma 2026, arXiv 2607.19725
    evidence: second-hand; a third-party implementation; no repository found
    use when: the model is variance-preserving and runs with DDIM, for which the schedule was derived
    defaults:
        - VP models: beta from 0.1 to 20 (the usual VP process)
    notes:
        - moved to t by equal signal-to-noise; no flow version is known
    """
    return CFG(DG(scale, low, high))


cfgpp = CFGPP  # a part that is a method by itself
form(cfgpp, "cfgpp_adg", "cfgpp(0.6, form='adg')", unit=False, check=(0.82, -2.76, 0.18, 1.96))
