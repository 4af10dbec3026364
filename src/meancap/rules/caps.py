"""The posterior-mean cap in its two published forms, and as the paper's appendix prints it."""

from __future__ import annotations

from ..schedules import Scale
from .catalogue import method
from .parts.cap import Cap, CapDisplacement
from .parts.literal import LiteralCap
from .parts.scale import CFG
from .rule import Chain


@method(call="pmc({scale}, 1.1)", check=(0.425466, -1.576399, 0.574534, 0.776399))
def pmc(scale: Scale, gamma: Scale = 1.1) -> Chain:
    """Posterior-mean capped guidance, the norm ball. PMC-CFG, Section 4 of the paper.

    formula: the largest beta <= scale - 1 with |m_c + beta (m_c - m_u)| <= gamma |m_c|
    space: mean
    source: Peng & Ma 2026, arXiv 2609.24287, Section 4
    evidence: ppposition/pmc @ b27a9640 (SiT)
    use when: a scale is too large for some samples, and every guided mean should have a bound on its length
    state: none
    defaults:
        - SiT-XL/2 256: gamma 1.05 to 1.10 (paper)
    notes:
        - the authors' SiT code guides 4 channels while its CFG baseline guides 3
        - it takes scale 1 where the gap vanishes, we keep the nominal scale: the former jumps at t = 1
        - its root is the plain one in float32; comfy-cfg-megapack lists the SD3.5 gamma 1.15 for this form
    """
    return CFG(scale) | Cap(gamma)


@method(call="pmc_displacement({scale}, 1.15)", check=(0.461509, -1.684528, 0.538491, 0.884528))
def pmc_displacement(scale: Scale, gamma: Scale = 1.15) -> Chain:
    """Posterior-mean capped guidance, the displacement form. PMC-CFG as in the paper's SD3.5 experiments.

    formula: beta = min(scale - 1, (gamma - 1) |m_c| / |m_c - m_u|)
    space: mean
    source: Peng & Ma 2026, arXiv 2609.24287, SD3.5 appendix
    evidence: ppposition/pmc @ b27a9640 (SD3.5)
    use when: you keep to the paper's SD3.5 setting, or want to bound how far the mean may move
    state: none
    defaults:
        - SD3.5 Medium: gamma 1.15, scale 3 to 9, 10 steps (paper, SD3.5 appendix)
    notes:
        - stricter than the ball at the same gamma, equal only where the gap points along m_c
        - the authors' code casts the scale to bfloat16, whose spacing near 1 is 2^-7: the bound is then
          broken
    """
    return CFG(scale) | CapDisplacement(gamma)


@method(call="pmc_literal({scale}, 1.1)", confidence="paper", check=(0.425466, -1.576399, 0.574534, 0.776399))
def pmc_literal(scale: Scale, gamma: float = 1.1, *, tiny: float = 1e-8) -> Chain:
    """Posterior-mean capped guidance, the paper's algorithm to the letter. Every step as the paper's appendix
    prints it, for comparison with `pmc`.

    formula: as pmc, from a = |m_c - m_u|^2, b = <m_c, m_c - m_u>, q = |m_c|^2; beta = 0 where the nominal
        result is outside the ball and a <= tiny
    space: mean
    source: Peng & Ma 2026, arXiv 2609.24287, appendix on the stable implementation
    evidence: its appendix, the numbered steps
    use when: you compare with the paper's printed steps; use pmc otherwise
    state: none
    defaults:
        - SiT-XL/2 256: gamma 1.05 to 1.10 (paper)
        - any: tiny 1e-8 (not stated; the value in ppposition/pmc @ b27a9640)
    notes:
        - for parity only: pmc has no epsilon, measures lengths and not squares, and stays inside the bound to
          the last place; see the page on theory
        - the printed steps say both what to do for b < 0 and for b + sqrt D = 0; at gamma 1 both hold, and we
          take the former, whose root is the larger
    """
    return CFG(scale) | LiteralCap(gamma, tiny)
