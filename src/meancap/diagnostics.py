"""What guidance did, per sample: the guidance meter, and the bound that a whole run can certify.

gap      |m_c - m_u|
scale    effective scale: the lambda for which plain CFG would move m_c as far along the gap
ratio    chi = |m| / |m_c|, what the ball cap bounds by gamma
cosine   between m_c and the gap
active   whether a cap shortened the displacement
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .files import write_whole
from .operation import Lengths, lengths, measured
from .prediction import Prediction, need_same_shapes
from .rules.protocol.ray import Ray
from .tensors import Number, vector

_FIELDS = ("t", "gap", "scale", "asked", "ratio", "cosine", "active", "length")


@dataclass(frozen=True, eq=False)
class Measure:
    """The guidance meter at one evaluation; every field has one entry per sample."""

    t: Tensor
    gap: Tensor
    scale: Tensor
    asked: Tensor  # the scale before any cap; nan where the displacement is no multiple of the gap
    ratio: Tensor
    cosine: Tensor
    active: Tensor
    length: Tensor  # |m|


def measure(p: Prediction, m: Tensor, nominal: Tensor | None = None) -> Measure:
    """Reads the meter off a guided mean; `nominal`, the mean before the cap, tells whether the cap acted."""
    need_same_shapes(m_c=p.m_c, m=m)
    delta = p.delta
    seen = lengths(p.m_c, delta)
    gap = seen[1]
    moved = lengths(m - p.m_c, delta).along
    # With no gap there is no direction to measure a scale along: nothing was added, and 1 says so.
    scale = torch.where(gap == 0, 1.0, 1 + moved / gap)
    if nominal is None:
        active = torch.zeros_like(scale, dtype=torch.bool)
        asked = scale
    else:
        need_same_shapes(m_c=p.m_c, nominal=nominal)
        wanted, _, wanted_along = lengths(nominal - p.m_c, delta)
        short = lengths(nominal - m, delta).m
        active = short > 1e-6 * wanted
        asked = torch.where(gap == 0, 1.0, 1 + wanted_along / gap)
    length = lengths(m, delta).m
    return _measure(p.t, seen, scale, asked, active, length)


def _measure(
    t: Number,
    seen: tuple[Tensor, Tensor, Tensor],
    scale: Tensor,
    asked: Tensor,
    active: Tensor,
    length: Tensor,
) -> Measure:
    conditional, gap, along = seen
    times = t.to(scale) if isinstance(t, Tensor) else torch.full_like(scale, t)
    ratio = torch.where(conditional == 0, torch.where(length == 0, 1.0, torch.inf), length / conditional)
    cosine = torch.where(conditional * gap == 0, 0.0, along / conditional)
    return Measure(times, gap, scale, asked, ratio, cosine, active, length)


class Record:
    """The meter over a whole run: pass it as `record=` to `sample`, `guide` or `guided_velocity`."""

    def __init__(self) -> None:
        self._seen: list[Measure | _Displacement] = []
        self._start: Tensor | None = None
        self._weights: tuple[tuple[float, ...], ...] | None = ()

    def begin(self, x: Tensor, weights: Sequence[tuple[float, ...]] | None) -> None:
        """Told by the solver where it starts and how each of its steps blends x and the means.

        None says that the steps add noise, so that no blend of x and the means bounds the state.
        """
        self._seen.clear()
        self._start, self._weights = lengths(x, x).m, None if weights is None else tuple(weights)

    def add(self, ray: Ray) -> None:
        """Takes one displacement, by the numbers that its rule already has.

        It is measured by itself: late in a run it is far smaller than the mean, and m - m_c has lost it.
        """
        p, seen = ray.p, ray.lengths
        gap, toward = seen, seen.d
        if not ray.is_gap:
            gap = p.lengths
            if ray.nominal is not None:  # the direction is -k nominal + k out_c
                toward = measured(ray.nominal, p.out_c, p.out_u, -p.k, p.k).along
            else:
                toward = lengths(ray.direction, p.delta).along
        turned = ray.turned is not None
        self._seen.append(_Displacement(p.t, seen, ray.coefficient, ray.asked, gap, toward, turned))

    def note(self, measure: Measure) -> None:
        """Takes one evaluation that was measured already."""
        self._seen.append(measure)

    def __len__(self) -> int:
        return len(self._seen)

    @property
    def measures(self) -> list[Measure]:
        """One `Measure` per evaluation, in order."""
        self._seen = [one.measure() if isinstance(one, _Displacement) else one for one in self._seen]
        return [one for one in self._seen if isinstance(one, Measure)]

    def stacked(self) -> dict[str, Tensor]:
        """Every field as one (evaluations, samples) tensor."""
        measures = self.measures
        if not measures:
            raise ValueError("the record is empty; pass it as record= to sample() or guided_velocity() first")
        return {name: torch.stack([getattr(one, name).cpu() for one in measures]) for name in _FIELDS}

    def summary(self) -> str:
        """One line: the scales asked for and granted, lowest to highest, and how often the cap acted."""
        s = self.stacked()
        if not s["t"].numel():
            return "no samples"
        share = float(s["active"].double().mean())
        capped = "never capped" if share == 0 else f"capped on {share:.0%} of steps"
        return (
            f"asked for {span(s['asked'])}, got {span(s['scale'])}; {capped}; "
            f"largest ratio {float(s['ratio'].max()):.3f}"
        )

    def rows(self) -> list[dict[str, float | int | bool]]:
        """One flat row per evaluation and sample, for tables and data frames."""
        s = {name: value.tolist() for name, value in self.stacked().items()}
        count, batch = len(s["t"]), len(s["t"][0])
        return [
            {"step": i, "sample": j, **{name: s[name][i][j] for name in _FIELDS}}
            for i in range(count)
            for j in range(batch)
        ]

    def save(self, path: str | Path) -> Path:
        """Writes the rows and the summary as JSON; the file appears whole or not at all."""
        return write_whole(path, json.dumps(self.contents(), indent=1))

    def contents(self) -> dict[str, Any]:
        """What a JSON file of the record holds; JSON knows neither nan nor inf, so they become null."""
        rows = [{k: v if math.isfinite(v) else None for k, v in row.items()} for row in self.rows()]
        return {"summary": self.summary(), "rows": rows}

    def certificate(self) -> Certificate:
        """The bound on the final state that this run's own means prove; warns where a step was not convex."""
        if self._start is None:
            raise ValueError(
                "only a run by sample() or trajectory() can be certified; no solver began this record"
            )
        if self._weights is None:
            raise ValueError("a run whose steps add noise has no certificate; use Euler or another ODE step")
        length = iter([one.length for one in self.measures])
        bound, broken = self._start, []
        for index, (keep, *rest) in enumerate(self._weights):
            means = [next(length, None) for _ in rest]
            if any(m is None for m in means):
                raise ValueError(
                    f"the run stopped at step {index} of {len(self._weights)}; let it finish first"
                )
            bound = abs(keep) * bound + sum(
                abs(w) * m for w, m in zip(rest, means, strict=True) if m is not None
            )
            if min(keep, *rest) < -1e-12:
                broken.append(index)
        certificate = Certificate(bound, tuple(broken), float(self.stacked()["ratio"].max()))
        if broken:
            warnings.warn(str(certificate), stacklevel=2)
        return certificate


