"""How guidance bends the flow: the change of the velocity's Jacobian and divergence.

H_g   gradient of the guided velocity,  H_g - H_c = (g - 1) (1 - t)/t Hess h
                                                  = (g - 1) t/(1 - t)^3 (Cov_c - Cov_u)
C     (1 - t)^2 + t^2 s^2,  the variance at time t of a component of width s
mu_A  mean of mu_k under p(k | x, A);  mu without A
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..components import trace
from ..condition import Condition
from ..mixture import Mixture


def jacobian_shift(condition: Condition, x: Tensor, t: Tensor | float, scale: float) -> Tensor:
    """H_g - H_c, (..., d, d); regular on [0, 1], where both forms of the paper divide by zero."""
    return (scale - 1) * condition.jet(x, t).grad_force


def divergence_shift(condition: Condition, x: Tensor, t: Tensor | float, scale: float) -> Tensor:
    """div(v_g - v_c), (...): negative where the condition lowers the trace of the posterior covariance."""
    return trace(jacobian_shift(condition, x, t, scale))


def circle_divergence_shift(condition: Condition, x: Tensor, t: Tensor | float, scale: float) -> Tensor:
    """(g - 1) t (1 - t)/C^2 (|mu|^2 - |mu_A|^2): CFG contracts where the conditional centre lies farther out.

    Exact for means on one sphere round the origin and one isotropic width, in any dimension.
    """
    sphere_radius(condition.mixture)
    c = component_variance(condition.mixture, t)
    a, b = (
        mixture.responsibilities(x, t) @ mixture.means
        for mixture in (condition.conditional, condition.mixture)
    )
    gain = (scale - 1) * t * (1 - t) / c**2
    return gain * ((b - a) * (b + a)).sum(-1)


def component_variance(mixture: Mixture, t: Tensor | float) -> Tensor:
    """C = (1 - t)^2 + t^2 s^2 for the one width s of the mixture."""
    time = torch.as_tensor(t, dtype=mixture.means.dtype, device=mixture.means.device)
    return (1 - time) ** 2 + time**2 * mixture.std**2


def sphere_radius(mixture: Mixture) -> float:
    """The common length of the means; the circle formulas need one, and the origin as centre."""
    norms = torch.linalg.vector_norm(mixture.means, dim=-1)
    least, most = norms.aminmax()
    if most - least > 8 * torch.finfo(norms.dtype).eps * most:
        raise ValueError(
            f"this formula needs means on one sphere round 0; their lengths run {least:.4g}..{most:.4g}"
        )
    return float(norms.mean())
