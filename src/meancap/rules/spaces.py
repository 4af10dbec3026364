"""What parts of rules share: the declaration of their fields, and the space they act in.

    mean      m
    velocity  v = (m - x) / (1 - t)
    noise     n = (x - t m) / (1 - t)
    score     S = (t m - x) / (1 - t)^2

Each is an affine function of m, the same for both predictions, so an affine combination with weights that sum
to one is one rule in every space. Norms, angles, projections and quantiles are not: their space belongs to
the rule. Directions are taken as m, m - x, x - t m and t m - x, so that nothing divides by 1 - t.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from numbers import Real
from typing import Any, TypeVar, dataclass_transform

import torch
from torch import Tensor

from ..cap import lengths
from ..path import mean_of
from ..prediction import Prediction
from ..schedules import Values, finite, finite_scale
from ..tensors import Number, per_sample
from .rule import Rule

SPACES = ("mean", "velocity", "noise", "score")
Kind = TypeVar("Kind")

# Where a rule must divide by 1 - t or by t, it divides by no less than this.
_SHORTEST = 2.0**-20


@dataclass_transform(frozen_default=True)
def part(*laws: str, **texts: Iterable[str]) -> Callable[[type[Kind]], type[Kind]]:
    """Makes a frozen dataclass that raises an error for fields that break a law.

        @part("0 <= low <= high <= 1 (times)", space=("mean", "velocity"))

    A float must be a finite number, a Scale such a number or a schedule, an int a whole number from 0 on, a
    bool True or False, a tuple of floats finite and not empty. `laws` compare fields and numbers, with a
    remark in parentheses; `texts` lists the values of a text. A `__post_init__` of the class runs last.
    """

    def make(kind: Any) -> Any:
        own = getattr(kind, "__post_init__", None)

        def check_fields(self: Any) -> None:
            for name, check, optional in checks:
                if not (optional and getattr(self, name) is None):
                    check(self, name)
            for name, allowed in texts.items():
                need_text(kind.__name__, allowed, **{name: getattr(self, name)})
            for law in laws:
                need_law(kind.__name__, law, **vars(self))
            if own is not None:
                own(self)

        kind.__post_init__ = check_fields
        made = dataclass(frozen=True)(kind)
        kinds = [(field.name, *str(field.type).partition(" | None")[:2]) for field in fields(made)]
        checks = [(name, _CHECKS[kind], bool(rest)) for name, kind, rest in kinds if kind in _CHECKS]
        return made

    return make


def need_text(owner: str, allowed: Iterable[str], **given: str) -> None:
    """Raises an error for a text that is not one of those allowed."""
    for name, value in given.items():
        if value not in allowed:
            names = " or ".join(map(repr, allowed))
            raise ValueError(f"{owner} needs {names} for {name}; got {value!r}")


def need_law(owner: str, law: str, **values: Any) -> None:
    """Raises an error unless a chain of comparisons such as '0 <= low < high' holds; None passes."""
    words = law.partition(" (")[0].split()
    numbers = [_number(word, values) for word in words[::2]]
    if None in numbers:
        return
    for sign, *pair in zip(words[1::2], numbers, numbers[1:], strict=False):
        if not (all(isinstance(v, Real) for v in pair) and _SIGNS[sign](*pair)):
            got = ", ".join(f"{word}={values[word]}" for word in words[::2] if word in values)
            raise ValueError(f"{owner} needs {law}; got {got}")


def _number(word: str, values: Mapping[str, Any]) -> Any:
    if word in values:
        return values[word]
    return math.pi if word == "pi" else float(word)


def _need_whole_number(self: object, name: str) -> None:
    """5.0, as a text gives it, becomes 5."""
    value = getattr(self, name)
    number = isinstance(value, Real) and not isinstance(value, bool)
    if not (number and value >= 0 and value % 1 == 0):
        raise ValueError(f"{type(self).__name__} needs a whole number from 0 on for {name}; got {value!r}")
    object.__setattr__(self, name, int(value))


def _need_numbers(self: object, name: str) -> None:
    """A list, as a text gives it, becomes a tuple of floats."""
    numbers = tuple(float(v) for v in getattr(self, name))
    if not (numbers and all(map(math.isfinite, numbers))):
        raise ValueError(f"{type(self).__name__} needs finite numbers for {name}; got {list(numbers)}")
    object.__setattr__(self, name, numbers)


def _need_flag(self: object, name: str) -> None:
    """A text such as 'no' would count as True."""
    if not isinstance(value := getattr(self, name), bool):
        raise ValueError(f"{type(self).__name__} needs True or False for {name}; got {value!r}")


_SIGNS: dict[str, Callable[[float, float], bool]] = {"<": operator.lt, "<=": operator.le}
_CHECKS: dict[str, Callable[[Any, str], None]] = {
    "float": finite,
    "Scale": finite_scale,
    "int": _need_whole_number,
    "bool": _need_flag,
    "tuple[float, ...]": _need_numbers,
}


def along(v: Tensor, onto: Tensor) -> Tensor:
    """The part of v along another tensor, for each sample; 0 where that is 0."""
    _, length, component = lengths(v, onto)
    return per_sample(component / torch.where(length == 0, 1.0, length), v) * onto


def conditional_in(p: Prediction, space: str) -> Tensor:
    """m_c in a space, up to one positive factor per sample: enough for angles and ratios.

    Without the difference m_c - x where the network's own output is that already.
    """
    return p.m_c if space == "mean" else _of_output(p, p.out_c, space)


def unconditional_in(p: Prediction, space: str) -> Tensor:
    """m_u in a space, as `conditional_in` has m_c."""
    return p.m_u if space == "mean" else _of_output(p, p.out_u, space)


def both_in(p: Prediction, space: str) -> tuple[Tensor, Tensor]:
    """Both predictions in a space, up to one positive factor per sample that they share."""
    if space == "mean":
        return p.m_c, p.m_u
    in_x, _ = _weights(p, space)
    if not isinstance(in_x, Tensor) and in_x == 0:  # the outputs themselves: they are regular where k = 0
        return p.out_c.to(p.dtype), p.out_u.to(p.dtype)
    return _of_output(p, p.out_c, space), _of_output(p, p.out_u, space)


def _of_output(p: Prediction, out: Tensor, space: str) -> Tensor:
    return mean_of(p.state, out, *_weights(p, space), p.dtype)


def _weights(p: Prediction, space: str) -> tuple[Number, Number]:
    """The factors of the state and of an output, when m = a state + k out is put into a space."""
    in_x, in_m = {"velocity": (-1.0, 1.0), "noise": (1.0, -p.t), "score": (-1.0, p.t)}[space]
    return in_x * p.unit + in_m * p.a, in_m * p.k


def stretch(t: Number, space: str) -> Number:
    """|k|, by which a gap of means must be multiplied to become the gap in a space."""
    if space == "mean":
        return 1.0
    if space == "velocity":
        return 1 / time_left(t)
    return t / time_left(t) if space == "noise" else t / time_left(t) ** 2


def time_left(t: Number) -> Number:
    """1 - t, but never zero."""
    return (1 - t).clamp(min=_SHORTEST) if isinstance(t, Tensor) else max(1 - t, _SHORTEST)


def time_passed(t: Number) -> Number:
    """t, but never zero."""
    return t.clamp(min=_SHORTEST) if isinstance(t, Tensor) else max(t, _SHORTEST)


def spread(v: Tensor) -> Tensor:
    """The standard deviation along the last axis, kept; 0 for a single element."""
    return v.std(-1, keepdim=True) if v.shape[-1] > 1 else torch.zeros_like(v)


def need_image(rule: Rule, v: Tensor) -> None:
    """Raises an error for tensors without height and width."""
    if v.dim() < 4:
        raise ValueError(
            f"{type(rule).__name__} needs images (batch, channels, height, width); unpack tokens first: "
            f"got shape {tuple(v.shape)}"
        )


def on_samples(values: Values, like: Tensor, name: str) -> Tensor:
    """Values broadcast against a batch: one per channel (the second axis), or one per element."""
    sample = tuple(like.shape[1:])
    if values.shape == sample:
        return values.tensor(like)
    if values.shape in ((sample[0],), (1,), ()):
        return values.tensor(like).reshape(-1, *[1] * (len(sample) - 1))
    raise ValueError(
        f"{name} has shape {values.shape}; a sample here has {sample}: give that shape, or ({sample[0]},)"
    )
