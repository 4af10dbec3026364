"""What ComfyUI's nodes ship, without a paper."""

from __future__ import annotations

from ...schedules import Scale
from ..parts.elementwise import Automatic, Mahiro, Skim, Tonemap
from ..parts.gain import FromUnconditional
from ..parts.renorm import Renorm
from ..parts.scale import CFG
from ..protocol.base import Rule
from .registry import Default, method


@method(
    "CFGNorm",
    "no paper; ComfyUI",
    "mean",
    "m <- m min(1, |m_c| / |m|) strength after CFG, per pixel over channels",
    "cfg_norm({scale})",
    family="production",
    use="you must match ComfyUI's node; users report worse images",
    seen="ComfyUI comfy_extras/nodes_cfg.py",
    defaults=(Default("any", "strength 1", "ComfyUI"),),
    differs=(
        "PMC's constraint at gamma 1, but per pixel, and kept by shrinking the whole mean; users "
        "report worse results",
        "the node adds 1e-8 to |m|",
    ),
    check=(0.044505, -1.722312, -0.07221, 0.355686),
)
def cfg_norm(scale: Scale, *, strength: float = 1.0) -> Rule:
    """ComfyUI's CFGNorm: each pixel of the guided mean at most as long as that of the conditional one."""
    return CFG(scale) | Renorm(per="pixel", space="mean", strength=strength)


@method(
    "Skimmed CFG",
    "no paper; Extraltodeus",
    "mean",
    "elementwise: where a, a - b and b + w (a - b) agree in sign, and the last with its way from x, "
    "a -= (1 - skim/w)(a - b); first a = m_u, b = m_c, w = scale, then a = m_c, b = m_u, w = scale - "
    "1; then CFG",
    "skimmed({scale})",
    family="production",
    use="a large scale burns colours and you know a lower one that does not",
    seen="Extraltodeus/Skimmed_CFG @ 2712803a",
    defaults=(
        Default("any", "skim 7; 2 to 3 against burning, 4 cruise, 5 to 7 colourful", "its README"),
        Default("SD3.5 Turbo", "skim 2 to 2.5", "its README"),
    ),
    differs=("scale 1 divides by zero there; here it is the conditional mean",),
    scale=9.0,
    check=(1.675, -5.325, -0.544444, 4.525),
)
def skimmed(scale: Scale, *, skim: float = 7.0, flip: bool = True, negative: bool = False) -> Rule:
    """Skimmed CFG (Extraltodeus)."""
    return Skim(scale, skim, flip, negative)


@method(
    "Skimmed CFG, linear interpolation",
    "no paper; Extraltodeus",
    "mean",
    "on the same mask m_u <- m_c + (skim - 1)/(scale - 1)(m_u - m_c); then CFG",
    "skimmed_linear({scale})",
    family="production",
    use="you must match that node",
    seen="Extraltodeus/Skimmed_CFG @ 2712803a",
    defaults=(Default("any", "skim 5", "its node"),),
    scale=9.0,
    check=(1.1, -3.6, -0.1, 2.8),
)
def skimmed_linear(scale: Scale, *, skim: float = 5.0, flip: bool = True) -> Rule:
    """Skimmed CFG, the linearly interpolating node."""
    return Skim(scale, skim, flip, linear=True)


@method(
    "Automatic CFG",
    "no paper; Extraltodeus, who left it for Skimmed CFG",
    "mean",
    "per channel: scale_k = reference scale / (10 R_k), R_k the mean of the top and bottom quarter of "
    "the guided "
    "mean at the scale reference",
    "automatic({scale})",
    family="production",
    use="you must match its node, which its author left for skimmed",
    seen="Extraltodeus/ComfyUI-AutomaticCFG @ 2e395317, mode 'hard'",
    defaults=(Default("any", "reference 8, top 0.25", "its node"),),
    differs=("it remembers the last scale above 1; here the scale is always the one given",),
    axes=4,
    check=(0.339476, -1.318428, 0.660524, 0.518428),
)
def automatic(scale: Scale, *, reference: float = 8.0, top: float = 0.25) -> Rule:
    """Automatic CFG (Extraltodeus), its 'hard' mode."""
    return Automatic(scale, reference, top)


@method(
    "Mahiro",
    "no paper; ComfyUI",
    "mean",
    "m = (q guided + (4 - q) scale m_c)/4, q = 2(1 + sim), sim a cosine of signed square roots",
    "mahiro({scale})",
    family="production",
    use="you must match ComfyUI's node",
    seen="ComfyUI comfy_extras/nodes_mahiro.py",
    differs=(
        "the node averages sim over the batch; ours over the pixels of a sample",
        "scale m_c is no affine combination of the predictions",
    ),
    check=(0.917746, -3.014398, 0.113226, 2.231475),
)
def mahiro(scale: Scale) -> Rule:
    """ComfyUI's Mahiro, averaged within a sample."""
    return Mahiro(scale)


@method(
    "Reinhard tone map",
    "no paper; ComfyUI latent operation",
    "mean",
    "per pixel: |d| <- |d| / (1 + |d|/top), top = multiplier (mean + 5 std) of |d| in a sample; m = "
    "m_u + scale d",
    "tonemap({scale})",
    family="production",
    use="single pixels of the gap stand out and should be softened",
    seen="ComfyUI comfy_extras/nodes_latent.py",
    defaults=(Default("any", "multiplier 1", "ComfyUI"),),
    differs=("every gap shrinks, so scale 1 is not conditional",),
    unit=False,
    check=(0.5, -1.8, 0.5, 1.0),
)
def tonemap(scale: Scale, *, multiplier: float = 1.0) -> Rule:
    """ComfyUI's Reinhard tone map of the gap, then guidance from the unconditional mean."""
    return Tonemap(multiplier) | FromUnconditional(scale)
