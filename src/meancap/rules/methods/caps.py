"""Fixed guidance, and the posterior-mean cap in its two published forms."""

from __future__ import annotations

from ...schedules import Scale
from ..parts.cap import Cap, CapDisplacement
from ..parts.literal import LiteralCap
from ..parts.scale import CFG
from ..protocol.base import Chain
from .registry import Default, method

method(
    "classifier-free guidance",
    "Ho & Salimans 2022, arXiv 2207.12598; for flows Zheng et al. 2023",
    "any",
    "m = m_u + scale (m_c - m_u)",
    "CFG({scale})",
    family="caps",
    use="nothing else is tuned yet: every other rule is compared with it, tuned",
    seen="willisma/SiT models.py; diffusers 0.42.1",
    defaults=(
        Default("SiT-XL/2 256", "scale 1.5", "its README: FID 2.06, IS 270.27"),
        Default("EDM2-S 512, EDM2-XXL 512", "scale 1.4, 1.2", "NVlabs/edm2: FID 2.23, 1.81"),
        Default("text to image", "scale 4 to 7", "common practice"),
    ),
    differs=(
        "SiT's forward_with_cfg guides the first 3 of 4 latent channels only, and its published "
        "numbers do so",
        "diffusers' use_original_formulation means m_c + scale (m_c - m_u), one unit more",
    ),
    check=(0.9, -3.0, 0.1, 2.2),
)(CFG)


@method(
    "posterior-mean capped guidance, the norm ball",
    "Peng & Ma 2026, arXiv 2609.24287, Section 4",
    "mean",
    "the largest beta <= scale - 1 with |m_c + beta (m_c - m_u)| <= gamma |m_c|",
    "pmc({scale}, 1.1)",
    family="caps",
    use="a scale is too large for some samples, and every guided mean should have a bound on its length",
    seen="ppposition/pmc @ b27a9640 (SiT)",
    defaults=(Default("SiT-XL/2 256", "gamma 1.05 to 1.10", "paper"),),
    differs=(
        "the authors' SiT code guides 4 channels while its CFG baseline guides 3",
        "it takes scale 1 where the gap vanishes, we keep the nominal scale: the former jumps at t = 1",
        "its root is the plain one in float32; comfy-cfg-megapack lists the SD3.5 gamma 1.15 for this form",
    ),
    check=(0.425466, -1.576399, 0.574534, 0.776399),
)
def pmc(scale: Scale, gamma: Scale = 1.1) -> Chain:
    """PMC-CFG (Peng & Ma 2026), the norm ball of its Section 4."""
    return CFG(scale) | Cap(gamma)


@method(
    "posterior-mean capped guidance, the displacement form",
    "Peng & Ma 2026, arXiv 2609.24287, SD3.5 appendix",
    "mean",
    "beta = min(scale - 1, (gamma - 1) |m_c| / |m_c - m_u|)",
    "pmc_displacement({scale}, 1.15)",
    family="caps",
    use="you keep to the paper's SD3.5 setting, or want to bound how far the mean may move",
    seen="ppposition/pmc @ b27a9640 (SD3.5)",
    defaults=(Default("SD3.5 Medium", "gamma 1.15, scale 3 to 9, 10 steps", "paper, SD3.5 appendix"),),
    differs=(
        "stricter than the ball at the same gamma, equal only where the gap points along m_c",
        "the authors' code casts the scale to bfloat16, whose spacing near 1 is 2^-7: the bound is "
        "then broken",
    ),
    check=(0.461509, -1.684528, 0.538491, 0.884528),
)
def pmc_displacement(scale: Scale, gamma: Scale = 1.15) -> Chain:
    """PMC-CFG as in its SD3.5 experiments: a displacement of at most gamma - 1 times the length of m_c."""
    return CFG(scale) | CapDisplacement(gamma)


@method(
    "posterior-mean capped guidance, the paper's algorithm to the letter",
    "Peng & Ma 2026, arXiv 2609.24287, appendix on the stable implementation",
    "mean",
    "as pmc, from a = |m_c - m_u|^2, b = <m_c, m_c - m_u>, q = |m_c|^2; beta = 0 where the nominal result is "
    "outside the ball and a <= tiny",
    "pmc_literal({scale}, 1.1)",
    family="caps",
    use="you compare with the paper's printed steps; use pmc otherwise",
    confidence="paper",
    seen="its appendix, the numbered steps",
    defaults=(
        Default("SiT-XL/2 256", "gamma 1.05 to 1.10", "paper"),
        Default("any", "tiny 1e-8", "not stated; the value in ppposition/pmc @ b27a9640"),
    ),
    differs=(
        "for parity only: pmc has no epsilon, measures lengths and not squares, and stays inside the bound "
        "to the last place; see the page on theory",
        "the printed steps say both what to do for b < 0 and for b + sqrt D = 0; at gamma 1 both hold, and "
        "we take the former, whose root is the larger",
    ),
    check=(0.425466, -1.576399, 0.574534, 0.776399),
)
def pmc_literal(scale: Scale, gamma: float = 1.1, *, tiny: float = 1e-8) -> Chain:
    """PMC-CFG step by step as the paper's appendix prints it, for comparison with `pmc`."""
    return CFG(scale) | LiteralCap(gamma, tiny)
