"""Rules that use a third prediction: something to avoid, or a weaker model.

    d    m_c - m_u, the gap that guidance starts from
    n    m_n - m_u, the way to what is to be avoided: `Prediction.lead("negative")`

Lengths and comparisons that depend on the units are those of noise predictions, eps = (x - t m) / (1 - t),
in which these methods are published.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..cap import lengths
from ..prediction import Prediction
from ..schedules import Scale, at, finite_scale
from ..tensors import Number, per_sample, vector
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


@dataclass(frozen=True)
class AwayFrom(Map):
    """g <- g + scale (m_c - m_name): away from one of the further predictions.

    With "weak" and a perturbed or shortened network this is perturbed-attention and skip-layer guidance.
    """

    name: str
    scale: Scale

    def __post_init__(self) -> None:
        if not (isinstance(self.name, str) and self.name.isidentifier()):
            raise ValueError(
                f"AwayFrom needs the name of a prediction, such as 'weak' or 'negative'; got {self.name!r}"
            )
        finite_scale(self, "scale")
        object.__setattr__(self, "needs", (self.name,))

    def __call__(self, g: Tensor, p: Prediction) -> Tensor:
        scale: Number = at(self.scale, p.t)
        return g + per_sample(scale, g) * (p.delta - p.lead(self.name))


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
