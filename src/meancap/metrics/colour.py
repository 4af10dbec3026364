"""What guidance does to pixels: saturation as the paper has it, brightness, and clipping.

saturation   S of 8-bit HSV over 255: floor(255 (max - min) / max), 0 at black; mean over pixels, then images
brightness   mean of the largest channel over 255; the measure left for grey images, whose saturation is 0
clipped      share of channel values at 0 or 255
"""

from __future__ import annotations

import torch
from torch import Tensor


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


def need_images(images: Tensor) -> None:
    """Images are (batch, height, width, channels) bytes: anything else is refused rather than guessed."""
    if images.dtype != torch.uint8 or images.dim() != 4 or images.shape[-1] not in (1, 3):
        raise ValueError(
            "images are uint8 of shape (batch, height, width, 1 or 3), as the ADM evaluator reads them; got "
            f"{images.dtype} {tuple(images.shape)}"
        )
