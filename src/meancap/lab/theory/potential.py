"""The flow as a gradient flow in time, and what guidance adds to its potential.

    Phi    |x|^2 / (2 t) + (1 - t)/t log p_t(x),  with  grad Phi = v;  energy U = -Phi
    g      guidance scale, 1 = conditional;  Phi_g = (1 - g) Phi_u + g Phi_c
    h      log p(A | x), the log posterior of the condition

Potentials need 0 < t: they are 0/0 at t = 0, where only the mean and the velocity are regular.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..condition import Condition
from ..mixture import Mixture


class Energy(NamedTuple):
    """dU/dt along a trajectory is the sum of the two; only the second has a sign."""

    injection: Tensor  # dU/dt at fixed x
    dissipation: Tensor  # -|grad U|^2


class Growth(NamedTuple):
    """d/dt log p(A | x_t) along a guided trajectory is the sum of the three; only the last has a sign."""

    explicit: Tensor  # dh/dt at fixed x
    transport: Tensor  # <grad h, v_c>
    guidance: Tensor  # (g - 1) (1 - t)/t |grad h|^2


def density_rate(mixture: Mixture, x: Tensor, t: Tensor | float) -> Tensor:
    """d/dt log p_t(x) at fixed x = -div v - <v, grad log p>, the equation of continuity."""
    return -mixture.divergence(x, t) - (mixture.velocity(x, t) * mixture.score(x, t)).sum(-1)


def potential(mixture: Mixture, x: Tensor, t: Tensor | float) -> Tensor:
    """Phi = |x|^2 / (2 t) + (1 - t)/t log p_t(x), whose gradient is the velocity; t > 0."""
    time = _positive(t, x)
    return ((x**2).sum(-1) / 2 + (1 - time) * mixture.log_density(x, t)) / time


def potential_rate(mixture: Mixture, x: Tensor, t: Tensor | float) -> Tensor:
    """dPhi/dt at fixed x; t > 0."""
    time = _positive(t, x)
    fixed = -((x**2).sum(-1) / 2 + mixture.log_density(x, t)) / time**2
    return fixed + (1 - time) / time * density_rate(mixture, x, t)


def cfg_potential(condition: Condition, x: Tensor, t: Tensor | float, scale: float) -> Tensor:
    """Phi_c + (g - 1) (1 - t)/t h + K_t, equal to (1 - g) Phi_u + g Phi_c with the constant; t > 0."""
    time = _positive(t, x)
    tilt = (scale - 1) * (1 - time) / time * condition.log_posterior(x, t)
    return potential(condition.conditional, x, t) + tilt + gauge_constant(condition, time, scale)


def gauge_constant(condition: Condition, t: Tensor | float, scale: float) -> Tensor:
    """K_t = -(g - 1) (1 - t)/t log p(A), the part of the CFG potential that moves nothing."""
    return -(scale - 1) * (1 - t) / t * condition.log_prior


def energy_balance(
    condition: Condition, x: Tensor, t: Tensor | float, scale: float, scale_rate: float = 0.0
) -> Energy:
    """Both terms of dU/dt = dU/dt|_x - |v_g|^2 along the guided flow; t > 0.

    A schedule g(t) with slope `scale_rate` injects -g' (Phi_c - Phi_u) more.
    """
    time = _positive(t, x)
    rate_c, rate_u = potential_rate(condition.conditional, x, t), potential_rate(condition.mixture, x, t)
    gap = (1 - time) / time * (condition.log_posterior(x, t) - condition.log_prior)
    v = condition.velocities(x, t)[0] + posterior_force(condition, x, t, scale)
    return Energy(-(1 - scale) * rate_u - scale * rate_c - scale_rate * gap, -(v**2).sum(-1))


def posterior_force(condition: Condition, x: Tensor, t: Tensor | float, scale: float) -> Tensor:
    """v_g - v_c = (g - 1) (1 - t)/t grad h, what guidance adds to the velocity; regular on [0, 1]."""
    return (scale - 1) * condition.force(x, t)


def posterior_growth(condition: Condition, x: Tensor, t: Tensor | float, scale: float) -> Growth:
    """The three terms of d/dt log p(A | x_t) along the guided flow; regular on [0, 1]."""
    explicit = density_rate(condition.conditional, x, t) - density_rate(condition.mixture, x, t)
    ascent, v_c = condition.posterior_score(x, t), condition.velocities(x, t)[0]
    # force = (1 - t)/t ascent, without the division.
    guidance = (scale - 1) * (condition.force(x, t) * ascent).sum(-1)
    return Growth(explicit, (ascent * v_c).sum(-1), guidance)


def tilted_log_density(condition: Condition, x: Tensor, t: Tensor | float, scale: float) -> Tensor:
    """log of p_u^(1-g) p_c^g, unnormalised: it has the guided score at t and is the law of no sample."""
    gain = condition.log_posterior(x, t) - condition.log_prior
    return condition.mixture.log_density(x, t) + scale * gain


def _positive(t: Tensor | float, x: Tensor) -> Tensor:
    time = torch.as_tensor(t, dtype=x.dtype, device=x.device)
    if not (time > 0).all():
        raise ValueError(f"a potential needs t > 0, for it divides by t; use the velocity at t = 0; got {t}")
    return time
