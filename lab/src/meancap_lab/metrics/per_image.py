"""Numbers of single images, of their classes and of their prompts.

    CLIP        raw cosine between the embeddings of an image and of its prompt (not times 100, not cut at 0)
    alignment   probability that a classifier gives the requested class
    accuracy    share of images whose most probable class is the requested one
    IS          exp mean_i KL(p_i || p), p_i = softmax of the logits of image i, p = their mean over the split
    diversity   mean distance between the features of two images of the same class, averaged over classes
    saturation  S of 8-bit HSV over 255: floor(255 (max - min) / max), 0 at black; mean over pixels
    brightness  mean of the largest channel over 255; the measure left for grey images, whose saturation is 0
    clipped     share of channel values at 0 or 255

The Inception score has ADM's form: consecutive splits of 5,000 images in the order of the samples, one split
for anything up to 5,000, the mean over splits, and logits without the bias of the last layer. Other tools
shuffle and fix the number of splits.

Recall needs a reference set and a radius; diversity needs neither.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .extractor import need_features, need_images, need_logits
from .score import Estimate

_SPLIT = 5000


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
        raise ValueError(f"give one label per image; got {len(logits)} images, labels {tuple(labels.shape)}")
    if len(labels) and (int(labels.min()) < 0 or int(labels.max()) >= logits.shape[1]):
        raise ValueError(
            f"labels must be in 0..{logits.shape[1] - 1}; got {int(labels.min())} to {int(labels.max())}"
        )


def inception_score(logits: Tensor, split: int = _SPLIT) -> float:
    """Of (n, classes) logits, in float64; log-softmax, so a probability of 0 costs nothing and is no NaN."""
    return inception_score_estimate("IS", logits, split).value


def inception_score_estimate(name: str, logits: Tensor, split: int = _SPLIT) -> Estimate:
    """With one part per image. The mean p drops out of the derivative, since KL is least at it."""
    need_logits(logits)
    if split < 1:
        raise ValueError(f"split must be at least 1 image; got {split}")
    scores, moved, blocks = [], [], torch.split(logits, split)
    for block in blocks:
        divergence = _divergence_from_mean(block)
        score = divergence.mean().exp()
        scores.append(score)
        # Splits count equally however few images the last one has, so its images count for more.
        weight = len(logits) / (len(blocks) * len(block))
        moved.append(weight * score * (divergence - divergence.mean()))
    value = torch.stack(scores).mean()
    return Estimate(name, value.item(), len(logits), value + torch.cat(moved))


def _divergence_from_mean(logits: Tensor) -> Tensor:
    """KL(p_i || p) of each row, p the mean of all rows."""
    log_p = logits.double().log_softmax(1)
    log_mean = log_p.logsumexp(0) - torch.tensor(len(log_p), dtype=torch.float64).log()
    p = log_p.exp()
    # 0 (log 0 - log p) is 0, but -inf times 0 is not.
    return torch.where(p == 0, 0.0, p * (log_p - log_mean)).sum(1)


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


def saturation(images: Tensor) -> Tensor:
    """Mean saturation of each image of a (batch, height, width, 3) uint8 tensor; Pillow's HSV to the last
    bit.
    """
    need_images(images)
    high, low = images.amax(-1).int(), images.amin(-1).int()
    # In float32, as Pillow divides: 255 * ((max - min) / max), cut off; exact integers would differ at some
    # pairs.
    quotient = (high - low).float() / high.clamp(min=1).float()
    s = (quotient.double() * 255.0).int().clamp(0, 255)
    return s.double().mean((1, 2)) / 255


def brightness(images: Tensor) -> Tensor:
    """Mean of the largest channel of each image, 0 to 1."""
    need_images(images)
    return images.amax(-1).double().mean((1, 2)) / 255


def clipped(images: Tensor) -> Tensor:
    """Share of channel values at either end of the range, per image."""
    need_images(images)
    return ((images == 0) | (images == 255)).double().mean((1, 2, 3))
