"""What the model said at one evaluation.

x    state at time t on the linear path  x = (1 - t) noise + t data
m_c  posterior mean E[data | x, condition]
m_u  the same without the condition, or of any other reference model
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from . import path
from .tensors import Lengths, Number, lengths, per_sample, promoted


@dataclass(frozen=True, eq=False)
class Prediction:
    """The two posterior means at one state; build it with `from_mean`, `from_velocity`, `from_noise`, ..."""

    x: Tensor
    t: Number
    m_c: Tensor
    m_u: Tensor
    t_next: Number | None = None
    gap: Tensor | None = None  # m_c - m_u, where it is known better than by subtraction

    def __post_init__(self) -> None:
        need_same_shapes(x=self.x, m_c=self.m_c, m_u=self.m_u)
        object.__setattr__(self, "t", path.time(self.t, self.x))
        if self.t_next is not None:
            object.__setattr__(self, "t_next", path.time(self.t_next, self.x, "t_next"))

    @property
    def delta(self) -> Tensor:
        """The gap m_c - m_u, the direction of guidance."""
        return self.m_c - self.m_u if self.gap is None else self.gap

    def lengths(self) -> Lengths:
        """|m_c|, |delta| and the component of m_c along delta, for each sample."""
        return lengths(self.m_c, self.delta)

    def until(self, t_next: float | Tensor) -> Prediction:
        """The same prediction, knowing where the step will end (CFG++ needs it)."""
        return replace(self, t_next=t_next)

    @classmethod
    def from_mean(cls, x: Tensor, t: float | Tensor, m_c: Tensor, m_u: Tensor) -> Prediction:
        """From posterior means on the linear path."""
        need_same_shapes(x=x, m_c=m_c, m_u=m_u)
        x, m_c, m_u = _together(x, m_c, m_u)
        return cls(x, t, m_c, m_u)

    @classmethod
    def from_velocity(cls, x: Tensor, t: float | Tensor, v_c: Tensor, v_u: Tensor) -> Prediction:
        """From velocities data - noise on the linear path; at t = 1 both means are x."""
        need_same_shapes(x=x, v_c=v_c, v_u=v_u)
        x, v_c, v_u = _together(x, v_c, v_u)
        t = path.time(t, x)
        gap = per_sample(1 - t, x) * (v_c - v_u)
        m_c = path.mean_from_velocity(x, t, v_c)
        return cls(x, t, m_c, path.mean_from_velocity(x, t, v_u), gap=gap)

    @classmethod
    def from_noise(
        cls,
        x: Tensor,
        eps_c: Tensor,
        eps_u: Tensor,
        *,
        alpha: float | Tensor,
        sigma: float | Tensor,
    ) -> Prediction:
        """From noise predictions on x = alpha data + sigma noise, alpha > 0."""
        need_same_shapes(x=x, eps_c=eps_c, eps_u=eps_u)
        x, eps_c, eps_u = _together(x, eps_c, eps_u)
        a, s = path.coefficients(alpha, sigma, x)
        path.need_signal(a, "noise prediction")
        m_c, m_u = (path.mean_from_noise(x, eps, a, s) for eps in (eps_c, eps_u))
        return cls._on_path(x, m_c, m_u, per_sample(s / a, x) * (eps_u - eps_c), a, s)

    @classmethod
    def from_v_prediction(
        cls,
        x: Tensor,
        v_c: Tensor,
        v_u: Tensor,
        *,
        alpha: float | Tensor,
        sigma: float | Tensor,
    ) -> Prediction:
        """From v-predictions alpha noise - sigma data on x = alpha data + sigma noise."""
        need_same_shapes(x=x, v_c=v_c, v_u=v_u)
        x, v_c, v_u = _together(x, v_c, v_u)
        a, s = path.coefficients(alpha, sigma, x)
        m_c, m_u = (path.mean_from_v_prediction(x, v, a, s) for v in (v_c, v_u))
        return cls._on_path(x, m_c, m_u, per_sample(s / (a * a + s * s), x) * (v_u - v_c), a, s)

    @classmethod
    def from_score(
        cls,
        x: Tensor,
        score_c: Tensor,
        score_u: Tensor,
        *,
        alpha: float | Tensor,
        sigma: float | Tensor,
    ) -> Prediction:
        """From scores grad log p(x) on x = alpha data + sigma noise, alpha > 0."""
        need_same_shapes(x=x, score_c=score_c, score_u=score_u)
        x, score_c, score_u = _together(x, score_c, score_u)
        a, s = path.coefficients(alpha, sigma, x)
        path.need_signal(a, "score")
        m_c, m_u = (path.mean_from_score(x, score, a, s) for score in (score_c, score_u))
        return cls._on_path(x, m_c, m_u, per_sample(s * s / a, x) * (score_c - score_u), a, s)

    @classmethod
    def _on_path(cls, x: Tensor, m_c: Tensor, m_u: Tensor, gap: Tensor, a: Number, s: Number) -> Prediction:
        x, t = path.to_linear(x, a, s)
        return cls(x, t, m_c, m_u, gap=gap)


def need_same_shapes(**tensors: Tensor) -> None:
    """One sentence where two tensors that must match do not."""
    (first, reference), *rest = tensors.items()
    if reference.dim() < 2:
        raise ValueError(
            f"{first} needs a batch axis first, then at least one more; got shape {tuple(reference.shape)}"
        )
    if 0 in reference.shape[1:]:
        raise ValueError(
            f"{first} holds samples without a single element; got shape {tuple(reference.shape)}"
        )
    for name, tensor in rest:
        if tensor.shape != reference.shape:
            raise ValueError(
                f"{name} has shape {tuple(tensor.shape)}, but {first} has {tuple(reference.shape)}; "
                "they must be the same"
            )


def _together(*tensors: Tensor) -> tuple[Tensor, ...]:
    """All in one precision, float32 at least."""
    dtype = torch.float64 if any(v.dtype == torch.float64 for v in tensors) else torch.float32
    return tuple(promoted(v).to(dtype) for v in tensors)
