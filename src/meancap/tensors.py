"""Numbers that belong to samples, and the precision that guidance is worked out in.

    sample   one entry along the first axis; every reduction is over all the others
    number   a float shared by all samples, or a tensor with one value per sample, shape (batch,)

Numbers are float64 where the device has it: squares of float32 elements leave float32's range beyond 1e19 and
below 1e-19, and long float32 sums lose digits.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch.autograd import forward_ad

Number = float | Tensor
Value = TypeVar("Value")

_LARGEST_EXPONENT = math.log(sys.float_info.max)


_unpack_dual: Callable[[Tensor], Any] = forward_ad.unpack_dual
compiling = torch.compiler.is_dynamo_compiling  # Dynamo reads this call as True


class once(Generic[Value]):
    """A property computed at its first use and kept in the object under its own name.

    functools.cached_property does the same, but its lock (before Python 3.12) would break a compiled graph.
    """

    def __init__(self, work: Callable[[Any], Value]) -> None:
        self.work, self.name, self.__doc__ = work, work.__name__, work.__doc__

    def __get__(self, owner: Any, _: type | None = None) -> Value:
        value = self.work(owner)
        if not compiling():
            owner.__dict__[self.name] = value
        return value


def vector(v: Number, like: Tensor) -> Tensor:
    """A number as a tensor with one entry per sample of `like`."""
    dtype = scalar_dtype(like.device)
    if not isinstance(v, Tensor):
        return torch.full(like.shape[:1], v, dtype=dtype, device=like.device)
    need_one_each(like.shape[0], v.numel())
    return v.to(like.device, dtype).reshape(-1).expand(like.shape[:1])


def per_sample(v: Number, like: Tensor) -> Number:
    """`v` shaped so that it multiplies `like` sample by sample, in the precision of `like`."""
    if isinstance(v, Tensor):
        return v.to(like.dtype).reshape(v.shape[:1] + (1,) * (like.dim() - 1))
    return v


def need_one_each(samples: int, count: int) -> None:
    """Raises an error unless there is one number for all samples, or one for each."""
    if count != 1 and count != samples:  # one by one: in a compiled graph they may be symbols
        raise ValueError(f"give one number for all samples, or one for each; got {count} and {samples}")


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


def transformed(*values: Number) -> bool:
    """Whether a compiler, a function transform, a tangent or a gradient needs torch's own operations."""
    if compiling():
        return True
    for v in values:
        if isinstance(v, Tensor):
            if v.requires_grad and torch.is_grad_enabled():
                return True
            if _unpack_dual(v).tangent is not None:
                return True
            try:
                v.data_ptr()  # under vmap, jvp and grad of torch.func a tensor has no storage of its own
            except RuntimeError:
                return True
    return False


def magnitude(v: Number) -> Number:
    """|v|."""
    return v.abs() if isinstance(v, Tensor) else math.fabs(v)


def exp(v: Number) -> Number:
    """e to the v, of a float or of one number per sample; inf where it is too large, as in floating point."""
    if isinstance(v, Tensor):
        return v.exp()
    return math.inf if v > _LARGEST_EXPONENT else math.exp(v)


def power(base: Number, exponent: float) -> Number:
    """base^exponent for base >= 0; inf for 0 to a negative power or where too large, as in floating point."""
    if isinstance(base, Tensor):
        return torch.pow(base, exponent)
    if base == 0:
        return math.inf if exponent < 0 else math.pow(base, exponent)
    return math.inf if exponent * math.log(base) > _LARGEST_EXPONENT else math.pow(base, exponent)


def below(a: Number, b: float) -> bool:
    """Whether any is less than b, as far as one can tell without waiting for a device."""
    if isinstance(a, Tensor):
        return on_host(a) and bool((a < b).any())
    return not compiling() and a < b


def greater(a: Number, b: float) -> Number:
    """The larger of the two, or nan where `a` is nan."""
    return a.clamp(min=b) if isinstance(a, Tensor) else (b if b > a else a)


def lesser(a: Number, b: float) -> Number:
    """The smaller of the two, or nan where `a` is nan."""
    return a.clamp(max=b) if isinstance(a, Tensor) else (b if b < a else a)
