"""Distances between two sets of features.

The Frechet distance between the Gaussians fitted to them in float64 (covariance with n - 1 in the
denominator, as np.cov has it):

    F  = |mu_a - mu_b|^2 + tr S_a + tr S_b - 2 tr (S_a S_b)^(1/2)

With S_b = L L^T the last trace is that of M^(1/2), M = L^T S_a L, which is symmetric: its square root cannot
turn complex, needs no epsilon on the diagonal, and costs a tenth of scipy's sqrtm of the product.

The kernel distance (KID): squared maximum mean discrepancy with the kernel (<x, y> / d + 1)^3. Unbiased, so
it may be below zero, and usable with few images where a Frechet distance is mostly bias. It is taken over all
images at once, not over random subsets.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from .extractor import need_features
from .score import Estimate

_ROWS = 4096  # rows turned to float64 at a time, so that 50,000 x 2048 never stands in memory twice
_KERNEL_ROWS = 1024
_EPS = torch.finfo(torch.float64).eps
_ENOUGH = 1e-9  # relative error of the trace that is not worth a slower way


@dataclass(frozen=True, eq=False)
class Gaussian:
    """The mean and covariance of a set of features; `n` is the number of images, 0 if unknown."""

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


def gaussian(features: Tensor) -> Gaussian:
    """Mean and covariance of (n, d) features, whatever their precision."""
    need_features(features)
    n, blocks = len(features), torch.split(features.detach(), _ROWS)
    if n < 2:
        raise ValueError(f"a covariance needs two samples or more; got {n}")
    mean = torch.stack([block.double().sum(0) for block in blocks]).sum(0) / n
    scatter = torch.zeros(len(mean), len(mean), dtype=torch.float64, device=mean.device)
    for block in blocks:
        x = block.double() - mean
        scatter.addmm_(x.T, x)
    return Gaussian(mean, scatter / (n - 1), n)


def frechet_distance(a: Tensor | Gaussian, b: Tensor | Gaussian) -> float:
    """Between two sets of features (n, d), or two Gaussians; in float64."""
    a, b = _gaussian(a), _gaussian(b)
    if len(a.mean) != len(b.mean):
        raise ValueError(
            f"both sides need features of the same extractor; got {len(a.mean)} and {len(b.mean)} dimensions"
        )
    apart = (a.mean - b.mean).square().sum()
    traces = a.covariance.trace() + b.covariance.trace()
    return max(0.0, (apart + traces - 2 * trace_of_root(a.covariance, b.covariance)).item())


def trace_of_root(a: Tensor, b: Tensor) -> Tensor:
    """tr (a b)^(1/2) of two symmetric, non-negative matrices, singular ones too."""
    (a, unit_a), (b, unit_b) = _scaled(a), _scaled(b)
    return unit_a * unit_b * _trace_of_root(a, b)


def _trace_of_root(a: Tensor, b: Tensor) -> Tensor:
    root_b, failed = torch.linalg.cholesky_ex(b)
    if not failed:
        values = torch.linalg.eigvalsh(root_b.T @ a @ root_b).clamp(min=0)
        if _rounding(values) <= _ENOUGH * torch.sum(values.sqrt()):
            return torch.sum(values.sqrt())
    # Singular values of the factors' product keep small numbers exact where eigenvalues have lost them.
    root_a, also_failed = torch.linalg.cholesky_ex(a)
    left = _thin_root(a) if also_failed else root_a
    right = _thin_root(b) if failed else root_b
    return torch.sum(torch.linalg.svdvals(left.T @ right))


def _scaled(s: Tensor) -> tuple[Tensor, float]:
    """(s / u^2, u) with the largest variance near 1, so that products neither overflow nor vanish."""
    largest = s.diagonal().amax().item()
    u = 2.0 ** (math.frexp(largest)[1] // 2)  # a power of two: dividing by it rounds nothing
    return s / u / u, u


def _rounding(values: Tensor) -> Tensor:
    """The error of the sum of roots, when each eigenvalue is known to eps times the largest."""
    known = 4 * _EPS * values[-1]
    each = torch.minimum(known / (2 * values.sqrt()), known.sqrt())
    return torch.sum(each.square()).sqrt()


def _thin_root(s: Tensor) -> Tensor:
    """F with F F^T = s and as many columns as s has rank."""
    values, vectors = torch.linalg.eigh(s)
    keep = values > len(values) * _EPS * values[-1].clamp(min=0)
    root: Tensor = vectors[:, keep] * values[keep].sqrt()
    return root


def frechet_estimate(name: str, generated: Tensor, reference: Tensor | Gaussian) -> Estimate:
    """The distance with one part per generated image, from its derivative in mean and covariance.

    Resampling images with replacement would not do: repeated images make the distance larger every time.
    There are no parts for fewer than 1.5 d images, where the derivative does not exist or does not describe
    the function.
    """
    a, b = gaussian(generated), _gaussian(reference)
    value = frechet_distance(a, b)
    if a.n < 1.5 * len(a.mean):
        return Estimate(name, value, a.n)
    transport = _transport(a.covariance, b.covariance)
    parts = []
    for block in torch.split(generated, _ROWS):
        x = block.double() - a.mean
        stretch = x.square().sum(1) - ((x @ transport) * x).sum(1)
        parts.append(2 * (x @ (a.mean - b.mean)) + stretch)
    moved = torch.cat(parts)
    return Estimate(name, value, a.n, value + moved - moved.mean())


def _transport(a: Tensor, b: Tensor) -> Tensor:
    """The matrix T with T a T = b, which carries N(0, a) to N(0, b); 1 - T is the derivative of F in a."""
    (a, unit_a), (b, unit_b) = _scaled(a), _scaled(b)
    factor, failed = torch.linalg.cholesky_ex(b)
    if failed:
        factor = _thin_root(b)
    values, vectors = torch.linalg.eigh(factor.T @ a @ factor)
    # Features that never vary, as dead units do not, contribute nothing to first order.
    keep = values > len(values) * _EPS * values[-1]
    half: Tensor = (factor @ vectors[:, keep]) * values[keep].pow(-0.25)
    return (unit_b / unit_a) * (half @ half.T)


def _gaussian(x: Tensor | Gaussian) -> Gaussian:
    return x if isinstance(x, Gaussian) else gaussian(x)


def kernel_estimate(name: str, real: Tensor, generated: Tensor) -> Estimate:
    """Over all images, with one part per generated image."""
    need_features(real, generated)
    n, m = len(generated), len(real)
    if min(n, m) < 2:
        raise ValueError(f"a kernel distance needs two images on each side; got {m} and {n}")
    own = (_row_sums(generated, generated) - _diagonal(generated)) / (n - 1)
    across = _row_sums(generated, real) / m
    among_real = (_row_sums(real, real).sum() - _diagonal(real).sum()) / (m * (m - 1))
    # Each image stands in two places of the double sum over generated images, and in one of the mixed sum.
    value = own.mean() + among_real - 2 * across.mean()
    moved = 2 * own - 2 * across
    return Estimate(name, value.item(), n, value + moved - moved.mean())


def _row_sums(x: Tensor, y: Tensor) -> Tensor:
    """Sum over y of the kernel, for each row of x."""
    sums = []
    for block in torch.split(x, _KERNEL_ROWS):
        total = torch.zeros(len(block), dtype=torch.float64, device=x.device)
        for other in torch.split(y, 4 * _KERNEL_ROWS):
            total += _cubed(block.double() @ other.double().T, x.shape[1]).sum(1)
        sums.append(total)
    return torch.cat(sums)


def _diagonal(x: Tensor) -> Tensor:
    return torch.cat(
        [_cubed(block.double().square().sum(1), x.shape[1]) for block in torch.split(x, _KERNEL_ROWS)]
    )


def _cubed(products: Tensor, d: int) -> Tensor:
    k = products / d + 1
    return k * k * k
