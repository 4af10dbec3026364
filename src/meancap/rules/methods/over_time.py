"""Methods whose scale depends on the time or on the step alone."""

from __future__ import annotations

from collections.abc import Sequence

from ...schedules import Exponential, Scale
from ..parts.gain import CFGPP
from ..parts.published_schedules import DG, Ramp, Steps, triangle
from ..parts.scale import CFG, Interval
from ..protocol.base import Rule
from .grids import grid_of
from .registry import Default, method


@method(
    "C2FG: exponentially growing scale",
    "Gao et al., CVPR 2026, arXiv 2603.08155",
    "any",
    "scale(t) = scale exp(rate t)",
    "c2fg({scale}, 0.2)",
    family="time",
    use="guidance should grow towards the data and one rate can be tuned",
    confidence="second-hand",
    seen="a full note on the paper, an article and a third-party implementation agree; no repository found",
    defaults=(
        Default("DiT-XL/2 256", "scale 1, rate ln 2", "paper note: FID 2.07"),
        Default(
            "SiT-XL/2 + REPA",
            "scale 1, rate 1 (SDE); 1.8, 0.03 in an interval",
            "paper note: FID 1.51; 1.41",
        ),
        Default("SiT-XL/2 + REPA, 50 steps", "scale 1.7, rate 0.15", "paper note: FID 3.20 SDE, 3.25 ODE"),
        Default("SD1.5", "scale 5, rate 0.2", "paper note"),
        Default("SD3.5", "rate 0.2", "PMC paper"),
    ),
    differs=(
        "progress is t here; the PMC paper says 'on the shifted sigma grid', which we read as t",
        "a press summary writes scale exp(-rate (1 - t)): the same curve, its scale being the largest value",
        "for plain SiT no published rate was found",
    ),
    unit=False,
    check=(0.96663, -3.199889, 0.03337, 2.399889),
)
def c2fg(scale: float, rate: float) -> Rule:
    """C2FG (Gao et al. 2026): the scale grows as exp(rate t)."""
    return CFG(Exponential(scale, rate))


method(
    "weight schedulers",
    "Wang et al., TMLR 2024, arXiv 2404.13040",
    "any",
    "linear 2t, cosine 1 - cos(pi t), inverse-linear 2(1 - t), sine 1 + cos(pi t), V 2|1 - 2t|, "
    "Lambda 2(1 - |1 - 2t|), clamp max(least, .), powered-cosine (1 - cos(pi t^power))/2; times scale "
    "or scale - 1",
    "CFG(Ramp({scale}, shape='linear'))",
    family="time",
    use="you want a published shape of the scale over time, most of them with the mean of a fixed scale",
    confidence="second-hand",
    seen="two independent transcriptions; no repository found",
    defaults=(
        Default("SD1.5, SDXL, SD3", "clamp-linear with least 2, 4, 0.5", "transcriptions"),
        Default("ImageNet 256", "powered-cosine with power 4", "transcriptions"),
    ),
    differs=(
        "the paper's equation and its reported magnitudes disagree on whether the ramp multiplies the "
        "scale "
        "(on='scale', starting unconditional) or scale - 1 (on='gain', starting conditional)",
        "powered-cosine is not normalised to mean 1, the others are",
    ),
    unit=False,
    check=(0.74, -2.52, 0.26, 1.72),
)(Ramp)


@method(
    "guidance in a limited interval of noise levels",
    "Kynkäänniemi et al., NeurIPS 2024, arXiv 2404.07724",
    "any",
    "scale while low <= sigma <= high with sigma = (1 - t)/t; conditional elsewhere",
    "limited_interval({scale}, 0.19, 1.61)",
    family="time",
    use="guidance hurts at the highest noise levels or is idle at the lowest; outside it saves network calls",
    seen="kynkaat/guidance-interval",
    defaults=(
        Default(
            "EDM2-XXL 512",
            "scale 2, sigma (0.19, 1.61], 32 Heun steps",
            "its code: FID 1.40 against 1.81",
        ),
        Default("SDXL", "scale 16, sigma (0.28, 5.42]", "two secondary sources"),
        Default("SiT-XL/2 + REPA", "scale 1.8, Interval(0.3, 1)", "REPA README: FID 1.42"),
        Default("BAGEL", "Interval(0.4, 1)", "its code"),
    ),
    differs=(
        "the code decides by step index, both ends included, once per step: CFG(2) | StepInterval(17, 22)",
        "diffusers' start and stop are step fractions; Lumina's and Z-Image's truncations switch off late",
    ),
    check=(0.9, -3.0, 0.1, 2.2),
)
def limited_interval(scale: Scale, low: float, high: float) -> Rule:
    """Guidance at noise levels sigma = (1 - t) / t from low to high only (Kynkäänniemi et al. 2024)."""
    if not 0 <= low < high:
        raise ValueError(f"limited_interval needs noise levels 0 <= low < high; got {low} and {high}")
    return CFG(scale) | Interval(1 / (1 + high), 1 / (1 + low))


