"""Which implementation serves: by device, by type, by what is installed, and by who follows the tensors."""

from __future__ import annotations

import importlib.util
from collections import Counter
from functools import cache
from types import ModuleType
from typing import NamedTuple

import torch
from torch import Tensor

from ..tensors import Number, followed, vector
from . import reference

calls: Counter[str] = Counter()  # of `capped`, by implementation: tests ask whether a host gets here

_TYPES = {
    "cpu": (torch.float32, torch.bfloat16),
    "cuda": (torch.float32, torch.bfloat16, torch.float16),
}
_LARGEST = 2**31 - 2**16  # kernels count the elements of a sample in 32 bits


class Lengths(NamedTuple):
    """Two vectors per sample, reduced to what a cap needs to know of them; one float64 entry each."""

    m: Tensor  # |m|
    d: Tensor  # |d|
    along: Tensor  # component of m along d, that is <m, d> / |d|; 0 where d = 0


def lengths(m: Tensor, d: Tensor) -> Lengths:
    """|m|, |d| and the component of m along d, for each sample."""
    return measured(m, m, d, 0.0, 1.0, direct=True)


def measured(
    x: Tensor, out_c: Tensor, other: Tensor, a: Number, k: Number, *, direct: bool = False
) -> Lengths:
    """|m|, |k d| and the component of m along k d, for each sample."""
    if _served(x, out_c, other, a, k) and torch.compiler.is_compiling():
        numbers = torch.stack([vector(v, x) for v in (a, k)])
        found = torch.ops.meancap.measured(x, out_c, other, numbers, direct)
    else:
        found = _chosen(x, out_c, other, a, k).measured(x, out_c, other, a, k, direct=direct)
    return Lengths(*found.unbind(0))


def mean_of(x: Tensor, out: Tensor, a: Number, k: Number, dtype: torch.dtype) -> Tensor:
    """The posterior mean a x + k out, by the same arithmetic as the mean that `combined` writes."""
    if not (isinstance(a, Tensor) or isinstance(k, Tensor)) and (a, k) == (0, 1):
        return out.to(dtype)
    return combined(x, out, out, a, k, 0.0, mean=True, dtype=dtype)


def combined(
    x: Tensor,
    out_c: Tensor,
    other: Tensor,
    a: Number,
    k: Number,
    c: Number,
    *,
    direct: bool = False,
    mean: bool = False,
    dtype: torch.dtype,
) -> Tensor:
    """out_c + c d, or the guided mean; exactly out_c at c = 0, exactly `other` at c = -1 (unless direct)."""
    result: Tensor = _chosen(x, out_c, other, a, k, c).combined(
        x, out_c, other, a, k, c, direct=direct, mean=mean, dtype=dtype
    )
    return result


def capped(
    x: Tensor,
    out_c: Tensor,
    other: Tensor,
    a: Number,
    k: Number,
    c: Number,
    gamma: Number,
    floor: Number,
    *,
    ball: bool,
    margin: float,
    direct: bool = False,
    mean: bool = False,
    dtype: torch.dtype,
) -> tuple[Tensor, Lengths, Tensor]:
    """The result under a cap, the lengths that it was solved from, and the coefficient that it left."""
    if _served(x, out_c, other, a, k, c, gamma, floor) and torch.compiler.is_compiling():
        numbers = torch.stack([vector(v, x) for v in (a, k, c, gamma, floor)])
        result, found = torch.ops.meancap.capped(x, out_c, other, numbers, ball, margin, direct, mean, dtype)
    else:
        chosen = _chosen(x, out_c, other, a, k, c, gamma, floor)
        result, found = chosen.capped(
            x, out_c, other, a, k, c, gamma, floor,
            ball=ball, margin=margin, direct=direct, mean=mean, dtype=dtype,
        )  # fmt: skip
        if not torch.compiler.is_compiling():
            calls[chosen.__name__.rpartition(".")[2]] += 1
    m, d, along, left = found.unbind(0)
    return result, Lengths(m, d, along), left


def _chosen(*tensors: Number) -> ModuleType:
    """The module that does the work; kernels are imported here, because they import their compiler."""
    if torch.compiler.is_compiling() or not _served(*tensors):
        return reference
    device = tensors[0].device.type  # type: ignore[union-attr]
    if device == "cpu":
        from . import host

        return host
    from . import cuda

    return cuda


def _served(*given: Number) -> bool:
    """Whether kernels take x, out_c, other and these numbers, with nobody to show each operation to."""
    x, out_c, other, *numbers = (v for v in given if isinstance(v, Tensor))
    if torch.compiler.is_compiling():
        if any(v.requires_grad for v in (x, out_c, other, *numbers)):
            return False
    elif followed(x, out_c, other, *numbers) or any(type(v) is not Tensor for v in (x, out_c, other)):
        return False
    types = _TYPES.get(x.device.type, ())
    return (
        x.dtype in types
        and out_c.dtype in types
        and other.dtype == out_c.dtype
        and all(v.device == x.device for v in (out_c, other, *numbers))
        and 0 < x.numel() <= _LARGEST * x.shape[0]
        and _ready(x.device.type, x.device.index)
    )


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _ready(device: str, index: int | None) -> bool:
    return _installed(device, index)


@cache
def _installed(device: str, index: int | None) -> bool:
    """Whether kernels can run on a device: their compiler is installed, and a GPU can take them."""
    if device == "cpu":
        return importlib.util.find_spec("numba") is not None
    if importlib.util.find_spec("triton") is None:
        return False
    from . import cuda

    return cuda.ready(index)
