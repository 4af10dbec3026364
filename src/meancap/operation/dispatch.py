"""Which implementation serves: by device, by type, by what is installed, and by who follows the tensors."""

from __future__ import annotations

import importlib
import importlib.util
import math
import sys
import warnings
from collections import Counter
from functools import cache
from types import ModuleType

import torch
from torch import Tensor

from ..tensors import Number, compiling, transformed, vector
from . import reference
from .request import Found, Lengths, Request

calls: Counter[str] = Counter()  # of steps that cap and write, by implementation: tests ask who gets here

_modes = torch._C._len_torch_dispatch_stack  # modes that want to see torch's operations; no public question
_TYPES = {
    "cpu": (torch.float32, torch.bfloat16),
    "cuda": (torch.float32, torch.bfloat16, torch.float16),
}


def run(request: Request) -> tuple[Tensor, Found]:
    """The result, and what was found of each sample: the `Lengths` and the coefficient that is left.

    What was not asked for holds anything: the result without a dtype, the numbers of an uncapped step.
    """
    if compiling():
        return _traced(request)
    return served(request, seen=_modes() > 0)


def served(request: Request, *, seen: bool = False) -> tuple[Tensor, Found]:
    """The same outside a compiled graph; `seen` by a mode, it is done by torch's own operations."""
    kernels = None if seen else _kernels(request)
    done: tuple[Tensor, Found] = (kernels or reference).run(request)
    if request.capped and request.dtype is not None:
        calls["reference" if kernels is None else kernels.DEVICE] += 1
    return done


def measured(x: Tensor, out_c: Tensor, other: Tensor, a: Number, k: Number) -> Lengths:
    """|m|, |k d| and the component of m along k d, for each sample; m = a x + k out_c, d = out_c - other."""
    return Lengths(*run(Request(x, out_c, other, (a, k, 0.0, math.inf, 0.0)))[1][:3])


def lengths(m: Tensor, d: Tensor) -> Lengths:
    """|m|, |d| and the component of m along d, for each sample."""
    return Lengths(*run(Request(m, m, d, (0.0, 1.0, 0.0, math.inf, 0.0), direct=True))[1][:3])


def mean_of(x: Tensor, out: Tensor, a: Number, k: Number, dtype: torch.dtype) -> Tensor:
    """The posterior mean a x + k out, by the same arithmetic as the mean that a step writes."""
    if not (isinstance(a, Tensor) or isinstance(k, Tensor)) and (a, k) == (0, 1):
        return out.to(dtype)
    numbers = (a, k, 0.0, math.inf, 0.0)
    return run(Request(x, out, out, numbers, mean=True, dtype=dtype, capped=False, lengths=False))[0]


def _kernels(request: Request) -> ModuleType | None:
    """The module of kernels for these tensors, or None where the reference must do it."""
    x, out_c, other, numbers = request[:4]
    each = (numbers,) if isinstance(numbers, Tensor) else numbers
    if not type(x) is type(out_c) is type(other) is Tensor or transformed(x, out_c, other, *each):
        return None
    return _module(x.device, x.dtype, out_c.dtype, other.dtype, request.dtype or out_c.dtype)


@cache
def _module(
    device: torch.device, state: torch.dtype, output: torch.dtype, other: torch.dtype, result: torch.dtype
) -> ModuleType | None:
    """The kernels of a device, where they take these types and can run; imported at their first use."""
    types = _TYPES.get(device.type, ())
    if not (state in types and output in types and result in types and other == output):
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


def _traced(request: Request) -> tuple[Tensor, Found]:
    """In a compiled graph a capped step that kernels serve is one opaque node; the compiler sees the rest."""
    x, out_c, other, numbers = request[:4]
    follows = any(isinstance(v, Tensor) and v.requires_grad for v in (x, out_c, other, *numbers))
    types = (x.dtype, out_c.dtype, other.dtype, request.dtype or out_c.dtype)
    if follows or not (request.capped and _known(x.device, *types)):
        return reference.run(request)
    shared = all(not isinstance(v, Tensor) or v.numel() == 1 for v in numbers)
    table = torch.stack([vector(v, x[:1] if shared else x) for v in numbers])
    how = (request.ball, request.margin, request.direct, request.mean, request.dtype, request.lengths)
    done: tuple[Tensor, Tensor] = torch.ops.meancap.step(x, out_c, other, table, *how)
    return done


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _known(*given: object) -> bool:
    """Asked while the graph is traced: whether there are kernels, and no transform that must see inside."""
    return not transformed() and _module(*given) is not None
