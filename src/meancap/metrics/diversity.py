"""How far apart the images of one condition are, for comparing runs that share seeds.

    diversity   mean distance between the features of two images of the same class, averaged over classes

Recall needs a reference set and a radius; this needs neither. Two runs with the same seeds and classes are
compared pair by pair, so their ratio (what a rule kept of the unguided run's variety) has a small error.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .gaussian import need_features
from .score import Estimate, ratio


def diversity(features: Tensor, labels: Tensor) -> float:
    """Mean distance of two different images with the same label; classes count equally."""
    return diversity_estimate("diversity", features, labels).value


def diversity_estimate(name: str, features: Tensor, labels: Tensor) -> Estimate:
    """With one part per image: twice its mean distance to its class mates, less the mean."""
    need_features(features)
    if labels.shape != features.shape[:1]:
        raise ValueError(f"one label per image: got {len(features)} images, labels {tuple(labels.shape)}")
    classes = sorted(set(labels.tolist()))
    means, moved = [], torch.zeros(len(features), dtype=torch.float64, device=features.device)
    for label in classes:
        rows = (labels == label).nonzero().flatten()
        if len(rows) < 2:
            raise ValueError(f"diversity needs two images of each class; class {label} has one")
        x = features[rows].double()
        # From differences, not products: equal images must be at distance 0 exactly.
        apart = torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist").sum(1) / (len(rows) - 1)
        means.append(apart.mean())
        # A class counts once however many images it has, so its images count n / (classes * images) each.
        weight = len(features) / (len(classes) * len(rows))
        moved[rows] = 2 * weight * (apart - apart.mean())
    value = torch.stack(means).mean().item()
    return Estimate(name, value, len(features), value + moved)


def diversity_kept(generated: Tensor, baseline: Tensor, labels: Tensor) -> Estimate:
    """Diversity over that of a baseline run with the same seeds and labels."""
    a = diversity_estimate("diversity", generated, labels)
    return ratio(a, diversity_estimate("diversity", baseline, labels), "diversity kept")
