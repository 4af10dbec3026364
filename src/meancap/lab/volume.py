"""The exact density of what a sampler produces, for any rule: Liouville's formula on the discrete flow.

    x_0 -> x_1   the sampler's own map, all steps of it, with whatever the rule remembers on the way
    J            its gradient, by central differences of whole runs from x_0 + h e_i and x_0 - h e_i
    q            law of the samples,  log q(x_1) = log N(x_0) - log|det J|
    KL(q | p)    mean of log q(x_1) - log p(x_1)

In continuous time log|det J| is the integral of the divergence (`theory.pushforward`); here it belongs to the
steps that are taken, so that the loss of Euler's method is counted too. Where steps fold two starts on one
end, q is the density of one sheet of two, and the mean is a lower bound. In d dimensions a sample costs 2 d
runs more; they are independent samples to a rule, so all of them go in one batch.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .mixture import Mixture

STEP = 1e-6  # in double precision: the error is about h^2 on one side and 1e-16 / h on the other


def displaced(x: Tensor, h: float = STEP) -> Tensor:
    """The starts that `log_volumes` needs, (2 d n, d): every x plus and minus h along each axis."""
    moves = h * torch.eye(x.shape[1], dtype=x.dtype)
    return (x[:, None, None, :] + torch.stack([moves, -moves])).flatten(0, 2)


def log_volumes(ends: Tensor, h: float = STEP) -> Tensor:
    """log|det J| for each sample, (n,), from where the displaced starts ended."""
    d = ends.shape[1]
    plus, minus = ends.reshape(-1, 2, d, d).unbind(1)
    volumes: Tensor = torch.linalg.slogdet((plus - minus) / (2 * h)).logabsdet
    return volumes


def kl_terms(start: Tensor, end: Tensor, log_volume: Tensor, truth: Mixture) -> Tensor:
    """log q(x_1) - log p(x_1) for each sample, (n,); their mean estimates KL(q | p)."""
    log_normal = -0.5 * ((start**2).sum(1) + start.shape[1] * math.log(2 * math.pi))
    return log_normal - log_volume - truth.log_density(end, 1.0)
