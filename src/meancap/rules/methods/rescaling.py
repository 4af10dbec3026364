"""Methods that act on the spread or on the frequencies of the guided prediction."""

from __future__ import annotations

from collections.abc import Sequence

from ...schedules import Scale
from ..parts.frequency import Frequencies, FreSca
from ..parts.gain import FromUnconditional
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
    "frequency-decoupled guidance",
    "Sadat et al. 2025, arXiv 2506.19713",
    "any",
    "CFG on each level of a Laplacian pyramid with its own scale, fine to coarse",
    "fdg(10, 5)",
    seen="diffusers 0.42.1, which cites the paper's Algorithm 2",
    defaults=(Default("SDXL", "high 10, low 5", "paper Table 8, second-hand"),),
    differs=(
        "linear without parallel, so the same in every space; with it, taken on velocities",
        "diffusers' parallel weights act from the unconditional level unless use_original_formulation is set",
        "diffusers appends the previous level, or raises, when a level is switched off (issue 14643)",
        "diffusers keeps kornia's padding: where neither side is a power of two the output has another shape",
    ),
    unit=False,
    axes=4,
)
def fdg(high: float = 10.0, low: float = 5.0, *, parallel: Sequence[float] | None = None) -> Rule:
    """Frequency-decoupled guidance (Sadat et al. 2025) with two levels: details and the rest."""
    return Frequencies((high, low), None if parallel is None else tuple(parallel))


@method(
    "FreSca",
    "Huang et al. 2025, arXiv 2504.02154; WikiChao/FreSca",
    "any",
    "low and high frequencies of m_c - m_u times two factors, d; m = m_u + scale d",
    "fresca({scale})",
    confidence="second-hand",
    seen="ComfyUI comfy_extras/nodes_fresca.py",
    defaults=(Default("any", "low 1, high 1.25, cutoff 20", "ComfyUI"),),
    differs=("where the cutoff exceeds half a side, ComfyUI's slice wraps round and marks a corner as low",),
    unit=False,
    axes=4,
    check=(0.9, -3.0, 0.1, 2.2),
)
def fresca(scale: Scale, *, low: float = 1.0, high: float = 1.25, cutoff: int = 20) -> Rule:
    """FreSca (Huang et al. 2025): low and high frequencies of the gap scaled apart."""
    return FreSca(low, high, cutoff) | FromUnconditional(scale)
