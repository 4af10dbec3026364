"""All components of a mixture at one (x, t), and the fields of any weighting of them.

    C_k   covariance of x given component k,  (1 - t)^2 I + t^2 S_k
    s, c  the largest variance of the mixture, and  c = (1 - t)^2 + t^2 s
    n_k   pull of component k,  C_k^-1 (mu_k + (t/c) (S_k - s I) x);  mu_k / c when every S_k = s I
    n     its mean under weights pi_k: p(k | x) for the mixture, p(k | x, A) given a set A of components
    W     its twist,  Cov_k(n_k) - E_k[(s I - S_k) C_k^-1] / c,  so that  grad n = t W

Every field is affine in n, without 1/t or 1/(1 - t), hence regular at both ends of the path:

    score      -x / c + t n                             gradient  -I / c + t^2 W
    mean       (t s / c) x + (1 - t)^2 n                gradient  (t s / c) I + t (1 - t)^2 W
    velocity   ((t s - (1 - t)) / c) x + (1 - t) n      gradient  ((t s - (1 - t)) / c) I + t (1 - t) W

What is left outside n is the same for all weightings, so differences of fields lose no digits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Components:
    """What each component says, before any average over them; spectra are on the eigenvectors of S_k."""

    x: Tensor
    t: Tensor  # (..., 1), to stand beside x
    s: Tensor  # ()
    c: Tensor  # (..., 1)
    log_joint: Tensor  # log w_k p_t(x | k), (..., K)
    pulls: Tensor  # n_k, (..., K, d)
    spectra: Tensor  # eigenvalues of C_k, (..., K, d)
    variances: Tensor  # eigenvalues of S_k, (K, d)
    axes: Tensor | None  # eigenvectors in columns, (K, d, d); None: the coordinate axes

    @classmethod
    def of(
        cls, x: Tensor, t: Tensor, log_weights: Tensor, means: Tensor, variances: Tensor, axes: Tensor | None
    ) -> Components:
        time, s = t[..., None], variances.max()
        at, mu = x[..., None, :], means
        if axes is not None:
            at, mu = torch.einsum("...d,kde->...ke", x, axes), torch.einsum("kd,kde->ke", means, axes)
        c = (1 - time) ** 2 + time**2 * s
        spectra = (1 - time) ** 2 + time**2 * variances
        log_normal = -0.5 * ((at - time * mu) ** 2 / spectra + (2 * math.pi * spectra).log()).sum(-1)
        pulls = (mu + time / c * (variances - s) * at) / spectra
        if axes is not None:
            pulls = torch.einsum("...ke,kde->...kd", pulls, axes)
        return cls(x, t, s, c[..., 0], log_weights + log_normal, pulls, spectra, variances, axes)

    @property
    def pi(self) -> Tensor:
        """p(k | x), (..., K)."""
        return self.log_joint.softmax(-1)

    def pull(self, pi: Tensor) -> Tensor:
        """n, (..., d)."""
        return (pi[..., None, :] @ self.pulls)[..., 0, :]

    def twist(self, pi: Tensor) -> Tensor:
        """W, (..., d, d)."""
        excess = (self.s - self.variances) / self.spectra
        return scatter(pi, self.pulls) - self.matrix(pi, excess) / self.c[..., None]

    def mean(self, pi: Tensor) -> Tensor:
        return self.t * self.s / self.c * self.x + (1 - self.t) ** 2 * self.pull(pi)

    def velocity(self, pi: Tensor) -> Tensor:
        return self._slope * self.x + (1 - self.t) * self.pull(pi)

    def jacobian(self, pi: Tensor) -> Tensor:
        """Gradient of the velocity, (..., d, d)."""
        eye = torch.eye(self.x.shape[-1], dtype=self.x.dtype, device=self.x.device)
        return self._slope[..., None] * eye + (self.t * (1 - self.t))[..., None] * self.twist(pi)

    def matrix(self, pi: Tensor, spectra: Tensor) -> Tensor:
        """Sum of pi_k times the matrix that has these eigenvalues on the axes of S_k, (..., d, d)."""
        if self.axes is None:
            return torch.diag_embed((pi[..., None] * spectra).sum(-2))
        return torch.einsum("...k,kie,...ke,kje->...ij", pi, self.axes, spectra, self.axes)

    @property
    def _slope(self) -> Tensor:
        return (self.t * self.s - (1 - self.t)) / self.c


def scatter(pi: Tensor, points: Tensor) -> Tensor:
    """Covariance of points (..., K, d) under weights pi (..., K), (..., d, d)."""
    centred = points - pi[..., None, :] @ points
    return (pi[..., None] * centred).mT @ centred


def trace(matrix: Tensor) -> Tensor:
    """Sum of the diagonal over the last two axes."""
    return matrix.diagonal(dim1=-2, dim2=-1).sum(-1)
