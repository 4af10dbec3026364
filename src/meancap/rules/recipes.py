"""Published methods as chains of parts. What each is, where it comes from and how ports differ: `catalogue`.

A scale is the one of diffusers everywhere: 1 is conditional, 0 unconditional. Papers and code that write
c + s (c - u) mean scale 1 + s.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from ..schedules import Exponential, Scale
from .adaptive import Aligned, Converged, Damp, PowerLaw
from .base import Chain, Rule
from .cap import Cap, CapDisplacement
from .feedback import Feedback, Sliding
from .frequency import Frequencies, FreSca
from .gain import CFGPP, FromUnconditional, Gain, Normalise
from .phases import Phases, ZeroInit
from .reference import Rectify, Rotation, Row, Tangential, ZeroStar
from .scale import CFG, Clip, Interval
from .schedulers import DG, Beta, Decay, Steps, by_step, triangle
from .shape import Momentum, Project, Rescale
from .threshold import Mimic, Threshold

# More would not be sampled, and a schedule of them could not be written down and read again.
_MOST_STEPS = 10_000


def pmc(scale: Scale, gamma: Scale = 1.1) -> Chain:
    """PMC-CFG (Peng & Ma 2026), the norm ball of its Section 4."""
    return CFG(scale) | Cap(gamma)


def pmc_displacement(scale: Scale, gamma: Scale = 1.15) -> Chain:
    """PMC-CFG as in its SD3.5 experiments: a displacement of at most gamma - 1 times the length of m_c."""
    return CFG(scale) | CapDisplacement(gamma)


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


def apg_diffusers(
    scale: Scale, *, eta: float = 1.0, radius: float | None = 15.0, momentum: float | None = None
) -> Rule:
    """APG as diffusers' guider has it by default: on the network's output, from the unconditional one."""
    return _projected(eta, radius, momentum, "velocity") | FromUnconditional(scale)


def apg_comfy(
    scale: Scale, *, eta: float = 1.0, radius: float | None = 5.0, momentum: float | None = None
) -> Rule:
    """APG as ComfyUI's node does it: on means, from m_c, but with factor `scale`, one more than published."""
    return _projected(eta, radius, momentum, "mean") | Gain(scale)


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


def _projected(eta: float, radius: float | None, momentum: float | None, space: str) -> Rule:
    chain: Rule = Project(eta, space)
    if radius is not None and not math.isinf(radius):
        chain = Clip(radius, space) | chain
    return chain if not momentum else Momentum(momentum, space) | chain


def c2fg(scale: float, rate: float) -> Rule:
    """C2FG (Gao et al. 2026): the scale grows as exp(rate t)."""
    return CFG(Exponential(scale, rate))


def limited_interval(scale: Scale, low: float, high: float) -> Rule:
    """Guidance at noise levels sigma = (1 - t) / t from low to high only (Kynkäänniemi et al. 2024)."""
    if not 0 <= low < high:
        raise ValueError(f"limited_interval needs noise levels 0 <= low < high; got {low} and {high}")
    return CFG(scale) | Interval(1 / (1 + high), 1 / (1 + low))


def cfgpp(scale: Scale) -> Rule:
    """CFG++ (Chung et al. 2024), scale in [0, 1]: guided denoising, unconditional renoising."""
    return CFGPP(scale)


def cfgpp_adg(scale: Scale) -> Rule:
    """The other CFG++ for flows, the baseline in ADG's code: scale / 12.5, and renoising by the velocity."""
    return CFGPP(scale, renoise="velocity")


def power_law(omega: Scale, alpha: float = 0.9) -> Rule:
    """Power-law guidance (Pavasovic et al. 2025): scale 1 + omega |score gap|^alpha."""
    return PowerLaw(omega, alpha)


def smc(
    scale: Scale, *, rate: float = 5.0, gain: float = 0.2, switching: str = "sign", warmup: int = 0
) -> Rule:
    """SMC-CFG (Wang et al. 2026): sliding-mode control of the velocity gap; unguided for `warmup` steps."""
    rule = Sliding(rate, gain, switching) | FromUnconditional(scale)
    return Phases(warmup, CFG(1), rule, together=False) if warmup else rule


def dg_cfg(scale: float, *, low: float = 0.1, high: float = 20.0) -> Rule:
    """The schedule of Jiang & Ma 2026 for a variance-preserving model with beta from low to high."""
    return CFG(DG(scale, low, high))


def tv_cfg(scale: float, times: int | float | Sequence[float], *, slope: str = "paper") -> Rule:
    """TV-CFG (Jin et al. 2025): a triangle over the steps of a grid, or of a number of equal steps."""
    return CFG(triangle(scale, _grid(times), slope=slope))


def recfg(scale: Scale, times: Sequence[float], ratios: Sequence[Row]) -> Rule:
    """ReCFG (Xia et al. 2024) with a table of ratios by time, which `recfg_table` works out for a model."""
    return Rectify(tuple(times), tuple(ratios)) | CFG(scale)


def cfg_zero_star(scale: Scale, *, zero_steps: int = 1) -> Rule:
    """CFG-Zero* (Fan et al. 2025): unconditional velocity optimally scaled; the first steps stand still."""
    rule = ZeroStar() | CFG(scale)
    return rule | ZeroInit(zero_steps) if zero_steps else rule


def cfg_zero_star_comfy(scale: Scale) -> Rule:
    """CFG-Zero* as ComfyUI's node has it: the velocities' factor applied to means; no standing still."""
    return ZeroStar(applied="mean") | CFG(scale)


