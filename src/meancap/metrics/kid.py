"""The kernel distance (KID): squared maximum mean discrepancy with the kernel (<x, y> / d + 1)^3.

Unbiased, so it may be below zero, and usable with few images where a Frechet distance is mostly bias.
By default over all images at once; the published form averages 100 random subsets of 1,000.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .gaussian import need_features
from .score import Estimate

_ROWS = 1024


def kernel_distance(
    real: Tensor, generated: Tensor, *, subsets: int | None = None, size: int = 1000, seed: int = 0
) -> float:
    """Between (n, d) features in float64; over `subsets` random draws of `size` images each, if asked."""
    need_features(real, generated)
    if subsets is None:
        return kernel_estimate("KD", real, generated).value
    if subsets < 1:
        raise ValueError(f"a mean over subsets needs one or more; got {subsets}")
    if min(len(real), len(generated)) < size:
        raise ValueError(
            f"subsets of {size} need as many images; got {len(real)} real, {len(generated)} generated"
        )
    generator = torch.Generator().manual_seed(seed)
    distances = []
    for _ in range(subsets):
        r = real[torch.randperm(len(real), generator=generator)[:size]]
        g = generated[torch.randperm(len(generated), generator=generator)[:size]]
        distances.append(kernel_estimate("KD", r, g).value)
    return sum(distances) / len(distances)


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
    for block in torch.split(x, _ROWS):
        total = torch.zeros(len(block), dtype=torch.float64, device=x.device)
        for other in torch.split(y, 4 * _ROWS):
            total += _cubed(block.double() @ other.double().T, x.shape[1]).sum(1)
        sums.append(total)
    return torch.cat(sums)


def _diagonal(x: Tensor) -> Tensor:
    return torch.cat([_cubed(block.double().square().sum(1), x.shape[1]) for block in torch.split(x, _ROWS)])


def _cubed(products: Tensor, d: int) -> Tensor:
    k = products / d + 1
    return k * k * k
