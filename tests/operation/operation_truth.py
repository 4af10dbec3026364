"""What the kernels are compared with: the operation in float64, by `fraction.kept`."""

import torch

from meancap.operation import Request, fraction

MARGIN = fraction.margin_of(torch.float32)


def tensors(*shape, seed=0, dtype=torch.float32, x_dtype=None):
    """A state and the two outputs of a network."""
    g = torch.Generator().manual_seed(seed)
    x, out_c, other = (torch.randn(*shape, generator=g) for _ in range(3))
    return x.to(x_dtype or dtype), out_c.to(dtype), (out_c + other).to(dtype)


def cap_with(kernels, x, out_c, other, *numbers, **how):
    """Result and numbers of x, out_c, other, a, k, c, gamma, floor; what is missing caps nothing."""
    rest = (0.0, 1.0, 0.0, float("inf"), 0.0)[len(numbers) :]
    return kernels.run(Request(x, out_c, other, (*numbers, *rest), **how))


def measure_with(kernels, *given):
    """The lengths of x, out_c, other, a, k: (3, batch)."""
    return cap_with(kernels, *given)[1][:3]


def combine_with(kernels, *given, **how):
    """The result of x, out_c, other, a, k, c without a cap."""
    return cap_with(kernels, *given, **how, capped=False)[0]


def flat(v):
    return v.double().reshape(v.shape[0], -1)


def each(v, batch):
    """A number as (batch,) in float64."""
    return torch.as_tensor(v, dtype=torch.float64).reshape(-1).expand(batch)


def lengths(x, out_c, out_u, a, k):
    """|m|, |k||d| and the component of m along k d: (3, batch)."""
    a, k = each(a, len(x))[:, None], each(k, len(x))[:, None]
    m, d = a * flat(x) + k * flat(out_c), flat(out_c) - flat(out_u)
    length = d.norm(dim=1)
    along = torch.where(length == 0, 0.0, (m * d).sum(1) / length)
    return torch.stack([m.norm(dim=1), k[:, 0].abs() * length, torch.where(k[:, 0] < 0, -along, along)])


def coefficient(found, c, gamma, floor, *, ball, margin):
    """What the cap leaves of c, from the lengths."""
    c, gamma, floor = (each(v, found.shape[1]) for v in (c, gamma, floor))
    s = fraction.kept(*found[:3], c, gamma, floor, ball=ball, margin=margin)
    return torch.where(c == 0, c, c * s)


def written(x, out_c, out_u, a, k, c, *, mean):
    """The result in float64, with the exceptions for 0 and -1."""
    a, k, c = (each(v, len(x))[:, None] for v in (a, k, c))
    w = flat(out_c) + c * (flat(out_c) - flat(out_u))
    w = torch.where(c == 0, flat(out_c), torch.where(c == -1, flat(out_u), w))
    return (a * flat(x) + k * w if mean else w).reshape(x.shape)
