"""The exact guided field, fixed or capped, with its feedback Jacobian.

    d, D   v_c - v_u and m_c - m_u = (1 - t) d
    z, y   m_c - r and m_c + beta D - r, with r the anchor of the cap (0 in the paper)
    beta   guidance above 1: the largest number <= g - 1 with |y| <= Gamma |z|

The cap feeds the state back into beta, so the field is not a gradient: its Jacobian is
H_c + beta grad d + d (grad beta)^T, antisymmetric part (d (grad beta)^T - (grad beta) d^T) / 2. Where the
cap is active,

    grad beta = -((grad m_c + beta grad D)^T y - Gamma^2 (grad m_c)^T z) / <y, D>

and <y, D> = sqrt(<z, D>^2 + (Gamma^2 - 1) |z|^2 |D|^2), so beta is smooth there if Gamma > 1 and z is not 0.
Where the cap sets in, beta is continuous with a kink.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ...cap import Lengths, cap_share
from ..components import trace
from ..condition import Condition, Jet


@dataclass(frozen=True, eq=False)
class Guided:
    """v_c + beta d for one condition: fixed CFG at infinite gamma, the posterior-mean cap otherwise."""

    condition: Condition
    scale: float = 1.0
    gamma: float = math.inf
    anchor: Tensor | None = None

    def __post_init__(self) -> None:
        if self.gamma < 1 or (self.gamma < math.inf and self.scale < 1):
            raise ValueError(
                f"the cap needs gamma >= 1 and scale >= 1; got gamma {self.gamma}, scale {self.scale}"
            )

    def beta(self, x: Tensor, t: Tensor | float) -> Tensor:
        """Guidance above 1 that the cap admits, (...)."""
        return self._beta(x, t, self.condition.jet(x, t))

    def beta_gradient(self, x: Tensor, t: Tensor | float) -> Tensor:
        """grad beta, (..., d); 0 where the cap is inactive."""
        jet = self.condition.jet(x, t)
        return self._beta_gradient(x, t, jet, self._beta(x, t, jet))

    def velocity(self, x: Tensor, t: Tensor | float) -> Tensor:
        """v_c + beta d, (..., d)."""
        jet = self.condition.jet(x, t)
        return jet.v_c + self._beta(x, t, jet)[..., None] * jet.force

    def jacobian(self, x: Tensor, t: Tensor | float) -> Tensor:
        """Gradient of the velocity, H_c + beta grad d + d (grad beta)^T, (..., d, d)."""
        return self.linearise(x, t)[1]

    def linearise(self, x: Tensor, t: Tensor | float) -> tuple[Tensor, Tensor]:
        """Velocity and jacobian from one pass over the components."""
        jet = self.condition.jet(x, t)
        beta = self._beta(x, t, jet)
        feedback = jet.force[..., :, None] * self._beta_gradient(x, t, jet, beta)[..., None, :]
        jacobian = jet.grad_v_c + beta[..., None, None] * jet.grad_force + feedback
        return jet.v_c + beta[..., None] * jet.force, jacobian

    def divergence(self, x: Tensor, t: Tensor | float) -> Tensor:
        """div v_c + beta div d + <grad beta, d>, (...)."""
        return trace(self.jacobian(x, t))

    def rotation(self, x: Tensor, t: Tensor | float) -> Tensor:
        """Antisymmetric part of the Jacobian, (..., d, d); 0 for fixed CFG."""
        feedback = self.condition.force(x, t)[..., :, None] * self.beta_gradient(x, t)[..., None, :]
        return (feedback - feedback.mT) / 2

    def _arms(self, x: Tensor, t: Tensor | float, jet: Jet) -> tuple[Tensor, Tensor, Tensor]:
        """1 - t beside x, m_c - r and D."""
        rest = 1 - torch.as_tensor(t, dtype=x.dtype, device=x.device)[..., None]
        m_c = x + rest * jet.v_c
        return rest, m_c if self.anchor is None else m_c - self.anchor, rest * jet.force

    def _beta(self, x: Tensor, t: Tensor | float, jet: Jet) -> Tensor:
        if self.gamma == math.inf:
            return torch.full_like(x[..., 0], self.scale - 1)
        _, z, delta = self._arms(x, t, jet)
        return cap_beta(z, delta, self.scale, self.gamma)

    def _beta_gradient(self, x: Tensor, t: Tensor | float, jet: Jet, beta: Tensor) -> Tensor:
        rest, z, delta = self._arms(x, t, jet)
        active = (beta < self.scale - 1)[..., None]
        if self.gamma == math.inf or not active.any():
            return torch.zeros_like(x)
        y = z + beta[..., None] * delta
        # grad m_c = I + (1 - t) grad v_c, and both Jacobians are symmetric.
        push = y + rest * _apply(jet.grad_v_c, y) + beta[..., None] * rest * _apply(jet.grad_force, y)
        pull = self.gamma**2 * (z + rest * _apply(jet.grad_v_c, z))
        grip = (y * delta).sum(-1, keepdim=True)
        return torch.where(active, (pull - push) / torch.where(active, grip, 1.0), 0.0)


def cap_beta(z: Tensor, delta: Tensor, scale: float, gamma: float) -> Tensor:
    """The largest number <= scale - 1 with |z + beta D| <= gamma |z|: the cap that samplers use, but exact.

    They give up a margin for rounding (`cap.margin_of`); theory does not.
    """
    size = delta.square().sum(-1).sqrt()
    along = torch.where(size > 0, (z * delta).sum(-1) / torch.where(size > 0, size, 1.0), 0.0)
    seen = Lengths(*(v.flatten() for v in (z.square().sum(-1).sqrt(), size, along)))
    return (scale - 1) * cap_share(seen, scale - 1, gamma).reshape(size.shape)


def _apply(matrix: Tensor, vector: Tensor) -> Tensor:
    return (matrix @ vector[..., None])[..., 0]