def tcfg(scale: Scale) -> Rule:
    """Tangential damping (Kwon et al. 2025): only the part of v_u along the shared direction is kept."""
    return Tangential() | CFG(scale)


def rescaled(scale: Scale, *, phi: float = 0.7, space: str = "velocity") -> Rule:
    """Guidance rescale (Lin et al. 2024): CFG with the standard deviation of the conditional prediction."""
    return CFG(scale) | Rescale(phi, space)


def dynamic_threshold(scale: Scale, *, quantile: float = 0.995, most: float | None = None) -> Rule:
    """CFG with Imagen's dynamic thresholding (Saharia et al. 2022), for pixels in [-1, 1]."""
    return CFG(scale) | Threshold(quantile, most)


def mimic(scale: Scale, *, mimic: Scale = 7.0, quantile: float = 1.0) -> Rule:
    """Dynamic thresholding that mimics the spread of a lower scale (mcmonkey)."""
    return CFG(scale) | Mimic(mimic, quantile)


def fdg(high: float = 10.0, low: float = 5.0, *, parallel: Sequence[float] | None = None) -> Rule:
    """Frequency-decoupled guidance (Sadat et al. 2025) with two levels: details and the rest."""
    return Frequencies((high, low), None if parallel is None else tuple(parallel))


def fresca(scale: Scale, *, low: float = 1.0, high: float = 1.25, cutoff: int = 20) -> Rule:
    """FreSca (Huang et al. 2025): low and high frequencies of the gap scaled apart."""
    return FreSca(low, high, cutoff) | FromUnconditional(scale)


def mambo_g(scale: Scale, *, alpha: float = 8.0) -> Rule:
    """MAMBO-G, once RAAG (Zhu et al. 2025): guidance damped where the gap is large beside the velocity."""
    return CFG(scale) | Damp(alpha)


def fbg(
    times: int | float | Sequence[float],
    *,
    pi: float = 0.95,
    t0: float = 0.5,
    t1: float = 0.4,
    most: float = 10.0,
    constant: float = 1.0,
    interval: Sequence[float] | None = None,
) -> Rule:
    """Feedback guidance (Koulischer et al. 2025) on a grid; `constant` adds CFG, within an interval of sigma.

    t0, t1 are step positions counted from the data end: where the scale would reach 3 by itself, and where
    the evidence of a step is weighed against that drift.
    """
    if not (0 < pi < 1 and 0 <= t0 < 1 and 0 <= t1 < 1):
        raise ValueError(f"fbg needs pi between 0 and 1, t0 and t1 in [0, 1); got {pi}, {t0} and {t1}")
    grid = _grid(times)
    count = len(grid) - 1
    delta = math.log((1 - pi) * 3 / 2) / ((1 - t0) * count)
    # Transition variances from the data end; the step that ends at the data has none.
    noise = [((1 - t) / t) ** 2 if t else math.inf for t in grid]
    spans = [after * (1 - after / before) for before, after in pairwise(noise)][::-1]
    below = min(int(t1 * count), count - 1)
    above, share = min(below + 1, count - 1), t1 * count - below
    tau = abs(2 * ((1 - share) * spans[below] + share * spans[above]) * delta / 10)
    plus: Scale = constant - 1
    if interval is not None:
        low, high = interval
        plus = Steps((0.0, 1 / (1 + high), 1 / (1 + low)), (0.0, constant - 1, 0.0))
    return Feedback(pi, delta, tau, most - (constant - 1), plus)


def beta_cfg(
    scale: float,
    *,
    a: float = 2.0,
    b: float = 2.0,
    gamma: float = 1.0,
    times: int | float | Sequence[float] | None = None,
) -> Rule:
    """beta-CFG (Malarz et al. 2025): a normalised noise gap weighed by a Beta density of t or of the step."""
    weight = Beta(scale, a, b)
    return Normalise(gamma) | FromUnconditional(weight if times is None else by_step(weight, _grid(times)))


def adg(scale: Scale, *, limit: float = math.pi / 3) -> Rule:
    """Angle-domain guidance (Jin et al. 2025): m_c turned away from m_u, by 60 degrees at most."""
    return Rotation(scale, limit)


def adamag(scale: float, *, share: float = 0.1, power: float = 4.0, least: float = 1.0) -> Rule:
    """AdaMaG (Esmati et al. 2026): a gap damped along the noise, a scale falling as (1 - t)^power."""
    return Project(share, "noise") | FromUnconditional(Decay(scale, power, least))


def vags(scale: Scale, *, kappa: float = 1.0) -> Rule:
    """VAGS (Luo et al. 2026): the scale follows time and the angle between the two velocities."""
    return Aligned(scale, kappa)


def adaptive_guidance(scale: Scale, *, above: float = 0.991, space: str = "velocity") -> Rule:
    """Adaptive guidance (Castillo et al. 2023): plain CFG until the two predictions agree."""
    return CFG(scale) | Converged(above, space)


def _grid(times: int | float | Sequence[float]) -> tuple[float, ...]:
    """A grid from noise to data, or that many equal steps."""
    if isinstance(times, (int, float)):
        if not (1 <= times <= _MOST_STEPS and times % 1 == 0):
            raise ValueError(
                f"a grid is its times, or a whole number of equal steps up to {_MOST_STEPS}; got {times}"
            )
        return tuple(i / int(times) for i in range(int(times) + 1))
    grid = tuple(float(t) for t in times)
    if len(grid) < 2 or grid[0] < 0 or grid[-1] > 1 or any(not b > a for a, b in pairwise(grid)):
        raise ValueError(f"a grid is two times or more, increasing within [0, 1]; got {list(grid[:8])}")
    return grid
