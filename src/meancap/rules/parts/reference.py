"""Rules that replace the reference that guidance moves away from: u becomes u', and g becomes c - u'.

    c    the conditional prediction, u = c - g the reference so far; both in the rule's own space
    ZeroStar    u' = s u with the s that brings it nearest to c, velocities            (CFG-Zero*)
    Tangential  u' = the part of u along the first singular vector of (c, u)           (TCFG)
    Rectify     u' = r u with a table r of expectations, noise predictions             (ReCFG)
    Rotation    not a reference but the same family: c turned away from u by an angle  (ADG)

They come before the scale: `ZeroStar() | CFG(5)`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from ...operation import lengths
from ...prediction import Prediction
from ...schedules import Scale, finite, finite_scale, value_of
from ...tensors import Number, per_sample
from ..protocol.base import Map
from .spaces import conditional, elapsed, known_space, seen
from .values import Values

Row = float | Sequence[float] | Values  # one ratio, or nested lists of them by channel or element


@dataclass(frozen=True)
class ZeroStar(Map):
    """The unconditional velocity times s* = <v_c, v_u> / |v_u|^2 (Fan et al. 2025).

    applied='mean' scales the unconditional mean by the same s* instead, as ComfyUI's node does: another rule.
    """

    applied: str = "velocity"

    def __post_init__(self) -> None:
        if self.applied not in ("velocity", "mean"):
            raise ValueError(f"ZeroStar is applied to the 'velocity' or the 'mean'; got {self.applied!r}")

    def __call__(self, g: Tensor, p: Prediction) -> Tensor:
        c = conditional(p, "velocity")
        _, u, along = lengths(c, c - g)
        s = per_sample(torch.where(u == 0, 1.0, along / u), g)
        return (1 - s) * (c if self.applied == "velocity" else p.m_c) + s * g


@dataclass(frozen=True)
class Tangential(Map):
    """Only the part of u along the leading right singular vector of the matrix with rows c and u is kept."""

    space: str = "velocity"

    def __post_init__(self) -> None:
        known_space(self)

    def __call__(self, g: Tensor, p: Prediction) -> Tensor:
        c = conditional(p, self.space)
        length_c, length_u, along = lengths(c, c - g)
        # (a, b) is the leading eigenvector of the Gram matrix; its angle is half that of (cc - uu, 2 cu).
        cross = 2 * along * length_u
        half = torch.atan2(cross, (length_c - length_u) * (length_c + length_u)) / 2
        a, b = half.cos(), half.sin()
        # With v1 = (a c + b u) / s, <u, v1> v1 = b (a c + b u), and c - u' follows with u = c - g.
        return per_sample(1 - b * (a + b), g) * c + per_sample(b * b, g) * g


@dataclass(frozen=True)
class Rectify(Map):
    """The unconditional noise prediction times r(t): a ratio per time, and per channel or element (ReCFG).

    `ratios` holds one entry per time, a number or nested lists; `recfg_table` finds it for a model. Between
    the times it is interpolated. r must be 1 at t = 0, where both noise predictions are x.
    """

    times: tuple[float, ...]
    ratios: tuple[Row, ...]

    def __post_init__(self) -> None:
        times = tuple(float(t) for t in self.times)
        object.__setattr__(self, "times", times)
        object.__setattr__(self, "ratios", tuple(_values(row) for row in self.ratios))
        if not times or len(times) != len(self.ratios) or any(not b > a for a, b in pairwise(times)):
            raise ValueError(
                f"Rectify needs increasing times, a ratio for each; got {len(times)} and {len(self.ratios)}"
            )
        if not all(map(math.isfinite, times)):
            raise ValueError(f"Rectify needs finite times; got {list(times)}")

    def __call__(self, g: Tensor, p: Prediction) -> Tensor:
        # n = (x - t m) / (1 - t), and scaling n_u by r moves m_u by (1 - r) (x / t - m_u).
        lack = (1 - self.at(p.t, g)) / per_sample(elapsed(p.t), g)
        return g - lack * seen(p.m_c - g, p, "noise")

    def at(self, t: Number, like: Tensor) -> Tensor:
        """The ratio at time t, shaped to multiply `like`."""
        rows = [_values(row).on(like, "a row of ratios") for row in self.ratios]
        total = torch.zeros_like(like[:1] if not isinstance(t, Tensor) else like)
        for share, row in zip(self._shares(t), rows, strict=True):
            if isinstance(share, Tensor) or share > 0:
                total = total + per_sample(share, like) * row
        return total

    def _shares(self, t: Number) -> list[Number]:
        """How much each row counts at t: hat functions, held beyond the ends."""
        times = self.times
        inner = (
            min(max(t, times[0]), times[-1]) if not isinstance(t, Tensor) else t.clamp(times[0], times[-1])
        )
        shares = []
        for i, knot in enumerate(times):
            left = (inner - times[i - 1]) / (knot - times[i - 1]) if i else 1.0
            right = (times[i + 1] - inner) / (times[i + 1] - knot) if i + 1 < len(times) else 1.0
            shares.append(_least(left, right))
        return shares


def _values(row: Row) -> Values:
    return row if isinstance(row, Values) else Values(row)  # type: ignore[arg-type]


def _least(left: Number, right: Number) -> Number:
    if isinstance(left, Tensor) and isinstance(right, Tensor):
        return torch.minimum(left, right).clamp(min=0)
    if isinstance(left, Tensor):
        return left.clamp(0, 1)
    return right.clamp(0, 1) if isinstance(right, Tensor) else max(0.0, min(left, right))


@dataclass(frozen=True)
class Rotation(Map):
    """Turns m_c away from m_u by (scale - 1) times the angle between them, `limit` at most (Jin et al. 2025).

    m = cos(a) m_c + sin(a) / sin(angle) e, with e the part of m_c across m_u, and |m| <= sqrt(2) |m_c|.
    """

    scale: Scale
    limit: float = math.pi / 3

    def __post_init__(self) -> None:
        finite_scale(self, "scale")
        finite(self, "limit")
        if not 0 <= self.limit <= math.pi:
            raise ValueError(f"Rotation needs a limit between 0 and pi; got {self.limit}")

    def __call__(self, g: Tensor, p: Prediction) -> Tensor:
        u = p.m_c - g
        _, length_u, along_g = lengths(g, u)  # component of g along u
        across = g - per_sample(torch.where(length_u == 0, 0.0, along_g / length_u), g) * u
        _, _, along = lengths(p.m_c, u)
        height, _, _ = lengths(across, u)
        angle = torch.atan2(height, along)
        gain = torch.as_tensor(value_of(self, "scale", p.t)).to(angle) - 1
        turn = (gain.clamp(min=0) * angle).clamp(max=self.limit)
        sine = angle.sin()
        rise = torch.where(sine == 0, gain.clamp(min=0), turn.sin() / sine)
        return per_sample(turn.cos() - 1, g) * p.m_c + per_sample(rise, g) * across
