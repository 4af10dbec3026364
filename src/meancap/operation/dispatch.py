"""Which implementation serves: by device, by type, by what is installed, and by who follows the tensors."""

from __future__ import annotations

import importlib
import importlib.util
from collections import Counter
from functools import cache
from types import ModuleType
from typing import NamedTuple

import torch
from torch import Tensor

from ..tensors import Number, transformed, vector
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
    kernels = _kernels(x, out_c, other, (a, k))
    if kernels is None:
        table = reference.measured(x, out_c, other, a, k, direct=direct)
    elif torch.compiler.is_compiling():
        numbers = torch.stack([vector(v, x) for v in (a, k)])
        table = torch.ops.meancap.measured(x, out_c, other, numbers, direct)
    else:
        table = kernels.measured(x, out_c, other, a, k, direct=direct)
    return Lengths(*table.unbind(0))


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
    kernels = None if torch.compiler.is_compiling() else _kernels(x, out_c, other, (a, k, c))
    result: Tensor = (kernels or reference).combined(
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
) -> tuple[Tensor, Tensor]:
    """The result under a cap, and four numbers per sample, (4, batch): the `Lengths` and the coefficient."""
    kernels = _kernels(x, out_c, other, (a, k, c, gamma, floor))
    if kernels is not None and torch.compiler.is_compiling():
        numbers = torch.stack([vector(v, x) for v in (a, k, c, gamma, floor)])
        result, numbers_out = torch.ops.meancap.capped(
            x, out_c, other, numbers, ball, margin, direct, mean, dtype
        )
        return result, numbers_out
    result, numbers_out = (kernels or reference).capped(
        x, out_c, other, a, k, c, gamma, floor,
        ball=ball, margin=margin, direct=direct, mean=mean, dtype=dtype,
    )  # fmt: skip
    if not torch.compiler.is_compiling():
        calls["reference" if kernels is None else x.device.type] += 1
    return result, numbers_out


def _kernels(x: Tensor, out_c: Tensor, other: Tensor, numbers: tuple[Number, ...]) -> ModuleType | None:
    """The module of kernels for these tensors, or None where the reference must do it."""
    given = [v for v in numbers if isinstance(v, Tensor)]
    device, types = x.device, _TYPES.get(x.device.type, ())
    if x.dtype not in types or out_c.dtype not in types or other.dtype != out_c.dtype:
        return None
    for v in (out_c, other, *given):
        if v.device != device:
            return None
    if not 0 < x.numel() <= _LARGEST * x.shape[0] or not _ready(device.type, device.index):
        return None
    if torch.compiler.is_compiling():
        graded = any(v.requires_grad for v in (x, out_c, other, *given))
        return None if graded else reference  # a graph calls the operator by its name
    if transformed(x, out_c, other, *given) or not type(x) is type(out_c) is type(other) is Tensor:
        return None
    if torch._C._len_torch_dispatch_stack():  # a mode wants to see torch's operations; no public question
        return None
    return _module(device.type)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _ready(device: str, index: int | None) -> bool:
    return _installed(device, index)


@cache
def _installed(device: str, index: int | None) -> bool:
    """Whether kernels can run on a device: their compiler is installed, and a GPU can take them."""
    if device == "cpu":
        return importlib.util.find_spec("numba") is not None
    return importlib.util.find_spec("triton") is not None and _module(device).ready(index)


@cache
def _module(device: str) -> ModuleType:
    """The kernels of a device, imported at their first use, because they import their compiler."""
    return importlib.import_module(f".{'host' if device == 'cpu' else device}", __package__)
