"""Published methods as chains of parts."""

from __future__ import annotations

import math

from ..schedules import Scale
from .base import Chain, Rule
from .cap import Cap
from .scale import CFG, Clip
from .shape import Momentum, Project


def pmc(scale: Scale, gamma: Scale = 1.1) -> Chain:
    """PMC-CFG (Peng & Ma 2026), the norm ball of its Section 4."""
    return CFG(scale) | Cap(gamma)


def apg(
    scale: Scale, *, eta: float = 0.0, radius: float | None = 15.0, momentum: float | None = -0.5
) -> Rule:
    """Adaptive projected guidance (Sadat et al. 2024) in its published form: on posterior means, from m_c,
    with factor scale - 1. The defaults are the paper's for SDXL; `None` switches a part off.
    """
    chain: Rule = Project(eta) | CFG(scale)
    if radius is not None and not math.isinf(radius):
        chain = Clip(radius) | chain
    return chain if not momentum else Momentum(momentum) | chain
