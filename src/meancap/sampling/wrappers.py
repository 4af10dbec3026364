"""Methods around the loop: wrappers of `predict`, tables from data, and CFG-MP, which moves x.

from_edm         a denoiser D(x; sigma) of x = data + sigma noise, as EDM and k-diffusion have it
field            the guided velocity field, for foreign solvers
beside           extra predictions by name, for rules that read them: something to avoid, a weaker model
autoguidance     the reference is a weaker model under the same condition (Karras et al. 2024)
rectified_cfgpp  the gap is taken a little ahead of x, where the conditional flow leads (Saini et al. 2025)
recfg_table      the table of ratios that ReCFG needs, computed from data (Xia et al. 2024)
manifold_sample  CFG-MP and CFG-MP+ (Cai et al. 2026): before a step, x moves to where both models agree

CFG-MP, with half of the step h and t held:

    h       half of the step, t held
    G(x)    z = x - h v_u(x),  z + h v_c(z)       a round trip: back without the condition, forth with it
    H(x)    z = x + h v_c(x),  z - h v_u(z)       the same the other way, used nearest to the noise
    MP      x <- G(x), a few times;  MP+ mixes the last results to go faster (Anderson)

A fixed point has equal conditional and unconditional velocities at x and z: this removes the very gap that
guidance uses. It moves x, so it is no rule; any rule may follow it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from ..notation import described
from ..prediction import Predict, Prediction, Predictor, evaluate, need_same_shapes
from ..rules import Rectify, Rule, Stepper, guide
from ..rules.methods import not_a_rule
from ..schedules import Values
from ..tensors import per_sample, promoted
from .checks import need_guidance, warn_if_not_finite
from .grids import checked
from .loop import with_needs

_TURN = 0.05  # up to this time CFG-MP goes forth first, as for SD3.5


def from_edm(denoise: Callable[[Tensor, float], tuple[Tensor, Tensor]]) -> Predict:
    """predict(x, t) on the linear path from denoise(x, sigma) -> (d_c, d_u) on x = data + sigma noise.

    The network gets (1 + sigma) x at sigma = (1 - t) / t. Use it on the grid from_karras(sigmas), from the
    start noise * s / (1 + s) with the largest sigma s: at t = 0 sigma would be infinite.
    """

    def predict(x: Tensor, t: float) -> Prediction:
        if t <= 0:
            raise ValueError(
                "from_edm has no finite sigma at t = 0: begin at the largest sigma that the network knows, "
                "with times = from_karras([80.0, ..., 0.0])"
            )
        sigma = (1 - t) / t
        y = (1 + sigma) * x
        outputs = denoise(y, sigma)
        if not isinstance(outputs, tuple | list) or len(outputs) != 2:
            raise TypeError(
                "denoise(x, sigma) must return two tensors, the denoised x with the condition and without; "
                f"got {described(outputs)}"
            )
        return Prediction.from_denoiser(y, sigma, *outputs)

    return predict


def field(
    predict: Predict, rule: Rule | str, *, latest: float = 1 - 1e-4
) -> Callable[[float | Tensor, Tensor], Tensor]:
    """The guided velocity field f(t, x) for foreign solvers.

    Past `latest` the field is held, because a posterior mean does not determine a velocity at t = 1.
    """
    rule = need_guidance(rule)
    if rule.has_state:
        raise TypeError(
            f"{rule} carries state, and a foreign solver may reject or reorder steps; use sample()"
        )
    predict = with_needs(predict, rule)

    def velocity(t: float | Tensor, x: Tensor) -> Tensor:
        time = min(float(t), latest)
        p = evaluate(predict, x, time)
        m, _ = guide(rule, p)
        return ((m - p.x) / per_sample(1 - p.t, m)).to(x.dtype)

    return velocity


def beside(predict: Predict, **others: Predict) -> Predict:
    """`predict` with the conditional means of `others` as extra predictions, for rules that read them.

    sample(beside(predict, negative=other), perp_neg(5), x, times). For other rules they are not called.
    """
    return _Beside(predict, others)


class _Beside(Predictor):
    def __init__(
        self, predict: Predict, others: Mapping[str, Predict], included: tuple[str, ...] = ()
    ) -> None:
        self.predict, self.others, self.included = predict, others, included

    def conditional(self, x: Tensor, t: float) -> Prediction:
        return self.predict.conditional(x, t) if isinstance(self.predict, Predictor) else self.predict(x, t)

    def including(self, names: tuple[str, ...]) -> Predictor:
        """The same with these names, as far as they are known; the rule raises an error for a missing one."""
        return _Beside(self.predict, self.others, tuple(name for name in names if name in self.others))

    def __call__(self, x: Tensor, t: float) -> Prediction:
        p = self.predict(x, t)
        if not self.included:
            return p
        means = {name: self.others[name](x, t).m_c.to(p.dtype) for name in self.included}
        return Prediction(p.x, p.t, p.m_c, p.m_u, gap=p.gap, extra=means)


def autoguidance(predict: Predict, weak: Predict) -> Predict:
    """Autoguidance. The conditional mean of `predict`, guided away from the conditional mean of `weak`.

    formula: m = m_weak + scale (m_main - m_weak), both under the condition
    space: any
    source: Karras et al., NeurIPS 2024, arXiv 2406.02507
    evidence: NVlabs/edm2 @ 4bf8162f
    use when: you have a weaker model of the same kind
    defaults:
        - EDM2-S 512: weak XS at 134M images, scale 2.10 (its presets: FID 1.34)
        - EDM2-XXL 512: weak M at 268M images, scale 2.05 (its presets: FID 1.25)
        - EDM2-S 64: scale 1.70 (its presets: FID 1.01)
    notes:
        - diffusers' AutoGuidance drops layers of the same network instead, by default at scale 7.5
    """

    def both(x: Tensor, t: float) -> Prediction:
        strong, other = predict(x, t), weak(x, t)
        need_same_shapes(strong=strong.m_c, weak=other.m_c)
        return Prediction(strong.x, strong.t, strong.m_c, other.m_c.to(strong.m_c.dtype))

    return both


def rectified_cfgpp(
    predict: Predict, times: Sequence[float], *, share: float = 0.5, hold: bool = False
) -> Predict:
    """Rectified-CFG++. The gap of velocities is taken ahead of x, at x + share (t_next - t) v_c.

    CFG(1 + w) on top has the weight w. It costs a second prediction per step, and is stated for
    one-evaluation steps (Euler).

    formula: y = x + share (t_next - t) v_c(x); v = v_c(x) + w (v_c(y) - v_u(y))
    space: velocity
    source: Saini et al., NeurIPS 2025
    evidence: shreshthsaini/Rectified-CFGpp; the paper's half step is second-hand
    use when: a flow model drifts at large scales and more evaluations per step are affordable
    defaults:
        - SD3.5 Large: w 4.5, 28 steps (its code)
    notes:
        - the code takes a full step and evaluates at the old time, because it adds a step in sigma to a
          time in thousandths: share=1, hold=True; the paper's text describes a half step, our default
        - the code adds Gaussian noise 0.005 to y, gated in the same wrong units; we add none
    """
    grid = checked(times)
    if not 0 <= share <= 1 or (share == 1 and not hold and grid[-1] == 1):
        raise ValueError(
            "rectified_cfgpp needs a share in [0, 1], below 1 if the last step ends at the data, because "
            f"a mean at t = 1 does not determine a velocity; got {share}"
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
    seed: int = 0,
    batch: int = 256,
) -> Rectify:
    """E[n_c n_u] / E[n_u^2] for each element at every time before 1, over data that meet the condition.

    Follow the result by CFG(scale). One table belongs to one condition; for others, average theirs.
    """
    knots = [t for t in checked(times) if t < 1]
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for t in knots:
        cross, square = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
        for start in range(0, len(data), batch):
            part = data[start : start + batch]
            noise = torch.randn(part.shape, generator=generator, dtype=torch.float64).to(part)
            x = torch.lerp(noise, part, t)
            p = predict(x, t)
            n_c, n_u = ((p.x - t * m).double() for m in (p.m_c, p.m_u))
            cross, square = cross + (n_c * n_u).sum(0), square + n_u.square().sum(0)
        rows.append(Values(cross / square))
    return Rectify(tuple(knots), tuple(rows))


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
    """Manifold projection (CFG-MP, CFG-MP+). Euler steps, each from the projected state while t < until.

    `window` earlier results are mixed in; 0 is CFG-MP, 1 or more CFG-MP+.

    formula: x <- z + h v_c(z) with z = x - h v_u(x), a few times at fixed t, then a CFG step; MP+ mixes the
        results
    space: state
    source: Cai et al., ICML 2026, arXiv 2601.21892
    evidence: LeonSuZhengYi/CFG-MP @ 1de2898f
    use when: you want to try its fixed point; it costs evaluations, and an independent test found no gain
    state: the last results of the iteration, within a step
    defaults:
        - SD3.5: 10 steps, scale 4 to 4.5, 3 iterations, window 1, sigma > 0.6 (its demo and README)
        - DiT: 10 steps, scale 1.75 to 2, 2 iterations (its demo and README)
    notes:
        - the code stops a whole batch by its mean residual; we always do all iterations, per sample
        - a predict that gives both predictions costs twice the evaluations, for each half needs one of them
        - an independent re-measurement on SD3.5 found no gain over CFG at equal cost
    """
    predict, stepper = with_needs(predict, rule), Stepper(rule)
    for t, t_next in pairwise(checked(times)):
        if t < until:
            x = _project(predict, x, t, (t_next - t) / 2, iterations, window, forth_first=t <= _TURN)
        m = stepper.mean(predict(x, t).until(t_next)).to(torch.promote_types(x.dtype, torch.float32))
        x = m if t_next == 1 else torch.lerp(x.to(m.dtype), m, (t_next - t) / (1 - t))
    warn_if_not_finite(x)
    return x


def _project(
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


for _name, _kind, _call, _sheet in (
    (
        "rectified_cfgpp",
        "model",
        "sample(rectified_cfgpp(predict, times), CFG(5.5), x, times)",
        rectified_cfgpp,
    ),
    ("manifold", "solver", "manifold_sample(predict, CFG(4.5), x, times)", manifold_sample),
    ("autoguidance", "model", "sample(autoguidance(predict, weak), CFG(2.1), x, times)", autoguidance),
):
    not_a_rule(_name, _kind, _call, _sheet.__doc__ or "")
