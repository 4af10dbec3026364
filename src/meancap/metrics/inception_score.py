"""The Inception score: how sure a classifier is of each image, and how evenly the classes come.

    IS = exp mean_i KL(p_i || p)      p_i = softmax of the logits of image i, p = their mean over the split

ADM's form: consecutive splits of 5,000 images in the order of the samples, one split for anything up to
5,000, the mean over splits, and logits without the bias of the last layer. Other tools shuffle and fix the
number of splits.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .gaussian import need_logits
from .score import Estimate

SPLIT = 5000


def inception_score(logits: Tensor, split: int = SPLIT) -> float:
    """Of (n, classes) logits, in float64; log-softmax, so a probability of 0 costs nothing and is no NaN."""
    return inception_score_estimate("IS", logits, split).value


def inception_score_estimate(name: str, logits: Tensor, split: int = SPLIT) -> Estimate:
    """With one part per image. The mean p drops out of the derivative, since KL is least at it."""
    need_logits(logits)
    if split < 1:
        raise ValueError(f"a split holds one image or more; got {split}")
    scores, moved, blocks = [], [], torch.split(logits, split)
    for block in blocks:
        divergence = divergence_from_mean(block)
        score = divergence.mean().exp()
        scores.append(score)
        # Splits count equally however few images the last one has, so its images count for more.
        weight = len(logits) / (len(blocks) * len(block))
        moved.append(weight * score * (divergence - divergence.mean()))
    value = torch.stack(scores).mean()
    return Estimate(name, value.item(), len(logits), value + torch.cat(moved))


def divergence_from_mean(logits: Tensor) -> Tensor:
    """KL(p_i || p) of each row, p the mean of all rows."""
    log_p = logits.double().log_softmax(1)
    log_mean = log_p.logsumexp(0) - torch.tensor(len(log_p), dtype=torch.float64).log()
    p = log_p.exp()
    # 0 (log 0 - log p) is 0, but -inf times 0 is not.
    return torch.where(p == 0, 0.0, p * (log_p - log_mean)).sum(1)
