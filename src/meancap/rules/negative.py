"""Rules that use further predictions: other conditions, something to avoid, or a weaker model.

    d    m_c - m_u, the gap that guidance starts from
    n    m_n - m_u, the way to what is to be avoided: `Prediction.lead("negative")`

Lengths and comparisons that depend on the units are those of noise predictions, eps = (x - t m) / (1 - t),
in which these methods are published.

A composition of conditions is a sum of displacements, so a cap behind it bounds the sum.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import reduce

import torch
from torch import Tensor

from ..cap import lengths
from ..prediction import Prediction
from ..schedules import Scale, at
from ..tensors import per_sample, vector
from .methods import method, recipe
from .rule import Displacement, Map, Rule, State
from .scale import CFG, FromUnconditional
from .spaces import along, part, stretch, time_left, time_passed

_NEGATIVE = "negative"


@part()
class PerpNeg(Map):
    """Perpendicular negative guidance (Perp-Neg). Counts the part of n that is perpendicular to the gap.

    formula: d = m_c - m_u, n = m_n - m_u; m = m_u + scale (d - weight (n - <n, d> / |d|^2 d))
    space: any
    source: Armandpour et al. 2023, arXiv 2304.04968
    evidence: Perp-Neg/Perp-Neg-stablediffusion @ 347c203; ComfyUI comfy_extras/nodes_perpneg.py
    use when: the negative prompt overlaps with the prompt and must not weaken it
    defaults:
        - Stable Diffusion 1.4: scale 7.5, weight 1.5 (its README)
        - any: scale 8, weight 1 (ComfyUI's PerpNegGuider)
    notes:
        - ComfyUI takes both sums of the projection over the whole batch; here they are per sample
        - its code also takes several negatives and further positives; here there is one negative
    """

    weight: float = 1.0

    needs = (_NEGATIVE,)

    def __call__(self, g: Tensor, p: Prediction) -> Tensor:
        n = p.lead(_NEGATIVE)
        return g - self.weight * (n - along(n, g))


perp_neg = recipe("perp_neg", PerpNeg, then=FromUnconditional, unit=False, check=(0.24, -3.42, 1.96, 2.62))


@part("0 <= tau (0 is plain negation)")
class Contrast(Map):
    """Contrastive CFG. The negative counts less the further away it is.

    formula: d = eps_c - eps_u, n = eps_n - eps_u; eps = eps_u + scale (2 d / (1 + exp(-tau |d|^2)) - 2 n / (1
        + exp(tau |n|^2)))
    space: noise
    source: Chang et al., ICML 2026, arXiv 2411.17077
    evidence: jinhojsk515/ContrastiveCFG @ f98786d
    use when: a negative prompt should stop counting once the sample is far from it
    defaults:
        - Stable Diffusion 1.5: scale 7.5, tau 0.2 (its example script)
    notes:
        - squared lengths are sums over a sample, so tau belongs to a resolution and to a number of channels
        - positive=False is its option naive_positive_cfg: plain CFG towards the prompt
    """

    tau: float = 0.2
    positive: bool = True

    needs = (_NEGATIVE,)

    def __call__(self, g: Tensor, p: Prediction) -> Tensor:
        n = p.lead(_NEGATIVE)
        to_g, to_n, _ = lengths(g, n)
        unit = vector(stretch(time_passed(p.t), "noise"), g)
        near = 2 * (-self.tau * (unit * to_n).square()).sigmoid()
        far = 2 * (self.tau * (unit * to_g).square()).sigmoid() if self.positive else 1.0
        return per_sample(far, g) * g - per_sample(near, g) * n


contrastive = recipe(
    "contrastive",
    Contrast,
    then=FromUnconditional,
    unit=False,
    check=(-0.277665, -1.842814, 2.465569, 1.042814),
)


@part()
class Safety(Rule):
    """Safe latent diffusion (SLD). The defaults are its medium setting.

    formula: mu = min(1, sharpness |eps_c - eps_n|) where eps_c - eps_n < threshold, else 0; gamma = mu (eps_n
        - eps_u) + momentum nu; nu <- decay nu + (1 - decay) gamma; eps = eps_u + scale (eps_c - eps_u -
        gamma), without gamma in the first warmup steps
    space: noise
    source: Schramowski et al., CVPR 2023, arXiv 2211.05105
    evidence: diffusers, StableDiffusionPipelineSafe
    use when: you must match Safe Stable Diffusion; its thresholds are those of its latents
    state: the momentum nu and the index of the step
    defaults:
        - Stable Diffusion, medium: scale 7.5; the values here (diffusers)
        - weak: sharpness 20, threshold 0, momentum 0, decay 0, warmup 15 (diffusers)
        - strong: sharpness 2000, threshold 0.025, momentum 0.5, decay 0.7, warmup 7 (diffusers)
        - max: sharpness 5000, threshold 1, momentum 0.5, decay 0.7, warmup 0 (diffusers)
    notes:
        - signs are compared element by element in noise predictions; in means it is another method
    """

    sharpness: float = 1000.0
    threshold: float = 0.01
    momentum: float = 0.3
    decay: float = 0.4
    warmup: int = 10

    needs = (_NEGATIVE,)
    has_state = True

    def init(self) -> State:
        return 0, None  # the number of steps, and the momentum

    def update(self, g: Displacement, p: Prediction, state: State) -> tuple[Displacement, State]:
        t = time_passed(p.t)
        n, unit = p.lead(_NEGATIVE), -per_sample(stretch(t, "noise"), p.x)  # eps gap = unit times mean gap
        near = unit * (p.delta - n)  # eps_c - eps_n
        mu = torch.where(near < self.threshold, (self.sharpness * near.abs()).clamp(max=1.0), 0.0)
        off, (steps, nu) = mu * n, state
        gamma = unit * off
        if nu is not None:
            gamma = gamma + self.momentum * nu
            # The inverse of unit, without the quotient that is infinite at t = 1.
            off = off - per_sample(self.momentum * time_left(p.t) / t, nu) * nu
        after = (1 - self.decay) * gamma if nu is None else self.decay * nu + (1 - self.decay) * gamma
        if steps >= self.warmup:
            g = g.turn(g.vector - off)
        return g, (steps + 1, after)


sld = recipe(
    "sld",
    Safety,
    then=FromUnconditional,
    call="sld({scale}, warmup=0)",
    unit=False,
    check=(0.9, -3.0, 2.5, 1.0),
)


@part("0 < weight")
class Removal(Rule):
    """Concept removal guidance (CRG). Moves away from the negative as far as the evidence for it requires.

    formula: E = weight/2 e + sum over earlier steps of beta/(2 alpha (1 - alpha_bar)) e', e = |eps - eps_u|^2
        - |eps - eps_n|^2; eps <- eps - strength max(0, E - threshold) / (weight |n|^2) n, n = eps_n - eps_u
    space: noise
    source: Choi et al., ICML 2026, arXiv 2606.29801
    evidence: second-hand; a third party's code, whose closed form we checked by algebra; the paper's abstract
    use when: you want to try it: its formula is second-hand, and its values did badly here
    state: the evidence so far, and the last step's difference of squares
    defaults:
        - any: threshold 0, strength 2, weight 1 (that code; the paper tunes the first)
    notes:
        - that code has no scale; here the evidence is that of the guided prediction
        - steps are counted as DDPM's, with alpha_bar = t^2 / (t^2 + (1 - t)^2), on any grid
    """

    threshold: float = 0.0
    strength: float = 2.0
    weight: float = 1.0

    needs = (_NEGATIVE,)
    has_state = True

    def update(self, given: Displacement, p: Prediction, state: State) -> tuple[Displacement, State]:
        n, g = p.lead(_NEGATIVE), given.vector
        _, length, along = lengths(p.delta + g, n)
        nearer = length * (2 * along - length)  # |m - m_u|^2 - |m - m_n|^2, m the mean that came in
        t = vector(p.t, n)
        total = torch.zeros_like(nearer)
        if state is not None:
            earlier, last_t, last_nearer = state
            total = earlier + _log_ratio_step(last_t, last_nearer, t)
        unit = vector(stretch(time_passed(p.t), "noise"), n).square()
        surplus = total + self.weight / 2 * unit * nearer - self.threshold
        none = (length == 0) | (surplus <= 0)
        share = torch.where(none, 0.0, surplus / torch.where(none, 1.0, self.weight * unit * length.square()))
        turned = g - per_sample(self.strength * share, n) * n
        return given.turn(turned), (total, t, nearer)


crg = recipe("crg", Removal, first=CFG, unit=False, check=(-0.857143, -1.242857, 3.614286, 0.442857))


def _log_ratio_step(t: Tensor, nearer: Tensor, t_next: Tensor) -> Tensor:
    """What the step from t to t_next adds to the log-likelihood ratio.

    With alpha_bar = t^2 / q and q = t^2 + (1 - t)^2 the weight of DDPM times the square of t / (1 - t), which
    turns means into noise, is (alpha_bar(t_next) q - t^2) q / (2 (1 - t)^4): regular at t = 0.
    """
    q = t.square() + (1 - t).square()
    later = t_next.square() / (t_next.square() + (1 - t_next).square())
    weight = (later * q - t.square()).clamp(min=0) * q / (2 * torch.as_tensor(time_left(t)) ** 4)
    return weight * nearer


class _Named(Map):
    """A rule that reads the further prediction of its field `name`."""

    name: str

    def __post_init__(self) -> None:
        if not (isinstance(self.name, str) and self.name.isidentifier()):
            kind = type(self).__name__
            raise ValueError(f"{kind} needs the name of a prediction, such as 'weak'; got {self.name!r}")
        object.__setattr__(self, "needs", (self.name,))


@part()
class AwayFrom(_Named):
    """g <- g + scale (m_c - m_name): away from one of the further predictions.

    With "weak" and a perturbed or shortened network this is perturbed-attention and skip-layer guidance.
    """

    name: str
    scale: Scale

    sets_scale = False  # it adds to guidance along the gap

    def __call__(self, g: Tensor, p: Prediction) -> Tensor:
        return g + per_sample(at(self.scale, p.t), g) * (p.delta - p.lead(self.name))


@part()
class Toward(_Named):
    """g <- g + scale (m_name - m_u): towards another condition; a negative scale leads away from it."""

    name: str
    scale: Scale

    sets_scale = False  # it adds to guidance along the gap

    def __call__(self, g: Tensor, p: Prediction) -> Tensor:
        return g + per_sample(at(self.scale, p.t), g) * p.lead(self.name)


@part("0 <= start <= end <= 1 (times)")
class Against(_Named):
    """Mixes the share of another prediction into the reference m_u while start <= t <= end; put it first.

    g <- (1 - share) g + share (m_c - m_name)
    """

    name: str
    share: float = 1.0
    start: float = 0.0
    end: float = 1.0

    def __call__(self, g: Tensor, p: Prediction) -> Tensor:
        share = per_sample(self.share * ((p.t >= self.start) & (p.t <= self.end)), g)
        return g + share * (p.delta - p.lead(self.name) - g)


@method(unit=False, check=(0.15, -2.25, 1.6, 1.45))
def instruct_pix2pix(scale: float, *, image: float = 1.5) -> Rule:
    """Two conditions, a text and an image (InstructPix2Pix). A cap behind bounds the sum of both.

    m_c has both conditions, m_i the image alone (`Prediction.beside(image=output)`), m_u none.

    formula: m = m_u + image (m_i - m_u) + scale (m_c - m_i)
    space: any
    source: Brooks, Holynski & Efros, CVPR 2023, arXiv 2211.09800
    evidence: diffusers 0.42.1, StableDiffusionInstructPix2PixPipeline
    use when: a model edits an image by a text, and each should have a scale of its own
    defaults:
        - Stable Diffusion 1.5: scale 7.5, image 1.5 (diffusers)
    """
    return CFG(image) | AwayFrom("image", scale - image)


@method(unit=False, check=(2.1, -4.2, -2.3, 3.4))
def composable(
    scale: float, *, others: Sequence[str] = ("second",), weights: Sequence[float] | None = None
) -> Rule:
    """Composable diffusion: several conditions (AND, NOT). One weight for each other condition.

    m_i are the predictions of the `others` (`Prediction.beside(second=output)`). Without `weights` each has
    the weight `scale` (AND); a negative weight leads away (NOT). A cap behind bounds the sum.

    formula: m = m_u + scale (m_c - m_u) + sum over i of weight_i (m_i - m_u)
    space: any
    source: Liu et al., ECCV 2022, arXiv 2206.01714
    evidence: second-hand; comfy-cfg-megapack, whose NOT is u + w (c - n): here a weight of -scale
    use when: a sample must satisfy several prompts at once, each with a weight of its own
    """
    given = [scale] * len(others) if weights is None else list(weights)
    if len(given) != len(others):
        raise ValueError(f"composable needs one weight for each of {list(others)}; got {given}")
    return reduce(operator.or_, map(Toward, others, given), CFG(scale))


@method(unit=False, check=(0.6, -2.7, 0.7, 1.9))
def signed_negative(scale: float, *, weight: float = 1.0) -> Rule:
    """Signed negative guidance. Prompt and negative prompt are both measured from the unconditional mean.

    formula: m = m_u + scale (m_c - m_u) - weight (m_n - m_u)
    space: any
    source: Chang, Kim & Choi 2025, arXiv 2510.26052 (VL-DNP); A1111's AND with negative weights
    evidence: second-hand; comfy-cfg-megapack
    use when: the negative prompt should have a strength of its own; weight = scale is Composable's NOT
    defaults:
        - Stable Diffusion: weight 20 best of those tried (comfy-cfg-megapack, of the paper)
    """
    return CFG(scale) | Toward(_NEGATIVE, -weight)


@method(check=(0.0, -2.1, 1.9, 1.3))
def windowed_negative(scale: Scale, *, start: float = 0.17, end: float = 0.5) -> Rule:
    """Delayed negative prompt. The negative prompt is the reference in a window of the run only.

    formula: m = r + scale (m_c - r), r = m_n for start <= t <= end, m_u elsewhere
    space: any
    source: Ban et al., ECCV 2024, arXiv 2406.02965
    evidence: second-hand; comfy-cfg-megapack
    use when: a negative prompt given from the first step makes what it names appear
    defaults:
        - Stable Diffusion, 30 steps: steps 5 to 15, which is 0.17 to 0.5 (comfy-cfg-megapack, of the paper)
    notes:
        - the window is one of times here, and of steps there: the same on a uniform grid
    """
    return Against(_NEGATIVE, 1.0, start, end) | CFG(scale)


@method(unit=False, check=(0.6, -3.9, 1.3, 3.1))
def ltx2(scale: float, *, perturbed: float = 1.0, modality: float = 3.0) -> Rule:
    """Multimodal guidance of LTX-2. Prompt, perturbed layers and the other modality in one sum.

    m_p is the prediction with perturbed layers ("perturbed"), m_o the one that does not see the other
    modality ("modality").

    formula: m = m_c + (scale - 1)(m_c - m_u) + perturbed (m_c - m_p) + (modality - 1)(m_c - m_o)
    space: any
    source: HaCohen et al. 2026, arXiv 2601.03233
    evidence: ltx-core 1.0.0, MultiModalGuider
    use when: you run LTX-2, whose audio and video are guided by each other
    defaults:
        - LTX-2: scale 3 for video and 7 for audio, perturbed 1, modality 3 (ltx-pipelines 1.0.0)
    notes:
        - LTX-2 then rescales by 0.7 with spreads of the whole batch; Rescale(0.7, 'mean') is per sample
    """
    return CFG(scale) | AwayFrom("perturbed", perturbed) | AwayFrom("modality", modality - 1)


@method(check=(0.9, -3.0, 0.1, 2.2))
def sgg(scale: Scale, *, tau: float = 0.2) -> Rule:
    """Segmented guidance (SGG). CFG at high noise, a weaker model as the reference at low noise.

    formula: m = r + scale (m_c - r), r = m_u for 1 - t > tau, m_weak for 1 - t <= tau
    space: any
    source: Yuan et al., CVPR 2026, arXiv 2603.20584
    evidence: second-hand; comfy-cfg-megapack; the authors' sampler switches by step
    use when: a skip-layer or smaller model is at hand, and CFG costs variety late in the run
    defaults:
        - SD3, SD3.5: tau 0.2, of 0.1 to 0.3 (comfy-cfg-megapack)
    """
    return Against("weak", 1.0, 1 - tau) | CFG(scale)


@method(check=(0.45, -2.55, 1.0, 1.75))
def mixed_autoguidance(scale: Scale, *, share: float = 0.5) -> Rule:
    """Mixed auto-guidance (Proteina). The reference is a mixture of a weaker model and the unconditional one.

    formula: m = scale m_c + (1 - scale)(share m_weak + (1 - share) m_u)
    space: any
    source: Geffner et al., ICLR 2025, arXiv 2503.00710; autoguidance by Karras et al. 2024
    evidence: NVIDIA-Digital-Bio/proteina, guidance_weight and autoguidance_ratio
    use when: a weaker checkpoint is at hand, and neither CFG nor autoguidance alone is best
    notes:
        - share 0 is CFG, share 1 autoguidance; 0.5 is a placeholder, as its configurations tune it
    """
    return Against("weak", share) | CFG(scale)
