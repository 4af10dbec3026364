"""The hot step of a capped rule in one or two launches, where the device is CUDA and triton is there.

Served are rules that end in a plain hard cap, per sample and seen from the origin. Whatever comes before it
says one coefficient per sample, as on any device; a kernel does the rest: lengths, cap, blend. Every other
rule and device takes the eager path, and so does a step that somebody follows: a kernel shows them nothing.
"""

from __future__ import annotations

import subprocess
import warnings
from functools import cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ..schedules import value_of
from ..tensors import Number
from .base import Chain, Ray, Recorder, Rule, State, displace
from .cap import Cap, CapDisplacement, margin_of

if TYPE_CHECKING:
    from .velocities import Velocities

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_LARGEST = 2**31 - 2**16  # kernels count the elements of a sample in 32 bits


def serves(rule: Rule, p: Velocities) -> bool:
    """Whether `guided` may take this step."""
    if torch.compiler.is_compiling() or not on_cuda(p.x):
        return False
    cap = rule.parts[-1] if rule.parts else rule
    if not isinstance(cap, Cap) or type(cap) not in (Cap, CapDisplacement):  # a user's cap has its own form
        return False
    if not cap._plain or cap.smooth:
        return False
    tensors = (p.x, p.v_c, p.v_u)
    if any(v.dtype not in _DTYPES or v.device != p.x.device for v in tensors) or _followed(*tensors):
        return False
    return 0 < p.x.numel() <= _LARGEST * p.x.shape[0]


def guided(
    rule: Rule, p: Velocities, state: State, dtype: torch.dtype, record: Recorder | None
) -> tuple[Tensor, State]:
    """What `guided_velocity` returns, for a rule that `serves` accepts."""
    *head, cap = rule.parts
    assert isinstance(cap, Cap)
    states = rule.init() if state is None else state
    before = states[:-1] if isinstance(rule, Chain) else ()
    ray, after = displace(Chain(tuple(head)), p, before)
    gamma = value_of(cap, "gamma", p.t)
    floor = None if cap.floor is None else value_of(cap, "floor", p.t)
    if "lengths" in ray.__dict__ or not _usable(p, p.t, ray.coefficient, gamma, floor):
        # The lengths are known already, or a number is where the kernel cannot read it.
        ray, _ = cap.update(ray, p, None)
        v = p.blended(ray.coefficient).to(dtype)
    else:
        v, ray = _launched(cap, ray, p, gamma, floor, dtype)
    if record is not None:
        record.add(ray)
    return v, (*after, None) if isinstance(rule, Chain) else None


def _launched(
    cap: Cap, ray: Ray, p: Velocities, gamma: Number, floor: Number | None, dtype: torch.dtype
) -> tuple[Tensor, Ray]:
    from ..cuda.step import capped_step

    c, ball = ray.coefficient, not isinstance(cap, CapDisplacement)
    v, lengths, coefficient = capped_step(
        p.x, p.t, p.v_c, p.v_u, c, gamma, floor, ball=ball, margin=margin_of(p.x.dtype), dtype=dtype
    )
    ray = ray.scaled(coefficient, asked=c if ray.asked is None else ray.asked)
    ray.__dict__["lengths"] = lengths
    return v, ray


def _usable(p: Velocities, *numbers: Number | None) -> bool:
    given = [v for v in numbers if isinstance(v, Tensor)]
    return all(v.device == p.x.device and v.dim() < 2 for v in given) and not _followed(*given)


def _followed(*tensors: Tensor) -> bool:
    """Whether autograd, a tracer, a transform or a mode wants to see each operation."""
    if torch.is_grad_enabled() and any(v.requires_grad for v in tensors):
        return True
    modes = (
        torch._C._len_torch_dispatch_stack() > 0 or torch._C._functorch.peek_interpreter_stack() is not None
    )
    traced = torch._C._get_tracing_state() is not None or forward_ad._current_level >= 0
    return modes or traced or any(type(v) is not Tensor for v in tensors)


def on_cuda(x: Tensor) -> bool:
    """Whether kernels can run where `x` lives."""
    return x.device.type == "cuda" and _ready(x.device.index)


@cache
def _ready(device: int) -> bool:
    """Whether triton compiles for this device: from compute capability 8.0, with a C compiler at hand."""
    if torch.version.hip or torch.cuda.get_device_capability(device) < (8, 0):
        return False
    try:
        from triton.runtime import driver  # type: ignore[import-untyped,import-not-found,unused-ignore]
    except ImportError:
        return False
    try:
        driver.active.get_current_target()
    except (RuntimeError, OSError, subprocess.CalledProcessError) as error:
        warnings.warn(f"guidance runs without its CUDA kernel, because triton failed: {error}", stacklevel=2)
        return False
    return True
