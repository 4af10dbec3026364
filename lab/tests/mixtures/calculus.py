"""Derivatives by autograd, mixtures to take them on, and what it means that two formulas agree.

agree   equal up to rounding: 2000 units in the last place of the largest number that enters either side
"""

import math

import pytest
import torch
from torch import Tensor

from meancap_lab.mixtures import Condition, Mixture

TIMES = (0.02, 0.3, 0.6, 0.85, 0.97)


def agree(actual, expected, size=0.0):
    """Whether two formulas give the same numbers, if terms as large as `size` cancel inside them."""
    expected = torch.as_tensor(expected, dtype=None if isinstance(expected, Tensor) else actual.dtype)
    assert actual.shape == expected.shape and actual.dtype == expected.dtype
    largest = max(float(v.abs().max()) for v in (actual, expected, torch.as_tensor(size)))
    rounding = 2000 * torch.finfo(actual.dtype).eps * largest
    return bool(((actual - expected).abs() <= rounding).all())


def gradient(f, x):
    """grad f at each point, for f that maps (n, d), or times (n,), to (n,) point by point."""
    x = x.detach().clone().requires_grad_()
    return torch.autograd.grad(f(x).sum(), x)[0]


def jacobian(f, x):
    """Row i: grad f_i at each point, for f that maps (n, d) to (n, e) point by point."""
    x = x.detach().clone().requires_grad_()
    rows = [torch.autograd.grad(row.sum(), x, retain_graph=True)[0] for row in f(x).unbind(-1)]
    return torch.stack(rows, -2)


def along(f, x, t, v):
    """d/dt f(x_t, t) at each point of a trajectory with velocity v."""
    times = torch.full_like(x[:, 0], t)
    return gradient(lambda s: f(x, s), times) + (gradient(lambda y: f(y, times), x) * v).sum(-1)


def random(seed):
    return torch.Generator().manual_seed(seed)


def noise(*shape, seed=0):
    return torch.randn(*shape, generator=random(seed), dtype=torch.float64)


def weights(k, seed=0):
    return 0.1 + torch.rand(k, generator=random(seed), dtype=torch.float64)


def covariances(k, d, seed=0):
    root = noise(k, d, d, seed=seed) / math.sqrt(d)
    return 0.3 * root @ root.mT + 0.05 * torch.eye(d, dtype=torch.float64)


def circle(k=8, radius=1.0):
    angle = 2 * math.pi * torch.arange(k, dtype=torch.float64) / k
    return radius * torch.stack([angle.cos(), angle.sin()], -1)


# Off-centre, unequal weights, every form of covariance, one to five dimensions.
MIXTURES = {
    "line": Mixture(noise(3, 1, seed=1) + 1, weights(3, 1), std=0.4),
    "plane": Mixture(noise(5, 2, seed=2) + 1, weights(5, 2), std=0.3),
    "unequal widths": Mixture(noise(4, 3, seed=3) - 1, weights(4, 3), std=0.2 + 0.3 * weights(4, 4)),
    "one covariance": Mixture(noise(3, 2, seed=4) + 2, weights(3, 5), cov=covariances(1, 2, 5)[0]),
    "covariances": Mixture(noise(6, 5, seed=6) + 1, weights(6, 6), cov=covariances(6, 5, 7)),
}
MEMBERS = {
    "line": (1,),
    "plane": (0, 3),
    "unequal widths": (2, 1),
    "one covariance": (0, 2),
    "covariances": (1, 2, 5),
}
CONDITIONS = {name: Condition(MIXTURES[name], members) for name, members in MEMBERS.items()}

OCTAGON = Mixture(circle(), std=0.03)
IMBALANCED = Mixture(circle(), [0.17, 0.08] + [0.125] * 6, std=0.03)
PAPER = {
    "single": Condition(OCTAGON, (0,)),
    "pair": Condition(IMBALANCED, (0, 1)),
    "triple": Condition(OCTAGON, (0, 1, 2)),
}


def points(mixture, t, n=40, seed=0):
    """States at time t, drawn three times as wide as the path itself so that the tails count too."""
    data = mixture.sample(n, random(seed))
    return (
        t * data + 3 * (1 - t) * noise(*data.shape, seed=seed + 1) + 0.3 * noise(*data.shape, seed=seed + 2)
    )


def steepness(mixture, x, t):
    """How large the scores of components are, which cancel in a field: |x| / C."""
    least = float((1 - t) ** 2 + t**2 * mixture.variances.min())
    return float(x.abs().max() + mixture.means.abs().max()) / least


every_mixture = pytest.mark.parametrize("mixture", MIXTURES.values(), ids=MIXTURES)
every_condition = pytest.mark.parametrize("condition", CONDITIONS.values(), ids=CONDITIONS)
every_time = pytest.mark.parametrize("t", TIMES)
