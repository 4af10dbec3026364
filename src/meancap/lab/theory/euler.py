"""The variance that Euler steps lose on one Gaussian component.

    s    standard deviation of the data along one eigenvector of their covariance
    C    (1 - t)^2 + t^2 s^2
    a'   slope of the velocity there,  (t s^2 - (1 - t)) / C,  so that the exact flow has  d log C/dt = 2 a'
    R    variance after the steps over the exact one, one factor for each eigenvector

Euler keeps the mean t mu exactly on every grid; only the spread is wrong.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def euler_variance_ratio(times: Tensor, std: Tensor | float) -> Tensor:
    """R = C_first / C_last times the product of (1 + h a')^2 over the steps, for each std.

    On a grid from 0 to 1 it is s^-2 prod (1 + h a')^2, and R_50(0.03) = 0.570650620975 on the uniform one.
    """
    s = torch.as_tensor(std, dtype=torch.float64)
    if not (s > 0).all():
        raise ValueError(
            f"a variance ratio needs std > 0, for a point mass has no variance to lose; got {std}"
        )
    grid = times.double().reshape(-1, *(1,) * s.ndim)
    c = (1 - grid) ** 2 + (grid * s) ** 2
    slope = (grid * s**2 - (1 - grid)) / c
    factors = 1 + grid.diff(dim=0) * slope[:-1]
    return factors.prod(0) ** 2 * c[0] / c[-1]


def euler_variance_limit(n: int, std: Tensor | float) -> Tensor:
    """exp(-(1 + pi (1 + s^2)/(4 s))/n), which R on the uniform grid of n steps meets to order n^-3.

    log R = -(2 + L)/n + ..., with 2 the rise of a' over [0, 1] and L = pi (1 + s^2)/(4 s) - 1 the integral of
    a'^2. The next term is the rise of da'/dt over 6 plus 2/3 of the integral of a'^3; these cancel.
    """
    return (-_loss(std) / n).exp()


def euler_steps_for(bias: float, std: Tensor | float) -> Tensor:
    """Uniform steps after which the variance is short by this fraction, to leading order."""
    return -_loss(std) / math.log1p(-bias)


def _loss(std: Tensor | float) -> Tensor:
    s = torch.as_tensor(std, dtype=torch.float64)
    return 1 + math.pi * (1 + s**2) / (4 * s)
