"""From scenes to pictures: each object covers the share of a pixel that its signed distance tells.

    d         signed distance from the pixel's centre to the outline, in pixels, negative inside
    coverage  clamp(1/2 - d, 0, 1): an outline one pixel wide, without jagged edges
    picture   background (1 - coverage_1 - coverage_2) + colour_1 coverage_1 + colour_2 coverage_2

The shapes of radius r: a disc of radius r; a square of half side 0.9 r; a triangle with its apex r above the
centre and a base of 2 r, r below it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .law import Scenes

SIZE = 32
SQUARE = 0.9
_SLOPE = 1 / math.sqrt(5)  # the sides of the triangle rise 2 for 1 across


def render(scenes: Scenes, size: int = SIZE) -> Tensor:
    """(n, 3, size, size) in [0, 1]."""
    cover = masks(scenes, size)
    ground = scenes.background[:, None, None, None] * (1 - cover.sum(1, keepdim=True))
    return ground + torch.einsum(
        "nkc,nkhw->nchw", hsv_to_rgb(scenes.hue, scenes.saturation, scenes.value), cover
    )


def masks(scenes: Scenes, size: int = SIZE) -> Tensor:
    """(n, 2, size, size): the share of each pixel that each object covers."""
    return coverage(scenes.shape, scenes.radius, scenes.centre[..., 0], scenes.centre[..., 1], size)


def coverage(shape: Tensor, radius: Tensor, x: Tensor, y: Tensor, size: int = SIZE) -> Tensor:
    """Coverage of one object per entry, whatever the entries' shape; two axes of pixels are added."""
    pixel = torch.arange(size, dtype=radius.dtype) + 0.5
    shape, r = shape[..., None, None], radius[..., None, None]
    dx = (pixel[None, :] - x[..., None, None]).abs()
    dy = pixel[:, None] - y[..., None, None]
    disc = (dx.square() + dy.square()).sqrt() - r
    square = torch.maximum(dx, dy.abs()) - SQUARE * r
    triangle = torch.maximum((2 * dx - dy - r) * _SLOPE, dy - r)
    return (0.5 - torch.where(shape == 0, disc, torch.where(shape == 1, square, triangle))).clamp(0, 1)


def hsv_to_rgb(hue: Tensor, saturation: Tensor, value: Tensor) -> Tensor:
    """Colours in [0, 1] with the channels last."""
    sector = hue[..., None] / 60 + torch.tensor([5.0, 3.0, 1.0])
    k = sector % 6
    ramp = torch.minimum(k, 4 - k).clamp(0, 1)
    return value[..., None] * (1 - saturation[..., None] * ramp)
