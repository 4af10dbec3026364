"""For any host with hard-coded classifier-free guidance: its network is wrapped and returns a substitute.

    c, u     the network's outputs with and without the condition
    s        the host's own scale; it computes  u + s (c - u), or with offset 1  c + s (c - u)
    lambda   s + offset, so that both are  c + (lambda - 1)(c - u)
    out      what the rule makes of c, u and the host's own result
    u'       c - (out - c) / (lambda - 1), which the host turns into `out` by itself

The network's output is not changed if the rule changes nothing. If a host calls it twice, the second call
is the one that is substituted; if that is the conditional one, c' = u + (out - u) / lambda is returned.

Two calls are a pair if they have the same state and time; both halves of a batch are one if their states are
equal. Every other call belongs to a step without guidance: it passes unchanged, and the record counts it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..path import Affine
from ..rules import Rule
from .session import RunRecord, Session

_State = Callable[[tuple[Any, ...], dict[str, Any]], tuple[Tensor, Any]]
_NO_PAIR = {
    True: "no two calls of the network in a row had the same state and time",
    False: "no call of the network had the same state in both halves of its batch",
}


def named_state(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, Any]:
    """The state and the time in a call of the network: `x` and `time` or `t`, or the first two arguments."""
    x = kwargs["x"] if "x" in kwargs else args[0]
    for name in ("time", "t", "timestep"):
        if name in kwargs:
            return x, kwargs[name]
    return x, args[0 if "x" in kwargs else 1]


class _Call(NamedTuple):
    """A first call, which waits for its second."""

    x: Tensor
    time: Tensor
    output: Tensor

    def is_paired_with(self, other: _Call) -> bool:
        same = self.x.shape == other.x.shape and torch.equal(self.x, other.x)
        # Equal outputs are one prediction made twice, which holds no gap.
        return same and torch.equal(self.time, other.time) and not torch.equal(self.output, other.output)


class _Substitute:
    """The forward hook of a wrapped network; it returns u' (or c')."""

    def __init__(
        self, rule: Rule | str, over: float, order: str, calls: str, noise_at: int, state: _State
    ) -> None:
        if {order, calls, noise_at} - {"cu", "uc", "together", "apart", 0, 1}:
            raise ValueError("order is 'cu' or 'uc', calls 'together' or 'apart', noise_at 0 or 1")
        self.session, self.over = Session(rule), over
        self.order, self.apart, self.noise_at, self.state = order, calls == "apart", noise_at, state
        self.waiting: _Call | None = None
        self.times: list[float] = []  # of the run under way, as they grew

    def __call__(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor
    ) -> Tensor | None:
        if self.over == 0:
            return None
        x, time = self.state(args, kwargs)
        call = _Call(x.detach(), torch.as_tensor(time).detach().cpu().reshape(-1).double(), output)
        pair = self._second(call) if self.apart else self._halves(call)
        if pair is None:
            return None
        c, u = pair if self.order == "cu" else pair[::-1]
        nominal = c + self.over * (c - u)
        out = self._guided(call, c, u, nominal)
        same = (out == nominal).flatten(1).all(1).reshape(-1, *[1] * (c.dim() - 1))
        if self.apart and self.order == "uc":
            return torch.where(same, c, (u + (out - u) / (self.over + 1)).to(c.dtype))
        other = torch.where(same, u, (c - (out - c) / self.over).to(u.dtype))
        if self.apart:
            return other
        return torch.cat([c, other] if self.order == "cu" else [other, c])

    def _second(self, call: _Call) -> tuple[Tensor, Tensor] | None:
        """Both outputs, if this call is the second of a pair; otherwise it waits for its own second."""
        first, self.waiting = self.waiting, None
        if first is not None and first.is_paired_with(call):
            return first.output, call.output
        self.count_waiting(first)
        self.first = self._enter(call)
        self.waiting = call._replace(x=call.x.clone())  # hosts may step it in place
        return None

    def _halves(self, call: _Call) -> tuple[Tensor, Tensor] | None:
        """Both halves of the output, if the network doubled the batch or was given a doubled one."""
        self.first = self._enter(call)
        half, rows = len(call.output) // 2, len(call.x)
        doubled = rows == 2 * half and torch.equal(call.x[:half], call.x[half:])
        if not half or len(call.output) % 2 or not (rows == half or doubled):
            self.session.record.unguided += 1
            return None
        return call.output[:half], call.output[half:]

    def count_waiting(self, call: _Call | None) -> None:
        self.session.record.unguided += call is not None

    def _enter(self, call: _Call) -> bool:
        """Begins a run if time has gone back; returns whether this is the first evaluation at its time.

        A later stage of a step (Heun, RK4) may repeat a time, or fall between the last two.
        """
        t, times = float(call.time[0]) if self.noise_at == 0 else 1 - float(call.time[0]), self.times
        if not times or t <= times[0] or t < times[-2:][0]:
            self.session.begin()
            self.session.record.idle = _NO_PAIR[self.apart]
            self.times = [t]
            return True
        if t <= times[-1]:
            return False
        times.append(t)
        return True

    def _guided(self, call: _Call, c: Tensor, u: Tensor, nominal: Tensor) -> Tensor:
        rows = call.time[: c.shape[0]].to(c.device)
        t = rows if self.noise_at == 0 else 1 - rows  # our data are at t = 1
        at: Any = t if t.numel() == c.shape[0] else float(t[0])
        # Velocity is data - noise where noise is at 0, and the other way round where it is at 1.
        k = (1 - at) if self.noise_at == 0 else at - 1
        x = call.x[: c.shape[0]]
        return self.session.guide(Affine(1.0, k, at), x, c, u, nominal, first=self.first)


@contextmanager
def substituted(
    network: nn.Module,
    rule: Rule | str,
    *,
    scale: float,
    offset: int = 0,
    order: str = "cu",
    calls: str = "together",
    noise_at: int = 0,
    state: _State = named_state,
) -> Iterator[RunRecord]:
    """Wraps the network of a host that hard-codes u + s (c - u); yields the record of the latest run.

    scale, offset   the host's s, and 1 if it computes c + s (c - u)
    calls, order    one call with both halves in the batch, or one call for each; which comes first
    noise_at        the time at which the host has noise: 0 (velocity = data - noise) or 1 (noise - data)
    state           how to find the state and the time in the arguments of a call

    Use a solver with fixed steps: a step that an adaptive solver takes back looks like a new run.
    """
    hook = _Substitute(rule, scale + offset - 1, order, calls, noise_at, state)  # lambda - 1
    handle = network.register_forward_hook(hook, with_kwargs=True)
    try:
        yield hook.session.record
    finally:
        handle.remove()
        hook.count_waiting(hook.waiting)
    if hook.times and not len(hook.session.record):
        warnings.warn(hook.session.record.summary(), stacklevel=3)
