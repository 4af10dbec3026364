"""Measures of the scenes: what a picture shows, how well it is drawn, and what it left open."""

from .detector import Readings, SceneDetector, detect, detector
from .form import Forms, forms
from .measure import Measured, measure_pictures, summary, violated

__all__ = [
    "Forms",
    "Measured",
    "Readings",
    "SceneDetector",
    "detect",
    "detector",
    "forms",
    "measure_pictures",
    "summary",
    "violated",
]
