"""What production models and servers ship, mostly without a paper."""

from __future__ import annotations

from ...schedules import Scale
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
