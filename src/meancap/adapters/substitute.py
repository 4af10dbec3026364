"""For any host with hard-coded classifier-free guidance: its network is wrapped and returns a substitute.

    c, u     the network's outputs with and without the condition
    s        the host's own scale; it computes  u + s (c - u), or with offset 1  c + s (c - u)
    lambda   s + offset, so that both are  c + (lambda - 1)(c - u)
    out      what the rule makes of c, u and the host's own result

If one call makes both halves, both become `out`, and every formula that keeps equal halves turns them into
`out`. If a host calls twice, the second call is substituted by u' = c - (out - c) / (lambda - 1), or by
c' = u + (out - u) / lambda if it is the conditional one. Samples that a rule does not change keep their bits.

Two calls are a pair if they have the same state and time; both halves of a batch are one if their states are
equal. Every other call belongs to a step without guidance: it passes unchanged, and the record counts it.

At each call the state is compared with where the outputs before it lead: x' = x + (t' - t) sum w_i out_i with
weights of sum 1, as in every Runge-Kutta or multistep method. A host that is elsewhere uses another formula.
"""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..notation import described
from ..path import Affine
from ..rules import Rule
from .session import RunRecord, Session, override

_State = Callable[[tuple[Any, ...], dict[str, Any]], tuple[Tensor, Any]]
_Formula = Callable[[Tensor, Tensor], Tensor]
_NO_PAIR = {
    True: "no two calls of the network in a row had the same state and time",
    False: "no call of the network had the same state in both halves of its batch",
}
_TIMES = ("t", "time", "timestep", "timesteps")
_STAGES = 5  # evaluations that may take part in one step: RK4 has four and the end of the step before
_OFF = (1e-3, 2e-2)  # the share of a step that the state may be off, in float32 and in half precision


class Call(NamedTuple):
    """A state, its time in the host's own clock, and the output: the network's, or the intended one."""

    x: Tensor
    time: Tensor  # one number, or one per row
    output: Tensor

    def is_paired_with(self, other: Call) -> bool:
        same = self.x.shape == other.x.shape and torch.equal(self.x, other.x)
        # Equal outputs are one prediction made twice, which holds no gap.
        return same and torch.equal(self.time, other.time) and not torch.equal(self.output, other.output)


