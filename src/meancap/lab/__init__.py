"""Where everything is known exactly: mixtures, their conditions, and the theory of guidance on them."""

from .condition import Condition
from .mixture import Mixture

__all__ = ["Condition", "Mixture"]
