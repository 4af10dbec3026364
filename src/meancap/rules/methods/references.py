"""Methods that guide away from another reference, or turn the conditional mean away from it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...schedules import Scale
from ..parts.phases import ZeroInit
from ..parts.reference import Rectify, Rotation, Row, Tangential, ZeroStar
from ..parts.scale import CFG
from ..protocol.base import Rule
from .registry import Default, method


@method(
    "rectified guidance (ReCFG)",
    "Xia et al., CVPR 2025, arXiv 2410.18737",
    "noise",
    "n = scale n_c - (scale - 1) r n_u, r = E[n_c n_u] / E[n_u^2] per element and time",
    "recfg({scale}, [0, 0.5, 1], [1, 0.97, 0.9])",
    family="direction",
    use="a table of ratios can be made offline, and the average noise should not shift with the scale",
    state="none; a table made offline by recfg_table",
    seen="thuxmf/recfg",
    defaults=(Default("EDM2", "100 labels x 500 images, 32 steps, per pixel", "its code"),),
    differs=(
        "the paper has r = E[n_c] / E[n_u], the code the least-squares ratio, which we compute",
        "the code attributes a batch's average to each of its labels; our tables are made one "
        "condition at a time",
        "the row of a step serves its Heun correction there; here the table is interpolated in t",
    ),
    zero_gap=False,
    check=(0.7272, -2.9532, 0.1198, 1.8256),
)
def recfg(scale: Scale, times: Sequence[float], ratios: Sequence[Row]) -> Rule:
    """ReCFG (Xia et al. 2024) with a table of ratios by time, which `recfg_table` works out for a model."""
    return Rectify(tuple(times), tuple(ratios)) | CFG(scale)


@method(
    "CFG-Zero*",
    "Fan et al. 2025, arXiv 2503.18886",
    "velocity",
    "v = a v_u + scale (v_c - a v_u), a = <v_c, v_u> / |v_u|^2; v = 0 in the first steps",
    "cfg_zero_star({scale})",
    family="direction",
    use="a flow model is undertrained, so that its first velocities mislead",
    state="the step index",
    seen="WeichenFan/CFG-Zero-star @ 3162be1f",
    defaults=(
        Default("SD3.5 Large", "scale 3.5, one zero step of 28", "its example"),
        Default("Wan, CogView, HiDream", "two zero steps", "its code"),
    ),
    differs=(
        "the code adds 1e-8 to |v_u|^2; we divide exactly",
        "its zero_steps=0 still zeroes one step; ours counts the steps that stand still, as diffusers does",
        "ComfyUI's node scales means by the factor of the velocities: cfg_zero_star_comfy",
    ),
    zero_gap=False,
    unit=False,
    check=(0.0, 0.0, 0.0, 0.0),
)
def cfg_zero_star(scale: Scale, *, zero_steps: int = 1) -> Rule:
    """CFG-Zero* (Fan et al. 2025): unconditional velocity optimally scaled; the first steps stand still."""
    rule = ZeroStar() | CFG(scale)
    return rule | ZeroInit(zero_steps) if zero_steps else rule


@method(
    "CFG-Zero*, ComfyUI's node",
    "after Fan et al., arXiv 2503.18886",
    "mean",
    "m = a m_u + scale (m_c - a m_u), with a = <v_c, v_u> / |v_u|^2 from velocities",
    "cfg_zero_star_comfy({scale})",
    family="direction",
    use="you must match ComfyUI's node",
    seen="ComfyUI comfy_extras/nodes_cfg.py",
    differs=("lacks the term (1 - scale)(1 - a) x of the published rule, and the zero steps",),
    check=(0.552459, -2.718033, -0.159016, 1.583607),
)
def cfg_zero_star_comfy(scale: Scale) -> Rule:
    """CFG-Zero* as ComfyUI's node has it: the velocities' factor applied to means; no standing still."""
    return ZeroStar(applied="mean") | CFG(scale)


@method(
    "tangential damping (TCFG)",
    "Kwon et al., CVPR 2025, arXiv 2503.18137",
    "velocity",
    "v_u <- <v_u, e> e, e the first right singular vector of the rows v_c, v_u; then CFG",
    "tcfg({scale})",
    family="direction",
    use="the unconditional prediction wanders and no knob should be tuned",
    confidence="second-hand",
    seen="diffusers 0.42.1 and ComfyUI nodes_tcfg.py; no official repository found",
    defaults=(Default("SD1.5, SDXL, SD3, PixArt", "scale 7.5, 5, 7, 4.5", "second-hand"),),
    differs=(
        "exact here by the 2 x 2 Gram matrix, in float64; diffusers takes a float32 SVD",
        "diffusers' guider reads the attribute _num_outputs_prepared, which does not exist, and "
        "raises in use "
        "(issues 14643, 14794)",
    ),
    check=(0.679813, -2.523163, 0.932604, 1.23323),
)
def tcfg(scale: Scale) -> Rule:
    """Tangential damping (Kwon et al. 2025): only the part of v_u along the shared direction is kept."""
    return Tangential() | CFG(scale)


@method(
    "angle-domain guidance (ADG)",
    "Jin et al., ICML 2025, arXiv 2506.11039",
    "mean",
    "m = cos(a) m_c + sin(a)/sin(theta) e, a = min((scale - 1) theta, pi/3), theta the angle between "
    "m_c and m_u, "
    "e = m_c - proj_{m_u} m_c",
    "adg({scale})",
    family="direction",
    use="guided means grow too long: they are turned instead, by 60 degrees at most",
    seen="jinc7461/ADG @ b5fad684 method/ADG_SD3.py",
    defaults=(Default("SD3.5 Large", "scale 7 (2 to 15 tested)", "its code"),),
    differs=(
        "the code adds 1e-3 to scale - 1, takes 3.14 for pi and switches formula at sin(theta) = "
        "1e-3; ours has "
        "the limit instead",
        "bounded by |m| <= sqrt(2) |m_c|, not norm-preserving; its renormalised variant does so along axis 1",
    ),
    check=(-0.113102, -2.126666, -0.614073, 0.374385),
)
def adg(scale: Scale, *, limit: float = math.pi / 3) -> Rule:
    """Angle-domain guidance (Jin et al. 2025): m_c turned away from m_u, by 60 degrees at most."""
    return Rotation(scale, limit)