class Substitute:
    """The wrapped forward of a network; it returns what the host turns into the guided output."""

    def __init__(
        self, session: Session, over: float = math.nan, formula: _Formula | None = None, order: str = "cu",
        calls: str = "together", noise_at: int = 0, state: _State | None = None,
    ) -> None:  # fmt: skip
        if {order, calls, noise_at} - {"cu", "uc", "together", "apart", 0, 1}:
            raise ValueError("order is 'cu' or 'uc', calls 'together' or 'apart', noise_at 0 or 1")
        self.session, self.over, self.formula = session, over, formula
        self.order, self.apart, self.noise_at, self.state = order, calls == "apart", noise_at, state
        self.waiting: Call | None = None
        self.times: list[float] = []  # of the run under way, as they grew
        self.trail: list[Call] = []  # its latest evaluations
        self.session.record.idle = "the network was not called inside the block"

    @contextmanager
    def on(self, network: nn.Module) -> Iterator[None]:
        """Wraps the network inside a block."""
        if not isinstance(network, nn.Module):
            raise TypeError(f"the network must be a torch module; got {described(network)}")
        if getattr(network.__dict__.get("forward"), "methods", None):
            raise ValueError("this network is wrapped already; give one block both rules, CFG(9) | Cap(1.1)")
        undo = override(network, "forward", self)
        try:
            yield
        finally:
            undo()
            self.count_waiting(self.waiting)

    def __call__(self, original: Callable[..., Any], module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        output = original(*args, **kwargs)
        if self.formula is None and self.over == 0:
            self.session.record.idle = "the host's scale makes the conditional prediction its result"
            return output
        x, time = self.state(args, kwargs) if self.state else _named_state(original, args, kwargs)
        call = Call(x.detach(), _checked_time(x, time), output)
        pair = self._second(call) if self.apart else self._halves(call)
        return output if pair is None else self._substitute(call, pair)

    def _substitute(self, call: Call, pair: tuple[Tensor, Tensor]) -> Tensor:
        """What the host turns into the guided output: both halves, or the output of the second call."""
        c, u = pair if self.order == "cu" else pair[::-1]
        nominal = c + self.over * (c - u) if self.formula is None else self.formula(c, u)
        out = self._guided(call, c, u, nominal)
        self._follow(Call(call.x[: len(c)], call.time, out))
        same = (out == nominal).flatten(1).all(1).reshape(-1, *[1] * (c.dim() - 1))
        if not self.apart:
            return torch.cat([torch.where(same, part, out.to(part.dtype)) for part in pair])
        if self.order == "uc":
            return torch.where(same, c, (u + (out - u) / (self.over + 1)).to(c.dtype))
        return torch.where(same, u, (c - (out - c) / self.over).to(u.dtype))

    def _second(self, call: Call) -> tuple[Tensor, Tensor] | None:
        """Both outputs, if this call is the second of a pair; otherwise it waits for its own second."""
        first, self.waiting = self.waiting, None
        if first is not None and first.is_paired_with(call):
            return first.output, call.output
        self.count_waiting(first)
        self.first = self._enter(call)
        self.waiting = call._replace(x=call.x.clone())  # hosts may step it in place
        return None

    def _halves(self, call: Call) -> tuple[Tensor, Tensor] | None:
        """Both halves of the output, if the network doubled the batch or was given a doubled one."""
        half, rows = len(call.output) // 2, len(call.x)
        doubled = rows == 2 * half and all(
            len(v) == 1 or torch.equal(v[:half], v[half:]) for v in (call.x, call.time)
        )
        self.first = self._enter(call._replace(x=call.x[:half]) if doubled else call)
        if not half or len(call.output) % 2 or not (rows == half or doubled):
            self.session.record.unguided += 1
            self._follow(call)
            return None
        return call.output[:half], call.output[half:]

    def count_waiting(self, call: Call | None) -> None:
        """Counts a call that no second one followed: a step without guidance."""
        if call is not None:
            self.session.record.unguided += 1
            self._follow(call)

    def _enter(self, call: Call) -> bool:
        """Begins a run if time has gone back; returns whether this is the first evaluation at its time.

        A later stage of a step (Heun, RK4) may repeat a time, or fall between the last two.
        """
        t, times = float(call.time[0]) if self.noise_at == 0 else 1 - float(call.time[0]), self.times
        if not times or t <= times[0] or t < times[-2:][0]:
            self.session.begin()
            self.session.record.idle = _NO_PAIR[self.apart]
            self.times = [t]
            self._follow(None)
            return True
        self._compare(call)
        if t <= times[-1]:
            return False
        times.append(t)
        return True

    def _guided(self, call: Call, c: Tensor, u: Tensor, nominal: Tensor) -> Tensor:
        rows = call.time[: c.shape[0]].to(c.device)
        t = rows if self.noise_at == 0 else 1 - rows  # our data are at t = 1
        at: Any = t if t.numel() == c.shape[0] else float(t[0])
        # Velocity is data - noise where noise is at 0, and the other way round where it is at 1.
        k = (1 - at) if self.noise_at == 0 else at - 1
        x = call.x[: c.shape[0]]
        return self.session.guide(Affine(1.0, k, at), x, c, u, nominal, first=self.first)

    def _follow(self, call: Call | None) -> None:
        """Notes the output that leads from this evaluation to the next state; None begins a run."""
        if call is None:
            self.trail = []
            return
        # Hosts use their buffers again.
        kept = Call(*(v.detach().cpu().double() for v in (call.x.clone(), call.time, call.output)))
        self.trail = [*self.trail[1 - _STAGES :], kept]
        bits = min(torch.finfo(v.dtype).bits for v in (call.x, call.output))
        self.off = _OFF[bits < 32], torch.finfo(torch.float32 if bits >= 32 else call.x.dtype).eps

    def _compare(self, call: Call) -> None:
        """Warns, once a run, if the state is not where the intended outputs lead."""
        x = call.x.detach().cpu().double()
        record, trail = self.session.record, self.trail
        if not trail or record.remark or any(one.output.shape != x.shape for one in trail):
            return
        if float(_distance(trail[-1], [], x, call.time, *self.off).max()) <= 1:  # an Euler step, or a stage
            return
        off = torch.stack([_distance(base, trail, x, call.time, *self.off) for base in trail])
        if float(off.amin(0).max()) <= 1:
            return
        record.remark = "the host did not follow these numbers"
        warnings.warn(
            f"at time {float(call.time[0]):.3g} the host's state is not where its formula leads, so the "
            "record does not describe its samples: check scale, offset and order, or pass its own "
            "formula=f(c, u); a solver that adds noise or edits the state cannot be checked",
            stacklevel=2,
        )


def _distance(base: Call, trail: list[Call], x: Tensor, time: Tensor, share: float, eps: float) -> Tensor:
    """How far each sample of x is from the ends of steps from `base`, in units of what rounding explains."""
    dt = (time - base.time)[: len(x)].reshape(-1, *[1] * (x.dim() - 1))
    left = (x - base.x - dt * base.output).flatten(1)
    if trail:
        basis = torch.stack([(dt * (one.output - base.output)).flatten(1) for one in trail], dim=-1)
        left = left - (basis @ (torch.linalg.pinv(basis) @ left[..., None]))[..., 0]
    step, size, speed = (v.flatten(1).norm(dim=1) for v in (x - base.x, x, base.output))
    rounding = eps / 2 * (size + speed)  # of the states, and of times in the host's precision
    off = left.norm(dim=1) / (share * step + rounding).clamp(min=1e-300)
    return torch.where(off.isfinite(), off, 0.0)  # a sample that is not finite has no place


def _named_state(
    forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Tensor, Any]:
    """The state and the time in a call: the argument `x` or the first one, and the one named a time."""
    given = {**inspect.signature(forward).bind(*args, **kwargs).arguments, **kwargs}
    name = next((name for name in _TIMES if name in given), None)
    if name is None:
        raise TypeError(
            f"the network's arguments ({', '.join(given)}) have none of the names {', '.join(_TIMES)}; pass "
            "state=lambda args, kwargs: (x, t) to pick the state and the time"
        )
    return given["x"] if "x" in given else next(iter(given.values())), given[name]


def _checked_time(x: Any, time: Any) -> Tensor:
    """The time as a tensor of one number, or of one for each row of x."""
    if not isinstance(x, Tensor) or not x.is_floating_point():
        raise TypeError(f"the state must be a floating-point tensor; got {described(x)}; pass state=...")
    t = torch.as_tensor(time).detach()
    if t.numel() != 1 and t.shape not in ((len(x),), (len(x), *[1] * (x.dim() - 1))):
        raise ValueError(
            f"a time is one number or one for each of the {len(x)} rows of the state; got {described(time)}; "
            "pass state=lambda args, kwargs: (x, t) to pick the state and the time"
        )
    return t.cpu().reshape(-1).double()


@contextmanager
def substituted(
    network: nn.Module,
    rule: Rule | str,
    *,
    scale: float = math.nan,
    offset: int = 0,
    formula: _Formula | None = None,
    order: str = "cu",
    calls: str = "together",
    noise_at: int = 0,
    state: _State | None = None,
) -> Iterator[RunRecord]:
    """Wraps the network of a host that hard-codes u + s (c - u); yields the record of the latest run.

    scale, offset   the host's s, and 1 if it computes c + s (c - u)
    formula         the host's result as a function of c and u, if it is another one; needs calls="together"
    calls, order    one call with both halves in the batch, or one call for each; which comes first
    noise_at        the time at which the host has noise: 0 (velocity = data - noise) or 1 (noise - data)
    state           a function of args and kwargs that returns the state and the time of a call; by default
                    the argument x, or the first one, and the one named t, time, timestep or timesteps

    Use a solver with fixed steps: a step that an adaptive solver takes back looks like a new run.
    """
    if math.isnan(scale) == (formula is None) or (formula is not None and calls == "apart"):
        raise ValueError('pass the host\'s scale, or its formula (with calls="together"), and not both')
    over = scale + offset - 1  # lambda - 1
    hook = Substitute(Session(rule), over, formula, order, calls, noise_at, state)
    with hook.on(network):
        yield hook.session.record
    if not len(hook.session.record):
        warnings.warn(hook.session.record.summary(), stacklevel=3)
