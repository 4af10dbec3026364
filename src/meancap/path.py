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

from .tensors import Number, on_host, per_sample, scalar_dtype, scaled


class Affine(NamedTuple):
    """The mean of an output, m = a x + k out, and the place of x on the linear path."""

    a: Number
    k: Number
    t: Number
    unit: Number = 1.0  # unit * x is the state on the linear path
    t_next: Number | None = None  # where the step ends, if the host provides it


def on_gaussian(kind: str, alpha: Number, sigma: Number, x: Tensor | None = None) -> Affine:
    """The numbers for one kind of output on x = alpha data + sigma noise; x is needed for several samples."""
    alpha, sigma = number(alpha, x, "alpha"), number(sigma, x, "sigma")
    total = alpha + sigma
    if not _every(total > 0):
        raise ValueError("alpha and sigma are both zero: x carries neither data nor noise")
    if kind in ("noise", "score") and not _every(alpha > 0):
        raise ValueError(
            f"a {kind} prediction does not determine the data at alpha = 0; "
            "use a v-prediction or a velocity there"
        )
    if kind == "mean":
        a, k = 0.0 * total, 0.0 * total + 1.0
    elif kind == "v":
        square = alpha * alpha + sigma * sigma
        a, k = alpha / square, -sigma / square
    else:
        a, k = 1 / alpha, (-sigma if kind == "noise" else sigma * sigma) / alpha
    return Affine(a, k, alpha / total, 1 / total)


def number(v: Number, x: Tensor | None, name: str, last: float = math.inf) -> Number:
    """A number from 0 to `last`: a float, one value per sample of `x`, or one for all with shape (1,)."""
    if not isinstance(v, Tensor):
        v = float(v)
    elif v.dim() == 0 or v.shape == (1,):
        v = float(v) if on_host(v) else v.to(scalar_dtype(v.device)).reshape(1)
    elif isinstance(x, Tensor) and v.shape != x.shape[:1]:  # any other x is an error of the prediction's own
        raise ValueError(
            f"{name} must be one number, or one per sample with shape ({x.shape[0]},); got {tuple(v.shape)}"
        )
    else:
        v = v.to(scalar_dtype(v.device))  # in half precision 1 - t would lose what t says
    if not _every((v >= 0) & (v <= last) & (v < math.inf)):
        place = "lie in [0, 1] (noise at 0, data at 1)" if last == 1 else "be finite and not negative"
        raise ValueError(f"{name} must {place}; got {v.tolist() if isinstance(v, Tensor) else v}")
    return v


def mean_of(x: Tensor, out: Tensor, a: Number, k: Number, dtype: torch.dtype) -> Tensor:
    """a x + k out in this precision; x is not read if a = 0."""
    moved = scaled(out.to(dtype), k)
    if not isinstance(a, Tensor):
        return moved if a == 0 else (x if a == 1 else a * x.to(dtype)) + moved
    each = torch.as_tensor(per_sample(a, moved))
    # Rounded twice, as `fast` does it: one mean, one set of bits.
    return torch.where(each == 0, 0.0, each * x) + moved


def _every(good: bool | Tensor) -> bool:
    """Whether all are true, as far as one can tell without waiting for a device."""
    return (not on_host(good) or bool(good.all())) if isinstance(good, Tensor) else good
