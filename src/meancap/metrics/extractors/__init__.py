"""Networks that turn images into features, each with the preprocessing it belongs to."""

from .base import Extractor, Features, extract
from .clip import clip_b32
from .efficientnet import efficientnet_lite0
from .fashion import fashion_classifier
from .imagereward import image_reward
from .inception import inception

__all__ = [
    "Extractor",
    "Features",
    "clip_b32",
    "efficientnet_lite0",
    "extract",
    "fashion_classifier",
    "image_reward",
    "inception",
]
