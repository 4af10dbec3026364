"""Density-ratio feedback: its recipe and its facts."""

from __future__ import annotations

from ..parts.density_ratio import DensityFeedback
from .registry import method


@method(
    "density-ratio feedback (DRF)",
    "this package; the scale is FBG's (Koulischer et al. 2025), Ito density estimators are SuperDiff's",
    "any",
    "scale = R / (R - (1 - pi)), R = p(x | condition) / p(x) followed along the run; ODE: "
    "d log R/dt = -tr(grad D)/(1-t) + (w - v_c).s_c - (w - v_u).s_u; memoryless step: log R += "
    "(1-r) D.(y' - r y - (1-r)(m_c + m_u)/2)/s^2",
    "sample(predict, density_feedback(0.6), x, times)",
    family="predictions",
    use="samples need unlike amounts of guidance and a second evaluation per step is affordable",
    state="log R of each sample and the last prediction, kept by the loop",
    confidence="derived",
    seen="exact on mixtures with a label leak; docs/feedback.md has the figures",
    differs=(
        "FBG leaves the trace out, which is right for its stochastic sampler and wrong on an ODE",
        "FBG adds a drift and a weight worked out from the grid; here nothing depends on the grid",
        "on networks that learned from wrong labels a tuned fixed scale is better: studies/label_noise",
    ),
    kind="solver",
)
def density_feedback(
    pi: float,
    *,
    most: float = 20.0,
    gain: float = 1.0,
    temperature: float = 1.0,
    probe: str = "difference",
    every: int = 1,
    until: float = 1.0,
) -> DensityFeedback:
    """Density-ratio feedback for a condition of which a share pi of the labels is right."""
    return DensityFeedback(pi, most, gain, temperature, probe, every, until)
