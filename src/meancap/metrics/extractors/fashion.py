"""A small classifier of Fashion-MNIST garments, trained by us: the network of the `fashion` protocol.

    logits   ten classes, in the data set's order
    pool     the 64 numbers below the logits, averaged over the 7 x 7 positions
    spatial  the first 4 of 96 channels one convolution earlier, 7 x 7 x 4, in (row, column, channel) order

Six 3 x 3 convolutions with rectifiers and one linear layer; the batch norms of its training are folded into
the weights. Inputs are 28 x 28 grey images with values 0..255, garment bright on black.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..colour import brightness, clipped, need_images
from ..locate import fingerprint
from .base import Extractor, Features, filled, load_state

WEIGHTS = Path(__file__).parent.parent / "weights"

CLASSES = 10
SIZE = 28
SPATIAL_CHANNELS = 4
# (channels in, channels out, stride); the two strides take 28 to 14 and to 7.
LAYERS = ((1, 32, 1), (32, 48, 2), (48, 48, 1), (48, 96, 2), (96, 96, 1), (96, 64, 1))
MEAN, SPREAD = 72.94, 90.02  # of all pixels of the 60,000 training images


class FashionClassifier(nn.Module):
    """The network alone; `fashion_classifier` feeds it images."""

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(
            nn.Conv2d(c_in, c_out, 3, stride, padding=1) for c_in, c_out, stride in LAYERS
        )
        self.head = nn.Linear(LAYERS[-1][1], CLASSES)

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        """Features of (batch, 1, 28, 28) images with values 0..255."""
        x = (images - MEAN) / SPREAD
        spatial = x
        for convolution in self.convolutions:
            spatial, x = x, F.relu(convolution(x))
        pool = x.mean((2, 3))
        spatial = spatial[:, :SPATIAL_CHANNELS].permute(0, 2, 3, 1).flatten(1)
        return {"pool": pool, "spatial": spatial, "logits": self.head(pool)}


def fashion_classifier(weights: str | Path | None = None) -> Extractor:
    """The shipped classifier, or another one of the same shape; colour images are read by their mean
    channel.
    """
    path = Path(weights) if weights is not None else WEIGHTS / "fashion_classifier.safetensors"
    network = filled(FashionClassifier(), load_state(path), path, "a Fashion-MNIST classifier of this shape")

    def run(images: Tensor, prompts: Sequence[str]) -> Features:
        need_images(images)
        if images.shape[1:3] != (SIZE, SIZE):
            size = "x".join(map(str, images.shape[1:3]))
            raise ValueError(f"the fashion protocol reads {SIZE}x{SIZE} images of garments; got {size}")
        features: Features = network(images.float().mean(3)[:, None])
        light = {"brightness": brightness(images)[:, None], "clipped": clipped(images)[:, None]}
        return {**features, **light}

    return Extractor(f"Fashion-MNIST classifier (sha256 {fingerprint(path)}), {SIZE} px", run, batch=500)


def fold(convolution: nn.Conv2d, norm: nn.BatchNorm2d) -> nn.Conv2d:
    """One convolution equal to the convolution followed by its batch norm in evaluation mode."""
    assert norm.running_var is not None and norm.running_mean is not None
    factor = norm.weight / torch.sqrt(norm.running_var + norm.eps)
    folded = nn.Conv2d(
        convolution.in_channels, convolution.out_channels, 3, stride=convolution.stride[0], padding=1
    )
    with torch.no_grad():
        folded.weight.copy_(convolution.weight * factor[:, None, None, None])
        folded.bias.copy_(norm.bias - norm.running_mean * factor)  # type: ignore[union-attr]
    return folded
