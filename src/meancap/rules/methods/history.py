"""Methods that compare a step with the steps before it."""

from __future__ import annotations

from ...schedules import Scale
from ..parts.feedback import Sliding
from ..parts.gain import FromUnconditional
from ..parts.history import Ahead, ErrorCorrection, History, Transition
from ..parts.phases import Phases
from ..parts.scale import CFG
from ..protocol.base import Rule
from .registry import Default, method


@method(
    "CFG-Ctrl: sliding-mode control (SMC-CFG)",
    "Wang et al., CVPR 2026, arXiv 2603.03281",
    "velocity",
    "e = v_c - v_u; s = (e - e') + rate e'; e -= gain sign(s); v = v_u + scale e",
    "smc({scale})",
    family="memory",
    use="the gap swings from step to step; keep the gain small beside its elements",
    state="e', the corrected gap of the last step; the warm-up leaves it untouched",
    seen="hanyang-21/CFG-Ctrl @ 490a628f",
    defaults=(
        Default("SD3, SD3.5", "scale 7.5, rate 5, gain 0.2", "its README"),
        Default("FLUX", "scale 2 to 3, rate 5, gain 0.2, warmup 2", "its README"),
        Default("Qwen-Image, Wan", "scale 4, 5, rate 5, gain 0.2", "its README"),
    ),
    differs=(
        "the code's sign is elementwise; a port says the paper means the unit vector s / |s|: "
        "switching='unit'",
        "elements smaller than the gain change their sign; on noise predictions of SDXL gain 0.2 "
        "destroys images",
    ),
    unit=False,
    check=(0.1, -2.2, 0.9, 1.4),
)
def smc(
    scale: Scale, *, rate: float = 5.0, gain: float = 0.2, switching: str = "sign", warmup: int = 0
) -> Rule:
    """SMC-CFG (Wang et al. 2026): sliding-mode control of the velocity gap; unguided for `warmup` steps."""
    rule = Sliding(rate, gain, switching) | FromUnconditional(scale)
    return Phases(warmup, CFG(1), rule, together=False) if warmup else rule


@method(
    "momentum guidance",
    "arXiv 2602.20360",
    "velocity",
    "v <- v + alpha (v - a) for low <= t <= high, a <- (1 - beta) v + beta a from the first v on; after CFG",
    "momentum_guidance({scale})",
    family="memory",
    use="the scale is low and a plain Euler solver leaves detail out",
    state="the running average of guided velocities",
    confidence="second-hand",
    seen="a Forge extension's transcription of equations 12 and 13; no repository found",
    defaults=(
        Default("FLUX at scale 2.5 to 3.5", "alpha 0.5, beta 0.6, t from 0.05 to 0.7", "Forge extension"),
    ),
    differs=(
        "optionally the average is brought to the length of v first, for its SD3 and FLUX tables; not here",
        "another node extrapolates means without the factor 1 - t: a different formula",
    ),
    zero_gap=False,
    unit=False,
    check=(0.9, -3.0, 0.1, 2.2),
)
def momentum_guidance(
    scale: Scale, *, alpha: float = 0.5, beta: float = 0.6, low: float = 0.05, high: float = 0.7
) -> Rule:
    """Momentum guidance (2026): CFG, then a step beyond the running average of the guided velocity."""
    return CFG(scale) | Ahead(alpha, beta, low, high)


@method(
    "history-guided sampling (HiGS)",
    "Sadat et al., ICLR 2026, arXiv 2509.22300",
    "mean",
    "m <- m + w(t) F(d - (1 - eta) proj_m d), d = m - h, h <- alpha m + (1 - alpha) h; F a soft high-pass of "
    "the cosine transform, w(t) = weight sqrt((1 - t - low)/(high - low)) for low < 1 - t <= high; after CFG",
    "higs({scale})",
    family="memory",
    use="few steps or a low scale leave images without detail",
    state="the running average of guided means",
    confidence="second-hand",
    seen="two implementations from the paper's equations agree: comfy-cfg-megapack and a Forge "
    "extension; no repository of the authors found",
    defaults=(
        Default(
            "any", "weight 1.75, alpha 0.75 or 0.5, cutoff 0.05, sharp 50, low 0.4, high 1", "Forge extension"
        ),
        Default("for FID; for preference", "eta 0; eta 1", "Forge extension"),
    ),
    differs=(
        "comfy-cfg-megapack has weight 2, eta 1 and high 0.95",
        "the first step has no past: it is CFG",
        "solvers that extrapolate from past steps add a history of their own; the Forge extension advises a "
        "weight of 0.5 there",
    ),
    axes=4,
    zero_gap=False,
    unit=False,
    check=(0.9, -3.0, 0.1, 2.2),
)
def higs(
    scale: Scale,
    *,
    weight: float = 1.75,
    alpha: float = 0.75,
    eta: float = 0.0,
    cutoff: float = 0.05,
    sharp: float = 50.0,
    low: float = 0.4,
    high: float = 1.0,
) -> Rule:
    """HiGS (Sadat et al. 2025): CFG, then the fine detail that is new beside an average of past means."""
    return CFG(scale) | History(weight, alpha, eta, cutoff, sharp, low, high)


@method(
    "orthogonal error correction (CFG-OEC)",
    "Yang, Lee & Han 2025, arXiv 2511.14075",
    "noise",
    "n_u <- n_u + (1 - s) (<A, B>/|A|^2) A where s = cos(A, B) < below, A and B the changes of n_c and n_u "
    "since the last step; then CFG",
    "cfg_oec({scale})",
    family="memory",
    use="the two noise predictions change unlike each other; its threshold has to be found",
    state="both noise predictions of the last step",
    confidence="second-hand",
    seen="two transcriptions of the paper's equations 10 to 15 agree; no repository found",
    defaults=(
        Default("any", "below 0.5", "comfy-cfg-megapack, as a placeholder: no published value was found"),
    ),
    differs=(
        "written out, both form 2 n - n_before for either prediction; the result is the line above",
        "one transcription leaves samples with a negative cosine alone",
    ),
    check=(0.9, -3.0, 0.1, 2.2),
)
def cfg_oec(scale: Scale, *, below: float = 0.5) -> Rule:
    """CFG-OEC (Yang et al. 2025): the unconditional noise corrected by how both have changed, then CFG."""
    return ErrorCorrection(below) | CFG(scale)


@method(
    "guidance from the transition point on",
    "Jain et al., CVPR 2025, arXiv 2411.16738",
    "noise",
    "scale before until |n_c - n_u| has passed its first minimum over the steps, scale from then on",
    "transition_point({scale})",
    family="memory",
    use="the model repeats images of its training set",
    state="the last two lengths of the gap, and which samples have passed their minimum",
    seen="SonyResearch/mitigating_memorization, generate_test_dataset_dtp.py",
    defaults=(
        Default("SD1.4", "scale 7.5, before 1, 50 steps", "its code"),
        Default("opposite guidance", "before below 0", "paper, second-hand"),
    ),
    differs=(
        "the code measures the whole batch, which has one image there; here each sample has its own point",
        "third parties take before 0, the unconditional prediction",
        "on a flow |n_c - n_u| = t |v_c - v_u| starts at 0, so that a minimum may come late or never: "
        "space='velocity' measures the velocities",
    ),
    unit=True,
    check=(0.3, -1.2, 0.7, 0.4),
)
def transition_point(scale: Scale, *, before: Scale = 1.0, space: str = "noise") -> Rule:
    """Guidance only after the gap's first minimum, against memorised images (Jain et al. 2025)."""
    return Transition(scale, before, space)
