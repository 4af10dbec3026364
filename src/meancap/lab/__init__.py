"""A laboratory where all is known exactly: mixtures, their conditions, and the theory of guidance on them."""

from .condition import Condition
from .mixture import Mixture
from .sampler import flow
from .scenes import PAIR, SCENES, SINGLE, TRIPLE, Scene

__all__ = ["PAIR", "SCENES", "SINGLE", "TRIPLE", "Condition", "Mixture", "Scene", "flow"]