def span(values: Tensor) -> str:
    """The lowest and the highest of some scales, or the one that they all are: "1.2 to 7.0", "7.0"."""
    low, high = float(values.min()), float(values.max())
    return f"{high:.1f}" if high - low < 0.05 else f"{low:.1f} to {high:.1f}"


@dataclass(frozen=True, eq=False)
class Certificate:
    """|x_N| <= bound, for each sample: x_N is a combination of x_0 and the guided means with known weights.

    With convex steps the weights are non-negative and sum to one, so that no state leaves the convex hull of
    the noise and the means; Euler is always convex, Heun only while a step goes at most half of the way.
    """

    bound: Tensor
    broken: tuple[int, ...]
    largest_ratio: float

    @property
    def convex(self) -> bool:
        return not self.broken

    def holds(self, x: Tensor) -> bool:
        """Whether the final state keeps the bound, up to rounding."""
        length = lengths(x, x).m
        return bool((length <= self.bound.to(length) * (1 + 16 * torch.finfo(x.dtype).eps)).all())

    def __str__(self) -> str:
        bound = f"|x| <= {float(self.bound.max()):.4g} over {self.bound.numel()} samples"
        if self.convex:
            return f"{bound}; every step is convex; largest ratio {self.largest_ratio:.3f}"
        return (
            f"{bound}; steps {list(self.broken)} are not convex, so a state may leave the hull of its means: "
            "use Euler there, or a grid whose steps go at most half of the way to t = 1"
        )


@dataclass(frozen=True, eq=False)
class _Displacement:
    """One displacement c * direction, before its measure is worked out."""

    t: Number
    lengths: Lengths  # |m_c|, |direction|, component of m_c along the direction
    coefficient: Number
    asked: Number | None
    gap: Lengths  # |m_c|, |gap|, component of m_c along the gap
    toward: Tensor  # component of the direction along the gap
    turned: bool  # whether the direction may have left the gap

    def measure(self) -> Measure:
        conditional, size, along = self.lengths
        gap, c = self.gap.d, vector(self.coefficient, self.gap.d)
        asked = c if self.asked is None else vector(self.asked, gap)
        # |m_c + c direction| from its parts along the direction and across it.
        across = (conditional**2 - along**2).clamp(min=0).sqrt()
        length = torch.hypot(along + c * size, across)
        # With no gap a multiple of it still has a scale; a turned direction has none, and 1 says so.
        share = torch.where(gap == 0, 0.0 if self.turned else 1.0, self.toward / gap)
        seen = (conditional, gap, self.gap.along)
        return _measure(self.t, seen, 1 + c * share, 1 + asked * share, abs(c) < abs(asked), length)
