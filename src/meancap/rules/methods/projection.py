"""Methods that turn the gap: projections, rotations, tangents."""

from __future__ import annotations

import math

from ...schedules import Scale
from ..parts.gain import Balanced, FromUnconditional, Gain
from ..parts.phases import Phases
from ..parts.published_schedules import Decay
from ..parts.scale import CFG, Clip
from ..parts.shape import Momentum, Project
from ..protocol.base import Rule
from .registry import Default, method


def _projected(eta: float, radius: float | None, momentum: float | None, space: str) -> Rule:
    chain: Rule = Project(eta, space)
    if radius is not None and not math.isinf(radius):
        chain = Clip(radius, space) | chain
    return chain if not momentum else Momentum(momentum, space) | chain


@method(
    "adaptive projected guidance, as published",
    "Sadat, Hilliges & Weber, ICLR 2025, arXiv 2410.02416",
    "mean",
    "d = m_c - m_u; d += momentum d'; d *= min(1, radius / |d|); m = m_c + (scale - 1)(d - (1 - eta) "
    "proj_{m_c} d)",
    "apg({scale})",
    family="direction",
    use="a large scale oversaturates: the part of the gap along the mean is taken away",
    state="the running sum d', stored before clip and projection, advanced once per step",
    confidence="paper",
    seen="code printed in the appendix; transcriptions in NVIDIA cosmos, ACE-Step and diffusers agree",
    defaults=(
        Default("EDM2-S", "scale 4, eta 0, radius 2.5, momentum -0.75", "two secondary sources"),
        Default("DiT-XL/2", "scale 4, eta 0, radius 5, momentum -0.5", "two secondary sources"),
        Default("SD2.1", "scale 10, eta 0, radius 7.5, momentum -0.75", "two secondary sources"),
        Default("SDXL", "scale 15, eta 0, radius 15, momentum -0.5", "two secondary sources"),
    ),
    differs=(
        "its authors act on denoised means; space='velocity' acts on the network's output, another method",
        "ACE-Step takes lengths over the time axis alone (radius 2.5, momentum -0.75, velocities)",
        "the radius is absolute, so its effect depends on resolution and channels; with eta 1 and a "
        "radius of "
        "(gamma - 1) |m_c| / (scale - 1) it is pmc_displacement",
        "no source says what a solver with several evaluations per step does to the momentum: here, "
        "once per step",
    ),
    check=(-0.023666, -2.045023, -0.424455, 0.446599),
)
def apg(
    scale: Scale,
    *,
    eta: float = 0.0,
    radius: float | None = 15.0,
    momentum: float | None = -0.5,
    space: str = "mean",
) -> Rule:
    """Adaptive projected guidance (Sadat et al. 2024) in its published form: on posterior means, from m_c,
    with factor scale - 1. The defaults are the paper's for SDXL; `None` switches a part off.
    """
    return _projected(eta, radius, momentum, space) | CFG(scale)


@method(
    "adaptive projected guidance, diffusers' default form",
    "after Sadat et al., arXiv 2410.02416",
    "velocity",
    "apg's d on the network's output; v = v_u + scale (d - (1 - eta) proj_{v_c} d)",
    "apg_diffusers({scale})",
    family="direction",
    use="you must match diffusers' guider with its defaults",
    state="none by default; with momentum, the running sum of velocity gaps",
    seen="diffusers 0.42.1 AdaptiveProjectedGuidance",
    defaults=(Default("any", "eta 1, radius 15, no momentum, scale 7.5", "diffusers"),),
    differs=(
        "the base is the unconditional prediction once clip or projection act, so scale 1 is not conditional",
        "the published form is use_original_formulation=True with guidance_scale = scale - 1",
    ),
    unit=False,
    check=(0.9, -3.0, 0.1, 2.2),
)
def apg_diffusers(
    scale: Scale, *, eta: float = 1.0, radius: float | None = 15.0, momentum: float | None = None
) -> Rule:
    """APG as diffusers' guider has it by default: on the network's output, from the unconditional one."""
    return _projected(eta, radius, momentum, "velocity") | FromUnconditional(scale)


@method(
    "adaptive projected guidance, ComfyUI's node",
    "after Sadat et al., arXiv 2410.02416",
    "mean",
    "apg's d; m = m_c + scale (d - (1 - eta) proj_{m_c} d)",
    "apg_comfy({scale})",
    family="direction",
    use="you must match ComfyUI's node",
    state="none by default; with momentum, the running sum, which the node clears when sigma rises",
    seen="ComfyUI comfy_extras/nodes_apg.py",
    defaults=(Default("any", "eta 1, radius 5, no momentum", "ComfyUI"),),
    differs=(
        "one unit more guidance than published at equal scale",
        "the node's norms run over the last three axes: per channel for video, across the batch for "
        "tokens; "
        "ours are per sample",
        "the node allows no negative momentum, the only kind the paper uses",
    ),
    unit=False,
    check=(1.1, -3.6, -0.1, 2.8),
)
def apg_comfy(
    scale: Scale, *, eta: float = 1.0, radius: float | None = 5.0, momentum: float | None = None
) -> Rule:
    """APG as ComfyUI's node does it: on means, from m_c, but with factor `scale`, one more than published."""
    return _projected(eta, radius, momentum, "mean") | Gain(scale)


