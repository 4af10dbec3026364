"""The Inception network of 2015-12-05 that FID means, with the same 566 tensors as its usual file.

Our own module because the packages that carry it import torchvision and do not give the features of sFID. It
differs from the network of the papers as the TensorFlow graph does: average pools leave the padding out of
the mean, the last block pools by maximum, and there are 1008 classes.

    pool      2048 numbers below the last layer, averaged over 8 x 8
    spatial   the first 7 channels after the 1 x 1 branch of Mixed_6d, 17 x 17 x 7 in that order: 2023 numbers
    logits    pool times the last weight matrix, without its bias
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

SPATIAL_CHANNELS = 7
Kernel = int | tuple[int, int]


class Layer(NamedTuple):
    """A convolution of a branch: its key in the file, channels out, kernel; stride 2 goes without padding."""

    key: str
    channels: int
    kernel: Kernel
    stride: int = 1


Branch = tuple[Layer | tuple[Layer, Layer], ...]  # a pair of layers at the end: both see the same input

_ROW, _COLUMN = (1, 7), (7, 1)


def block_a(pool: int) -> dict[str, Branch]:
    """Branches of the 35 x 35 blocks."""
    return {
        "": (Layer("branch1x1", 64, 1),),
        "5": (Layer("branch5x5_1", 48, 1), Layer("branch5x5_2", 64, 5)),
        "3": (
            Layer("branch3x3dbl_1", 64, 1),
            Layer("branch3x3dbl_2", 96, 3),
            Layer("branch3x3dbl_3", 96, 3),
        ),
        "average": (Layer("branch_pool", pool, 1),),
    }


def block_b() -> dict[str, Branch]:
    """Branches of the step from 35 x 35 to 17 x 17."""
    return {
        "": (Layer("branch3x3", 384, 3, 2),),
        "3": (
            Layer("branch3x3dbl_1", 64, 1),
            Layer("branch3x3dbl_2", 96, 3),
            Layer("branch3x3dbl_3", 96, 3, 2),
        ),
        "shrink": (),
    }


def block_c(c: int) -> dict[str, Branch]:
    """Branches of the 17 x 17 blocks, whose inner width is c."""
    return {
        "": (Layer("branch1x1", 192, 1),),
        "7": (Layer("branch7x7_1", c, 1), Layer("branch7x7_2", c, _ROW), Layer("branch7x7_3", 192, _COLUMN)),
        "77": (
            Layer("branch7x7dbl_1", c, 1),
            Layer("branch7x7dbl_2", c, _COLUMN),
            Layer("branch7x7dbl_3", c, _ROW),
            Layer("branch7x7dbl_4", c, _COLUMN),
            Layer("branch7x7dbl_5", 192, _ROW),
        ),
        "average": (Layer("branch_pool", 192, 1),),
    }


def block_d() -> dict[str, Branch]:
    """Branches of the step from 17 x 17 to 8 x 8."""
    return {
        "": (Layer("branch3x3_1", 192, 1), Layer("branch3x3_2", 320, 3, 2)),
        "7": (
            Layer("branch7x7x3_1", 192, 1),
            Layer("branch7x7x3_2", 192, _ROW),
            Layer("branch7x7x3_3", 192, _COLUMN),
            Layer("branch7x7x3_4", 192, 3, 2),
        ),
        "shrink": (),
    }


def block_e(pool: str) -> dict[str, Branch]:
    """Branches of the 8 x 8 blocks, with their kind of pooling."""
    return {
        "": (Layer("branch1x1", 320, 1),),
        "3": (
            Layer("branch3x3_1", 384, 1),
            (Layer("branch3x3_2a", 384, (1, 3)), Layer("branch3x3_2b", 384, (3, 1))),
        ),
        "33": (
            Layer("branch3x3dbl_1", 448, 1),
            Layer("branch3x3dbl_2", 384, 3),
            (Layer("branch3x3dbl_3a", 384, (1, 3)), Layer("branch3x3dbl_3b", 384, (3, 1))),
        ),
        pool: (Layer("branch_pool", 192, 1),),
    }


class Convolution(nn.Module):
    """Convolution, batch norm, rectifier."""

    def __init__(self, c_in: int, layer: Layer, *, pad: bool = True) -> None:
        super().__init__()
        high, wide = (layer.kernel, layer.kernel) if isinstance(layer.kernel, int) else layer.kernel
        padding = (high // 2, wide // 2) if pad and layer.stride == 1 else (0, 0)
        self.conv = nn.Conv2d(c_in, layer.channels, (high, wide), layer.stride, padding, bias=False)
        self.bn = nn.BatchNorm2d(layer.channels, eps=0.001)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.bn(self.conv(x)))


class Mixed(nn.Module):
    """Branches side by side, joined along the channels in the order they are listed."""

    def __init__(self, c_in: int, branches: dict[str, Branch]) -> None:
        super().__init__()
        self.branches = branches
        self.channels = 0
        for branch in branches.values():
            c = c_in
            for step in branch:
                for layer in _side_by_side(step):
                    self.add_module(layer.key, Convolution(c, layer))
                c = sum(layer.channels for layer in _side_by_side(step))
            self.channels += c

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self._branch(kind, branch, x) for kind, branch in self.branches.items()], 1)

    def _branch(self, kind: str, branch: Branch, x: Tensor) -> Tensor:
        if kind == "average":
            x = F.avg_pool2d(x, 3, stride=1, padding=1, count_include_pad=False)
        elif kind == "largest":
            x = F.max_pool2d(x, 3, stride=1, padding=1)
        elif kind == "shrink":
            x = F.max_pool2d(x, 3, stride=2)
        for step in branch:
            x = torch.cat([self.get_submodule(layer.key)(x) for layer in _side_by_side(step)], 1)
        return x


def _side_by_side(step: Layer | tuple[Layer, Layer]) -> tuple[Layer, ...]:
    return (step,) if isinstance(step, Layer) else step


class Inception(nn.Module):
    """Takes (batch, 3, 299, 299) with values -1..1."""

    def __init__(self) -> None:
        super().__init__()
        self.Conv2d_1a_3x3 = Convolution(3, Layer("", 32, 3, 2))
        self.Conv2d_2a_3x3 = Convolution(32, Layer("", 32, 3), pad=False)
        self.Conv2d_2b_3x3 = Convolution(32, Layer("", 64, 3))
        self.Conv2d_3b_1x1 = Convolution(64, Layer("", 80, 1))
        self.Conv2d_4a_3x3 = Convolution(80, Layer("", 192, 3), pad=False)
        blocks = {
            "Mixed_5b": block_a(32),
            "Mixed_5c": block_a(64),
            "Mixed_5d": block_a(64),
            "Mixed_6a": block_b(),
            "Mixed_6b": block_c(128),
            "Mixed_6c": block_c(160),
            "Mixed_6d": block_c(160),
            "Mixed_6e": block_c(192),
            "Mixed_7a": block_d(),
            "Mixed_7b": block_e("average"),
            "Mixed_7c": block_e("largest"),
        }
        channels, self.mixed = 192, tuple(blocks)
        for name, branches in blocks.items():
            block = Mixed(channels, branches)
            self.add_module(name, block)
            channels = block.channels
        self.fc = nn.Linear(2048, 1008)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        x = self.Conv2d_2b_3x3(self.Conv2d_2a_3x3(self.Conv2d_1a_3x3(x)))
        x = F.max_pool2d(x, 3, stride=2)
        x = F.max_pool2d(self.Conv2d_4a_3x3(self.Conv2d_3b_1x1(x)), 3, stride=2)
        spatial = x
        for name in self.mixed:
            block = self.get_submodule(name)
            if name == "Mixed_6d":
                spatial = block.get_submodule("branch1x1")(x)[:, :SPATIAL_CHANNELS]
            x = block(x)
        pool = x.mean((2, 3))
        # (row, column, channel), the order in which ADM's reference statistics were taken.
        spatial = spatial.permute(0, 2, 3, 1).flatten(1)
        return {"pool": pool, "spatial": spatial, "logits": pool @ self.fc.weight.T}
