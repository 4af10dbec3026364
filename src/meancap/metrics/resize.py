"""Three ways of bringing an image to the size of a network; each makes another FID.

    tf1_bilinear    what ADM's TensorFlow graph does: corners at pixel origins, no antialiasing
    clean_bicubic   what Clean-FID does: Pillow's antialiased bicubic on floats, per channel, no rounding
    direct_8bit     what the paper's SD3.5 protocol does: Pillow's resize of the 8-bit image, result 8-bit

All take (batch, height, width, 3) uint8 and give (batch, 3, size, size) float32 with values 0..255.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..extras import need
from .colour import need_images


def tf1_bilinear(images: Tensor, size: int) -> Tensor:
    """Output pixel i samples the input at i * (in / out), between its floor and the next pixel."""
    need_images(images)
    x = images.permute(0, 3, 1, 2).float()
    return _lerp_axis(_lerp_axis(x, 2, size), 3, size)


def _lerp_axis(x: Tensor, axis: int, size: int) -> Tensor:
    length = x.shape[axis]
    # The graph computes positions in float32; so does this.
    place = torch.arange(size, dtype=torch.float32) * torch.tensor(length / size, dtype=torch.float32)
    low = place.floor().long().clamp(max=length - 1)
    high = (low + 1).clamp(max=length - 1)
    weight = (place - low).reshape([-1 if i == axis else 1 for i in range(x.dim())])
    first = x.index_select(axis, low)
    return first + (x.index_select(axis, high) - first) * weight


def clean_bicubic(images: Tensor, size: int) -> Tensor:
    """Pillow's bicubic in mode F, cut to 0..255, not rounded."""
    need_images(images)
    numpy, image = need("numpy", "images"), need("PIL.Image", "images")
    out = torch.empty(len(images), images.shape[3], size, size)
    for i, pixels in enumerate(images.numpy()):
        for c in range(pixels.shape[2]):
            plane = image.fromarray(pixels[:, :, c].astype(numpy.float32))
            plane = plane.resize((size, size), image.Resampling.BICUBIC)
            out[i, c] = torch.from_numpy(numpy.array(plane, dtype=numpy.float32))
    return out.clamp_(0, 255)


def direct_8bit(images: Tensor, size: int, *, bicubic: bool = False) -> Tensor:
    """Pillow's bilinear (or bicubic) resize of the 8-bit image, without keeping the aspect ratio."""
    need_images(images)
    if images.shape[1:3] == (size, size):
        return images.permute(0, 3, 1, 2).float()
    numpy, image = need("numpy", "images"), need("PIL.Image", "images")
    method = image.Resampling.BICUBIC if bicubic else image.Resampling.BILINEAR
    out = torch.empty(len(images), images.shape[3], size, size)
    for i, pixels in enumerate(images.numpy()):
        grey = pixels.shape[2] == 1
        shown = image.fromarray(pixels[:, :, 0] if grey else pixels).resize((size, size), method)
        array = numpy.array(shown)
        out[i] = torch.from_numpy(array[None] if grey else array.transpose(2, 0, 1).copy())
    return out


def three_channels(images: Tensor) -> Tensor:
    """Grey images repeated over three channels; colour ones as they are."""
    need_images(images)
    return images if images.shape[-1] == 3 else images.expand(-1, -1, -1, 3)
