"""Measures of the scenes: what a picture shows, how well it is drawn, and what it left open."""

from .detector import Readings, SceneDetector, all_right, detect, detector
from .form import Forms, forms

__all__ = ["Forms", "Readings", "SceneDetector", "all_right", "detect", "detector", "forms"]
