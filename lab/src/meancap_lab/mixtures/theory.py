"""The theory of guidance as functions of a `Condition`, each an identity that the tests check.

    g, h    guidance scale (1 = conditional) and log p(A | x), the log posterior of the condition
    d, D    v_c - v_u and m_c - m_u = (1 - t) d
    r, s    radius of the circle of means and the one width of the components, if they have one
    C       variance of one component at time t,  (1 - t)^2 + t^2 s^2;  alpha = (1 - t)^2 / C
    a'      slope of the velocity of one component,  (t s^2 - (1 - t)) / C;  exactly  d log C/dt = 2 a'
    Q       covariance of the means under the prior weights; Q_A under those of the condition
    J       gradient of the flow map;  d/dt log|det J| = div v
    U       energy, minus the potential Phi of the field;  dU/dt = d_t U - |grad U|^2 along a path

The capped field (`Guided`). With z = m_c - anchor (0 in the paper) and y = z + beta D, beta is the largest
number <= g - 1 with |y| <= Gamma |z|. The cap feeds the state back into beta, so the field is not a gradient.
Where the cap is active, beta is smooth if Gamma > 1 and z is not 0; where it sets in, beta has a kink.

The release of the cap. Exactly D = alpha (1 - p(A | x)) (mean of mu over A - mean of mu over the rest). The
paper bounds |D| by 2 r alpha alone, which is true but never applies at its own setting: it is the factor
1 - p(A | x) that makes the gap vanish.

The centre of a circle. At x = 0 all components are equally far, so p(k | x) is the prior weight at every t
and the fields there are closed forms in mu and Q, on spheres in any dimension.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor

from meancap.cap import Lengths, cap_share

from .condition import Condition
from .mixture import Mixture


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
        if self.gamma == math.inf:
            return torch.full_like(x[..., 0], self.scale - 1)
        rest = 1 - torch.as_tensor(t, dtype=x.dtype, device=x.device)[..., None]
        z, delta = x + rest * self.condition.velocities(x, t)[0], rest * self.condition.force(x, t)
        return cap_beta(z if self.anchor is None else z - self.anchor, delta, self.scale, self.gamma)

    def velocity(self, x: Tensor, t: Tensor | float) -> Tensor:
        """v_c + beta d, (..., d)."""
        v_c, _ = self.condition.velocities(x, t)
        return v_c + self.beta(x, t)[..., None] * self.condition.force(x, t)


def cap_beta(z: Tensor, delta: Tensor, scale: float, gamma: float) -> Tensor:
    """The largest number <= scale - 1 with |z + beta D| <= gamma |z|: the cap that samplers use, but exact.

    They give up a margin for rounding (`cap.MARGINS`); theory does not.
    """
    length = torch.linalg.vector_norm(z, dim=-1)
    # So short a displacement always fits; without it no derivative divides by a gap that vanishes.
    fits = (scale - 1) * torch.linalg.vector_norm(delta, dim=-1) <= (gamma - 1) * length
    delta = torch.where(fits[..., None], 1.0, delta)
    size = torch.linalg.vector_norm(delta, dim=-1)
    seen = (length, size, (z * delta).sum(-1) / size)
    share = cap_share(Lengths(*(v.flatten() for v in seen)), scale - 1, gamma)
    return torch.where(fits, scale - 1, (scale - 1) * share.reshape(size.shape))


def energy(condition: Condition, x: Tensor, t: Tensor | float, scale: Tensor | float = 1.0) -> Tensor:
    """U = -Phi of fixed guidance, whose velocity is -grad U, for 0 < t, (...).

    Phi = |x|^2/(2 t) + (1 - t)/t (log p_c + (g - 1) (h - log p(A))), for a scale that may change with time.
    """
    lift = (scale - 1) * (condition.log_posterior(x, t) - condition.log_prior)
    return -((x**2).sum(-1) / 2 + (1 - t) * (condition.conditional.log_density(x, t) + lift)) / t


def energy_balance(
    condition: Condition, x: Tensor, t: float, scale: float = 1.0, slope: float = 0.0
) -> tuple[Tensor, Tensor]:
    """d_t U and |grad U|^2: along a guided path dU/dt is the first less the second, (...) each.

    A schedule g(t) of derivative `slope` adds slope (1 - t)/t (h - log p(A)) to d_t Phi, the part slope h of
    which depends on x. The first term has either sign, so energy need not fall.
    """
    times = torch.full_like(x[..., 0], t).requires_grad_()
    with torch.enable_grad():
        (change,) = torch.autograd.grad(energy(condition, x, times, scale).sum(), times)
    gain = (1 - t) / t * (condition.log_posterior(x, t) - condition.log_prior)
    return change - slope * gain, (Guided(condition, scale).velocity(x, t) ** 2).sum(-1)


def posterior_covariance(mixture: Mixture, x: Tensor, t: Tensor | float) -> Tensor:
    """Cov(data | x), (..., d, d); the gradient of the posterior mean is t/(1 - t)^2 times it."""
    parts = mixture.components(x, t)
    rest, after = (1 - parts.t[..., None]) ** 2, parts.t[..., None] ** 2
    within = (rest * mixture.variances / (rest + after * mixture.variances)).diag_embed()
    if mixture.axes is not None:
        within = mixture.axes @ within @ mixture.axes.mT
    apart = rest * (parts.pulls - parts.pull(parts.pi)[..., None, :])
    return torch.einsum("...k,...kij->...ij", parts.pi, within + apart[..., :, None] * apart[..., None, :])


class Field(Protocol):
    """A velocity at (x, t): `Mixture`, `Guided`, or anything else that has one."""

    def velocity(self, x: Tensor, t: float, /) -> Tensor: ...


def linearise(field: Field, x: Tensor, t: float) -> tuple[Tensor, Tensor]:
    """The velocity at points (..., d) and its gradient (..., d, d), by autograd."""
    x = x.detach().requires_grad_()
    with torch.enable_grad():
        v = field.velocity(x, t)
        rows = [torch.autograd.grad(row.sum(), x, retain_graph=True)[0] for row in v.unbind(-1)]
    return v.detach(), torch.stack(rows, -2)


def release_by_envelope(
    condition: Condition, x: Tensor, t: Tensor | float, scale: float, gamma: float
) -> Tensor:
    """The paper's certificate, 2 r (g - 1) alpha <= (Gamma - 1)|m_c|, for each point."""
    return _fits(condition, x, t, (scale - 1) * gap_envelope(condition.mixture, t), gamma)


