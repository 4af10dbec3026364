"""Mean and covariance of features, gathered in float64 and in any number of pieces.

mean         over the samples, shape (d,)
covariance   with n - 1 in the denominator, as np.cov has it, shape (d, d)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

_ROWS = 4096  # rows turned to float64 at a time, so that 50,000 x 2048 never stands in memory twice


@dataclass(frozen=True, eq=False)
class Gaussian:
    """What a Frechet distance knows of a set of features. `n` is 0 where a file does not say."""

    mean: Tensor
    covariance: Tensor
    n: int = 0

    def __post_init__(self) -> None:
        d = self.mean.shape[-1]
        if self.mean.dim() != 1 or self.covariance.shape != (d, d):
            raise ValueError(
                "a Gaussian needs a mean of shape (d,) and a covariance of shape (d, d); got "
                f"{tuple(self.mean.shape)} and {tuple(self.covariance.shape)}"
            )
        for name in ("mean", "covariance"):
            value = getattr(self, name).double()
            if not torch.isfinite(value).all():
                raise ValueError(f"the {name} of these features is not finite: look for broken images")
            object.__setattr__(self, name, value)


@dataclass(frozen=True, eq=False)
class Moments:
    """Running count, mean and scatter; `a + b` joins two disjoint sets, in any grouping."""

    n: int
    mean: Tensor
    scatter: Tensor  # sum of (x - mean)(x - mean)^T

    def __add__(self, other: Moments) -> Moments:
        if self.mean.shape != other.mean.shape:
            raise ValueError(
                f"features of {len(self.mean)} and {len(other.mean)} dimensions cannot be joined"
            )
        n = self.n + other.n
        apart = other.mean - self.mean
        mean = self.mean + apart * (other.n / n)
        scatter = self.scatter + other.scatter
        scatter.addr_(apart, apart, alpha=self.n * other.n / n)
        return Moments(n, mean, scatter)

    def gaussian(self) -> Gaussian:
        if self.n < 2:
            raise ValueError(f"a covariance needs two samples or more; got {self.n}")
        return Gaussian(self.mean, self.scatter / (self.n - 1), self.n)


def moments(features: Tensor) -> Moments:
    """Of one (n, d) tensor, whatever its precision."""
    need_features(features)
    parts = []
    for block in torch.split(features.detach(), _ROWS):
        x = block.double()
        mean = x.mean(0)
        x = x - mean
        parts.append(Moments(len(x), mean, x.T @ x))
    return joined(parts)


def joined(parts: Iterable[Moments]) -> Moments:
    """The moments of all parts together."""
    total: Moments | None = None
    for part in parts:
        total = part if total is None else total + part
    if total is None:
        raise ValueError("there are no features to take moments of")
    return total


def gaussian(features: Tensor) -> Gaussian:
    """Mean and covariance of (n, d) features."""
    return moments(features).gaussian()


def need_features(*tensors: Tensor) -> None:
    """Feature sets are finite matrices of floats with one row per image and equal widths."""
    need_rows(*tensors)
    for x in tensors:
        if not all(torch.isfinite(block).all() for block in torch.split(x, _ROWS)):
            raise ValueError(
                "features are not finite: look for broken images or an overflow in the extractor"
            )


def need_logits(x: Tensor) -> None:
    """A logit of -inf is a probability of 0; nan, inf, and a row of -inf alone are no probabilities."""
    need_rows(x)
    if not torch.isfinite(x.amax(1)).all():
        raise ValueError("logits are not finite: look for broken images or an overflow in the classifier")


def need_rows(*tensors: Tensor) -> None:
    """Matrices of floats with one row per image and equal widths."""
    for x in tensors:
        if not isinstance(x, Tensor):
            raise TypeError(f"features are a torch tensor, as torch.from_numpy makes one; got {type(x)}")
        if x.dim() != 2 or not x.is_floating_point():
            raise ValueError(
                f"features are a floating-point matrix, one row per image; got {x.dtype} {tuple(x.shape)}"
            )
        if x.numel() == 0:
            raise ValueError("there are no features: the set is empty")
    widths = {x.shape[1] for x in tensors}
    if len(widths) > 1:
        raise ValueError(f"both sets need features of the same extractor; got widths {sorted(widths)}")
