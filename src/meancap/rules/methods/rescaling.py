"""Methods that act on the spread or on the size of the guided prediction."""

from __future__ import annotations

from ...schedules import Scale
from ..parts.published_schedules import Temper
from ..parts.renorm import Multiply
from ..parts.scale import CFG
from ..parts.shape import Rescale
from ..parts.threshold import Mimic, Threshold
from ..protocol.base import Rule
from .registry import Default, method


@method(
    "guidance rescale",
    "Lin et al., WACV 2024, arXiv 2305.08891",
    "velocity",
    "v <- phi v std(v_c)/std(v) + (1 - phi) v after CFG, std over a sample, unbiased",
    "rescaled({scale})",
    family="rescaling",
    use="contrast and brightness rise with the scale",
    seen="diffusers rescale_noise_cfg",
    defaults=(Default("any", "phi 0.7; the paper 0.5 to 0.75", "ComfyUI; paper"),),
    differs=(
        "the paper's network predicts v; diffusers rescales any output; on means (space='mean') it differs",
        "ComfyUI converts to a v-prediction by formulas that do not hold for flows",
    ),
    check=(0.512466, -1.708221, 0.056941, 1.252696),
)
def rescaled(scale: Scale, *, phi: float = 0.7, space: str = "velocity") -> Rule:
    """Guidance rescale (Lin et al. 2024): CFG with the standard deviation of the conditional prediction."""
    return CFG(scale) | Rescale(phi, space)


@method(
    "dynamic thresholding (Imagen)",
    "Saharia et al. 2022, arXiv 2205.11487",
    "mean",
    "m <- clip(m, -s, s)/s with s the quantile of |m|, between 1 and most; after CFG",
    "dynamic_threshold({scale})",
    family="rescaling",
    use="the data are pixels between -1 and 1; latents are not",
    confidence="paper",
    seen="the paper; implemented widely",
    defaults=(Default("pixel models", "quantile 0.995", "paper"),),
    differs=(
        "diffusers' default sample_max_value 1 turns it into a static clip (most=1)",
        "meant for pixels in [-1, 1]; latents are not bounded",
    ),
    zero_gap=False,
    unit=False,
    check=(-0.889995, -0.326631, -0.260324, -1.666667),
)
def dynamic_threshold(scale: Scale, *, quantile: float = 0.995, most: float | None = None) -> Rule:
    """CFG with Imagen's dynamic thresholding (Saharia et al. 2022), for pixels in [-1, 1]."""
    return CFG(scale) | Threshold(quantile, most)


@method(
    "dynamic thresholding by a mimicked scale",
    "mcmonkey, sd-dynamic-thresholding",
    "velocity",
    "per channel: deviations of m - x from their mean, clipped at R and scaled by r/R, r the largest "
    "deviation at "
    "the scale mimic, R the larger of r and the quantile of the guided ones",
    "mimic({scale})",
    family="rescaling",
    use="a large scale should keep the range of values of a lower one",
    seen="mcmonkeyprojects/sd-dynamic-thresholding @ 73e4e045",
    defaults=(Default("any", "mimic 7, quantile 1, per channel, AD, MEAN, phi 1", "its node"),),
    differs=(
        "up to the scale mimic it is plain CFG",
        "the simple node takes one spread for the whole batch; ours (separate=False) takes one per sample",
        "its half-cosine schedules use cos(f) for cos(pi f / 2)",
    ),
    scale=9.0,
    check=(1.533058, -4.8, -0.71157, 4.178512),
)
def mimic(scale: Scale, *, mimic: Scale = 7.0, quantile: float = 1.0) -> Rule:
    """Dynamic thresholding that mimics the spread of a lower scale (mcmonkey)."""
    return CFG(scale) | Mimic(mimic, quantile)


@method(
    "temporal score rescaling (TSR)",
    "Xu et al., ICML 2026, arXiv 2510.01184",
    "noise",
    "n <- r n after CFG, r = (q sigma^2 + 1)/(q sigma^2/k + 1), q = t^2/(1 - t)^2",
    "tsr({scale})",
    family="rescaling",
    use="samples should be sharper or broader than the model's own, at any scale",
    seen="its authors' scheduler classes for diffusers; ComfyUI comfy_extras/nodes_eps.py",
    defaults=(
        Default("any", "k 0.95, sigma 1", "ComfyUI"),
        Default("SD3, FLUX", "k 0.93, sigma 3", "paper, second-hand"),
    ),
    differs=("stated for any sampler; on CFG it acts on the guided prediction",),
    zero_gap=False,
    unit=False,
    check=(0.925498, -2.972112, 0.108367, 2.244622),
)
def tsr(scale: Scale, *, k: float = 0.95, sigma: float = 1.0) -> Rule:
    """TSR (Xu et al. 2025): CFG at another temperature; k above 1 is sharper, below 1 broader."""
    return CFG(scale) | Multiply(Temper(k, sigma))


@method(
    "epsilon scaling",
    "Ning et al., ICLR 2024, arXiv 2308.15321",
    "velocity",
    "v <- v/factor after CFG; space='noise': n <- n/factor",
    "epsilon_scaling({scale})",
    family="rescaling",
    use="errors of many steps add up in one direction, which a slightly shorter prediction undoes",
    seen="ComfyUI comfy_extras/nodes_eps.py, the paper's uniform schedule",
    defaults=(Default("any", "factor 1.005", "ComfyUI"),),
    differs=(
        "the paper divides noise predictions; ComfyUI divides x - m, which is the velocity for a flow model "
        "and the noise for the others",
        "on a flow n/factor is singular at t = 0, where n is x: start later with space='noise'",
    ),
    zero_gap=False,
    unit=False,
    check=(0.895522, -2.985075, 0.099502, 2.189055),
)
def epsilon_scaling(scale: Scale, *, factor: float = 1.005, space: str = "velocity") -> Rule:
    """Epsilon scaling (Ning et al. 2024): CFG, then a prediction made shorter against exposure bias."""
    if not factor > 0:
        raise ValueError(f"epsilon_scaling divides by a factor above 0; got {factor}")
    return CFG(scale) | Multiply(1 / factor, space)
