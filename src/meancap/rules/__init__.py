"""Guidance rules: parts that chain with `|`, recipes made of them, and their notation."""

from .base import Chain, Factor, Map, Ray, Rule, displace, guide, guided_velocity
from .cap import Cap, CapDisplacement, cap_fraction, largest_fraction
from .recipes import apg, pmc
from .scale import CFG, Clip, Interval
from .shape import Momentum, Project, Rescale
from .text import ParseError, parse
from .values import Values

__all__ = [
    "CFG",
    "Cap",
    "CapDisplacement",
    "Chain",
    "Clip",
    "Factor",
    "Interval",
    "Map",
    "Momentum",
    "ParseError",
    "Project",
    "Ray",
    "Rescale",
    "Rule",
    "Values",
    "apg",
    "cap_fraction",
    "displace",
    "guide",
    "guided_velocity",
    "largest_fraction",
    "parse",
    "pmc",
]