def release_by_posterior(
    condition: Condition, x: Tensor, t: Tensor | float, scale: float, gamma: float
) -> Tensor:
    """The sharper one, 2 r (g - 1) alpha (1 - P_A) <= (Gamma - 1)|m_c|; implied by the paper's."""
    envelope = gap_envelope(condition.mixture, t) * condition.log_complement(x, t).exp()
    return _fits(condition, x, t, (scale - 1) * envelope, gamma)


def gap_envelope(mixture: Mixture, t: Tensor | float) -> Tensor:
    """2 r alpha >= |D| for every x and every condition; falls strictly to 0 at t = 1 if s > 0."""
    rho = torch.linalg.vector_norm(mixture.means, dim=-1).max()
    envelope: Tensor = 2 * rho * (1 - t) ** 2 / ((1 - t) ** 2 + t**2 * mixture.std**2)
    return envelope


def _fits(condition: Condition, x: Tensor, t: Tensor | float, displacement: Tensor, gamma: float) -> Tensor:
    m_c, _ = condition.means(x, t)
    return displacement.le((gamma - 1) * torch.linalg.vector_norm(m_c, dim=-1))


def splitting_eigenvalue(condition: Condition, t: Tensor | float, scale: float = 1.0) -> Tensor:
    """Rate at which guided paths near 0 part along mu_i - mu_j, for a pair A = {i, j}.

    a' + t (1 - t)/C^2 <u, (Q_A + (g - 1) (Q_A - Q)) u>,  u along mu_i - mu_j. For two of eight equal parts
    a quarter turn apart it is a' + t (1 - t) r^2/(2 C^2), free of g, and an eigenvalue; in general only if u
    is an axis of the Jacobian.
    """
    if len(condition.members) != 2:
        raise ValueError(f"splitting is between two branches; the condition has members {condition.members}")
    _radius(condition.mixture)
    c = _variance(condition.mixture, t)
    slope = (t * condition.mixture.std**2 - (1 - t)) / c
    apart = condition.conditional.means[0] - condition.conditional.means[1]
    u = apart / torch.linalg.vector_norm(apart)
    inner, outer = (
        m.weights @ (((m.means - m.mean) @ u) ** 2) for m in (condition.conditional, condition.mixture)
    )
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


