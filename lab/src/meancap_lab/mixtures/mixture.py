"""Gaussian mixtures, whose fields on the linear path are known exactly.

    x     state at time t on the linear path  x = (1 - t) noise + t data
    w_k   weight, mu_k mean and S_k covariance of component k of the data
    C_k   covariance of x given component k,  (1 - t)^2 I + t^2 S_k
    s, c  the largest variance of the mixture, and  c = (1 - t)^2 + t^2 s
    n_k   pull of component k,  C_k^-1 (mu_k + (t/c) (S_k - s I) x);  mu_k / c when every S_k = s I
    n     its mean under weights pi_k: p(k | x) for the mixture, p(k | x, A) given a set A of components

Every field is affine in n, without 1/t or 1/(1 - t), hence regular at both ends of the path:

    score      -x / c + t n
    mean       (t s / c) x + (1 - t)^2 n
    velocity   ((t s - (1 - t)) / c) x + (1 - t) n

What is left outside n is the same for all weightings, so differences of fields lose no digits. At t = 0 the
posterior mean is E[data] for every x; at t = 1 mean and velocity are both x, for noise is independent of
data, so that E[data - noise | data = x] = x.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Components:
    """The quantities of each component, before any average over them."""

    x: Tensor
    t: Tensor  # (..., 1), to stand beside x
    s: Tensor  # ()
    c: Tensor  # (..., 1)
    log_joint: Tensor  # log w_k p_t(x | k), (..., K)
    pulls: Tensor  # n_k, (..., K, d)

    @property
    def pi(self) -> Tensor:
        """p(k | x), (..., K)."""
        return self.log_joint.softmax(-1)

    def pull(self, pi: Tensor) -> Tensor:
        """n, (..., d)."""
        return (pi[..., None, :] @ self.pulls)[..., 0, :]

    def mean(self, pi: Tensor) -> Tensor:
        return self.t * self.s / self.c * self.x + (1 - self.t) ** 2 * self.pull(pi)

    def velocity(self, pi: Tensor) -> Tensor:
        slope = (self.t * self.s - (1 - self.t)) / self.c
        return slope * self.x + (1 - self.t) * self.pull(pi)


@dataclass(frozen=True, eq=False, init=False)
class Mixture:
    """Sum of w_k N(mu_k, S_k). Every field takes x (..., d), and t as a number or a tensor (...).

    Weights are relative: they are divided by their sum. `std` is a number or one per component; `cov` is a
    variance, (K,) variances, a covariance (d, d) for all or (K, d, d) one for each. Zero makes point masses.
    """

    means: Tensor
    weights: Tensor
    cov: Tensor
    variances: Tensor = field(init=False, repr=False)  # eigenvalues of S_k, (K, d)
    axes: Tensor | None = field(init=False, repr=False)  # eigenvectors in columns; None: the coordinates

    def __init__(
        self,
        means: Tensor,
        weights: Tensor | Sequence[float] | None = None,
        *,
        std: Tensor | float | None = None,
        cov: Tensor | float | None = None,
    ) -> None:
        if means.ndim != 2 or not means.is_floating_point():
            raise ValueError(
                f"Mixture needs floating-point means (K, d); got {means.dtype} {tuple(means.shape)}"
            )
        if (std is None) == (cov is None):
            raise ValueError("Mixture needs either std or cov, and not both; std=0 makes point masses")
        width = torch.as_tensor(cov if std is None else std, dtype=means.dtype, device=means.device)
        if std is not None and (width.ndim > 1 or (width < 0).any()):
            raise ValueError(
                f"std is one number >= 0, or one per component; got {std}; use cov for covariances"
            )
        given = [1.0] * len(means) if weights is None else weights
        mass = torch.as_tensor(given, dtype=means.dtype, device=means.device)
        if mass.shape != means.shape[:1] or not (mass >= 0).all() or not mass.sum() > 0:
            raise ValueError(
                f"weights need one number >= 0 for each of {len(means)} means, not all 0; got {weights}"
            )
        width = width if std is None else width**2
        variances, axes = _eigen(width, *means.shape)
        stated = {"means": means, "weights": mass / mass.sum(), "cov": width}
        for name, value in {**stated, "variances": variances, "axes": axes}.items():
            object.__setattr__(self, name, value)

    @property
    def mean(self) -> Tensor:
        """E[data], the posterior mean at t = 0 for every x."""
        return self.weights @ self.means

    @property
    def std(self) -> float:
        """The one standard deviation of a mixture with S_k = std^2 I for every k."""
        least, most = self.variances.aminmax()
        if least != most:
            raise ValueError("this formula needs S_k = std^2 I with one std for all components; these differ")
        return math.sqrt(float(most))

    def given(self, members: Iterable[int]) -> Mixture:
        """The mixture conditioned on a set of components, weights renormalised."""
        index = list(members)
        if not index or len({*index}) < len(index) or not all(0 <= k < len(self.means) for k in index):
            raise ValueError(
                f"members are distinct indices below {len(self.means)}, at least one; got {index}"
            )
        cov = self.cov[index] if self.cov.ndim in (1, 3) else self.cov
        return Mixture(self.means[index], self.weights[index], cov=cov)

    def log_density(self, x: Tensor, t: Tensor | float) -> Tensor:
        """log p_t(x), (...)."""
        return self.components(x, t).log_joint.logsumexp(-1)

    def responsibilities(self, x: Tensor, t: Tensor | float) -> Tensor:
        """p(k | x), (..., K)."""
        return self.components(x, t).pi

    def score(self, x: Tensor, t: Tensor | float) -> Tensor:
        """grad log p_t(x), (..., d)."""
        parts = self.components(x, t)
        return parts.t * parts.pull(parts.pi) - x / parts.c

    def posterior_mean(self, x: Tensor, t: Tensor | float) -> Tensor:
        """E[data | x], (..., d); exactly x at t = 1."""
        parts = self.components(x, t)
        return parts.mean(parts.pi)

    def velocity(self, x: Tensor, t: Tensor | float) -> Tensor:
        """E[data - noise | x] = (mean - x) / (1 - t), (..., d)."""
        parts = self.components(x, t)
        return parts.velocity(parts.pi)

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """n independent draws of the data, (n, d)."""
        k = torch.multinomial(self.weights, n, replacement=True, generator=generator)
        shape, like = (n, self.means.shape[1]), self.means
        z = (
            torch.randn(shape, dtype=like.dtype, device=like.device, generator=generator)
            * self.variances[k].sqrt()
        )
        return self.means[k] + (z if self.axes is None else torch.einsum("nde,ne->nd", self.axes[k], z))

    def components(self, x: Tensor, t: Tensor | float) -> Components:
        """The quantities of each component at (x, t), before any average over them."""
        time = torch.as_tensor(t, dtype=self.means.dtype, device=self.means.device)
        if x.shape[-1] != self.means.shape[1] or (time.ndim and time.shape != x.shape[:-1]):
            raise ValueError(
                f"this mixture takes x (..., {self.means.shape[1]}) and t as a number or one per point; "
                f"got x {tuple(x.shape)} and t {tuple(time.shape)}"
            )
        if not ((time >= 0) & (time <= 1)).all():
            raise ValueError(f"t runs from 0 (noise) to 1 (data); got {t}")
        if not self.variances.all() and (time == 1).any():
            raise ValueError(
                "a component without width has no density at t = 1; stop before, or give it a std"
            )
        dtype = torch.promote_types(x.dtype, self.means.dtype)  # matrix products do not promote
        x, time, log_weights, means, variances = (
            v.to(dtype) for v in (x, time[..., None], self.weights.log(), self.means, self.variances)
        )
        axes = None if self.axes is None else self.axes.to(dtype)
        beside, s = time[..., None], variances.max()
        at, mu = x[..., None, :], means
        if axes is not None:
            at, mu = torch.einsum("...d,kde->...ke", x, axes), torch.einsum("kd,kde->ke", means, axes)
        c = (1 - beside) ** 2 + beside**2 * s
        spectra = (1 - beside) ** 2 + beside**2 * variances
        log_normal = -0.5 * ((at - beside * mu) ** 2 / spectra + (2 * math.pi * spectra).log()).sum(-1)
        pulls = (mu + beside / c * (variances - s) * at) / spectra
        if axes is not None:
            pulls = torch.einsum("...ke,kde->...kd", pulls, axes)
        return Components(x, time, s, c[..., 0], log_weights + log_normal, pulls)


def _eigen(cov: Tensor, count: int, d: int) -> tuple[Tensor, Tensor | None]:
    """Eigenvalues (count, d) and eigenvectors of each covariance; None for the coordinate axes."""
    if cov.shape not in {(), (count,), (d, d), (count, d, d)}:
        raise ValueError(
            f"cov is a variance, ({count},) variances, or covariances ({d}, {d}) or ({count}, {d}, {d}); "
            f"got shape {tuple(cov.shape)}"
        )
    variances, axes, rounding = cov.reshape(-1, 1), None, 0.0
    if cov.ndim >= 2:
        rounding = d * torch.finfo(cov.dtype).eps * float(cov.abs().max())
        if not ((cov - cov.mT).abs() <= rounding).all():
            raise ValueError("a covariance is symmetric; if rounding broke it, pass (S + S.mT) / 2")
        variances, axes = torch.linalg.eigh(cov)
        axes = axes.expand(count, d, d)
    if not (variances >= -rounding).all():
        raise ValueError(f"a covariance has no negative eigenvalue; got {float(variances.min()):.3g}")
    return variances.clamp_min(0).expand(count, d), axes


def sobol_noise(n: int, dimension: int, seed: int) -> Tensor:
    """n scrambled Sobol points as Gaussian noise, (n, d) in float64; n is a power of two."""
    engine = torch.quasirandom.SobolEngine(dimension, scramble=True, seed=seed)  # type: ignore[no-untyped-call]
    draws: Tensor = engine.draw(n, dtype=torch.float64)
    noise: Tensor = torch.special.ndtri(draws.clamp(2.0**-31, 1 - 2.0**-31))
    return noise
