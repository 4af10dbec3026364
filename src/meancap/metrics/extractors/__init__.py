"""Networks that turn images into features, each with its own preprocessing and in its own module.

A protocol imports the module of its network when it is used, so that scoring with one loads no other.
"""

from .base import Extractor, Features, extract

__all__ = ["Extractor", "Features", "extract"]
