"""Methods that treat frequencies, bands or pixels of an image differently."""

from __future__ import annotations

from collections.abc import Sequence

from ...schedules import Scale
from ..parts.bands import SlowBand, Wavelet, ZeResFDG
from ..parts.elementwise import PixelScale
from ..parts.frequency import Frequencies, FreSca
from ..parts.gain import FromUnconditional
from ..parts.scale import CFG
from ..protocol.base import Rule
from .registry import Default, method


@method(
    "frequency-decoupled guidance",
    "Sadat et al. 2025, arXiv 2506.19713",
    "any",
    "CFG on each level of a Laplacian pyramid with its own scale, fine to coarse",
    "fdg(10, 5)",
    family="frequency",
    use="images oversaturate: coarse structure gets a lower scale than detail",
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
    family="frequency",
    use="you want to weigh the coarse and the fine part of the gap by hand",
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


@method(
    "wavelet detail guidance (HiWave)",
    "Vontobel et al., SIGGRAPH Asia 2025, arXiv 2506.20452",
    "any",
    "CFG on the detail bands of one level of the wavelet sym4; the coarse band stays conditional",
    "hiwave({scale})",
    family="frequency",
    use="the layout is right and only detail should be guided, as in upscaling",
    confidence="second-hand",
    seen="laihongphuc/minHiWave (unofficial) and comfy-cfg-megapack agree; no official repository found",
    defaults=(Default("SDXL", "scale 7.5, 50 DDIM steps", "minHiWave"),),
    differs=(
        "the method also upscales, inverts patches and mixes their states in; this is its guidance alone",
        "images go round at their borders here, and need even sides; minHiWave mirrors them",
    ),
    axes=4,
    check=(0.9, -3.0, 0.1, 2.2),
)
def hiwave(scale: Scale) -> Rule:
    """HiWave's guidance (Vontobel et al. 2025): CFG on wavelet details, none on the coarse band."""
    return Wavelet() | CFG(scale)


@method(
    "low-frequency improved CFG (LF-CFG)",
    "Song & Lai 2025, arXiv 2506.21452",
    "velocity",
    "v = v_u + scale (v_c - v_u) - scale (1 - share) (M_c L v_c - M_u L v_u), L a low-pass, M 1 where L v "
    "has changed since the last step by less than the mean plus the standard deviation of its changes",
    "lf_cfg({scale})",
    family="frequency",
    use="large even areas oversaturate over many steps",
    state="the low-passed velocities of the last step",
    confidence="second-hand",
    seen="comfy-cfg-megapack",
    defaults=(Default("any", "share 0.5, squares of 8 pixels", "comfy-cfg-megapack"),),
    differs=(
        "the kernel of the low-pass is that of the third party: averages over squares, linear interpolation "
        "back; it says that the paper states none",
        "the first step is plain CFG",
    ),
    axes=4,
    unit=False,
    check=(0.9, -3.0, 0.1, 2.2),
)
def lf_cfg(scale: Scale, *, share: float = 0.5, size: int = 8) -> Rule:
    """LF-CFG (Song & Lai 2025): less of the low frequencies that hardly change between steps."""
    return SlowBand(scale, share, size)


@method(
    "ZeResFDG (CADE 2.5)",
    "Rychkovskiy 2025, arXiv 2510.12954",
    "velocity",
    "FD(v) = low G v + high (v - G v); a v_u + scale FD(v_c - a v_u) with a = <v_c, v_u>/|v_u|^2, or, while "
    "the gap has much detail, y = v_u + scale FD(v_c - v_u) with a share mix of it at the spread of "
    "v_u + FD(v_c - v_u)",
    "zeresfdg({scale})",
    family="frequency",
    use="you must match CADE's node, or want detail weighed and the spread matched by one rule",
    state="the running share of detail, and which of the two forms",
    seen="1dZb1/MagicNodes, its author's node, modes CFGZeroFD and RescaleFDG with the adaptive switch",
    defaults=(Default("SDXL", "low 0.6, high 1.3, mix 0.7, thresholds 0.45 and 0.6, keep 0.8", "its node"),),
    differs=(
        "the node averages the share of detail over the batch; here each sample switches by itself",
        "the node also caps the rescaled form at 1.25 times the root mean square of its reference and clamps "
        "quantiles of the mean; neither is here",
        "comfy-cfg-megapack takes the spread of v_c as its reference; the node that of v_u + FD(v_c - v_u)",
        "the node without its adaptive switch changes form by the step index",
    ),
    scale=4.5,
    axes=4,
    unit=False,
    check=(0.616264, -2.140014, -0.101711, 1.728371),
)
def zeresfdg(
    scale: Scale,
    *,
    low: float = 0.6,
    high: float = 1.3,
    mix: float = 0.7,
    down: float = 0.45,
    up: float = 0.6,
    keep: float = 0.8,
) -> Rule:
    """ZeResFDG (Rychkovskiy 2025): reweighted frequencies, projected or rescaled by the share of detail."""
    return ZeResFDG(scale, low, high, mix, down, up, keep)


@method(
    "spatially adaptive guidance (SAMG)",
    "Li et al. 2026, arXiv 2604.26503",
    "any",
    "per pixel scale = high - e (high - low), e the channel mean of (m_c - m_u)^2, put to 0..1 in a sample",
    "samg(5, 12)",
    family="frequency",
    use="some regions burn while others need more guidance",
    confidence="second-hand",
    seen="comfy-cfg-megapack",
    defaults=(
        Default("SD1.5, SDXL", "5 to 12 where CFG has 7.5", "comfy-cfg-megapack"),
        Default("SD3.5 Medium", "3 to 7.5", "comfy-cfg-megapack"),
    ),
    differs=("the third party adds 1e-8 to the range of e",),
    axes=4,
    unit=False,
    check=(2.5, -3.6, -1.5, 2.8),
)
def samg(low: float, high: float) -> Rule:
    """SAMG (Li et al. 2026): the scale falls from `high` to `low` with the gap's energy at a pixel."""
    return PixelScale(low, high)
