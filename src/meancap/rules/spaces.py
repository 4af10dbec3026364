"""The space a rule acts in, seen from posterior means; checks of a rule's fields.

    mean      m
    velocity  v = (m - x) / (1 - t)
    noise     n = (x - t m) / (1 - t)
    score     S = (t m - x) / (1 - t)^2

Each is an affine function of m, the same for both predictions, so an affine combination with weights that sum
to one is one rule in every space. Norms, angles, projections and quantiles are not: their space belongs to
the rule. Directions are taken as m, m - x, x - t m and t m - x, so that nothing divides by 1 - t.
"""

from __future__ import annotations

from torch import Tensor

from ..path import mean_of
from ..prediction import Prediction
from ..tensors import Number, per_sample
from .rule import Rule

_SPACES = ("mean", "velocity", "noise", "score")


# Where a rule must divide by 1 - t or by t, it divides by no less than this.
_SHORTEST = 2.0**-20


def need_space(self: object, *allowed: str) -> None:
    """Refuses a `space` that the rule does not know."""
    space = getattr(self, "space")  # noqa: B009
    if space not in (allowed or _SPACES):
        names = " or ".join(map(repr, allowed or _SPACES))
        raise ValueError(f"{type(self).__name__} acts in the space {names}; got {space!r}")


def in_space(m: Tensor, p: Prediction, space: str) -> Tensor:
    """The prediction m in a space, up to one positive factor per sample: enough for angles and ratios."""
    if space == "mean":
        return m
    if space == "velocity":
        return m - p.x
    along = per_sample(p.t, m) * m
    return p.x - along if space == "noise" else along - p.x


def conditional_in(p: Prediction, space: str) -> Tensor:
    """m_c seen in a space, without the difference m_c - x where the network's own output is that already."""
    return p.m_c if space == "mean" else _of_output(p, p.out_c, space)


def unconditional_in(p: Prediction, space: str) -> Tensor:
    """m_u seen in a space, as `conditional` sees m_c."""
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
    return mean_of(p.shown, out, *_weights(p, space), p.dtype)


def _weights(p: Prediction, space: str) -> tuple[Number, Number]:
    """The factors of the state shown and of an output, when m = a shown + k out is put into a space."""
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


def need_whole_numbers(self: object, *names: str) -> None:
    """Refuses fields that are not whole numbers from 0 on; 5.0, as a text gives it, becomes 5."""
    for name in names:
        value = getattr(self, name)
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not (number and value >= 0 and value % 1 == 0):
            raise ValueError(
                f"{type(self).__name__} needs a whole number from 0 on for {name}; got {value!r}"
            )
        object.__setattr__(self, name, int(value))


def need_flags(self: object, *names: str) -> None:
    """Refuses fields that are neither True nor False: a text such as 'no' would count as True."""
    for name in names:
        if not isinstance(value := getattr(self, name), bool):
            raise ValueError(f"{type(self).__name__} needs True or False for {name}; got {value!r}")


def need_image(rule: Rule, v: Tensor) -> None:
    """Refuses tensors without height and width."""
    if v.dim() < 4:
        raise ValueError(
            f"{type(rule).__name__} needs images (batch, channels, height, width); unpack tokens first: "
            f"got shape {tuple(v.shape)}"
        )