def _variance(mixture: Mixture, t: Tensor | float) -> Tensor | float:
    """C, for the one width s of the mixture."""
    return (1 - t) ** 2 + t**2 * mixture.std**2


def _radius(mixture: Mixture) -> float:
    """The common length of the means; the circle formulas need one, and the origin as centre."""
    norms = torch.linalg.vector_norm(mixture.means, dim=-1)
    least, most = norms.aminmax()
    if most - least > 8 * torch.finfo(norms.dtype).eps * most:
        raise ValueError(
            f"this formula needs means on one sphere round 0; their lengths run {least:.4g}..{most:.4g}"
        )
    return float(norms.mean())


def graded_times(n: int, std: float) -> Tensor:
    """2 n steps from 0 to 1: n times equal in t joined with n equal in the angle atan(t std / (1 - t))."""
    angle = torch.linspace(0, math.pi / 2, n + 1, dtype=torch.float64)[1:-1]
    turning = angle.sin() / (std * angle.cos() + angle.sin())
    shifted = (torch.arange(n, dtype=torch.float64) + 0.5) / n
    ends = torch.tensor([0.0, 1.0], dtype=torch.float64)
    return torch.cat([ends, turning, shifted]).sort().values


def transport(field: Field, x: Tensor, times: Tensor) -> tuple[Tensor, Tensor]:
    """End of the flow through `times` from x (..., d), and log|det J| of the map, (...).

    Classical Runge-Kutta steps, forwards or backwards: of fourth order, but of second where a cap sets in or
    releases, for there the field has a kink.
    """
    log_volume = torch.zeros_like(x[..., 0])
    for t, s in pairwise(times.tolist()):
        h, middle = s - t, t + (s - t) / 2
        v, gradient = linearise(field, x, t)
        total, divergence = v, _trace(gradient)
        for share, time, weight in ((h / 2, middle, 2), (h / 2, middle, 2), (h, s, 1)):
            v, gradient = linearise(field, x + share * v, time)
            total, divergence = total + weight * v, divergence + weight * _trace(gradient)
        x, log_volume = x + h / 6 * total, log_volume + h / 6 * divergence
    return x, log_volume


def _trace(matrix: Tensor) -> Tensor:
    return matrix.diagonal(dim1=-2, dim2=-1).sum(-1)


def pushforward(field: Field, noise: Tensor, times: Tensor) -> tuple[Tensor, Tensor]:
    """Samples x_1 from noise x_0, and their log density log p_0(x_0) - log|det J|, of shape (...)."""
    x, log_volume = transport(field, noise, times)
    return x, _log_normal(noise) - log_volume


def _log_normal(x: Tensor) -> Tensor:
    return -0.5 * ((x**2).sum(-1) + x.shape[-1] * math.log(2 * math.pi))


def euler_variance_ratio(times: Tensor, std: Tensor | float) -> Tensor:
    """R, the variance of a Gaussian after Euler steps over the exact one, for each std; its mean is exact.

    R = C_first / C_last times the product of (1 + h a')^2 over the steps: s^-2 prod (1 + h a')^2 on a grid
    from 0 to 1, and R_50(0.03) = 0.570650620975 on the uniform one. For n uniform steps
    log R = -(2 + L)/n + O(n^-3), with 2 the rise of a' and L = pi (1 + s^2)/(4 s) - 1 the integral of a'^2.
    """
    s = torch.as_tensor(std, dtype=torch.float64)
    if not (s > 0).all():
        raise ValueError(f"a variance ratio needs std > 0, because a point mass has no variance; got {std}")
    grid = times.double().reshape(-1, *(1,) * s.ndim)
    c = (1 - grid) ** 2 + (grid * s) ** 2
    slope = (grid * s**2 - (1 - grid)) / c
    factors = 1 + grid.diff(dim=0) * slope[:-1]
    return factors.prod(0) ** 2 * c[0] / c[-1]
