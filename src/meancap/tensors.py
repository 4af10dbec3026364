"""Numbers that belong to samples, and the precision that guidance is worked out in.

    sample   one entry along the first axis; every reduction is over all the others
    number   a float shared by all samples, or a tensor with one value per sample, shape (batch,)

Numbers are float64 where the device has it: squares of float32 elements leave float32's range beyond 1e19 and
below 1e-19, and long float32 sums lose digits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

Number = float | Tensor

unpack_dual: Callable[[Tensor], Any] = forward_ad.unpack_dual
magnitude: Callable[[Any], Number] = abs  # of a float or of one number per sample
compiling = torch.compiler.is_dynamo_compiling  # Dynamo reads this call as True


def vector(v: Number, like: Tensor) -> Tensor:
    """A number as a tensor with one entry per sample of `like`."""
    dtype = scalar_dtype(like.device)
    if not isinstance(v, Tensor):
        return torch.full(like.shape[:1], v, dtype=dtype, device=like.device)
    need_one_each(like.shape[0], v.numel())
    return v.to(like.device, dtype).reshape(-1).expand(like.shape[:1])


def per_sample(v: Number, like: Tensor) -> Number:
    """`v` shaped so that it multiplies `like` sample by sample, in the precision of `like`."""
    if not isinstance(v, Tensor):
        return v
    need_one_each(like.shape[0], v.numel())
    return v.to(like.dtype).reshape(v.shape[:1] + (1,) * (like.dim() - 1))


def scaled(v: Tensor, by: Number) -> Tensor:
    """`v` times a number per sample; `v` itself if the number is 1."""
    return v if not isinstance(by, Tensor) and by == 1 else per_sample(by, v) * v


def need_one_each(samples: int, count: int) -> None:
    """Raise an error unless there is one number for all samples, or one for each."""
    if count != 1 and count != samples:  # one by one: in a compiled graph they may be symbols
        raise ValueError(f"give one number for all samples, or one for each; got {count} for {samples}")


def promoted(x: Tensor) -> Tensor:
    """`x` in float32 at least; guidance in half precision breaks its own bound."""
    if not x.is_floating_point():
        raise TypeError(f"guidance needs floating-point tensors; got {x.dtype}")
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


def scalar_dtype(device: torch.device) -> torch.dtype:
    """The widest floating type that a device has."""
    return torch.float32 if device.type == "mps" else torch.float64


def on_host(*tensors: Tensor) -> bool:
    """Whether values can be read: no device to wait for, no graph to break, no derivative to lose."""
    for v in tensors:
        if not v.is_cpu or type(v) not in (Tensor, torch.nn.Parameter):
            return False
    return not transformed(*tensors)


def transformed(*tensors: Tensor) -> bool:
    """Whether a compiler, a function transform, a tangent or a gradient needs torch's own operations."""
    if compiling():
        return True
    for v in tensors:
        if (v.requires_grad and torch.is_grad_enabled()) or unpack_dual(v).tangent is not None:
            return True
        try:
            v.data_ptr()  # under vmap, jvp and grad of torch.func a tensor has no storage of its own
        except RuntimeError:
            return True
    return False
