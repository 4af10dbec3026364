"""The laboratory: mixtures with exact posterior means, their conditions, and the theory."""

from .condition import PAIR, SCENES, SINGLE, TRIPLE, Condition, Scene
from .mixture import Mixture
from .sampler import flow

__all__ = ["PAIR", "SCENES", "SINGLE", "TRIPLE", "Condition", "Mixture", "Scene", "flow"]
