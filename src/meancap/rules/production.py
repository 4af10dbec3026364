"""Recipes that production models and community nodes ship, mostly without a paper. See `catalogue`."""

from __future__ import annotations

from ..schedules import Scale
from .base import Rule
from .elementwise import Automatic, Mahiro, Skim, Tonemap
from .gain import FromUnconditional
from .renorm import EnergyMatch, Renorm
from .scale import CFG


def z_image(scale: Scale, *, rho: float = 1.0) -> Rule:
    """Z-Image: the whole guided velocity at most rho times as long as the conditional one."""
    return CFG(scale) | Renorm(rho)


def lumina2(scale: Scale) -> Rule:
    """Lumina-Image 2.0: each row along the last axis gets the length of the conditional one."""
    return CFG(scale) | Renorm(per="token", match=True)


def qwen_image(scale: Scale) -> Rule:
    """Qwen-Image: each packed token of the velocity gets the length of the conditional one."""
    return CFG(scale) | Renorm(per="token", match=True)


def longcat(scale: Scale, *, least: float = 0.0) -> Rule:
    """LongCat-Image: each packed token at most as long as the conditional one, shrunk to `least` at most."""
    return CFG(scale) | Renorm(per="token", least=least)


def bagel(scale: Scale, *, per: str = "sample", least: float = 0.0) -> Rule:
    """BAGEL: LongCat's clamp per sample ('global' there) or per token ('channel' there)."""
    return CFG(scale) | Renorm(per=per, least=least)


def cfg_norm(scale: Scale, *, strength: float = 1.0) -> Rule:
    """ComfyUI's CFGNorm: each pixel of the guided mean at most as long as that of the conditional one."""
    return CFG(scale) | Renorm(per="pixel", space="mean", strength=strength)


def ep_cfg(scale: Scale, *, low: float = 0.0, high: float = 1.0, space: str = "mean") -> Rule:
    """EP-CFG (Zhang et al. 2024): conditional energy kept; low=.45, high=.55 is the robust form."""
    return CFG(scale) | EnergyMatch(low, high, space)


def skimmed(scale: Scale, *, skim: float = 7.0, flip: bool = True, negative: bool = False) -> Rule:
    """Skimmed CFG (Extraltodeus)."""
    return Skim(scale, skim, flip, negative)


def skimmed_linear(scale: Scale, *, skim: float = 5.0, flip: bool = True) -> Rule:
    """Skimmed CFG, the linearly interpolating node."""
    return Skim(scale, skim, flip, linear=True)


def automatic(scale: Scale, *, reference: float = 8.0, top: float = 0.25) -> Rule:
    """Automatic CFG (Extraltodeus), its 'hard' mode."""
    return Automatic(scale, reference, top)


def mahiro(scale: Scale) -> Rule:
    """ComfyUI's Mahiro, averaged within a sample."""
    return Mahiro(scale)


def tonemap(scale: Scale, *, multiplier: float = 1.0) -> Rule:
    """ComfyUI's Reinhard tone map of the gap, then guidance from the unconditional mean."""
    return Tonemap(multiplier) | FromUnconditional(scale)
