"""SD.Next: adds our guiders to the dictionary from which it makes guiders.

A script in SD.Next's `extensions/<folder>/scripts` needs two lines:

    from modules import modular_guiders
    register(modular_guiders.guiders)
"""

from __future__ import annotations

from typing import Any


def register(guiders: dict[str, dict[str, Any]], *, gamma: float = 1.1) -> list[str]:
    """Adds the cap in both its forms to SD.Next's guiders; gives the names under which they are offered."""
    from .diffusers import PosteriorMeanCappedGuidance

    added = {
        "PMC: PosteriorMeanCap": {"gamma": gamma, "form": "ball"},
        "PMC: PosteriorMeanCap displacement": {"gamma": gamma, "form": "displacement"},
    }
    for name, arguments in added.items():
        guiders[name] = {"cls": PosteriorMeanCappedGuidance, "args": arguments}
    return list(added)
