"""Guidance that grows with time, as a part, and a recipe made of it."""

from __future__ import annotations

from dataclasses import dataclass

from meancap import CFG, Cap, Prediction, Rule
from meancap.rules import Displacement, Factor


@dataclass(frozen=True)
class Late(Factor):
    """Lets guidance grow with time: g <- t^power g."""

    power: float = 1.0

    def factor(self, g: Displacement, p: Prediction) -> object:
        return p.t**self.power


def late_cap(scale: float, gamma: float = 1.1) -> Rule:
    """CFG that grows with time, under the posterior-mean cap."""
    return CFG(scale) | Late() | Cap(gamma)
