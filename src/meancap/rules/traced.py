"""The lengths of a prediction inside a compiled graph, where means are formed in registers and not stored.

Float64 throughout, which costs little beside reading float32. Half-precision inputs on the host are read
faster than that: float32 sums over short runs, and an operation of our own for samples out of their range. A
branch of the graph (torch.cond) would refuse tensors that share memory, as the two halves of one batch do; on
other devices it would wait.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .. import path
from ..tensors import Lengths, exact_lengths, lengths, lengths_of, promoted, trusted

_RUNS = (512, 256, 128)


def traced_lengths(x: Tensor, t: Tensor, v_c: Tensor, v_u: Tensor) -> Lengths:
    """|m_c|, |v_c - v_u| and the component of m_c along it, for each sample."""
    m, d = _mean_and_gap(x, t, v_c, v_u)
    run = next((r for r in _RUNS if m.shape[1] % r == 0), 0)
    half = any(v.dtype in (torch.bfloat16, torch.float16) for v in (x, v_c, v_u))
    if not (half and run) or m.device.type != "cpu" or m.requires_grad or d.requires_grad:
        return lengths(m, d)
    q, a, dot = (
        v.view(m.shape[0], -1, run).sum(2).sum(1, dtype=torch.float64) for v in (m * m, d * d, m * d)
    )
    found = torch.stack(lengths_of(q.sqrt(), a.sqrt(), dot).vectors(m))
    return Lengths(*torch.ops.meancap.redone(found, trusted(found[:2]), x, t, v_c, v_u).unbind(0))


def _mean_and_gap(x: Tensor, t: Tensor, v_c: Tensor, v_u: Tensor) -> tuple[Tensor, Tensor]:
    v = promoted(v_c)
    return path.mean_from_velocity(promoted(x), t, v).flatten(1), (v - v_u).flatten(1)


def _redone(found: Tensor, good: Tensor, x: Tensor, t: Tensor, v_c: Tensor, v_u: Tensor) -> Tensor:
    """The lengths that were found; those that are not good, worked out again in float64."""
    if bool(good.all()):
        return found.clone()
    m, d = _mean_and_gap(x, t, v_c, v_u)
    return torch.where(good, found, torch.stack(exact_lengths(m, d).vectors(m)))


def _define() -> torch.library.Library:
    # The plain form: torch.library.custom_op would take longer to call than the sums do.
    ours = torch.library.Library("meancap", "FRAGMENT")  # type: ignore[no-untyped-call]
    ours.define(  # type: ignore[no-untyped-call]
        "redone(Tensor found, Tensor good, Tensor x, Tensor t, Tensor v_c, Tensor v_u) -> Tensor"
    )
    ours.impl("redone", _redone, "CPU")  # type: ignore[no-untyped-call]
    ours.impl("redone", lambda found, *rest: torch.empty_like(found), "Meta")  # type: ignore[no-untyped-call]
    return ours


# ComfyUI loads the package by its path, perhaps beside an installed one: two copies share the operation.
if not hasattr(torch.ops.meancap, "redone"):
    _OPERATIONS = _define()  # kept, because torch forgets what a library defined when it goes
