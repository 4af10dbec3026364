"""Rules that compute their strength from the two predictions, one number per sample."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..cap import lengths
from ..prediction import Prediction
from ..schedules import Scale, at
from ..tensors import Number, vector
from .methods import method, not_a_rule, recipe
from .rule import Displacement, Factor, Rule, State
from .scale import CFG, FromUnconditional
from .spaces import SPACES, both_in, part, stretch, time_passed, unconditional_in
from .time import Beta, by_step, grid_of


def _prediction_cosine(p: Prediction, space: str) -> Tensor:
    """The cosine between the two predictions of each sample; 0 where one of them is zero."""
    one, _, along = lengths(*both_in(p, space))
    return torch.where(one == 0, 0.0, along / one)


@part()
class Damp(Factor):
    """Magnitude-aware guidance (MAMBO-G, once RAAG). Damps guidance if the gap is large beside the velocity.

    formula: scale_eff = 1 + (scale - 1) exp(-alpha r), r = |v_c - v_u| / |v_u|
    space: velocity
    source: Zhu et al., arXiv 2508.03442 (v1, v2 as RAAG)
    evidence: xiaomomy/MAMBO-G @ 9c54dd11; diffusers 0.42.1
    use when: few steps at a large scale spoil the first of them
    defaults:
        - SD3.5 Large, 10 steps: scale 18, alpha 12 (its code)
        - Qwen-Image, 10 steps: scale 10, alpha 8, then Rescale(1) (its code)
        - any: scale 10, alpha 8 (diffusers)
    notes:
        - the official code takes the norms of the whole batch; ours and diffusers' are per sample
        - diffusers 0.42.1 raises on 4-D and 5-D latents (torch.norm over three axes); packed tokens work
    """

    alpha: float = 8.0

    def factor(self, g: Displacement, p: Prediction) -> Number:
        v_c, v_u = both_in(p, "velocity")
        whole, gap, _ = lengths(v_u, v_c - v_u)
        return torch.exp(-self.alpha * torch.where(gap == 0, 0.0, gap / whole))


mambo_g = recipe("mambo_g", Damp, first=CFG, scale=10.0, check=(0.302766, -1.208297, 0.697234, 0.408297))


@method(
    name="power_law", call="power_law(0.5, 0.9)", unit=False, check=(0.362793, -1.388378, 0.637207, 0.588378)
)
@part("0 <= alpha (0 is CFG with scale 1 + omega)")
class PowerLaw(Factor):
    """Power-law guidance. Scale 1 + omega |score gap|^alpha.

    It grows without bound towards t = 1 (like (1 - t)^-alpha on velocities), and at t = 1 itself it is 0.

    formula: m = m_c + beta (m_c - m_u), beta = omega (t / (1 - t)^2 |m_c - m_u|)^alpha
    space: score
    source: Pavasovic et al., ICLR 2026, arXiv 2502.07849
    evidence: second-hand; xxiiyu/cui_generalized_guidance_forms (unofficial); the authors published no code
    use when: guidance should grow with the gap of the scores and omega can be tuned to the size of the model
    defaults:
        - latent models: alpha 0.9, omega tuned (paper, second-hand)
    notes:
        - omega depends on the dimension (the length grows with its root) and on the grid's last time
        - the unofficial node adds 1 to sigma^2, starts from m_u and keeps the factor at 1 at least
    """

    omega: Scale
    alpha: float = 0.9
    sets_scale = True

    def factor(self, g: Displacement, p: Prediction) -> Number:
        length = stretch(p.t, "score") * g.length
        none = length == 0  # its power has no derivative there
        power = torch.where(none, 1.0, length) ** self.alpha
        return at(self.omega, p.t) * torch.where(none, 0.0 if self.alpha else 1.0, power)


@method(name="vags", unit=False, check=(0.782105, -2.646315, 0.217895, 1.846315))
@part()
class Aligned(Factor):
    """VAGS. The scale follows the time and the angle between the two velocities.

    formula: scale exp(kappa (2t - 1) cos(v_u, v_c))
    space: velocity
    source: Luo et al. 2026, arXiv 2605.15661
    evidence: second-hand; a reading note
    use when: you want less guidance early and more late, the more so the better the velocities agree
    defaults:
        - any: kappa 1 (second-hand)
    """

    scale: Scale
    kappa: float = 1.0

    def factor(self, g: Displacement, p: Prediction) -> Number:
        gain = torch.exp(self.kappa * (2 * p.t - 1) * _prediction_cosine(p, "velocity"))
        return at(self.scale, p.t) * gain - 1


@part(space=SPACES)
class Converged(Rule):
    """Adaptive guidance (guide until the predictions agree). Plain CFG until the two predictions agree.

    formula: CFG until cos(c, u) exceeds above, conditional from then on
    space: velocity
    source: Castillo et al. 2023, arXiv 2312.12487
    evidence: second-hand; a third-party collection
    use when: guidance should end for a sample once its two predictions agree
    state: which samples have stopped
    defaults:
        - LDM: above 0.991 (second-hand)
    notes:
        - stated for noise predictions, which coincide at t = 0 of a flow; velocities do not: space=
    """

    above: float = 0.991
    space: str = "velocity"

    turns = False
    has_state = True

    def update(self, g: Displacement, p: Prediction, state: State) -> tuple[Displacement, State]:
        agree = _prediction_cosine(p, self.space) > self.above
        done = agree if state is None else state | agree
        return g.times(torch.where(done, 0.0, vector(1.0, p.state))), done

    def within_step(self, before: State, after: State) -> State:
        return after  # a sample that stopped is not guided by the rest of the step


adaptive_guidance = recipe("adaptive_guidance", Converged, first=CFG, check=(0.9, -3.0, 0.1, 2.2))


# A shorter gap has no direction left in float32, and its inverse no room.
_NO_GAP = 1e-30


@part("0 <= least <= most", space=("velocity", "mean"))
class Balanced(Rule):
    """m = m_u + s g with s = gamma |u| / |g|, between `least` and `most`; u is unconditional (Auto-MOG).

    Both lengths are taken in `space`: velocities, or means.
    """

    gamma: float = 1.0
    least: float = 1.0
    most: float = 20.0
    space: str = "velocity"

    sets_scale = True
    turns = False

    def update(self, g: Displacement, p: Prediction, state: State) -> tuple[Displacement, State]:
        whole = lengths(unconditional_in(p, self.space), p.delta).base
        length = g.length
        none = length == 0
        ratio = torch.where(none, 0.0, whole / torch.where(none, 1.0, length))
        scale = (self.gamma * ratio).clamp(self.least, self.most)
        return _FROM_UNCONDITIONAL.update(g.times(scale), p, state)


_FROM_UNCONDITIONAL = FromUnconditional(1.0)


@part(space=SPACES)
class Normalise(Factor):
    """g <- g / |g|^gamma, the length taken in `space`; gamma 1 leaves a direction only (beta-CFG)."""

    gamma: float = 1.0
    space: str = "noise"

    def factor(self, g: Displacement, p: Prediction) -> Number:
        length = stretch(time_passed(p.t), self.space) * g.length
        none = length < _NO_GAP
        return torch.where(none, 0.0, torch.where(none, 1.0, length) ** -self.gamma)


@method(unit=False, check=(3.319938, -10.259814, -2.319938, 9.459814))
def beta_cfg(
    scale: float,
    *,
    a: float = 2.0,
    b: float = 2.0,
    gamma: float = 1.0,
    times: int | float | Sequence[float] | None = None,
) -> Rule:
    """Beta-CFG. A normalised noise gap weighed by a Beta density of t or of the step.

    formula: n = n_u + scale B(t; a, b) (n_c - n_u) / |n_c - n_u|^gamma, B the Beta density
    space: noise
    source: Malarz et al., ECAI 2025, arXiv 2502.10574
    evidence: gmum/beta-CFG @ c17edf52
    use when: you compare with its paper; its strength depends on the size of the tensor
    defaults:
        - SD1.5 and others: scale 7.5, a = b = 2, gamma 1, 50 DDIM steps (its code)
    notes:
        - the weight is 0 at both ends: there the prediction is unconditional, not conditional
        - the density is of t here and of the step in the code: give times= for the latter
    """
    weight = Beta(scale, a, b)
    return Normalise(gamma) | FromUnconditional(weight if times is None else by_step(weight, grid_of(times)))


not_a_rule(
    "policy",
    "laboratory",
    "train_policy(condition)",
    """
    Adaptive guidance by stochastic optimal control.

    formula: scale w(t, x) by a trained network: maximal E log p(c | x_1) - cost E KL(guided | unguided)
    space: score
    source: Azangulov et al., AISTATS 2026, arXiv 2505.19367
    evidence: paper; the abstract only; no repository found
    use when: you study a mixture whose truth is known; it is trained for each condition
    defaults:
        - 2-D mixtures: trained for each condition (meancap bench)
    notes:
        - the paper reweights diffusion paths; we differentiate the Euler flow of a mixture exactly
    """,
)


# Parts that are methods by themselves.
power_law, vags = PowerLaw, Aligned
