"""What the model said at one evaluation, as it said it.

    shown          the state that the network was shown, in the host's own units
    out_c, out_u   its output with the condition, and without (or of any other reference model)
    a, k           the numbers that make a posterior mean of an output: m = a shown + k out
    x              the state on the linear path x = (1 - t) noise + t data
    m_c, m_u       posterior means E[data | x, condition] and E[data | x]
    delta          their gap k (out_c - out_u), the direction of guidance
    others         further outputs by name, each a mean by the same a and k: "negative", something to avoid;
                   "weak", a weaker model under the same condition

Means are formed when somebody asks for them. Most rules never do: they change one number c, the guided output
is out_c + c (out_c - out_u) in the network's own units, and a cap needs no more than three lengths per
sample, which come from the outputs in one pass (`meancap.operation`). In the outputs' units nothing is lost
where the means come together: at t = 1 the gap of the means vanishes and that of the velocities does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from . import path
from .operation import Lengths, lengths, mean_of, measured
from .path import Affine
from .tensors import Number, compiling, once, per_sample


@dataclass(frozen=True, eq=False)
class Prediction:
    """Two outputs at one state; build it with `from_mean`, `from_velocity`, `from_noise`, ..."""

    shown: Tensor
    t: Number
    out_c: Tensor
    out_u: Tensor
    t_next: Number | None = None
    gap: Tensor | None = None  # m_c - m_u, where it is known better than by subtraction
    a: Number = 0.0
    k: Number = 1.0
    unit: Number = 1.0  # unit * shown is x
    log_ratio: Tensor | None = None  # log p(x | condition) / p(x), where the loop follows it, (n,)
    others: Mapping[str, Tensor] | None = None  # outputs under further conditions or of other models
    dtype: torch.dtype = field(init=False)  # to work in: float32, or float64 where any tensor has it

    def __post_init__(self) -> None:
        x, c, u = self.shown, self.out_c, self.out_u
        tensors = isinstance(x, Tensor) and isinstance(c, Tensor) and isinstance(u, Tensor)
        usual = tensors and x.shape == c.shape == u.shape and x.dim() > 1 and x.numel() > 0
        if not (usual and x.is_floating_point() and c.is_floating_point() and u.is_floating_point()):
            with_, without = "the prediction with the condition", "the prediction without it"
            need_same_shapes(**{"x": x, with_: c, without: u})
        t = self.t
        if not (type(t) is float and 0.0 <= t <= 1.0):
            object.__setattr__(self, "t", path.time(t, x))
        if self.t_next is not None:
            object.__setattr__(self, "t_next", path.time(self.t_next, x, "t_next"))
        kinds: tuple[torch.dtype, ...] = (x.dtype, c.dtype, u.dtype)
        if self.others is not None:
            need_same_shapes(x=x, **{f"the prediction {name!r}": v for name, v in self.others.items()})
            kinds += tuple(v.dtype for v in self.others.values())
        object.__setattr__(self, "dtype", torch.float64 if torch.float64 in kinds else torch.float32)

    @property
    def states_means(self) -> bool:
        """Whether the outputs are the posterior means themselves."""
        return isinstance(self.a, float) and isinstance(self.k, float) and (self.a, self.k) == (0.0, 1.0)

    @once
    def x(self) -> Tensor:
        """The state on the linear path."""
        x = self.shown.to(self.dtype)
        return x if isinstance(self.unit, float) and self.unit == 1 else per_sample(self.unit, x) * x

    @once
    def m_c(self) -> Tensor:
        """The conditional posterior mean."""
        return mean_of(self.shown, self.out_c, self.a, self.k, self.dtype)

    @once
    def m_u(self) -> Tensor:
        """The unconditional posterior mean, or that of another reference model."""
        return mean_of(self.shown, self.out_u, self.a, self.k, self.dtype)

    @once
    def delta(self) -> Tensor:
        """The gap m_c - m_u, the direction of guidance."""
        if self.gap is not None:
            return self.gap
        gap = self.out_c.to(self.dtype) - self.out_u.to(self.dtype)
        return gap if isinstance(self.k, float) and self.k == 1 else per_sample(self.k, gap) * gap

    def other(self, name: str) -> Tensor:
        """The posterior mean that the further output of this name states."""
        return mean_of(self.shown, self._output(name), self.a, self.k, self.dtype)

    def lead(self, name: str) -> Tensor:
        """The way k (out - out_u) from m_u to the mean of this name, as `delta` is the one to m_c."""
        way = self._output(name).to(self.dtype) - self.out_u.to(self.dtype)
        return way if isinstance(self.k, float) and self.k == 1 else per_sample(self.k, way) * way

    def _output(self, name: str) -> Tensor:
        if self.others is None or name not in self.others:
            raise KeyError(f"this prediction has no {name!r} beside it; p.beside({name}=output) gives it one")
        return self.others[name]

    @once
    def lengths(self) -> Lengths:
        """|m_c|, |delta| and the component of m_c along delta, for each sample."""
        if self.gap is not None:
            return lengths(self.m_c, self.gap)
        return measured(self.shown, self.out_c, self.out_u, self.a, self.k)

    def beside(self, **outputs: Tensor) -> Prediction:
        """The same prediction with further outputs of the same kind: p.beside(negative=v_n)."""
        return replace(self, others={**(self.others or {}), **outputs})

    def until(self, t_next: float | Tensor | None) -> Prediction:
        """The same prediction, knowing where the step will end (CFG++ needs it)."""
        return replace(self, t_next=t_next)

    @classmethod
    def from_mean(cls, x: Tensor, t: float | Tensor, m_c: Tensor, m_u: Tensor) -> Prediction:
        """From posterior means on the linear path."""
        return cls.stated(x, m_c, m_u, Affine(0.0, 1.0, path.time(t, x)))

    @classmethod
    def from_velocity(cls, x: Tensor, t: float | Tensor, v_c: Tensor, v_u: Tensor) -> Prediction:
        """From velocities data - noise on the linear path; at t = 1 both means are x."""
        if type(t) is not float or compiling():
            t = path.time(t, x)
        return cls(x, t, v_c, v_u, a=1.0, k=1 - t)

    @classmethod
    def from_noise(
        cls, x: Tensor, eps_c: Tensor, eps_u: Tensor, *, alpha: float | Tensor, sigma: float | Tensor
    ) -> Prediction:
        """From noise predictions on x = alpha data + sigma noise, alpha > 0."""
        return cls.stated(x, eps_c, eps_u, path.on_gaussian("noise", *path.coefficients(alpha, sigma, x)))

    @classmethod
    def from_v_prediction(
        cls, x: Tensor, v_c: Tensor, v_u: Tensor, *, alpha: float | Tensor, sigma: float | Tensor
    ) -> Prediction:
        """From v-predictions alpha noise - sigma data on x = alpha data + sigma noise."""
        return cls.stated(x, v_c, v_u, path.on_gaussian("v", *path.coefficients(alpha, sigma, x)))

    @classmethod
    def from_score(
        cls, x: Tensor, score_c: Tensor, score_u: Tensor, *, alpha: float | Tensor, sigma: float | Tensor
    ) -> Prediction:
        """From scores grad log p(x) on x = alpha data + sigma noise, alpha > 0."""
        return cls.stated(x, score_c, score_u, path.on_gaussian("score", *path.coefficients(alpha, sigma, x)))

    @classmethod
    def from_denoiser(cls, x: Tensor, sigma: float | Tensor, d_c: Tensor, d_u: Tensor) -> Prediction:
        """From denoised estimates D(x; sigma) on x = data + sigma noise, as EDM and k-diffusion have them."""
        return cls.stated(x, d_c, d_u, path.on_gaussian("mean", *path.coefficients(1.0, sigma, x)))

    @classmethod
    def stated(cls, x: Tensor, out_c: Tensor, out_u: Tensor, how: Affine) -> Prediction:
        """From outputs whose mean is how.a x + how.k out: what every other constructor ends in."""
        return cls(x, how.t, out_c, out_u, how.t_next, a=how.a, k=how.k, unit=how.unit)


def need_same_shapes(**tensors: Tensor) -> None:
    """One sentence where two tensors that must match do not."""
    (first, reference), *rest = tensors.items()
    for name, v in tensors.items():
        if not isinstance(v, Tensor):
            raise TypeError(f"{name} must be a tensor; got {v!r}")
        if not v.is_floating_point():
            raise TypeError(f"guidance needs floating-point tensors; got {v.dtype}")
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
