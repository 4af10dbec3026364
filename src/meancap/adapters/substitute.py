"""For any host with hard-coded classifier-free guidance: its network is wrapped and returns a substitute.

    c, u     the network's outputs with and without the condition
    s        the host's own scale; it computes  u + s (c - u), or with offset 1  c + s (c - u)
    lambda   s + offset, so that both are  c + (lambda - 1)(c - u)
    out      what the rule makes of c, u and the host's own result
    u'       c - (out - c) / (lambda - 1), which the host turns into `out` by itself

The network's output is not changed where the rule changes nothing. Where a host calls it twice, the second
call is the one that is substituted; if that is the conditional one, c' = u + (out - u) / lambda is returned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ..path import Affine
from ..rules import Rule
from .session import RunRecord, Session

State = Callable[[tuple[Any, ...], dict[str, Any]], tuple[Tensor, Any]]


def named_state(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, Any]:
    """The state and the time in a call of the network: `x` and `time` or `t`, or the first two arguments."""
    x = kwargs["x"] if "x" in kwargs else args[0]
    for name in ("time", "t", "timestep"):
        if name in kwargs:
            return x, kwargs[name]
    return x, args[0 if "x" in kwargs else 1]


class Substitute:
    """The forward hook of a wrapped network; it returns u' (or c')."""

    def __init__(
        self,
        rule: Rule | str,
        scale: float,
        *,
        offset: int,
        order: str,
        calls: str,
        noise_at: int,
        state: State,
    ) -> None:
        if {order, calls, noise_at} - {"cu", "uc", "together", "apart", 0, 1}:
            raise ValueError("order is 'cu' or 'uc', calls 'together' or 'apart', noise_at 0 or 1")
        self.session, self.over = Session(rule), scale + offset - 1  # lambda - 1
        self.order, self.apart, self.noise_at, self.state = order, calls == "apart", noise_at, state
        self.first: Tensor | None = None
        self.reached = -1.0

    def __call__(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor
    ) -> Tensor | None:
        if self.over == 0:
            return None
        if self.apart and self.first is None:
            self.first = output
            return None
        half = len(output) // 2
        one, two = (output[:half], output[half:]) if self.first is None else (self.first, output)
        self.first = None
        c, u = (one, two) if self.order == "cu" else (two, one)
        nominal = c + self.over * (c - u)
        out = self._guided(*self.state(args, kwargs), c, u, nominal)
        same = (out == nominal).flatten(1).all(1).reshape(-1, *[1] * (c.dim() - 1))
        if self.apart and self.order == "uc":
            return torch.where(same, c, (u + (out - u) / (self.over + 1)).to(c.dtype))
        other = torch.where(same, u, (c - (out - c) / self.over).to(u.dtype))
        if self.apart:
            return other
        return torch.cat([c, other] if self.order == "cu" else [other, c])

    def _guided(self, x: Tensor, time: Any, c: Tensor, u: Tensor, nominal: Tensor) -> Tensor:
        rows = torch.as_tensor(time, device=c.device).reshape(-1)[: c.shape[0]].double()
        t = rows if self.noise_at == 0 else 1 - rows  # our data are at t = 1
        if float(t[0]) <= self.reached:  # time has gone back: another run
            self.session.begin()
        self.reached = float(t[0])
        at: Any = t if t.numel() == c.shape[0] else float(t[0])
        # Velocity is data - noise where noise is at 0, and the other way round where it is at 1.
        k = (1 - at) if self.noise_at == 0 else at - 1
        return self.session.guide(Affine(1.0, k, at), x[: c.shape[0]], c, u, nominal)


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
    state: State = named_state,
) -> Iterator[RunRecord]:
    """Guides a host that hard-codes u + s (c - u), by its network; gives the record of the latest run.

    scale, offset   the host's s, and 1 where it computes c + s (c - u)
    calls, order    one call with both halves in the batch, or one call for each; which comes first
    noise_at        the time at which the host has noise: 0 (velocity = data - noise) or 1 (noise - data)
    state           how to find the state and the time in the arguments of a call
    """
    hook = Substitute(rule, scale, offset=offset, order=order, calls=calls, noise_at=noise_at, state=state)
    handle = network.register_forward_hook(hook, with_kwargs=True)
    try:
        yield hook.session.record
    finally:
        handle.remove()
