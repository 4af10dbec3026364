"""The network's outputs at one evaluation.

    state          the state that the network was given, in the host's own units
    out_c, out_u   its output with the condition, and without (or of any other reference model)
    a, k           the posterior mean of an output is m = a state + k out
    x              the state on the linear path x = (1 - t) noise + t data
    m_c, m_u       posterior means E[data | x, condition] and E[data | x]
    delta          their gap k (out_c - out_u), the direction of guidance
    extra          further tensors by name: outputs with the same a and k ("negative", something to avoid;
                   "weak", a weaker model under the same condition), and "log_ratio", one number per sample:
                   log p(x | condition) / p(x), if the loop tracks it

Means are computed at their first use. Most rules never use them: they change one number c, the guided output
is out_c + c (out_c - out_u) in the network's own units, and a cap needs three lengths per sample, which come
from the outputs. In the outputs' units nothing is lost as the means come together: at t = 1 the gap of the
means vanishes and that of the velocities does not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from . import path
from .cap import Lengths, compiled, lengths
from .notation import described
from .path import Affine
from .tensors import Number, compiling, magnitude, on_host, scalar_dtype, scaled, transformed

Value = TypeVar("Value")


class once(Generic[Value]):
    """A property computed at its first use and kept in the object under its own name.

    functools.cached_property does the same, but its lock (before Python 3.12) would break a compiled graph.
    """

    def __init__(self, work: Callable[[Any], Value]) -> None:
        self.work, self.name, self.__doc__ = work, work.__name__, work.__doc__

    def __get__(self, owner: Any, _: type | None = None) -> Value:
        value = self.work(owner)
        if not compiling():
            owner.__dict__[self.name] = value
        return value


@dataclass(frozen=True, eq=False)
class Prediction:
    """Two outputs at one state; build it with `from_mean`, `from_velocity`, `from_noise`, ..."""

    state: Tensor
    t: Number
    out_c: Tensor
    out_u: Tensor
    t_next: Number | None = None
    gap: Tensor | None = None  # m_c - m_u, if it is known more accurately than by subtraction
    a: Number = 0.0
    k: Number = 1.0
    unit: Number = 1.0  # unit * state is x
    extra: Mapping[str, Tensor] = field(default_factory=dict)
    dtype: torch.dtype = field(init=False)  # to compute in: float32, or float64 if any tensor has it

    def __post_init__(self) -> None:
        tensors = {"x": self.state, "the prediction with the condition": self.out_c}
        tensors["the prediction without it"] = self.out_u
        for name, v in self.extra.items():
            if name != "log_ratio":
                tensors[f"the prediction {name!r}"] = v
        need_same_shapes(**tensors)
        if type(self.t) is not float or not 0 <= self.t <= 1 or compiling():
            object.__setattr__(self, "t", time(self.t, self.state))
        if self.t_next is not None:
            object.__setattr__(self, "t_next", time(self.t_next, self.state, "t_next"))
        double = torch.float64 in map(attrgetter("dtype"), tensors.values())
        object.__setattr__(self, "dtype", torch.float64 if double else torch.float32)

    def __repr__(self) -> str:
        return f"<Prediction at t = {described(self.t)} of {described(self.state)}>"

    @once
    def x(self) -> Tensor:
        """The state on the linear path."""
        return scaled(self.state.to(self.dtype), self.unit)

    @once
    def m_c(self) -> Tensor:
        """The conditional posterior mean."""
        return path.mean_of(self.state, self.out_c, self.a, self.k, self.dtype)

    @once
    def m_u(self) -> Tensor:
        """The unconditional posterior mean, or that of another reference model."""
        return path.mean_of(self.state, self.out_u, self.a, self.k, self.dtype)

    @once
    def conditional(self) -> Tensor:
        """out_c in the precision to compute in."""
        return self.out_c.to(self.dtype)

    @once
    def difference(self) -> Tensor:
        """out_c - out_u, the direction of guidance in the network's own units."""
        return self.conditional - self.out_u

    @once
    def delta(self) -> Tensor:
        """The gap m_c - m_u, the direction of guidance."""
        return scaled(self.difference, self.k) if self.gap is None else self.gap

    @property
    @compiled("gap_lengths")
    def lengths(self) -> Lengths:
        """|m_c|, |delta| and the component of m_c along delta, for each sample."""
        if self.gap is not None:
            return lengths(self.m_c, self.gap)
        base, direction, along = lengths(self.m_c, self.difference)
        return Lengths(base, magnitude(self.k) * direction, scaled(along, 1 - 2 * (self.k < 0)))

    def other(self, name: str) -> Tensor:
        """The posterior mean of the extra output of this name."""
        return path.mean_of(self.state, self._output(name), self.a, self.k, self.dtype)

    def lead(self, name: str) -> Tensor:
        """The way k (out - out_u) from m_u to the mean of this name, as `delta` is the one to m_c."""
        return scaled(self._output(name).to(self.dtype) - self.out_u.to(self.dtype), self.k)

    def beside(self, **outputs: Tensor) -> Prediction:
        """The same prediction with extra outputs of the same kind: p.beside(negative=v_n)."""
        return replace(self, extra={**self.extra, **outputs})

    def until(self, t_next: Number | None) -> Prediction:
        """The same prediction for a step that ends at t_next (CFG++ needs it)."""
        if t_next is not None and (type(t_next) is not float or not 0 <= t_next <= 1 or compiling()):
            t_next = time(t_next, self.state, "t_next")
        copy = object.__new__(Prediction)  # the same tensors and means: nothing to check or compute again
        copy.__dict__.update(self.__dict__, t_next=t_next)
        return copy

    @classmethod
    def from_mean(cls, x: Tensor, t: Number, m_c: Tensor, m_u: Tensor) -> Prediction:
        """From posterior means on the linear path."""
        return cls(x, t, m_c, m_u)

    @classmethod
    def from_velocity(cls, x: Tensor, t: Number, v_c: Tensor, v_u: Tensor) -> Prediction:
        """From velocities data - noise on the linear path; at t = 1 both means are x."""
        if type(t) is not float or compiling():
            t = time(t, x)
        return cls(x, t, v_c, v_u, a=1.0, k=1 - t)

    @classmethod
    def from_noise(
        cls, x: Tensor, eps_c: Tensor, eps_u: Tensor, *, alpha: Number, sigma: Number
    ) -> Prediction:
        """From noise predictions on x = alpha data + sigma noise, alpha > 0."""
        return cls.from_affine(x, eps_c, eps_u, path.on_gaussian("noise", alpha, sigma, x))

    @classmethod
    def from_v_prediction(
        cls, x: Tensor, v_c: Tensor, v_u: Tensor, *, alpha: Number, sigma: Number
    ) -> Prediction:
        """From v-predictions alpha noise - sigma data on x = alpha data + sigma noise."""
        return cls.from_affine(x, v_c, v_u, path.on_gaussian("v", alpha, sigma, x))

    @classmethod
    def from_score(
        cls, x: Tensor, score_c: Tensor, score_u: Tensor, *, alpha: Number, sigma: Number
    ) -> Prediction:
        """From scores grad log p(x) on x = alpha data + sigma noise, alpha > 0."""
        return cls.from_affine(x, score_c, score_u, path.on_gaussian("score", alpha, sigma, x))

    @classmethod
    def from_denoiser(cls, x: Tensor, sigma: Number, d_c: Tensor, d_u: Tensor) -> Prediction:
        """From denoised estimates D(x; sigma) on x = data + sigma noise, as EDM and k-diffusion have them."""
        return cls.from_affine(x, d_c, d_u, path.on_gaussian("mean", 1.0, sigma, x))

    @classmethod
    def from_affine(cls, x: Tensor, out_c: Tensor, out_u: Tensor, how: Affine) -> Prediction:
        """From outputs whose mean is how.a x + how.k out."""
        return cls(x, how.t, out_c, out_u, how.t_next, a=how.a, k=how.k, unit=how.unit)

    def _output(self, name: str) -> Tensor:
        if name not in self.extra:
            raise KeyError(f"this prediction has no extra output {name!r}; add it by p.beside({name}=output)")
        return self.extra[name]


