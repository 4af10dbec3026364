"""Times and paths: the posterior mean of a network's output, on any Gaussian path.

    x = alpha data + sigma noise      a Gaussian path; data at alpha = 1, sigma = 0
    x = t data + (1 - t) noise        the linear path, the only one used inside: alpha = t, sigma = 1 - t

Dividing a Gaussian path by alpha + sigma gives the linear one at t = alpha / (alpha + sigma), with the same
posterior mean m = E[data | x]. In every parametrisation it is **m = a x + k out**:

    output of the network             a                            k
    the mean itself                   0                            1
    velocity data - noise             1                            1 - t
    noise                             1 / alpha                    -sigma / alpha
    v = alpha noise - sigma data      alpha / (alpha^2 + sigma^2)  -sigma / (alpha^2 + sigma^2)
    score grad log p(x)               1 / alpha                    sigma^2 / alpha

They follow by taking E[. | x] of the path and solving for the data: a noise prediction is E[noise | x], so
x = alpha m + sigma out. The velocity row is x = t m + (1 - t)(m - out). For a v-prediction, alpha x - sigma v
= (alpha^2 + sigma^2) data. Tweedie's formula, alpha m = x + sigma^2 score, is the last. CFG is one affine
combination in all of them; lengths are not, and the caps measure the mean.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from .tensors import Number, compiling, on_host, per_sample, scalar_dtype


class Affine(NamedTuple):
    """The mean of an output, m = a x + k out, and the place of x on the linear path."""

    a: Number
    k: Number
    t: Number
    unit: Number = 1.0  # unit * x is the state on the linear path
    t_next: Number | None = None  # where the step ends, if the host provides it


def on_gaussian(kind: str, alpha: float | Tensor, sigma: float | Tensor, x: Tensor) -> Affine:
    """The numbers for one kind of output on x = alpha data + sigma noise."""
    alpha, sigma = _coefficients(alpha, sigma, x)
    total = alpha + sigma
    if kind == "mean":
        a, k = 0.0 * total, 0.0 * total + 1.0
    elif kind == "noise":
        _need_signal(alpha, "noise prediction")
        a, k = 1 / alpha, -sigma / alpha
    elif kind == "v":
        square = alpha * alpha + sigma * sigma
        a, k = alpha / square, -sigma / square
    else:
        _need_signal(alpha, "score")
        a, k = 1 / alpha, sigma * sigma / alpha
    return Affine(a, k, alpha / total, 1 / total)


def number(v: float | Tensor, x: Tensor, name: str) -> Number:
    """A time or coefficient as a float, as one value per sample of `x`, or as one for all, shape (1,)."""
    if not isinstance(v, Tensor):
        return float(v)
    if v.dim() == 0 or v.shape == (1,):
        if compiling() or not on_host(v):
            return v.to(scalar_dtype(v.device)).reshape(1)
        return float(v)
    if isinstance(x, Tensor) and v.shape != x.shape[:1]:  # any other x is an error of the prediction's own
        raise ValueError(
            f"{name} must be one number, or one per sample with shape ({x.shape[0]},); got {tuple(v.shape)}"
        )
    return v.to(scalar_dtype(v.device))  # in half precision 1 - t would lose what t says


def time(t: float | Tensor, x: Tensor, name: str = "t") -> Number:
    """A time in [0, 1]; data lies at 1."""
    if type(t) is float and 0.0 <= t <= 1.0 and not compiling():
        return t
    if compiling() and not isinstance(t, Tensor) and 0.0 <= t <= 1.0:
        # As a number it would be a constant of the graph, and each step would need its own graph.
        return torch.zeros(1, dtype=scalar_dtype(x.device), device=x.device) + t
    t = number(t, x, name)
    if isinstance(t, Tensor):
        if not compiling() and on_host(t) and not bool(((t >= 0) & (t <= 1)).all()):
            raise ValueError(f"{name} must lie in [0, 1] (noise at 0, data at 1); got {t.tolist()}")
    elif not 0.0 <= t <= 1.0:
        raise ValueError(f"{name} must lie in [0, 1] (noise at 0, data at 1); got {t}")
    return t


def mean_of(x: Tensor, out: Tensor, a: Number, k: Number, dtype: torch.dtype) -> Tensor:
    """a x + k out in this precision; x is not read if a = 0."""
    out = out.to(dtype)
    if not isinstance(a, Tensor) and a == 0:
        return out if not isinstance(k, Tensor) and k == 1 else per_sample(k, out) * out
    base = x
    if isinstance(a, Tensor):
        each = torch.as_tensor(per_sample(a, out))
        base = torch.where(each == 0, 0.0, each * x)
    elif a != 1:
        base = a * x.to(dtype)
    move = per_sample(k, out) if isinstance(k, Tensor) else k
    return base + move * out  # rounded twice, as `fast.gram` does it: one mean, one set of bits


def velocity_from_mean(x: Tensor, t: Number, m: Tensor) -> Tensor:
    """v = (m - x) / (1 - t); t < 1."""
    return (m - x) / per_sample(1 - t, x)


def _coefficients(alpha: float | Tensor, sigma: float | Tensor, x: Tensor) -> tuple[Number, Number]:
    """alpha and sigma of a Gaussian path, checked: finite, not negative, not both zero."""
    a, s = number(alpha, x, "alpha"), number(sigma, x, "sigma")
    for name, v in (("alpha", a), ("sigma", s)):
        good = (v >= 0) & (v < math.inf)
        if not _every(good):
            raise ValueError(f"{name} must be finite and not negative; got {v}")
    if not _every(a + s > 0):
        raise ValueError("alpha and sigma are both zero: x carries neither data nor noise")
    return a, s


def _need_signal(alpha: Number, kind: str) -> None:
    """Raises an error if alpha = 0: a noise or score prediction then does not determine the mean."""
    if not _every(alpha > 0):
        raise ValueError(
            f"a {kind} does not determine the data at alpha = 0; use a v-prediction or a velocity there"
        )


def _every(good: bool | Tensor) -> bool:
    return (not on_host(good) or bool(good.all())) if isinstance(good, Tensor) else good
