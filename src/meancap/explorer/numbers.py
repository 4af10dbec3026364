"""The numbers under the pictures, by the same functions as the paper's table (`gmm`), and packed points.

occupancy, tv, mean_error, ratios   `lab.branches`; occupancy with its binomial standard error
kl                                  `lab.volume`: KL(q | p) of what the sampler makes, +- one error
points                              int16 in units of the box, base64; -32768 marks what lies outside it
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..lab.branches import branches
from ..lab.condition import Condition
from ..lab.volume import displaced, kl_terms, log_volumes

LOST = 1e4  # a sample beyond it has run away
OUTSIDE, FULL = -32768, 32000


def numbers(condition: Condition, x: Tensor) -> dict[str, Any]:
    """What `branches` says of samples (n, 2), one entry per member where it has one."""
    shape, n = branches(condition, x), len(x)
    share = shape.occupancy
    return {
        "n": n,
        "occupancy": share.tolist(),
        "occupancy_error": (share * (1 - share) / n).sqrt().tolist(),
        "tv": shape.tv,
        "mean_error": shape.mean_error,
        "variance_ratio": shape.variance_ratio.tolist(),
        "radial_ratio": shape.radial_ratio.tolist(),
        "tangential_ratio": shape.tangential_ratio.tolist(),
    }


def divergence(condition: Condition, start: Tensor, run: Callable[[Tensor], Tensor]) -> dict[str, float]:
    """KL from the sampled law to the truth and its standard error, from these starts (n, 2)."""
    first = start.double()
    end = run(torch.cat([first, displaced(first)]))
    terms = kl_terms(first, end[: len(first)], log_volumes(end[len(first) :]), condition.conditional)
    return {"kl": float(terms.mean()), "kl_error": float(terms.std() / math.sqrt(len(terms)))}


def lost(x: Tensor) -> float:
    """The share of samples that ran away."""
    return float((~(x.abs() < LOST).all(1)).double().mean())


def packed(points: Tensor, box: tuple[float, float, float]) -> str:
    """Points (..., 2) in a square: its middle is (0, 0) and its sides are at +-FULL."""
    cx, cy, half = box
    scaled = (points.double() - torch.tensor([cx, cy], dtype=torch.float64)) / half * FULL
    known = (scaled.abs() <= 32767).all(-1, keepdim=True)  # false for nan too
    return _base64(torch.where(known, scaled, float(OUTSIDE)).round().to(torch.int16))


def shades(values: Tensor) -> str:
    """Numbers in [0, 1] as bytes."""
    return _base64((values.clamp(0, 1) * 255).round().to(torch.uint8))


def _base64(whole: Tensor) -> str:
    return base64.b64encode(whole.contiguous().numpy().tobytes()).decode("ascii")
