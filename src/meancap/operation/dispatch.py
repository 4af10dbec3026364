"""Which implementation serves: by device, by type, by what is installed, and by who follows the tensors."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import warnings
from collections import Counter
from functools import cache
from types import ModuleType

import torch
from torch import Tensor

from ..tensors import Number, compiling, transformed, vector
from . import reference
from .request import Lengths, Request

calls: Counter[str] = Counter()  # of steps that cap and write, by implementation: tests ask who gets here

_TYPES = {
    "cpu": (torch.float32, torch.bfloat16),
    "cuda": (torch.float32, torch.bfloat16, torch.float16),
}
_LARGEST = 2**31 - 2**16  # kernels count the elements of a sample in 32 bits


def run(request: Request) -> tuple[Tensor, Tensor]:
    """The result, and four numbers per sample, (4, batch): the `Lengths` and the coefficient that is left.

    What was not asked for holds anything: the result without a dtype, the numbers of an uncapped step.
    """
    if compiling():
        return _traced(request)
    kernels = _kernels(request)
    done: tuple[Tensor, Tensor] = (kernels or reference).run(request)
    if request.capped and request.dtype is not None:
        calls["reference" if kernels is None else kernels.DEVICE] += 1
    return done


def from_table(
    x: Tensor, out_c: Tensor, other: Tensor, numbers: Tensor, *how: bool | float | torch.dtype | None
) -> tuple[Tensor, Tensor]:
    """A capped step inside a compiled graph, from its numbers in one tensor: (5, batch) or (5, 1)."""
    if transformed(x, out_c, other, numbers):  # a derivative follows: by operations that have one
        done = reference.run(Request(x, out_c, other, *numbers.unbind(0), *how))  # type: ignore[arg-type]
        return (done[0] if how[-1] is not None else x.new_empty(0)), done[1]
    kernels = _module(x.device, x.dtype, out_c.dtype, other.dtype)
    if kernels is None or not x.is_cpu or not x.numel():
        result, found = run(Request(x, out_c, other, *numbers.unbind(0), *how))  # type: ignore[arg-type]
    else:
        calls["cpu"] += how[-1] is not None
        result, found = kernels.step(x, out_c, other, numbers.contiguous().numpy(), *how)
    # An operator may not return its own input: without a dtype nothing is written.
    return (result if how[-1] is not None else x.new_empty(0)), found


def measured(request: Request) -> Lengths:
    """|m|, |k d| and the component of m along k d, for each sample."""
    m, d, along, _ = run(request)[1].unbind(0)
    return Lengths(m, d, along)


def lengths(m: Tensor, d: Tensor) -> Lengths:
    """|m|, |d| and the component of m along d, for each sample."""
    return measured(Request(m, m, d, direct=True))


def mean_of(x: Tensor, out: Tensor, a: Number, k: Number, dtype: torch.dtype) -> Tensor:
    """The posterior mean a x + k out, by the same arithmetic as the mean that a step writes."""
    if not (isinstance(a, Tensor) or isinstance(k, Tensor)) and (a, k) == (0, 1):
        return out.to(dtype)
    return run(Request(x, out, out, a, k, mean=True, dtype=dtype, capped=False))[0]


def _kernels(request: Request) -> ModuleType | None:
    """The module of kernels for these tensors, or None where the reference must do it."""
    x, out_c, other = request[:3]
    if not type(x) is type(out_c) is type(other) is Tensor:
        return None
    device = x.device
    module = _module(device, x.dtype, out_c.dtype, other.dtype)
    if module is None or not 0 < x.numel() <= _LARGEST * x.shape[0]:
        return None
    tensors = [x, out_c, other]
    for v in request[3:8]:
        if type(v) is not float and isinstance(v, Tensor):
            tensors.append(v)
    for v in tensors:
        if v.device != device:
            return None
    if transformed(*tensors):
        return None
    if torch._C._len_torch_dispatch_stack():  # a mode wants to see torch's operations; no public question
        return None
    return module


@cache
def _module(
    device: torch.device, state: torch.dtype, output: torch.dtype, other: torch.dtype
) -> ModuleType | None:
    """The kernels of a device, where they take these types and can run; imported at their first use."""
    types = _TYPES.get(device.type, ())
    if state not in types or output not in types or other != output:
        return None
    compiler, name = ("numba", ".host") if device.type == "cpu" else ("triton", ".cuda")
    if importlib.util.find_spec(compiler) is None or sys.byteorder != "little":
        return None
    try:
        module = importlib.import_module(name, __package__)
    except ImportError as error:
        warnings.warn(f"guidance runs without its kernels, because {compiler} failed: {error}", stacklevel=2)
        return None
    return module if device.type == "cpu" or module.ready(device.index) else None


def _traced(request: Request) -> tuple[Tensor, Tensor]:
    """Inside a compiled graph a capped step is one opaque node; any other is left to the compiler."""
    if not (request.capped and _opaque(request)):
        return reference.run(request)
    shared = all(not isinstance(v, Tensor) or v.numel() == 1 for v in request[3:8])
    samples = request.x[:1] if shared else request.x
    numbers = torch.stack([vector(v, samples) for v in request[3:8]])
    done: tuple[Tensor, Tensor] = torch.ops.meancap.step(*request[:3], numbers, *request[8:13])
    return done


def _opaque(request: Request) -> bool:
    x, out_c, other = request[:3]
    for v in (x, out_c, other, *[v for v in request[3:8] if isinstance(v, Tensor)]):
        if v.requires_grad or v.device != x.device:
            return False
    few = 0 < x.numel() <= _LARGEST * x.shape[0]
    return few and _constant_module(x.device, x.dtype, out_c.dtype, other.dtype)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _constant_module(*given: object) -> bool:
    """Asked while the graph is traced: whether there are kernels, and no transform that must see inside."""
    return not transformed() and _module(*given) is not None
