"""What production models and community nodes ship, mostly without a paper."""

from __future__ import annotations

from ...schedules import Scale
from ..parts.elementwise import Automatic, Mahiro, Skim, Tonemap
from ..parts.gain import FromUnconditional
from ..parts.renorm import EnergyMatch, Renorm
from ..parts.scale import CFG
from ..protocol.base import Rule
from .registry import Default, method


@method(
    "Z-Image's renormalisation",
    "no paper; diffusers' Z-Image pipeline",
    "velocity",
    "v <- v min(1, rho |v_c| / |v|) after CFG, per sample",
    "z_image({scale})",
    family="production",
    use="you run Z-Image, or want the simplest bound on the length of the whole velocity",
    seen="diffusers 0.42.1, ZImagePipeline",
    defaults=(Default("Z-Image", "off; cfg_normalization=True means rho 1", "diffusers"),),
    differs=("its scale is ours minus one", "cfg_truncation sets the scale to 0 late"),
    check=(0.347059, -1.156865, 0.038562, 0.848367),
)
def z_image(scale: Scale, *, rho: float = 1.0) -> Rule:
    """Z-Image: the whole guided velocity at most rho times as long as the conditional one."""
    return CFG(scale) | Renorm(rho)


@method(
    "Lumina-Image 2.0's renormalisation",
    "Qin et al. 2025, arXiv 2503.21758, after STIV",
    "velocity",
    "v <- v |v_c| / |v| after CFG, along the last axis",
    "lumina2({scale})",
    family="production",
    use="you run Lumina-Image 2.0",
    seen="diffusers 0.42.1, Lumina2Pipeline",
    defaults=(Default("Lumina-Image 2.0", "on", "diffusers"),),
    differs=(
        "the last axis of the unpacked velocity is the image's width, and the length is matched, not "
        "capped; "
        "the paper describes a cap at rho |v_c| (second-hand): z_image",
    ),
    check=(0.347059, -1.156865, 0.038562, 0.848367),
)
def lumina2(scale: Scale) -> Rule:
    """Lumina-Image 2.0: each row along the last axis gets the length of the conditional one."""
    return CFG(scale) | Renorm(per="token", match=True)


# The same recipe under another name: an alias of the catalogue.
qwen_image = method(
    "Qwen-Image's renormalisation",
    "no paper; diffusers' Qwen-Image pipelines",
    "velocity",
    "v <- v |v_c| / |v| after CFG, per packed token",
    "qwen_image({scale})",
    family="production",
    use="you run Qwen-Image",
    seen="diffusers 0.42.1, QwenImagePipeline, NucleusMoE",
    defaults=(Default("Qwen-Image", "always on, scale 4", "diffusers"),),
    differs=("the layered variant has it off by default",),
    name="qwen_image",
    check=(0.347059, -1.156865, 0.038562, 0.848367),
)(lumina2)


sglang_norm = method(
    "SGLang's cfg_normalization",
    "no paper; SGLang's diffusion server",
    "velocity",
    "v <- v min(1, rho |v_c| / |v|) after CFG, per sample",
    "sglang_norm({scale})",
    family="production",
    use="you must match a server of SGLang",
    seen="sgl-project/sglang multimodal_gen/runtime/distributed/cfg_policy.py, August 2026",
    defaults=(Default("Z-Image; other models", "rho 1, scale 5; off (0)", "SGLang"),),
    differs=(
        "the code takes both lengths over the whole batch; ours are per sample",
        "its guidance_rescale follows afterwards, and LongCat's and Qwen-Image's own renormalisations",
    ),
    name="sglang_norm",
    check=(0.347059, -1.156865, 0.038562, 0.848367),
)(z_image)


vllm_omni_norm = method(
    "vLLM-Omni's cfg_normalize",
    "no paper; vLLM-Omni's diffusion pipelines",
    "velocity",
    "v <- v |v_c| / |v| after CFG, along the last axis",
    "vllm_omni_norm({scale})",
    family="production",
    use="you must match a server of vLLM-Omni",
    seen="vllm-project/vllm-omni diffusion/distributed/cfg_parallel.py",
    defaults=(Default("Qwen-Image; Z-Image", "on; z_image with rho 1, off", "vLLM-Omni"),),
    differs=(
        "it matches the length and does not only cap it, as diffusers' Qwen-Image does",
        "its Z-Image pipeline has the cap of z_image, per sample",
    ),
    name="vllm_omni_norm",
    check=(0.347059, -1.156865, 0.038562, 0.848367),
)(lumina2)


@method(
    "LongCat-Image's renormalisation",
    "no paper; diffusers' LongCat-Image pipeline",
    "velocity",
    "v <- v clamp(|v_c| / |v|, least, 1) after CFG, per packed token",
    "longcat({scale})",
    family="production",
    use="you run LongCat-Image",
    seen="diffusers 0.42.1",
    defaults=(Default("LongCat-Image", "on, least 0", "diffusers"),),
    differs=("the code adds 1e-8 to |v|",),
    check=(0.347059, -1.156865, 0.038562, 0.848367),
)
def longcat(scale: Scale, *, least: float = 0.0) -> Rule:
    """LongCat-Image: each packed token at most as long as the conditional one, shrunk to `least` at most."""
    return CFG(scale) | Renorm(per="token", least=least)


@method(
    "BAGEL's renormalisation",
    "Deng et al. 2025, BAGEL",
    "velocity",
    "v <- v clamp(|v_c| / |v|, least, 1) after CFG, per sample or token",
    "bagel({scale})",
    family="production",
    use="you run BAGEL",
    confidence="second-hand",
    seen="summaries of its code",
    defaults=(Default("BAGEL", "per sample ('global'), least 0, Interval(0.4, 1)", "second-hand"),),
    differs=("its text_channel kind needs a third prediction and is not here",),
    check=(0.347059, -1.156865, 0.038562, 0.848367),
)
def bagel(scale: Scale, *, per: str = "sample", least: float = 0.0) -> Rule:
    """BAGEL: LongCat's clamp per sample ('global' there) or per token ('channel' there)."""
    return CFG(scale) | Renorm(per=per, least=least)


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
    "energy-preserving guidance (EP-CFG)",
    "Zhang et al. 2024, arXiv 2412.09966",
    "mean",
    "m <- m sqrt(E(m_c) / E(m)) after CFG; robust: E of the squares between two quantiles",
    "ep_cfg({scale})",
    family="production",
    use="the energy of the conditional prediction should stay whatever the scale",
    confidence="second-hand",
    seen="the abstract and summaries; which prediction it is stated for was not verified: space=",
    defaults=(Default("any", "low 0, high 1; robust low 0.45, high 0.55", "second-hand"),),
    differs=("always on: it also amplifies",),
    check=(0.044505, -1.722312, -0.07221, 0.355686),
)
def ep_cfg(scale: Scale, *, low: float = 0.0, high: float = 1.0, space: str = "mean") -> Rule:
    """EP-CFG (Zhang et al. 2024): conditional energy kept; low=.45, high=.55 is the robust form."""
    return CFG(scale) | EnergyMatch(low, high, space)


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
