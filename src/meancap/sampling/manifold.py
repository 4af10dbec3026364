"""CFG-MP and CFG-MP+ (Cai et al. 2026): before a step, x moves to where both models agree.

    h       half of the step, t held
    G(x)    z = x - h v_u(x),  z + h v_c(z)       a round trip: back without the condition, forth with it
    H(x)    z = x + h v_c(x),  z - h v_u(z)       the same the other way, used nearest to the noise
    MP      x <- G(x), a few times;  MP+ mixes the last results to go faster (Anderson)

A fixed point has equal conditional and unconditional velocities at x and z: this removes the very gap that
guidance uses. It moves x, so it is no rule; any rule may follow it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from ..prediction import Prediction
from ..rules import Rule, Stepper
from ..rules.protocol.base import Recorder
from .checks import warn_if_not_finite
from .grid import Times, checked
from .solve import Predict, Step, asked


def manifold_trajectory(
    predict: Predict,
    rule: Rule,
    x: Tensor,
    times: Sequence[float],
    *,
    iterations: int = 3,
    window: int = 1,
    until: float = 0.4,
    turn: float = 0.05,
    ridge: float = 1e-4,
    middles: Sequence[float] | None = None,
    record: Recorder | None = None,
) -> Iterator[Step]:
    """Euler steps under `rule`, each from the projected state while t < until.

    `window` earlier results are mixed in; 0 is CFG-MP, 1 or more CFG-MP+. H is used while t <= turn. The half
    steps end at `middles`, if not at the middles of the steps. Defaults are those for SD3.5.
    """
    grid = checked(times)
    halves = [(t + s) / 2 for t, s in pairwise(grid)] if middles is None else list(middles)
    if len(halves) != len(grid) - 1:
        raise ValueError(f"manifold_trajectory needs one middle per step, {len(grid) - 1}; got {len(halves)}")
    predict, stepper = asked(predict, rule), Stepper(rule)
    for index, ((t, s), half) in enumerate(zip(pairwise(grid), halves, strict=True)):
        if t < until:
            x = project(predict, x, t, half - t, iterations, window, forth_first=t <= turn, ridge=ridge)
        p = predict(x, t).until(s)
        m = stepper.mean(p, record=record).to(torch.promote_types(x.dtype, torch.float32))
        x_next = m if s == 1 else torch.lerp(x.to(m.dtype), m, (s - t) / (1 - t))
        yield Step(index, t, s, x, p, m, x_next)
        x = x_next


def manifold_sample(
    predict: Predict,
    rule: Rule,
    x: Tensor,
    times: Sequence[float],
    *,
    iterations: int = 3,
    window: int = 1,
    until: float = 0.4,
) -> Tensor:
    """The end of `manifold_trajectory`."""
    steps = manifold_trajectory(predict, rule, x, times, iterations=iterations, window=window, until=until)
    for one in steps:
        x = one.x_next
    warn_if_not_finite(x)
    return x


def project(
    predict: Predict,
    x: Tensor,
    t: float,
    h: float,
    iterations: int,
    window: int,
    *,
    forth_first: bool = False,
    ridge: float = 1e-4,
) -> Tensor:
    """x after `iterations` of the round trip, the last `window` + 1 of them mixed for each sample."""
    states: list[Tensor] = []
    moves: list[Tensor] = []
    for _ in range(iterations):
        states.append(x)
        moves.append(_round_trip(predict, x, t, h, forth_first) - x)
        states, moves = states[-window - 1 :], moves[-window - 1 :]
        x = _mixed(states, moves, ridge)
    return x


def _round_trip(predict: Predict, x: Tensor, t: float, h: float, forth_first: bool) -> Tensor:
    share = h / (1 - t)

    def along(y: Tensor, conditional: bool) -> Tensor:
        p: Prediction = predict(y, t)
        return (share * ((p.m_c if conditional else p.m_u) - p.x)).to(y.dtype)

    if forth_first:
        z = x + along(x, True)
        return z - along(z, False)
    z = x - along(x, False)
    return z + along(z, True)


def _mixed(states: list[Tensor], moves: list[Tensor], ridge: float) -> Tensor:
    """Anderson's combination, weights summing to one that make the combined move shortest; in float64."""
    results = torch.stack([a + b for a, b in zip(states, moves, strict=True)], 1)
    if len(moves) == 1:
        return results[:, 0]
    last = moves[-1].flatten(1).double()
    lead = torch.stack([last - earlier.flatten(1).double() for earlier in moves[:-1]], 1)
    gram = lead @ lead.mT + ridge**2 * torch.eye(len(moves) - 1, dtype=lead.dtype, device=lead.device)
    weights = torch.linalg.solve(gram, lead @ last[..., None])[..., 0]
    shares = torch.cat([weights, 1 - weights.sum(1, keepdim=True)], 1)
    return (shares.to(results.dtype).reshape(*shares.shape, *[1] * (results.dim() - 2)) * results).sum(1)


def official_times(steps: int, shift: float = 3.0) -> tuple[Times, Times]:
    """The grid of the official SD3.5 code and its middles: 2 N shifted times in turn, then the data."""
    fine = [1 - i * (1 - 1e-4) / (2 * steps - 1) for i in range(2 * steps)]
    t = [*(1 - shift * s / (1 + (shift - 1) * s) for s in fine), 1.0]
    return tuple(t[0::2]), tuple(t[1::2])
