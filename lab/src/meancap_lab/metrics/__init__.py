"""Features to numbers, each with its protocol.

    frechet_distance(a, b)                features or Gaussians
    precision_recall(real, generated)     k = 3, closed balls
    Score(name, value, interval, n, protocol)

Each stage can be called by itself: an extractor gives features, `gaussian` gives statistics, a function
gives the number, and the same function ending in `_estimate` gives it with what each image contributed.
"""

from .distances import Gaussian, frechet_distance, frechet_estimate, gaussian, kernel_estimate
from .extractor import MissingWeights, extract
from .manifold import manifold_estimates, precision_recall, recall_at
from .per_image import (
    brightness,
    class_hits,
    class_probability,
    clipped,
    cosine,
    diversity,
    inception_score,
    inception_score_estimate,
    saturation,
)
from .protocols import PROTOCOLS, direction, protocol
from .score import Estimate, Score, bootstrap, difference, mean_estimate

__all__ = [
    "PROTOCOLS",
    "Estimate",
    "Gaussian",
    "MissingWeights",
    "Score",
    "bootstrap",
    "brightness",
    "class_hits",
    "class_probability",
    "clipped",
    "cosine",
    "difference",
    "direction",
    "diversity",
    "extract",
    "frechet_distance",
    "frechet_estimate",
    "gaussian",
    "inception_score",
    "inception_score_estimate",
    "kernel_estimate",
    "manifold_estimates",
    "mean_estimate",
    "precision_recall",
    "protocol",
    "recall_at",
    "saturation",
]
