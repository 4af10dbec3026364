"""Mixtures on a circle: the ray, the centre, and the branches.

    r, s  radius of the circle of means and the one width of the components
    C     (1 - t)^2 + t^2 s^2
    a'    slope of the velocity of one component,  (t s^2 - (1 - t)) / C
    Q     covariance of the means under the prior weights; Q_A under those of the condition

At x = 0 all components are equally far, so p(k | x) is the prior weight at every t and the fields there are
closed forms in mu and Q. The centre formulas hold on spheres in any dimension; the ray needs w_0 > 0.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..components import scatter
from ..condition import Condition
from ..mixture import Mixture
from .curvature import component_variance, sphere_radius


class RayProfile(NamedTuple):
    """Confidence and density at distance s along the ray through one mean, and their slopes in s."""

    log_posterior: Tensor
    posterior_slope: Tensor  # >= 0 for every s >= 0
    posterior_curvature: Tensor  # <= 0
    log_density: Tensor
    density_slope: Tensor  # <= -(s - t r)/C, so < 0 beyond t r


def ray_profile(mixture: Mixture, k: int, s: Tensor, t: float) -> RayProfile:
    """Confidence rises and density falls along x = s u_k, s (n,): log p(k | x), log p_t(x) and slopes.

    The signs need w_k > 0, means on one circle, and a width if t = 1; confidence tends to 1 when no other
    mean has the direction u_k.
    """
    if not mixture.weights[k] > 0:
        raise ValueError(f"the confidence in component {k} is 0 everywhere, for its weight is 0")
    radius, c = sphere_radius(mixture), component_variance(mixture, t)
    u = mixture.means / radius
    x = s[:, None] * u[k]
    pi, rate = mixture.responsibilities(x, t), t * radius / c
    cosines = u @ u[k]
    spread = (pi * (cosines - (pi @ cosines)[:, None]) ** 2).sum(-1)
    # 1 - cosine summed term by term keeps the sign and the digits when pi_k is nearly 1.
    slope = rate * (pi * (1 - cosines).clamp_min(0)).sum(-1)
    log_posterior = mixture.components(x, t).log_joint.log_softmax(-1)[:, k]
    return RayProfile(
        log_posterior, slope, -(rate**2) * spread, mixture.log_density(x, t), rate * (pi @ cosines) - s / c
    )


def centre_force(condition: Condition, t: Tensor | float, scale: float) -> Tensor:
    """(v_g - v_c)(0) = (g - 1) (1 - t)/C (mu_A - mu), (d,); (g - 1) (1 - t)/C mu_0 if centred, given {0}."""
    sphere_radius(condition.mixture)
    c = component_variance(condition.mixture, t)
    return (scale - 1) * (1 - t) / c * (condition.conditional.mean - condition.mixture.mean)


def centre_curvature(condition: Condition, t: Tensor | float, scale: float) -> Tensor:
    """Gradient of v_g - v_c at 0, (g - 1) t (1 - t)/C^2 (Q_A - Q), (d, d).

    The paper's -(g - 1) t (1 - t) r^2/(2 C^2) I needs K >= 3 equal weights; for K = 2 the rank is one.
    """
    sphere_radius(condition.mixture)
    gain = (scale - 1) * t * (1 - t) / component_variance(condition.mixture, t) ** 2
    return gain * (_prior_scatter(condition.conditional) - _prior_scatter(condition.mixture))


def splitting_eigenvalue(condition: Condition, t: Tensor | float, scale: float = 1.0) -> Tensor:
    """Rate at which guided paths near 0 part along mu_i - mu_j, for a pair A = {i, j}.

    a' + t (1 - t)/C^2 <u, (Q_A + (g - 1) (Q_A - Q)) u>,  u along mu_i - mu_j. For two of eight equal parts
    a quarter turn apart it is a' + t (1 - t) r^2/(2 C^2), free of g, and an eigenvalue; in general only if u
    is an axis of the Jacobian.
    """
    if len(condition.members) != 2:
        raise ValueError(f"splitting is between two branches; the condition has members {condition.members}")
    sphere_radius(condition.mixture)
    c = component_variance(condition.mixture, t)
    slope = (t * condition.mixture.std**2 - (1 - t)) / c
    apart = condition.conditional.means[0] - condition.conditional.means[1]
    u = apart / torch.linalg.vector_norm(apart)
    inner, outer = (u @ _prior_scatter(m) @ u for m in (condition.conditional, condition.mixture))
    rate: Tensor = slope + t * (1 - t) / c**2 * (inner + (scale - 1) * (inner - outer))
    return rate


def branch_time(condition: Condition, scale: float = 1.0) -> float:
    """First t at which the splitting eigenvalue is 0: before it the two branches attract each other at 0."""
    times = torch.linspace(0, 1, 1024, dtype=torch.float64)[:-1]
    parting = splitting_eigenvalue(condition, times, scale) > 0
    if not parting.any():
        raise ValueError(
            "the splitting eigenvalue stays negative: paths at 0 never part for this pair and scale"
        )
    first = int(parting.int().argmax())
    lo, hi = float(times[first - 1]), float(times[first])
    for _ in range(50):
        middle = (lo + hi) / 2
        lo, hi = (lo, middle) if splitting_eigenvalue(condition, middle, scale) > 0 else (middle, hi)
    return (lo + hi) / 2


def angular_force(condition: Condition, x: Tensor, t: Tensor | float, scale: float) -> Tensor:
    """Counter-clockwise part of v_g - v_c in the plane, (g - 1) (1 - t)/(t |x|) d/dphi log p(A | x).

    For three adjacent of eight equal components it points to the middle ray from every angle 0 < |phi| < pi
    (proved by the paper to pi/4; its proof reaches pi/2).
    """
    force = condition.force(x, t)
    moment = x[..., 0] * force[..., 1] - x[..., 1] * force[..., 0]
    return (scale - 1) * moment / x.square().sum(-1).sqrt()


def branch_bias(condition: Condition, t: Tensor | float) -> Tensor:
    """log p(A | t mu_i) - log p(A | t mu_j) for a pair A = (i, j).

    Positive for w_i > w_j if the complement is symmetric about the bisector; otherwise of either sign.
    """
    if len(condition.members) != 2:
        raise ValueError(f"the bias is between two branches; the condition has members {condition.members}")
    at_means = condition.log_posterior(t * condition.conditional.means, t)
    return at_means[0] - at_means[1]


def _prior_scatter(mixture: Mixture) -> Tensor:
    return scatter(mixture.weights, mixture.means)
