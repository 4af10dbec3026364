"""What a rule is, what a displacement is, and how a rule guides."""

from .base import Chain, Factor, Map, Recorder, Rule, State
from .guide import Stepper, displace, guide, guided_velocity, respond
from .ray import Limit, Ray

__all__ = [
    "Chain",
    "Factor",
    "Limit",
    "Map",
    "Ray",
    "Recorder",
    "Rule",
    "State",
    "Stepper",
    "displace",
    "guide",
    "guided_velocity",
    "respond",
]
