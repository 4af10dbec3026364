"""Methods that read their strength or their reference off the predictions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from ...schedules import Scale
from ..parts.adaptive import Aligned, Converged, Damp, PowerLaw
from ..parts.feedback import Feedback
from ..parts.gain import FromUnconditional, Normalise
from ..parts.published_schedules import Beta, Steps, by_step
from ..parts.scale import CFG
from ..protocol.base import Rule
from .grids import grid_of
from .registry import Default, method


@method(
    "power-law guidance",
    "Pavasovic et al., ICLR 2026, arXiv 2502.07849",
    "score",
    "beta = omega |S_c - S_u|^alpha, |S_c - S_u| = t / (1 - t)^2 |m_c - m_u|; m = m_c + beta (m_c - m_u)",
    "power_law(0.5, 0.9)",
    family="predictions",
    use="guidance should grow with the gap of the scores and omega can be tuned to the size of the model",
    confidence="second-hand",
    seen="xxiiyu/cui_generalized_guidance_forms (unofficial); the authors published no code",
    defaults=(Default("latent models", "alpha 0.9, omega tuned", "paper, second-hand"),),
    differs=(
        "omega depends on the dimension (the length grows with its root) and on the grid's last time",
        "the unofficial node adds 1 to sigma^2, starts from m_u and keeps the factor at 1 at least",
    ),
    unit=False,
    check=(0.362793, -1.388378, 0.637207, 0.588378),
)
def power_law(omega: Scale, alpha: float = 0.9) -> Rule:
    """Power-law guidance (Pavasovic et al. 2025): scale 1 + omega |score gap|^alpha."""
    return PowerLaw(omega, alpha)


@method(
    "magnitude-aware guidance (MAMBO-G, once RAAG)",
    "Zhu et al., arXiv 2508.03442 (v1, v2 as RAAG)",
    "velocity",
    "scale_eff = 1 + (scale - 1) exp(-alpha r), r = |v_c - v_u| / |v_u|",
    "mambo_g({scale})",
    family="predictions",
    use="few steps at a large scale spoil the first of them",
    seen="xiaomomy/MAMBO-G @ 9c54dd11; diffusers 0.42.1",
    defaults=(
        Default("SD3.5 Large, 10 steps", "scale 18, alpha 12", "its code"),
        Default("Qwen-Image, 10 steps", "scale 10, alpha 8, then Rescale(1)", "its code"),
        Default("any", "scale 10, alpha 8", "diffusers"),
    ),
    differs=(
        "the official code takes the norms of the whole batch; ours and diffusers' are per sample",
        "its README prints 1 + scale exp(-alpha r); the code has scale - 1",
        "diffusers 0.42.1 raises on 4-D and 5-D latents (torch.norm over three axes); packed tokens work",
    ),
    scale=10.0,
    check=(0.302766, -1.208297, 0.697234, 0.408297),
)
def mambo_g(scale: Scale, *, alpha: float = 8.0) -> Rule:
    """MAMBO-G, once RAAG (Zhu et al. 2025): guidance damped where the gap is large beside the velocity."""
    return CFG(scale) | Damp(alpha)


@method(
    "VAGS",
    "Luo et al. 2026, arXiv 2605.15661",
    "velocity",
    "scale exp(kappa (2t - 1) cos(v_u, v_c))",
    "vags({scale})",
    family="predictions",
    use="you want less guidance early and more late, the more so the better the velocities agree",
    confidence="second-hand",
    seen="a reading note",
    defaults=(Default("any", "kappa 1", "second-hand"),),
    unit=False,
    check=(0.782105, -2.646315, 0.217895, 1.846315),
)
def vags(scale: Scale, *, kappa: float = 1.0) -> Rule:
    """VAGS (Luo et al. 2026): the scale follows time and the angle between the two velocities."""
    return Aligned(scale, kappa)


@method(
    "adaptive guidance (guide until the predictions agree)",
    "Castillo et al. 2023, arXiv 2312.12487",
    "velocity",
    "CFG until cos(c, u) exceeds above, conditional from then on",
    "adaptive_guidance({scale})",
    family="predictions",
    use="guidance should end for a sample once its two predictions agree",
    state="which samples have stopped",
    confidence="second-hand",
    seen="a third-party collection",
    defaults=(Default("LDM", "above 0.991", "second-hand"),),
    differs=(
        "stated for noise predictions, which coincide at t = 0 of a flow; velocities do not: space=",
        "per sample here",
    ),
    check=(0.9, -3.0, 0.1, 2.2),
)
def adaptive_guidance(scale: Scale, *, above: float = 0.991, space: str = "velocity") -> Rule:
    """Adaptive guidance (Castillo et al. 2023): plain CFG until the two predictions agree."""
    return CFG(scale) | Converged(above, space)


@method(
    "beta-CFG",
    "Malarz et al., ECAI 2025, arXiv 2502.10574",
    "noise",
    "n = n_u + scale B(t; a, b) (n_c - n_u) / |n_c - n_u|^gamma, B the Beta density",
    "beta_cfg({scale})",
    family="predictions",
    use="you compare with its paper; its strength depends on the size of the tensor",
    seen="gmum/beta-CFG @ c17edf52",
    defaults=(Default("SD1.5 and others", "scale 7.5, a = b = 2, gamma 1, 50 DDIM steps", "its code"),),
    differs=(
        "the weight is 0 at both ends: there the prediction is unconditional, not conditional",
        "the density is of t here and of the step in the code: give times= for the latter",
        "with gamma 1 the strength depends on the size of the tensor",
    ),
    unit=False,
    check=(3.319938, -10.259814, -2.319938, 9.459814),
)
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
    return Normalise(gamma) | FromUnconditional(weight if times is None else by_step(weight, grid_of(times)))


@method(
    "feedback guidance (FBG)",
    "Koulischer et al., NeurIPS 2025, arXiv 2506.06085",
    "mean",
    "scale = e^L / (e^L - (1 - pi)); L -= tau/(2 s^2)(|y' - mu_c|^2 - |y' - mu_u|^2) - delta after "
    "each step, y = x/t",
    "fbg(20)",
    family="predictions",
    use="samples need unlike amounts of guidance and an estimate without further evaluations is wanted",
    state="the log posterior L of each sample and its last prediction",
    seen="FelixKoulischer/FBG_using_edm2 @ 0049f951",
    defaults=(
        Default("EDM2, 64 steps", "pi 0.95, t0 0.5, t1 0.4, most 10", "function defaults"),
        Default("EDM2, best FD-DINOv2", "pi 0.999, t0 0.556, t1 0.429", "its README"),
        Default("EDM2, hybrid", "constant 2.6, interval (0.48, 6.84), t1 0.492", "its README"),
        Default("text to image", "pi 0.85, t0 0.75, t1 0.5", "second-hand"),
    ),
    differs=(
        "the code rounds delta and tau to four decimals; ours does not",
        "written so that it is regular at t = 0, where sigma is infinite",
    ),
    unit=False,
    check=(0.310526, -1.231579, 0.689474, 0.431579),
)
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
    grid = grid_of(times)
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