@method(
    "CFG, then APG",
    "HunyuanImage 2.1; after Sadat et al., arXiv 2410.02416",
    "velocity",
    "CFG(early) in steps 0 to 5 while the momentum fills; apg_diffusers(scale) afterwards",
    "apg_mix({scale})",
    family="direction",
    use="you run HunyuanImage 2.1",
    state="the step index and the running sum of velocity gaps",
    seen="diffusers 0.42.1 AdaptiveProjectedMixGuidance",
    defaults=(
        Default("HunyuanImage 2.1", "early 3.5, scale 10, radius 10, momentum -0.5, eta 0", "diffusers"),
    ),
    scale=10.0,
    unit=False,
    check=(0.8, -2.7, 0.2, 1.9),
)
def apg_mix(
    scale: Scale = 10.0,
    *,
    early: Scale = 3.5,
    steps: int = 6,
    eta: float = 0.0,
    radius: float | None = 10.0,
    momentum: float | None = -0.5,
) -> Rule:
    """HunyuanImage 2.1: CFG in the first `steps` steps, while the momentum fills, then diffusers' APG."""
    late = apg_diffusers(scale, eta=eta, radius=radius, momentum=momentum)
    return Phases(steps, CFG(early), late)


@method(
    "AdaMaG",
    "Esmati et al. 2026, arXiv 2605.20079",
    "noise",
    "v = v_u + w (d - (1 - share) proj_{n_c} d), d = v_c - v_u, w = max(least, scale (1 - t)^power)",
    "adamag({scale})",
    family="direction",
    use="strong guidance is wanted early and next to none late",
    confidence="second-hand",
    seen="two transcriptions agree, one with the numbers of its equations 10, 11 and 13; of the paper "
    "itself only the opening was read",
    defaults=(
        Default("SD3, SD3.5, FLUX", "share 0.1, power 4, least 1", "a transcription of its Section 5"),
    ),
    differs=(
        "a transcription writes n = a(t) x - v_c for the direction; with a = 1/t it is the noise x - t v_c "
        "up to a factor",
        "its scale falls towards the data, against the trend of PMC and C2FG",
    ),
    unit=False,
    check=(0.052958, -1.194385, 0.708422, -0.116542),
)
def adamag(scale: float, *, share: float = 0.1, power: float = 4.0, least: float = 1.0) -> Rule:
    """AdaMaG (Esmati et al. 2026): a gap damped along the noise, a scale falling as (1 - t)^power."""
    return Project(share, "noise") | FromUnconditional(Decay(scale, power, least))


@method(
    "manifold-optimal guidance (MOG)",
    "Jia et al. 2026, arXiv 2603.11509",
    "velocity",
    "v = v_u + scale w, w = d/across + (1/along - 1/across) proj_{v_u} d, d = v_c - v_u",
    "mog({scale})",
    family="direction",
    use="you want the direction of Auto-MOG at a scale of your own",
    confidence="derived",
    seen="Auto-MOG's code with a given scale for the balanced one; its README names this variant",
    defaults=(Default("SDXL, SD3.5, FLUX", "along 1, across 5", "its README"),),
    differs=("the part of the gap across v_u is divided by 5, so that a scale here is not one of CFG",),
    unit=False,
    check=(0.280984, -1.205902, 0.928852, 0.238033),
)
def mog(scale: Scale, *, along: float = 1.0, across: float = 5.0) -> Rule:
    """MOG (Jia et al. 2026): the gap made shorter across v_u, then a fixed scale."""
    return _preconditioned(along, across) | FromUnconditional(scale)


@method(
    "manifold-optimal guidance with a balanced scale (Auto-MOG)",
    "Jia et al. 2026, arXiv 2603.11509",
    "velocity",
    "v = v_u + s w, w as in mog, s = gamma |v_u|/|w| between least and most",
    "auto_mog()",
    family="predictions",
    use="no scale at all should be tuned",
    seen="its authors' mog/processor.py and README",
    defaults=(
        Default("SDXL, FLUX", "along 1, across 5, gamma 1, least 1, most 20", "its README"),
        Default("SD3, SD3.5", "most 15", "its README"),
    ),
    differs=("the code adds 1e-8 to |w| and keeps |v_u|^2 above 1e-6",),
    unit=False,
    check=(0.359685, -1.46938, 0.941399, 0.428513),
)
def auto_mog(
    *, along: float = 1.0, across: float = 5.0, gamma: float = 1.0, least: float = 1.0, most: float = 20.0
) -> Rule:
    """Auto-MOG (Jia et al. 2026): a step as long as the unconditional velocity itself, without a scale."""
    return _preconditioned(along, across) | Balanced(gamma, least, most)


def _preconditioned(along: float, across: float) -> Rule:
    if not (along > 0 and across > 0):
        raise ValueError(f"a metric needs factors above 0; got along={along} and across={across}")
    return Project(across / along, "velocity", "unconditional") | Gain(1 / across)
