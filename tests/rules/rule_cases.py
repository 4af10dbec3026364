"""Velocities to guide: the same for every test of the parts."""

import torch

SHAPE = (3, 4, 8, 8)


def velocities(seed, shape=SHAPE):
    g = torch.Generator().manual_seed(seed)
    return [torch.randn(*shape, generator=g, dtype=torch.float64) for _ in range(3)]


def norm(v):
    """The length of each sample, shaped to divide it."""
    return v.flatten(1).norm(dim=1).reshape(-1, *[1] * (v.dim() - 1))