Predict = Callable[[Tensor, float], Prediction]


@runtime_checkable
class Predictor(Protocol):
    """A model that offers more than a function predict(x, t); subclass it and define what yours can do."""

    def __call__(self, x: Tensor, t: float) -> Prediction:
        """Both predictions at the state x on the linear path."""
        ...

    def conditional(self, x: Tensor, t: float) -> Prediction:
        """The conditional output in both places, at half the work; called while a rule does not read m_u."""
        return self(x, t)

    def including(self, names: tuple[str, ...]) -> Predictor:
        """The same model with those extra outputs of these names that it has, for rules that read them."""
        return self


EARLY = 0.02  # later than this a mean may rightly follow x
_SAME_TIME = 1e-3  # networks with a thousand times round to one of them


def evaluate(
    predict: Predict, x: Tensor, t: float, t_next: float | None = None, *, compare: bool = True
) -> Prediction:
    """predict(x, t) for a step that ends at t_next; raises an error if that is no prediction at x and t.

    With `compare` another state is compared with x; on a device, which would have to be waited for, only at
    t < 0.02.
    """
    p = predict(x, t)
    if not isinstance(p, Prediction):
        raise TypeError(
            "predict(x, t) must return a Prediction, of the output with the condition and the one without: "
            f"Prediction.from_velocity(x, t, v_c, v_u), or another from_*; got {described(p)}"
        )
    if p.state is not x or isinstance(p.t, Tensor) or abs(p.t - t) > _SAME_TIME or p.unit != 1:
        _need_state(p, x, t, compare)
    return p if t_next is None else p.until(t_next)


