"""Whether an image shows what was asked for.

CLIP        raw cosine between the embeddings of an image and of its prompt (not times 100, not cut at 0)
alignment   probability that a classifier gives the requested class
accuracy    share of images whose most probable class is the requested one
"""

from __future__ import annotations

import torch
from torch import Tensor

from .gaussian import need_features, need_logits


def cosine(images: Tensor, texts: Tensor) -> Tensor:
    """Of each pair of embeddings, in float64."""
    need_features(images, texts)
    if len(images) != len(texts):
        raise ValueError(f"one prompt per image: got {len(images)} images and {len(texts)} prompts")
    return torch.cosine_similarity(images.double(), texts.double(), dim=1)


def class_probability(logits: Tensor, labels: Tensor) -> Tensor:
    """softmax(logits) at the requested class, per image."""
    _need_labels(logits, labels)
    return logits.double().softmax(1).gather(1, labels.long()[:, None])[:, 0]


def class_hits(logits: Tensor, labels: Tensor) -> Tensor:
    """1 where the requested class is the most probable one, else 0."""
    _need_labels(logits, labels)
    return (logits.argmax(1) == labels).double()


def _need_labels(logits: Tensor, labels: Tensor) -> None:
    need_logits(logits)
    if labels.shape != logits.shape[:1]:
        raise ValueError(f"one label per image: got {len(logits)} images and labels {tuple(labels.shape)}")
    if len(labels) and (int(labels.min()) < 0 or int(labels.max()) >= logits.shape[1]):
        raise ValueError(
            f"labels lie in 0..{logits.shape[1] - 1} here; got {int(labels.min())} to {int(labels.max())}"
        )
