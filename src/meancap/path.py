"""From any Gaussian path to the linear one, and between the ways a network can state its prediction.

    x = alpha data + sigma noise      a Gaussian path; data at alpha = 1, sigma = 0
    x = t data + (1 - t) noise        the linear path, the only one used inside: alpha = t, sigma = 1 - t

Dividing a Gaussian path by alpha + sigma gives the linear one at t = alpha / (alpha + sigma), with the same
posterior mean m = E[data | x]. CFG is one affine combination in every parametrisation; lengths are not.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .tensors import Number, on_host, per_sample, scalar_dtype


def number(v: float | Tensor, x: Tensor, name: str) -> Number:
    """A time or coefficient as a float or as one value per sample of `x`."""
    if not isinstance(v, Tensor):
        return float(v)
    if v.dim() == 0 or v.shape == (1,):
        if on_host(v):
            return float(v)
        return v.to(scalar_dtype(v.device)).reshape(1).expand(x.shape[0])
    if v.shape != x.shape[:1]:
        raise ValueError(
            f"{name} must be one number, or one per sample with shape ({x.shape[0]},); got {tuple(v.shape)}"
        )
    return v.to(scalar_dtype(v.device))  # in half precision 1 - t would lose what t says


def time(t: float | Tensor, x: Tensor, name: str = "t") -> Number:
    """A time in [0, 1]; data lies at 1."""
    t = number(t, x, name)
    if isinstance(t, Tensor):
        if on_host(t) and not bool(((t >= 0) & (t <= 1)).all()):
            raise ValueError(f"{name} must lie in [0, 1] (noise at 0, data at 1); got {t.tolist()}")
    elif not 0.0 <= t <= 1.0:
        raise ValueError(f"{name} must lie in [0, 1] (noise at 0, data at 1); got {t}")
    elif torch.compiler.is_compiling():  # a number would be part of the graph, and each step need its own
        return torch.zeros(x.shape[:1], dtype=scalar_dtype(x.device), device=x.device) + t
    return t


def to_linear(x: Tensor, alpha: Number, sigma: Number) -> tuple[Tensor, Number]:
    """The state and time on the linear path that carry the same posterior mean."""
    total = alpha + sigma
    return x / per_sample(total, x), alpha / total


def mean_from_velocity(x: Tensor, t: Number, v: Tensor, *, out: Tensor | None = None) -> Tensor:
    """m = x + (1 - t) v, with v = data - noise; at t = 1 the mean is x."""
    if isinstance(t, Tensor):
        return torch.addcmul(x, v, per_sample(1 - t, v), out=out)  # type: ignore[arg-type]
    return torch.add(x, v, alpha=1 - t, out=out)


def velocity_from_mean(x: Tensor, t: Number, m: Tensor) -> Tensor:
    """v = (m - x) / (1 - t); t < 1."""
    return (m - x) / per_sample(1 - t, x)


def mean_from_noise(x: Tensor, eps: Tensor, alpha: Number, sigma: Number) -> Tensor:
    """m = (x - sigma eps) / alpha; alpha > 0, since pure noise says nothing of the data."""
    return (x - per_sample(sigma, x) * eps) / per_sample(alpha, x)


def mean_from_score(x: Tensor, score: Tensor, alpha: Number, sigma: Number) -> Tensor:
    """m = (x + sigma^2 grad log p(x)) / alpha; alpha > 0."""
    return (x + per_sample(sigma * sigma, x) * score) / per_sample(alpha, x)


def mean_from_v_prediction(x: Tensor, v: Tensor, alpha: Number, sigma: Number) -> Tensor:
    """m = (alpha x - sigma v) / (alpha^2 + sigma^2), with v = alpha noise - sigma data."""
    total = alpha * alpha + sigma * sigma
    return per_sample(alpha / total, x) * x - per_sample(sigma / total, x) * v


def coefficients(alpha: float | Tensor, sigma: float | Tensor, x: Tensor) -> tuple[Number, Number]:
    """alpha and sigma of a Gaussian path, checked: finite, not negative, not both zero."""
    a, s = number(alpha, x, "alpha"), number(sigma, x, "sigma")
    for name, v in (("alpha", a), ("sigma", s)):
        good = _every(v, lambda u: u >= 0 and math.isfinite(u), lambda u: (u >= 0) & torch.isfinite(u))
        if not good:
            raise ValueError(f"{name} must be finite and not negative; got {v}")
    if not _every(a + s, lambda u: u > 0, lambda u: u > 0):
        raise ValueError("alpha and sigma are both zero: x carries neither data nor noise")
    return a, s


def need_signal(alpha: Number, kind: str) -> None:
    """A noise or score prediction states no mean where there is no data in x."""
    if not _every(alpha, lambda u: u > 0, lambda u: u > 0):
        raise ValueError(
            f"a {kind} says nothing of the data where alpha = 0; use a v-prediction or a velocity there"
        )


def _every(v: Number, one, many) -> bool:  # type: ignore[no-untyped-def]
    if isinstance(v, Tensor):
        return not on_host(v) or bool(many(v).all())
    return bool(one(v))
