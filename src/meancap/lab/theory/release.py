"""The start of a run, where the cap limits guidance, and the end, where it does not.

    D      m_c - m_u;  alpha = (1 - t)^2 / C,  C = (1 - t)^2 + t^2 s^2,  for one isotropic width s
    rho    largest |mu_k|, the radius r of a circle
    P_A    p(A | x);  the gap is exactly  D = alpha (1 - P_A) (mean of mu over A - mean of mu over the rest)

Two certificates that the nominal scale g is feasible, |m_c + (g - 1) D| <= Gamma |m_c|. The paper bounds |D|
by 2 rho alpha alone, which is true but never applies at its own setting: it is the factor 1 - P_A that makes
the gap vanish.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..condition import Condition
from ..mixture import Mixture
from .curvature import component_variance
from .guided import cap_beta


def gap_envelope(mixture: Mixture, t: Tensor | float) -> Tensor:
    """2 rho alpha >= |D| for every x and every condition; falls strictly to 0 at t = 1 if s > 0."""
    rho = torch.linalg.vector_norm(mixture.means, dim=-1).max()
    envelope: Tensor = 2 * rho * (1 - t) ** 2 / component_variance(mixture, t)
    return envelope


def release_time(std: float, radius: float, scale: float, gamma: float, mean_norm: float) -> float:
    """First t of the paper's certificate, alpha = (Gamma - 1)|m_c|/(2 rho (g - 1)), if |m_c| = mean_norm."""
    asked, room = 2 * radius * (scale - 1), (gamma - 1) * mean_norm
    if asked <= room:
        return 0.0
    if room * std == 0:
        return 1.0
    odds = math.sqrt(asked / room - 1) / std
    return odds / (1 + odds)


def release_by_envelope(
    condition: Condition, x: Tensor, t: Tensor | float, scale: float, gamma: float
) -> Tensor:
    """The paper's certificate, 2 rho (g - 1) alpha <= (Gamma - 1)|m_c|, for each point."""
    return _fits(condition, x, t, (scale - 1) * gap_envelope(condition.mixture, t), gamma)


def release_by_posterior(
    condition: Condition, x: Tensor, t: Tensor | float, scale: float, gamma: float
) -> Tensor:
    """The sharper one, 2 rho (g - 1) alpha (1 - P_A) <= (Gamma - 1)|m_c|; implied by the paper's."""
    envelope = gap_envelope(condition.mixture, t) * condition.log_complement(x, t).exp()
    return _fits(condition, x, t, (scale - 1) * envelope, gamma)


def initial_mean(condition: Condition, scale: float) -> Tensor:
    """Guided mean at t = 0, E[data | A] + (g - 1) (E[data | A] - E[data]), the same for every x, (d,).

    The paper's g mu_0 needs a centred mixture, which its own imbalanced pair is not.
    """
    m_c, m_u = condition.conditional.mean, condition.mixture.mean
    return m_c + (scale - 1) * (m_c - m_u)


def initial_beta(condition: Condition, scale: float, gamma: float, anchor: Tensor | None = None) -> Tensor:
    """beta of the cap at t = 0, ().

    min(g, Gamma) - 1 with the anchor r = E[data] in every mixture, so with r = 0 in a centred one.
    """
    m_c, m_u = condition.conditional.mean, condition.mixture.mean
    arm = m_c if anchor is None else m_c - anchor
    return cap_beta(arm, m_c - m_u, scale, gamma)


def initial_capped_mean(
    condition: Condition, scale: float, gamma: float, anchor: Tensor | None = None
) -> Tensor:
    """Capped mean at t = 0, (d,): min(g, Gamma) mu_0 in a centred mixture given {0}."""
    return initial_mean(condition, 1 + float(initial_beta(condition, scale, gamma, anchor)))


def _fits(condition: Condition, x: Tensor, t: Tensor | float, displacement: Tensor, gamma: float) -> Tensor:
    m_c, _ = condition.means(x, t)
    return displacement.le((gamma - 1) * torch.linalg.vector_norm(m_c, dim=-1))
