"""Rules that limit the range of the guided prediction.

Threshold  Imagen's dynamic thresholding of the mean, for data in [-1, 1]
Mimic      the spread that a lower scale would have had, channel by channel (mcmonkey's dynamic thresholding)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...prediction import Prediction
from ...schedules import Scale, finite, finite_scale, value_of
from ...tensors import per_sample
from ..protocol.base import Map
from .phases import flag
from .renorm import quantile
from .spaces import conditional


@dataclass(frozen=True)
class Threshold(Map):
    """m <- clip(m, -s, s) / s with s the quantile of |m| in its sample, kept between 1 and `most`.

    It acts on the unguided mean as well. Latents are not bounded by 1: it is meant for pixels.
    """

    quantile: float = 0.995
    most: float | None = None

    def __post_init__(self) -> None:
        finite(self, "quantile")
        if not 0 < self.quantile <= 1:
            raise ValueError(f"Threshold needs a quantile in (0, 1]; got {self.quantile}")
        if self.most is not None:
            finite(self, "most")
            if self.most < 1:
                raise ValueError(f"Threshold needs most >= 1 (1 is a static clip); got {self.most}")

    def __call__(self, g: Tensor, p: Prediction) -> Tensor:
        m = p.m_c + g
        s = quantile(m.flatten(1).abs(), self.quantile).clamp(1.0, self.most)
        s = s.reshape(-1, *[1] * (m.dim() - 1))
        return torch.minimum(torch.maximum(m, -s), s) / s - p.m_c


@dataclass(frozen=True)
class Mimic(Map):
    """Gives each channel of the guided prediction the spread that the scale `mimic` would have given it.

    quantile  of the guided values that counts as their spread; more extreme ones are clipped
    measure   'AD', the largest deviation from the channel's mean, or 'STD', the standard deviation
    start     'MEAN': deviations are scaled; 'ZERO': the values themselves
    phi       share of the result in a blend with the guided prediction
    separate  one spread per channel; otherwise one per sample (the original takes one for the whole batch)

    It acts on m - x. A sample with one axis only is one channel.
    """

    mimic: Scale = 7.0
    quantile: float = 1.0
    measure: str = "AD"
    start: str = "MEAN"
    phi: float = 1.0
    separate: bool = True

    def __post_init__(self) -> None:
        finite_scale(self, "mimic")
        finite(self, "quantile", "phi")
        flag(self, "separate")
        if not 0 < self.quantile <= 1 or not 0 <= self.phi <= 1:
            raise ValueError(
                f"Mimic needs a quantile in (0, 1] and phi in [0, 1]; got {self.quantile} and {self.phi}"
            )
        if self.measure not in ("AD", "STD") or self.start not in ("MEAN", "ZERO"):
            raise ValueError(
                "Mimic measures by 'AD' or 'STD' and starts from 'MEAN' or 'ZERO'; "
                f"got {self.measure!r} and {self.start!r}"
            )

    def __call__(self, g: Tensor, p: Prediction) -> Tensor:
        base = conditional(p, "velocity")
        shape = (*g.shape[:2], -1) if g.dim() > 2 else (g.shape[0], 1, -1)
        guided = (base + g).reshape(shape)
        gap = p.delta
        mimicked = (base + per_sample(value_of(self, "mimic", p.t) - 1, gap) * gap).reshape(shape)
        out = self._mimicked(guided, mimicked).reshape(g.shape)
        return self.phi * (out - base) + (1 - self.phi) * g

    def _mimicked(self, guided: Tensor, mimicked: Tensor) -> Tensor:
        mean = guided.mean(2, keepdim=True)
        centred = guided - mean
        wanted, actual = self._spread(mimicked - mimicked.mean(2, keepdim=True), 1.0), self._spread(centred)
        if self.start == "ZERO":
            return guided * _ratio(wanted, actual)
        if self.measure == "STD":
            return centred * _ratio(wanted, actual) + mean
        limit = torch.maximum(wanted, actual)
        return torch.minimum(torch.maximum(centred, -limit), limit) * _ratio(wanted, limit) + mean

    def _spread(self, centred: Tensor, q: float | None = None) -> Tensor:
        groups = centred if self.separate else centred.flatten(1)[:, None]
        if self.measure == "STD":
            return groups.std(2, keepdim=True) if groups.shape[2] > 1 else torch.zeros_like(groups)
        return quantile(groups.abs(), self.quantile if q is None else q)


def _ratio(a: Tensor, b: Tensor) -> Tensor:
    """a / b, and 1 for the constant channel in which there is nothing to scale."""
    return torch.where(b == 0, 1.0, a / b)
