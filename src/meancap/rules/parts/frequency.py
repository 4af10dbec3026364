"""Rules that weigh the frequencies of the displacement differently, over the last two axes.

    Frequencies  a Laplacian pyramid, one scale per level from fine to coarse   (FDG, Sadat et al. 2025)
    FreSca       a square of low frequencies in the Fourier plane, and the rest (Huang et al. 2025)

Both need images: (batch, channels, height, width), or frames before height. Packed tokens have no such axes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ...operation import lengths
from ...prediction import Prediction
from ...schedules import finite
from ...tensors import per_sample
from ..protocol.base import Map, Rule
from .phases import whole_number_fields
from .spaces import conditional, known_space


def need_image(rule: Rule, v: Tensor) -> None:
    """Refuses tensors without height and width."""
    if v.dim() < 4:
        raise ValueError(
            f"{type(rule).__name__} needs images (batch, channels, height, width); unpack tokens first: "
            f"got shape {tuple(v.shape)}"
        )


@dataclass(frozen=True)
class Frequencies(Map):
    """CFG level by level: g = sum over the levels of (scales[l] - 1) times level l of g, finest first.

    `parallel` keeps of each level only that share of its part along the same level of the conditional
    prediction (in `space`), as Project does for the whole.
    """

    scales: tuple[float, ...] = (10.0, 5.0)
    parallel: tuple[float, ...] | None = None
    space: str = "velocity"

    def __post_init__(self) -> None:
        for name in ("scales", "parallel"):
            if (given := getattr(self, name)) is not None:
                numbers = tuple(float(v) for v in given)
                if not all(map(math.isfinite, numbers)):
                    raise ValueError(f"Frequencies needs finite numbers for {name}; got {list(numbers)}")
                object.__setattr__(self, name, numbers)
        if not self.scales:
            raise ValueError("Frequencies needs one scale per level, and one level at least")
        if self.parallel is not None and len(self.parallel) != len(self.scales):
            raise ValueError(
                f"Frequencies needs one share per scale; got {len(self.parallel)} and {len(self.scales)}"
            )
        known_space(self, "velocity", "mean", "noise")

    def __call__(self, g: Tensor, p: Prediction) -> Tensor:
        need_image(self, g)
        levels = pyramid(g, len(self.scales))
        if self.parallel is not None:
            onto = pyramid(conditional(p, self.space), len(self.scales))
            levels = [
                _project(level, along, share, g.shape[0])
                for level, along, share in zip(levels, onto, self.parallel, strict=True)
            ]
        weighed = [(scale - 1) * level for scale, level in zip(self.scales, levels, strict=True)]
        return collapse(weighed, g.shape)


def _project(level: Tensor, onto: Tensor, share: float, batch: int) -> Tensor:
    flat, along = level.reshape(batch, -1), onto.reshape(batch, -1)
    _, length, beside = lengths(flat, along)
    parallel = torch.where(length == 0, 0.0, beside / length)
    return (flat - per_sample((1 - share) * parallel, flat) * along).reshape(level.shape)


def pyramid(v: Tensor, levels: int) -> list[Tensor]:
    """Differences between successive blurs, and what is left: images, each half as wide as the last."""
    image = v.reshape(-1, 1, *v.shape[-2:])
    step = 2 ** (levels - 1)
    below, right = (-image.shape[2]) % step, (-image.shape[3]) % step
    if levels > 1 and 2 * min(image.shape[2] + below, image.shape[3] + right) < 3 * step:
        raise ValueError(f"an image of {v.shape[-2]} x {v.shape[-1]} is too small for {levels} levels")
    image = F.pad(image, (0, right, 0, below), mode="reflect") if below or right else image
    bands = []
    for _ in range(levels - 1):
        # Bilinear halving of an even side is the mean of two neighbours.
        coarse = F.avg_pool2d(_blurred(image), 2)
        bands.append(image - _doubled(coarse))
        image = coarse
    return [*bands, image]


def collapse(levels: Sequence[Tensor], shape: torch.Size) -> Tensor:
    """The image whose pyramid this is."""
    image = levels[-1]
    for level in reversed(levels[:-1]):
        image = _doubled(image) + level
    return image[:, 0, : shape[-2], : shape[-1]].reshape(shape)


def _doubled(v: Tensor) -> Tensor:
    return _blurred(F.interpolate(v, scale_factor=2, mode="bilinear", align_corners=False))


def _blurred(v: Tensor) -> Tensor:
    """The binomial filter 1 4 6 4 1 along both axes, edges reflected."""
    line = v.new_tensor([1.0, 4.0, 6.0, 4.0, 1.0]) / 16
    padded = F.pad(v, (2, 2, 2, 2), mode="reflect")
    return F.conv2d(F.conv2d(padded, line.reshape(1, 1, 1, 5)), line.reshape(1, 1, 5, 1))


@dataclass(frozen=True)
class FreSca(Map):
    """Scales the gap's low frequencies by `low`, the others by `high`; before FromUnconditional(scale).

    Low are those within `cutoff` of zero along both axes.
    """

    low: float = 1.0
    high: float = 1.25
    cutoff: int = 20

    def __post_init__(self) -> None:
        finite(self, "low", "high")
        whole_number_fields(self, "cutoff")

    def __call__(self, g: Tensor, p: Prediction) -> Tensor:
        need_image(self, g)
        inside = [(f >= -self.cutoff) & (f < self.cutoff) for f in (_frequencies(n, g) for n in g.shape[-2:])]
        mask = torch.where(inside[0][:, None] & inside[1][None, :], self.low, self.high).to(g.dtype)
        filtered: Tensor = torch.fft.ifft2(torch.fft.fft2(g) * mask).real
        return filtered


def _frequencies(n: int, like: Tensor) -> Tensor:
    """Whole frequencies in the order of the transform: 0, 1, ..., -2, -1."""
    k = torch.arange(n, device=like.device)
    return torch.where(k < n - n // 2, k, k - n)