def _need_state(p: Prediction, x: Tensor, t: float, compare: bool) -> None:
    """Raises an error for a prediction of another shape or time, or at another state if that is compared."""
    if transformed(x):
        return
    if p.state.shape != x.shape:
        raise ValueError(
            f"predict(x, t) was called with x of shape {tuple(x.shape)} and returned a prediction of shape "
            f"{tuple(p.state.shape)}; they must be the same"
        )
    if isinstance(p.t, Tensor):  # the one that is farthest from t
        far = float(p.t.flatten()[(p.t.flatten() - t).abs().argmax()]) if on_host(p.t) else t
    else:
        far = p.t
    if abs(far - t) > _SAME_TIME:
        raise ValueError(
            f"predict(x, t) was called with t = {t:.6g} and returned a prediction at {far:.6g}: give "
            "Prediction.from_velocity(x, t, ...) the same t, and convert it for the network alone"
        )
    if compare and x.numel() and (on_host(x, p.state) or t <= EARLY):
        _need_same_state(p, x, t)


def _need_same_state(p: Prediction, x: Tensor, t: float) -> None:
    """Raises an error if x of the prediction is not x."""
    off = float((p.x - x).abs().max())
    if off <= 64 * torch.finfo(p.state.dtype).eps * float(x.abs().max()):
        return
    if p.state is x:
        raise ValueError(
            "predict(x, t) used x of the linear path as the network's alpha data + sigma noise: "
            "multiply it by alpha + sigma, which is 1 + sigma for EDM, before the network and the "
            "constructor; from_edm(denoise) does this for EDM"
        )
    raise ValueError(
        f"predict(x, t) returned a prediction at another x, which differs by up to {off:.3g} at t = {t:.3g}: "
        "give the constructor the state that it describes, x on the linear path, or x in the network's units "
        "with its alpha and sigma"
    )


def time(t: Number, x: Tensor, name: str = "t") -> Number:
    """A time in [0, 1]; data lies at 1."""
    t = path.number(t, x, name, last=1.0)
    if compiling() and not isinstance(t, Tensor):
        # As a number it would be a constant of the graph, and each step would need its own graph.
        return torch.zeros(1, dtype=scalar_dtype(x.device), device=x.device) + t
    return t


def need_same_shapes(**tensors: Tensor) -> None:
    """Raises an error if these are not floating-point tensors of one shape with a batch axis."""
    first, reference = next(iter(tensors.items()))
    for name, v in tensors.items():
        if not isinstance(v, Tensor):
            raise TypeError(f"{name} must be a tensor; got {described(v)}")
        if not v.is_floating_point():
            raise TypeError(f"guidance needs floating-point tensors; got {v.dtype}")
        if v.shape != reference.shape:
            shapes = f"{tuple(v.shape)}, but {first} has {tuple(reference.shape)}"
            raise ValueError(f"{name} has shape {shapes}; they must be the same")
    if reference.dim() < 2 or 0 in reference.shape[1:]:
        raise ValueError(
            f"{first} needs a batch axis first, then at least one more, and samples of at least one element; "
            f"got shape {tuple(reference.shape)}"
        )
