"""Methods that change what the model is asked, before any rule sees the answer.

predict(x, t) -> Prediction      goes in and comes out, so that every rule still applies
beside           further predictions by name, for rules that look at them: something to avoid, a weaker model
autoguidance     the reference is a weaker model under the same condition (Karras et al. 2024)
rectified_cfgpp  the gap is taken a little ahead of x, where the conditional flow leads (Saini et al. 2025)
recfg_table      the table of ratios that ReCFG needs, worked out from data (Xia et al. 2024)
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ..prediction import Prediction, need_same_shapes
from ..rules import Rectify, Values
from ..tensors import promoted
from .grid import checked
from .solve import Predict


def beside(predict: Predict, **others: Predict) -> Predict:
    """`predict`, which gives the conditional means of `others` as well to a rule that looks at them.

    sample(beside(predict, negative=other), perp_neg(5), x, times). No other rule costs a call of them.
    """
    return _Beside(predict, others)


class _Beside:
    def __init__(self, predict: Predict, others: Mapping[str, Predict], asked: tuple[str, ...] = ()) -> None:
        self.predict, self.others, self.asked = predict, others, asked
        if hasattr(predict, "conditional"):
            self.conditional = predict.conditional

    def including(self, names: tuple[str, ...]) -> Predict:
        """The same with these names, as far as they are known here; the rule says which one is missing."""
        return _Beside(self.predict, self.others, tuple(name for name in names if name in self.others))

    def __call__(self, x: Tensor, t: float) -> Prediction:
        p = self.predict(x, t)
        if not self.asked:
            return p
        means = {name: self.others[name](x, t).m_c.to(p.dtype) for name in self.asked}
        return Prediction(p.x, p.t, p.m_c, p.m_u, gap=p.gap, others=means)


def autoguidance(predict: Predict, weak: Predict) -> Predict:
    """The conditional mean of `predict`, guided away from the conditional mean of `weak`."""

    def both(x: Tensor, t: float) -> Prediction:
        strong, other = predict(x, t), weak(x, t)
        need_same_shapes(strong=strong.m_c, weak=other.m_c)
        return Prediction(strong.x, strong.t, strong.m_c, other.m_c.to(strong.m_c.dtype))

    return both


def rectified_cfgpp(
    predict: Predict, times: Sequence[float], *, share: float = 0.5, hold: bool = False
) -> Predict:
    """The gap of velocities at x + share (s - t) v_c, the step t -> s being that of the grid.

    CFG(1 + w) on top is Rectified-CFG++ with weight w. `share=1, hold=True` is the official code: a full step
    at the old time, because its code adds a step in sigma to a time in thousandths. It costs a second
    prediction per step, and is stated for one-evaluation steps (Euler).
    """
    grid = checked(times)
    if not 0 <= share <= 1 or (share == 1 and not hold and grid[-1] == 1):
        raise ValueError(
            "rectified_cfgpp needs a share in [0, 1], below 1 where the last step ends at the data, as "
            f"a mean at t = 1 tells no velocity; got {share}"
        )

    def ahead(x: Tensor, t: float) -> Prediction:
        index = bisect_right(grid, t + 1e-9) - 1
        if index < 0 or abs(grid[index] - t) > 1e-6 or index + 1 == len(grid):
            raise ValueError(f"rectified_cfgpp was given a grid without the time {t}; use Euler on that grid")
        p = predict(x, t)
        step = share * (grid[index + 1] - t)
        later = t if hold else t + step
        q = predict(torch.lerp(promoted(x), p.m_c, step / (1 - t)).to(x.dtype), later)
        gap = q.delta * ((1 - t) / (1 - later))
        return Prediction(p.x, p.t, p.m_c, p.m_c - gap, gap=gap)

    return ahead


def recfg_table(
    predict: Predict,
    data: Tensor,
    times: Sequence[float],
    *,
    per: str = "element",
    seed: int = 0,
    batch: int = 256,
) -> Rectify:
    """E[n_c n_u] / E[n_u^2] at every time before 1, over data that meet the condition `predict` is given.

    `per` is 'element', as in the official code, 'channel' or 'sample'. Follow the result by CFG(scale). One
    table belongs to one condition; for others, average theirs.
    """
    if per not in ("element", "channel", "sample"):
        raise ValueError(f"recfg_table is per element, channel or sample; got {per!r}")
    knots = [t for t in checked(times) if t < 1]
    generator = torch.Generator().manual_seed(seed)
    axes = {"element": (0,), "channel": (0, *range(2, data.dim())), "sample": tuple(range(data.dim()))}[per]
    rows = []
    for t in knots:
        cross, square = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
        for start in range(0, len(data), batch):
            part = data[start : start + batch]
            noise = torch.randn(part.shape, generator=generator, dtype=torch.float64).to(part)
            x = torch.lerp(noise, part, t)
            p = predict(x, t)
            n_c, n_u = ((p.x - t * m).double() for m in (p.m_c, p.m_u))
            cross, square = cross + (n_c * n_u).sum(axes), square + n_u.square().sum(axes)
        rows.append(Values(cross / square))
    return Rectify(tuple(knots), tuple(rows))
