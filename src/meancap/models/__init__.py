"""The SiT family, released and shipped, ready to be guided.

model = fashion()
sample(model.predict(labels), CFG(4) | Cap(1.1), noise(seeds, model.shape), uniform(50))
"""

import importlib
import warnings
from typing import Any

from .checkpoint import load_sit, save_sit
from .classes import ClassModel, fashion, open_sit
from .sit import SiT, SiTConfig, named

__all__ = [
    "ClassModel",
    "SiT",
    "SiTConfig",
    "fashion",
    "load_sit",
    "named",
    "open_sit",
    "save_sit",
]


def __getattr__(name: str) -> Any:
    if name not in ("SceneModel", "scenes"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn(f"meancap.models.{name} is now meancap.scenes.{name}", DeprecationWarning, stacklevel=2)
    return getattr(importlib.import_module("meancap.scenes"), name)
