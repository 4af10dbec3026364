"""A laboratory where all is known exactly: mixtures, their conditions, and the theory of guidance on them."""

from .condition import PAIR, SCENES, SINGLE, TRIPLE, Condition, Scene
from .mixture import Mixture
from .sampler import flow

__all__ = ["PAIR", "SCENES", "SINGLE", "TRIPLE", "Condition", "Mixture", "Scene", "flow"]
