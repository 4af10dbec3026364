"""The SiT family and networks of small pictures, released and shipped, ready to be guided.

model = fashion()
sample(model.predict(labels), CFG(4) | Cap(1.1), noise(seeds, model.shape), uniform(50))
"""

from .checkpoint import load_sit, save_sit
from .classes import ClassModel, cifar, fashion, open_sit
from .sit import SiT, SiTConfig, named

__all__ = [
    "ClassModel",
    "SiT",
    "SiTConfig",
    "cifar",
    "fashion",
    "load_sit",
    "named",
    "open_sit",
    "save_sit",
]
