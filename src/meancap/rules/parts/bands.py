"""Rules that treat coarse and fine parts of an image differently, beside the pyramid and the Fourier plane.

Wavelet   one level of the sym4 wavelet: the coarse band of g by one factor, the rest by another    (HiWave)
SlowBand  less of the coarse band of both velocities where it hardly changes from step to step      (LF-CFG)
ZeResFDG  reweighted bands about a projected reference or with a matched spread, by the share of detail
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ...operation import lengths
from ...prediction import Prediction
from ...schedules import Scale, finite, finite_scale, value_of
from ...tensors import per_sample, scalar_dtype, vector
from ..protocol.base import Map, Rule, State
from ..protocol.ray import Ray
from .frequency import need_image
from .phases import whole_number_fields
from .spaces import conditional, rest, unconditional

# The low-pass filter of the wavelet sym4 of Daubechies, orthonormal to its shifts by two.
SYM4 = (
    -0.07576571478927333, -0.02963552764599851, 0.49761866763201545, 0.8037387518059161,
    0.29785779560527736, -0.09921954357684722, -0.012603967262037833, 0.0322231006040427,
)  # fmt: skip


@dataclass(frozen=True)
class Wavelet(Map):
    """g <- low * (its coarse band) + high * (the rest), one level of sym4 over the last two axes.

    The image goes round at its borders. Height and width must be even.
    """

    low: float = 0.0
    high: float = 1.0

    def __post_init__(self) -> None:
        finite(self, "low", "high")

    def __call__(self, g: Tensor, p: Prediction) -> Tensor:
        need_image(self, g)
        down, across = (_coarse(n, g) for n in g.shape[-2:])
        return self.high * g + (self.low - self.high) * (down @ g @ across)


def _coarse(n: int, like: Tensor) -> Tensor:
    """The projection of n numbers in a ring onto the coarse band: L^T L, the rows of L shifts by two."""
    if n % 2:
        raise ValueError(f"Wavelet needs an even height and width; got {n}")
    taps = like.new_tensor(SYM4)
    places = 2 * torch.arange(n // 2, device=like.device)[:, None]
    places = (places + torch.arange(len(SYM4), device=like.device)) % n
    rows = torch.zeros(n // 2, n, dtype=like.dtype, device=like.device)
    rows = rows.scatter_add(1, places, taps.expand(n // 2, -1))
    return rows.T @ rows


@dataclass(frozen=True)
class SlowBand(Rule):
    """CFG less scale (1 - share) (M_c c_low - M_u u_low), velocities c and u.

    c_low and u_low are averages over squares of `size` pixels, made an image again by linear interpolation.
    M is 1 where such a velocity has changed since the last step by less than the mean plus the standard
    deviation of its changes over the sample, the length over channels being its change at a pixel. The first
    step is CFG.
    """

    scale: Scale
    share: float = 0.5
    size: int = 8

    def __post_init__(self) -> None:
        finite_scale(self, "scale")
        finite(self, "share")
        whole_number_fields(self, "size")
        if self.size < 1:
            raise ValueError(f"SlowBand averages over squares of one pixel or more; got size {self.size}")

    @property
    def has_state(self) -> bool:
        return True

    def update(self, ray: Ray, p: Prediction, state: State) -> tuple[Ray, State]:
        g = ray.g
        need_image(self, g)
        if not len(g):
            return ray, state
        unit, scale = per_sample(rest(p.t), g), per_sample(value_of(self, "scale", p.t), g)
        low = [self._low(side(p, "velocity") / unit) for side in (conditional, unconditional)]
        guided = (scale - 1) * g
        if state is not None:
            c, u = (now * _slow(now - last) for now, last in zip(low, state, strict=True))
            guided = guided - unit * scale * (1 - self.share) * (c - u)
        return Ray(p, turned=guided, asked=ray.asked), tuple(low)

    def _low(self, v: Tensor) -> Tensor:
        image = v.reshape(-1, 1, *v.shape[-2:])
        coarse = F.interpolate(image, [max(1, n // self.size) for n in v.shape[-2:]], mode="area")
        back = F.interpolate(coarse, list(v.shape[-2:]), mode="bilinear", align_corners=False)
        return back.reshape(v.shape)


def _slow(change: Tensor) -> Tensor:
    """1 where a pixel has changed less than usual, else 0."""
    length: Tensor = torch.linalg.vector_norm(change, dim=1, keepdim=True)
    flat = length.flatten(1)
    spread = flat.std(1) if flat.shape[1] > 1 else torch.zeros_like(flat[:, 0])
    # Where all pixels change alike none is slow; the margin keeps rounding from deciding otherwise.
    usual = (1 - 1e-5) * (flat.mean(1) + spread)
    slow: Tensor = length < per_sample(usual, length)
    return slow.to(change.dtype)


@dataclass(frozen=True)
class ZeResFDG(Rule):
    """Two guided velocities, chosen per sample by the share of detail in the gap.

    FD(v) = low G v + high (v - G v), G a 3 x 3 Gaussian of standard deviation 1. With c and u the velocities:

        zero     a u + scale FD(c - a u),  a = <c, u> / |u|^2
        rescale  y = u + scale FD(c - u), then mix y std(u + FD(c - u)) / std(y) + (1 - mix) y

    The share r of the gap's energy that is in gap - G gap is averaged over the steps, the past by the weight
    `keep`; a sample changes from zero to rescale once r >= up, and back once r <= down.
    """

    scale: Scale
    low: float = 0.6
    high: float = 1.3
    mix: float = 0.7
    down: float = 0.45
    up: float = 0.6
    keep: float = 0.8

    def __post_init__(self) -> None:
        finite_scale(self, "scale")
        finite(self, "low", "high", "mix", "down", "up", "keep")
        if not self.down <= self.up:
            raise ValueError(f"ZeResFDG needs down <= up; got {self.down} and {self.up}")

    @property
    def has_state(self) -> bool:
        return True

    def update(self, ray: Ray, p: Prediction, state: State) -> tuple[Ray, State]:
        g = ray.g
        need_image(self, g)
        if min(g.shape[-2:]) < 2:
            raise ValueError(f"ZeResFDG needs a height and width of 2 or more; got shape {tuple(g.shape)}")
        if not len(g):
            return ray, state
        share = _detail_share(g)
        if state is None:
            rescaling = share >= self.up
        else:
            share = self.keep * state[0] + (1 - self.keep) * share
            rescaling = torch.where(state[1], share > self.down, share >= self.up)
        c = conditional(p, "velocity")
        scale = per_sample(vector(value_of(self, "scale", p.t), g), g)
        chosen = rescaling.reshape(-1, *[1] * (g.dim() - 1))
        y = torch.where(chosen, self._rescaled(c - g, g, scale), self._zero(c, c - g, scale))
        return Ray(p, turned=y - c, asked=ray.asked), (share, rescaling)

    def _zero(self, c: Tensor, u: Tensor, scale: Tensor | float) -> Tensor:
        _, length, along = lengths(c, u)
        part = per_sample(torch.where(length == 0, 0.0, along / length), u) * u
        return part + scale * self._weighed(c - part)

    def _rescaled(self, u: Tensor, g: Tensor, scale: Tensor | float) -> Tensor:
        d = self._weighed(g)
        y = u + scale * d
        before, after = (v.flatten(1).to(scalar_dtype(v.device)).std(1) for v in (u + d, y))
        ratio = torch.where(after == 0, 1.0, before / after)
        return per_sample(self.mix * ratio + (1 - self.mix), y) * y

    def _weighed(self, v: Tensor) -> Tensor:
        coarse = _smoothed(v)
        return self.low * coarse + self.high * (v - coarse)


def _detail_share(g: Tensor) -> Tensor:
    coarse = _smoothed(g)
    low, high = (v.flatten(1).to(scalar_dtype(v.device)).square().sum(1) for v in (coarse, g - coarse))
    return torch.where(low + high == 0, 0.0, high / (low + high))


def _smoothed(v: Tensor) -> Tensor:
    """A 3 x 3 Gaussian of standard deviation 1, edges reflected."""
    side = math.exp(-0.5)
    line = v.new_tensor([side, 1.0, side]) / (1 + 2 * side)
    image = F.pad(v.reshape(-1, 1, *v.shape[-2:]), (1, 1, 1, 1), mode="reflect")
    return F.conv2d(F.conv2d(image, line.reshape(1, 1, 1, 3)), line.reshape(1, 1, 3, 1)).reshape(v.shape)