@method(
    "stage-wise triangle (TV-CFG)",
    "Jin, Shi & Gu, ICLR 2026, arXiv 2509.22007",
    "any",
    "1 + 2 (scale - 1) n / M up to step M = ceil(N/2), then (N - n)/(N - M); normalised to time mean scale",
    "tv_cfg({scale}, 50)",
    family="time",
    use="guidance should be strongest in the middle of the run and keep its mean",
    seen="ppposition/pmc cfg_schedules.TVCFG; the paper's fall is second-hand",
    defaults=(Default("SiT-XL/2 256", "scale 1.5 to 2.5, 50 steps", "PMC paper"),),
    differs=("the repository falls as (N - n)/M, which differs for odd N: slope='repo'",),
    check=(1.26, -4.08, -0.26, 3.28),
)
def tv_cfg(scale: float, times: int | float | Sequence[float], *, slope: str = "paper") -> Rule:
    """TV-CFG (Jin et al. 2025): a triangle over the steps of a grid, or of a number of equal steps."""
    return CFG(triangle(scale, grid_of(times), slope=slope))


@method(
    "high early, unconditional late",
    "Ventura et al. 2026, arXiv 2602.00716",
    "any",
    "scale for t < switch, late from then on",
    "early_high({scale})",
    family="time",
    use="fixed guidance leaves too little variety and the condition is settled early",
    confidence="second-hand",
    seen="comfy-cfg-megapack; a reading note on the paper's version 4 agrees",
    defaults=(Default("any", "switch after 50 to 70 % of the steps, late 0", "comfy-cfg-megapack"),),
    differs=(
        "the paper counts from the conditional prediction and calls its late window negative guidance: "
        "late 0 here is its -1",
        "the switch is a time here, and a share of the steps there; the two agree on a uniform grid",
    ),
    unit=False,
    check=(0.9, -3.0, 0.1, 2.2),
)
def early_high(scale: float, *, switch: float = 0.5, late: float = 0.0) -> Rule:
    """A high scale early and the unconditional prediction late (Ventura et al. 2026)."""
    if not 0 < switch < 1:
        raise ValueError(f"early_high switches at a time between 0 and 1; got {switch}")
    return CFG(Steps((0.0, switch), (scale, late)))


@method(
    "analytic schedule (DG-CFG)",
    "Jiang & Ma 2026, arXiv 2607.19725",
    "any",
    "scale(u) = 1 + C (scale - 1) (1 - A) sqrt(A) / beta(u), of mean scale over the diffusion time u",
    "dg_cfg({scale})",
    family="time",
    use="the model is variance-preserving and runs with DDIM, for which the schedule was derived",
    confidence="second-hand",
    seen="a third-party implementation; no repository found",
    defaults=(Default("VP models", "beta from 0.1 to 20", "the usual VP process"),),
    differs=(
        "designed for variance-preserving models with DDIM; we move it to t by equal signal-to-noise, "
        "and no "
        "flow version is known",
    ),
    check=(1.522027, -4.86608, -0.522027, 4.06608),
)
def dg_cfg(scale: float, *, low: float = 0.1, high: float = 20.0) -> Rule:
    """The schedule of Jiang & Ma 2026 for a variance-preserving model with beta from low to high."""
    return CFG(DG(scale, low, high))


@method(
    "CFG++",
    "Chung et al., ICLR 2025, arXiv 2406.08070",
    "any",
    "x' = s m + (1 - s) n_u with m = m_u + scale (m_c - m_u): Euler with CFG scale (1 - t) s / (s - "
    "t) * scale",
    "cfgpp(0.6)",
    family="time",
    use="you want a scale between 0 and 1 with Euler or DDIM, at a fixed number of steps",
    state="the scale of the step, for its later evaluations",
    seen="CFGpp-diffusion/CFGpp @ 80353525; the flow form is derived and agrees with ComfyUI's euler_cfg_pp",
    defaults=(Default("SDXL and others", "scale 0.6, in [0, 1], about CFG 7.5; Lightning 1", "its README"),),
    differs=(
        "a fixed scale is not a fixed strength: on N equal steps the CFG scale peaks at scale * N / 4",
        "needs the time at which the step ends",
        "the form of the ADG repository lacks the factor s: cfgpp_adg",
    ),
    unit=False,
    check=(0.46, -1.68, 0.54, 0.88),
)
def cfgpp(scale: Scale) -> Rule:
    """CFG++ (Chung et al. 2024), scale in [0, 1]: guided denoising, unconditional renoising."""
    return CFGPP(scale)


@method(
    "CFG++, the second form in circulation",
    "the baseline in jinc7461/ADG, after Chung et al., arXiv 2406.08070",
    "any",
    "x' = m - (1 - s) v_u with m = m_u + scale (m_c - m_u): Euler with CFG scale (1 - t) / (s - t) * scale",
    "cfgpp_adg(0.6)",
    family="time",
    use="you compare with ADG's code, whose CFG++ is not the usual one",
    state="the scale of the step, for its later evaluations",
    seen="jinc7461/ADG @ b5fad684 method/CFGplus.py",
    defaults=(Default("SD3.5 Large", "scale = guidance_scale / 12.5, at most 1", "its code"),),
    differs=("its first step is about N times stronger than that of cfgpp",),
    unit=False,
    check=(0.82, -2.76, 0.18, 1.96),
)
def cfgpp_adg(scale: Scale) -> Rule:
    """The other CFG++ for flows, the baseline in ADG's code: scale / 12.5, and renoising by the velocity."""
    return CFGPP(scale, renoise="velocity")
