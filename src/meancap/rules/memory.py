"""Rules that compare a step with the steps before it."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..cap import lengths
from ..prediction import Prediction
from ..schedules import Scale, at
from ..tensors import per_sample, vector
from .methods import method, recipe
from .rule import Displacement, Rule, State
from .scale import CFG, FromUnconditional
from .spaces import SPACES, along, conditional_in, need_image, part, stretch, time_left, time_passed
from .time import Phases, StepValue


@part("0 <= low <= high <= 1")
class Ahead(Rule):
    """Momentum guidance. CFG, then a step beyond the running average of the guided velocity.

    formula: after CFG v <- v + alpha (v - a) for low <= t <= high, a <- (1 - beta) v + beta a
    space: velocity
    source: arXiv 2602.20360
    evidence: second-hand; a Forge extension's transcription of equations 12 and 13; no repository found
    use when: the scale is low and a plain Euler solver leaves detail out
    state: the running average of guided velocities
    defaults:
        - FLUX at scale 2.5 to 3.5: alpha 0.5, beta 0.6, t from 0.05 to 0.7 (Forge extension)
    notes:
        - optionally the average is brought to the length of v first, for its SD3 and FLUX tables; not here
        - another node extrapolates means without the factor 1 - t: a different formula
    """

    alpha: float = 0.5
    beta: float = 0.6
    low: float = 0.05
    high: float = 0.7

    has_state = True

    def update(self, given: Displacement, p: Prediction, state: State) -> tuple[Displacement, State]:
        g, unit = given.vector, per_sample(time_left(p.t), p.x)
        v = (conditional_in(p, "velocity") + g) / unit
        if state is None:
            return given, v
        t = vector(p.t, g)
        weight = torch.where((t >= self.low) & (t <= self.high), self.alpha, 0.0)
        moved = given.turn(g + per_sample(weight, g) * unit * (v - state))
        return moved, (1 - self.beta) * v + self.beta * state


momentum_guidance = recipe(
    "momentum_guidance", Ahead, first=CFG, zero_gap=False, unit=False, check=(0.9, -3.0, 0.1, 2.2)
)


@part("0 <= low < high <= 1")
class History(Rule):
    """History-guided sampling (HiGS). CFG, then the fine detail that is new beside an average of past means.

    F multiplies each coefficient of the cosine transform by sigmoid(sharp (R - cutoff)), R its distance from
    frequency 0 in parts of the image.

    formula: after CFG m <- m + w(t) F(d - (1 - eta) proj_m d), d = m - h, h <- alpha m + (1 - alpha) h; F a
        soft high-pass, w(t) = weight sqrt((1 - t - low)/(high - low)) for low < 1 - t <= high
    space: mean
    source: Sadat et al., ICLR 2026, arXiv 2509.22300
    evidence: second-hand; comfy-cfg-megapack and a Forge extension, written from the equations, agree
    use when: few steps or a low scale leave images without detail
    state: the running average of guided means
    defaults:
        - any: weight 1.75, alpha 0.75 or 0.5, cutoff 0.05, sharp 50, low 0.4, high 1 (Forge extension)
        - for FID; for preference: eta 0; eta 1 (Forge extension)
    notes:
        - comfy-cfg-megapack has weight 2, eta 1 and high 0.95
        - with solvers that extrapolate from past steps the Forge extension advises a weight of 0.5
    """

    weight: float = 1.75
    alpha: float = 0.75
    eta: float = 0.0
    cutoff: float = 0.05
    sharp: float = 50.0
    low: float = 0.4
    high: float = 1.0

    has_state = True

    def update(self, given: Displacement, p: Prediction, state: State) -> tuple[Displacement, State]:
        m = p.m_c + given.vector
        need_image(self, m)
        if state is None:
            return given, self.alpha * m
        new = m - state
        new = new - (1 - self.eta) * along(new, m)
        g = given.vector + per_sample(self._weight(vector(p.t, m)), m) * self._detail(new)
        return given.turn(g), self.alpha * m + (1 - self.alpha) * state

    def _weight(self, t: Tensor) -> Tensor:
        way = (1 - t - self.low) / (self.high - self.low)
        return torch.where((way > 0) & (way <= 1), self.weight * way.clamp(min=0).sqrt(), 0.0)

    def _detail(self, v: Tensor) -> Tensor:
        down, across = (_cosines(n, v) for n in v.shape[-2:])
        steps = [torch.arange(n, device=v.device, dtype=v.dtype) / n for n in v.shape[-2:]]
        distance = torch.hypot(steps[0][:, None], steps[1][None, :])
        passed = torch.sigmoid(self.sharp * (distance - self.cutoff))
        detail: Tensor = down.T @ ((down @ v @ across.T) * passed) @ across
        return detail


higs = recipe("higs", History, first=CFG, zero_gap=False, unit=False, axes=4, check=(0.9, -3.0, 0.1, 2.2))


def _cosines(n: int, like: Tensor) -> Tensor:
    """The orthonormal cosine transform (DCT-II) of n numbers, as a matrix."""
    k = torch.arange(n, device=like.device, dtype=like.dtype)
    waves = torch.cos(math.pi / n * k[:, None] * (k[None, :] + 0.5)) * math.sqrt(2 / n)
    return torch.where(k[:, None] == 0, math.sqrt(1 / n), waves)


@part()
class ErrorCorrection(Rule):
    """Orthogonal error correction (CFG-OEC). Corrects the unconditional noise by how both have changed.

    formula: n_u <- n_u + (1 - s) (<A, B>/|A|^2) A where s = cos(A, B) < below, A and B the changes of n_c and
        n_u since the last step; then CFG
    space: noise
    source: Yang, Lee & Han 2025, arXiv 2511.14075
    evidence: second-hand; two transcriptions of the paper's equations 10 to 15 agree; no repository found
    use when: the two noise predictions change unlike each other; its threshold has to be found
    state: both noise predictions of the last step
    defaults:
        - any: below 0.5 (comfy-cfg-megapack, as a placeholder: no published value was found)
    notes:
        - one transcription leaves samples with a negative cosine alone
    """

    below: float = 0.5

    has_state = True

    def update(self, given: Displacement, p: Prediction, state: State) -> tuple[Displacement, State]:
        g = given.vector
        # n = (x - t m) / (1 - t); and a change of n_u by d changes the gap of the means by (1 - t) / t d, for
        # m = (x - (1 - t) n) / t.
        left, t = per_sample(time_left(p.t), g), per_sample(p.t, g)
        c, u = ((p.x - t * m) / left for m in (p.m_c, p.m_c - g))
        if state is None:
            return given, (c, u)
        a, b = c - state[0], u - state[1]
        length, other, along = lengths(a, b)
        cosine = torch.where((length == 0) | (other == 0), 1.0, along / length)
        share = torch.where(cosine < self.below, (1 - cosine) * cosine * other / length, 0.0)
        moved = per_sample(vector(time_left(p.t) / time_passed(p.t), g) * share, g) * a
        return given.turn(g + moved), (c, u)


cfg_oec = recipe("cfg_oec", ErrorCorrection, then=CFG, check=(0.9, -3.0, 0.1, 2.2))


@method(name="transition_point", check=(0.3, -1.2, 0.7, 0.4))
@part(space=SPACES)
class Transition(Rule):
    """Guidance from the transition point on. Guidance starts after the gap's first minimum.

    A minimum is passed at the first step whose gap is longer than the last, the last being shorter than the
    one before it.

    formula: scale before until |n_c - n_u| has passed its first minimum over the steps, scale from then on
    space: noise
    source: Jain et al., CVPR 2025, arXiv 2411.16738
    evidence: SonyResearch/mitigating_memorization, generate_test_dataset_dtp.py
    use when: the model repeats images of its training set
    state: the last two lengths of the gap, and which samples have passed their minimum
    defaults:
        - SD1.4: scale 7.5, before 1, 50 steps (its code)
        - opposite guidance: before below 0 (paper, second-hand)
    notes:
        - the code measures the whole batch, which has one image there; here each sample has its own point
        - third parties take before 0, the unconditional prediction
        - on a flow |n_c - n_u| = t |v_c - v_u| starts at 0, and a minimum may never come: space='velocity'
    """

    scale: Scale
    before: Scale = 1.0
    space: str = "noise"

    turns = False
    has_state = True

    def update(self, g: Displacement, p: Prediction, state: State) -> tuple[Displacement, State]:
        if isinstance(state, StepValue):
            return self._scaled(g, p, state.value), state
        now = vector(stretch(p.t, self.space), p.state) * g.length
        if state is None:
            none = torch.full_like(now, -1.0)  # shorter than any gap: no minimum before the third step
            state = none, none, torch.zeros_like(now, dtype=torch.bool)
        last, earlier, passed = state
        passed = passed | ((earlier > last) & (last < now))
        return self._scaled(g, p, passed), (now, last, passed)

    def within_step(self, before: State, after: State) -> State:
        return StepValue(after[2])  # which samples have passed their minimum

    def _scaled(self, g: Displacement, p: Prediction, passed: Tensor) -> Displacement:
        early, late = (vector(at(v, p.t), p.state) for v in (self.before, self.scale))
        return g.times(torch.where(passed, late, early) - 1)


@part("1 <= every", space=("mean", "velocity"))
class Reuse(Rule):
    """A fresh gap in each `every`-th step before the time `until`; in between and later, the last fresh one.

    Put it first: `Reuse(2) | CFG(7) | Cap(1.1)`. The gap is kept in units of the mean or of the velocity, and
    displaces the conditional prediction of now. In a step that reuses it, m_u is not read, and `sample` asks
    the network for the conditional prediction alone; a cap behind bounds what a stale gap can do.
    """

    every: int = 2
    until: float = 1.0
    space: str = "mean"

    has_state = True

    def init(self) -> State:
        return 0, None  # the number of steps, and the last fresh gap

    def idle(self, t: float, state: State = None) -> bool:
        index, gap = self.init() if state is None else state
        return gap is not None and (index % self.every != 0 or t >= self.until)

    def update(self, g: Displacement, p: Prediction, state: State) -> tuple[Displacement, State]:
        index, gap = state
        unit = per_sample(time_left(p.t) if self.space == "velocity" else 1.0, p.x)
        if gap is not None and (index % self.every or (not isinstance(p.t, Tensor) and p.t >= self.until)):
            return g.turn(unit * gap), (index + 1, gap)
        fresh = g.vector / unit
        if gap is None or not isinstance(p.t, Tensor):
            return g, (index + 1, fresh)
        early = (p.t < self.until).reshape(-1, *[1] * (gap.dim() - 1))
        gap = torch.where(early, fresh, gap)
        return g.turn(unit * gap), (index + 1, gap)


@part(switching=("sign", "unit"))
class Sliding(Rule):
    """Sliding-mode control of the velocity gap, as in `smc`; put FromUnconditional(scale) after it.

    switching='unit' divides s by its length, so that a sample's correction has length `gain` at any size.
    """

    rate: float = 5.0
    gain: float = 0.2
    switching: str = "sign"

    has_state = True

    def update(self, g: Displacement, p: Prediction, state: State) -> tuple[Displacement, State]:
        unit = per_sample(time_left(p.t), p.x)
        e = g.vector / unit
        before = e if state is None else state
        e = e - self.gain * self._switch((e - before) + self.rate * before)
        return g.turn(unit * e), e

    def _switch(self, s: Tensor) -> Tensor:
        if self.switching == "sign":
            return s.sign()
        length = lengths(s, s).base
        return s * per_sample(torch.where(length == 0, 0.0, 1 / length), s)


@method(unit=False, check=(0.1, -2.2, 0.9, 1.4))
def smc(
    scale: Scale, *, rate: float = 5.0, gain: float = 0.2, switching: str = "sign", warmup: int = 0
) -> Rule:
    """CFG-Ctrl: sliding-mode control (SMC-CFG). Unguided for `warmup` steps.

    formula: e = v_c - v_u; s = (e - e') + rate e'; e -= gain sign(s); v = v_u + scale e
    space: velocity
    source: Wang et al., CVPR 2026, arXiv 2603.03281
    evidence: hanyang-21/CFG-Ctrl @ 490a628f
    use when: the gap swings from step to step; keep the gain small beside its elements
    state: e', the corrected gap of the last step; the warm-up leaves it untouched
    defaults:
        - SD3, SD3.5: scale 7.5, rate 5, gain 0.2 (its README)
        - FLUX: scale 2 to 3, rate 5, gain 0.2, warmup 2 (its README)
        - Qwen-Image, Wan: scale 4, 5, rate 5, gain 0.2 (its README)
    notes:
        - the code's sign is elementwise; a port says the paper means s / |s|: switching='unit'
        - elements smaller than the gain change sign; on noise predictions of SDXL gain 0.2 destroys images
    """
    rule = Sliding(rate, gain, switching) | FromUnconditional(scale)
    return Phases(warmup, CFG(1), rule, together=False) if warmup else rule


@method(check=(0.9, -3.0, 0.1, 2.2))
def cfg_gating(scale: Scale, *, gate: float = 0.5) -> Rule:
    """CFG gating. The last gap is reused from a time on, with half the network calls from there.

    formula: v = v_c + (scale - 1) d, d = v_c - v_u for t < gate, and from then on the last such d
    space: velocity
    source: FastVideo, SGLang pull request 25848; after LinearAG of Castillo et al. 2023, arXiv 2312.12487
    evidence: hao-ai-lab/FastVideo @ 2f3d4074 pipelines/stages/denoising.py; SGLang's description only
    use when: an unconditional prediction is expensive and the second half of the run may use an old one
    state: the number of steps and the last fresh gap of the velocities
    defaults:
        - any: gate 1, which is off; 0.5 saves about a quarter of the time (FastVideo)
    notes:
        - both count the gate in parts of the steps; here it is a time, the same on a uniform grid
        - both drop the kept gap when the model changes during a run (Wan 2.2)
    """
    return Reuse(1, gate, "velocity") | CFG(scale)


# Parts that are methods by themselves.
transition_point = Transition
