"""Methods with something to avoid: the positive, the negative and the empty prompt as three predictions."""

from __future__ import annotations

from ...schedules import Scale
from ..parts.gain import FromUnconditional
from ..parts.negative import Contrast, PerpNeg, Removal, Safety
from ..parts.scale import CFG
from ..protocol.base import Rule
from .registry import Default, method


@method(
    "perpendicular negative guidance (Perp-Neg)",
    "Armandpour et al. 2023, arXiv 2304.04968",
    "any",
    "d = m_c - m_u, n = m_n - m_u; m = m_u + scale (d - weight (n - <n, d> / |d|^2 d))",
    "perp_neg({scale})",
    family="negative",
    use="the negative prompt overlaps with the prompt and must not weaken it",
    seen="Perp-Neg/Perp-Neg-stablediffusion @ 347c203; ComfyUI comfy_extras/nodes_perpneg.py",
    defaults=(
        Default("Stable Diffusion 1.4", "scale 7.5, weight 1.5", "its README"),
        Default("any", "scale 8, weight 1", "ComfyUI's PerpNegGuider"),
    ),
    differs=(
        "ComfyUI takes both sums of the projection over the whole batch; here they are per sample",
        "its code also takes several negatives and further positives; here there is one negative",
    ),
    unit=False,
    check=(0.24, -3.42, 1.96, 2.62),
)
def perp_neg(scale: Scale, *, weight: float = 1.0) -> Rule:
    """Perp-Neg (Armandpour et al. 2023): only what of the negative is perpendicular to the positive."""
    return PerpNeg(weight) | FromUnconditional(scale)


@method(
    "contrastive CFG",
    "Chang et al., ICML 2026, arXiv 2411.17077",
    "noise",
    "d = eps_c - eps_u, n = eps_n - eps_u; eps = eps_u + scale (2 d / (1 + exp(-tau |d|^2)) - 2 n / (1 + "
    "exp(tau |n|^2)))",
    "contrastive({scale})",
    family="negative",
    use="a negative prompt should stop counting once the sample is far from it",
    seen="jinhojsk515/ContrastiveCFG @ f98786d",
    defaults=(Default("Stable Diffusion 1.5", "scale 7.5, tau 0.2", "its example script"),),
    differs=(
        "squared lengths are sums over a sample, so tau belongs to a resolution and to a number of channels",
        "positive=False is its option naive_positive_cfg: plain CFG towards the prompt",
    ),
    unit=False,
    check=(-0.277665, -1.842814, 2.465569, 1.042814),
)
def contrastive(scale: Scale, *, tau: float = 0.2, positive: bool = True) -> Rule:
    """Contrastive CFG (Chang et al. 2024): the negative counts less the further away it is."""
    return Contrast(tau, positive) | FromUnconditional(scale)


@method(
    "safe latent diffusion (SLD)",
    "Schramowski et al., CVPR 2023, arXiv 2211.05105",
    "noise",
    "mu = min(1, sharpness |eps_c - eps_n|) where eps_c - eps_n < threshold, else 0; gamma = mu (eps_n - "
    "eps_u) + momentum nu; nu <- decay nu + (1 - decay) gamma; eps = eps_u + scale (eps_c - eps_u - gamma), "
    "without gamma in the first warmup steps",
    "sld({scale}, warmup=0)",
    family="negative",
    use="you must match Safe Stable Diffusion; its thresholds are those of its latents",
    state="the momentum nu and the index of the step",
    seen="diffusers, StableDiffusionPipelineSafe",
    defaults=(
        Default("Stable Diffusion, medium", "scale 7.5; the values here", "diffusers"),
        Default("weak", "sharpness 20, threshold 0, momentum 0, decay 0, warmup 15", "diffusers"),
        Default("strong", "sharpness 2000, threshold 0.025, momentum 0.5, decay 0.7, warmup 7", "diffusers"),
        Default("max", "sharpness 5000, threshold 1, momentum 0.5, decay 0.7, warmup 0", "diffusers"),
    ),
    differs=("signs are compared element by element in noise predictions; in means it is another method",),
    unit=False,
    check=(0.9, -3.0, 2.5, 1.0),
)
def sld(
    scale: Scale,
    *,
    sharpness: float = 1000.0,
    threshold: float = 0.01,
    momentum: float = 0.3,
    decay: float = 0.4,
    warmup: int = 10,
) -> Rule:
    """SLD (Schramowski et al. 2023), its medium setting: elementwise, with momentum, after a warm-up."""
    return Safety(sharpness, threshold, momentum, decay, warmup) | FromUnconditional(scale)


@method(
    "concept removal guidance (CRG)",
    "Choi et al., ICML 2026, arXiv 2606.29801",
    "noise",
    "E = weight/2 e + sum over earlier steps of beta/(2 alpha (1 - alpha_bar)) e', e = |eps - eps_u|^2 - "
    "|eps - eps_n|^2; eps <- eps - strength max(0, E - threshold) / (weight |n|^2) n, n = eps_n - eps_u",
    "crg({scale})",
    family="negative",
    use="you want to try it: its formula is second-hand, and its values did badly here",
    state="the evidence so far, and the last step's difference of squares",
    confidence="second-hand",
    seen="a third party's code, whose closed form we checked by algebra; the paper's abstract",
    defaults=(Default("any", "threshold 0, strength 2, weight 1", "that code; the paper tunes the first"),),
    differs=(
        "that code has no scale; here the evidence is read off the prediction that comes in, which at scale "
        "1 is the conditional one",
        "steps are counted as DDPM's, with alpha_bar = t^2 / (t^2 + (1 - t)^2), on any grid",
    ),
    unit=False,
    check=(-0.857143, -1.242857, 3.614286, 0.442857),
)
def crg(scale: Scale, *, threshold: float = 0.0, strength: float = 2.0, weight: float = 1.0) -> Rule:
    """CRG (Choi et al. 2026, second-hand): away from the negative as far as the evidence for it asks."""
    return CFG(scale) | Removal(threshold, strength, weight)
