"""The guidance meter of a run, per sample, and the bound that it proves for the final samples.

gap      |m_c - m_u|
scale    effective scale: the lambda for which plain CFG would move m_c as far along the gap
ratio    |m| / |m_c|, what the ball cap bounds by gamma; 1 if both are 0, where the paper's
         chi = |m| / (|m_c| + epsilon_m) is 0
cosine   between m_c and the gap
active   whether a cap shortened the displacement
allowed  the longest mean that the cap at the end of the rule permits: gamma |m_c|, or the floor
log_ratio  log p(x | condition) / p(x), in runs that follow it; `asked` is then the scale made from it
"""

from __future__ import annotations

import base64
import csv
import html
import json
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .cap import Lengths, lengths
from .extras import need
from .files import write_whole, writing
from .prediction import Prediction, need_same_shapes
from .rules.calibration import Calibration
from .rules.caps import Cap
from .rules.rule import Displacement, Rule
from .schedules import at
from .tensors import Number, vector

_PANELS = {
    "gap": "gap |m_c − m_u|",
    "scale": "applied scale",
    "ratio": "ratio |m| / |m_c|",
    "cosine": "cosine of m_c and the gap",
}
_MODEL, _REQUESTED, _APPLIED = "#0072B2", "#D55E00", "#009E73"  # as conditional, CFG and cap in every figure
_FIELDS = ("t", "gap", "scale", "asked", "ratio", "cosine", "active", "length")
_COLUMNS = ("step", "sample", *_FIELDS, "log_ratio")  # of a CSV file


@dataclass(frozen=True, eq=False)
class Measure:
    """The guidance meter at one evaluation; every field has one entry per sample."""

    t: Tensor
    gap: Tensor
    scale: Tensor
    asked: Tensor  # the scale before any cap; nan if the displacement is no multiple of the gap
    ratio: Tensor
    cosine: Tensor
    active: Tensor
    length: Tensor  # |m|
    allowed: Tensor  # the length that a cap permits; inf if none bounds |m|
    log_ratio: Tensor | None = None  # if the loop tracks it


def measure(p: Prediction, m: Tensor, nominal: Tensor | None = None) -> Measure:
    """Reads the meter off a guided mean; `nominal`, the mean before the cap, shows whether the cap acted."""
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
        short = lengths(nominal - m, delta).base
        active = short > 1e-6 * wanted
        asked = torch.where(gap == 0, 1.0, 1 + wanted_along / gap)
    length = lengths(m, delta).base
    return _measure(p.t, seen, scale, asked, active, length, torch.full_like(length, torch.inf))


def _measure(
    t: Number,
    seen: tuple[Tensor, Tensor, Tensor],
    scale: Tensor,
    asked: Tensor,
    active: Tensor,
    length: Tensor,
    allowed: Tensor,
) -> Measure:
    conditional, gap, along = seen
    times = t.to(scale) if isinstance(t, Tensor) else torch.full_like(scale, t)
    ratio = torch.where(conditional == 0, torch.where(length == 0, 1.0, torch.inf), length / conditional)
    cosine = torch.where(conditional * gap == 0, 0.0, along / conditional)
    return Measure(times, gap, scale, asked, ratio, cosine, active, length, allowed)


class Record:
    """The meter over a whole run: pass it as `record=` to `sample`, `guide` or `guided_velocity`.

    If `reference` is a calibration by path matching, the summary and the plot compare the gap with that of
    its examples.
    """

    reference: Calibration | None = None

    def __init__(self) -> None:
        self._seen: list[Measure | _Displacement] = []
        self._start: Tensor | None = None
        self._weights: tuple[tuple[float, ...], ...] | None = ()
        self._typed: list[Number] = []  # the scale that the rule's text names, at each evaluation

    def begin(self, x: Tensor, weights: Sequence[tuple[float, ...]] | None) -> None:
        """Called by the solver with its start and with how each step combines x and the means.

        None means that the steps add noise, so no blend of x and the means bounds the state.
        """
        self._seen.clear()
        self._typed.clear()
        self._start, self._weights = lengths(x, x).base, None if weights is None else tuple(weights)

    def add(self, g: Displacement, p: Prediction, rule: Rule | None = None) -> None:
        """Adds one displacement that `rule` made at the prediction p, from the numbers that it already has.

        It is measured directly: late in a run it is far smaller than the mean, and m - m_c loses its digits.
        """
        along_gap = g.p is p and g.direction is None
        gap = g.lengths if along_gap else p.lengths
        toward = gap.direction if along_gap else lengths(g.toward, p.delta).along
        last = None if rule is None else rule.parts[-1]
        bound = last.bound(g.lengths.base, p.t) if isinstance(last, Cap) else None
        ratio = p.extra.get("log_ratio")
        self._seen.append(
            _Displacement(p.t, g.lengths, g.coefficient, g.nominal, gap, toward, not along_gap, bound, ratio)
        )
        scales = [part.scale for part in rule.parts if hasattr(part, "scale")] if rule is not None else []
        if len(scales) == 1:
            self._typed.append(at(scales[0], p.t))

    def note(self, measure: Measure) -> None:
        """Adds one evaluation that was measured already."""
        self._seen.append(measure)

    def __len__(self) -> int:
        return len(self._seen)

    @property
    def measures(self) -> list[Measure]:
        """One `Measure` per evaluation, in order."""
        self._seen = [one.measure() if isinstance(one, _Displacement) else one for one in self._seen]
        return [one for one in self._seen if isinstance(one, Measure)]

    def stacked(self) -> dict[str, Tensor]:
        """Every field as one (evaluations, samples) tensor; log_ratio only of runs that follow it."""
        measures = self.measures
        if not measures:
            raise ValueError("the record is empty; pass it as record= to sample() or guided_velocity() first")
        followed = all(one.log_ratio is not None for one in measures)
        names = (*_FIELDS, "log_ratio") if followed else _FIELDS
        return {name: torch.stack([getattr(one, name).cpu() for one in measures]) for name in names}

    def __repr__(self) -> str:
        return f"<Record: {self.summary() if self._seen else 'empty'}>"

    def _repr_html_(self) -> str:
        """The summary and the plot, which notebooks show; the summary alone without matplotlib."""
        shown = f"<pre>{html.escape(repr(self))}</pre>"
        if not self._seen or find_spec("matplotlib") is None:
            return shown
        picture = BytesIO()
        self._figure().savefig(picture, format="png")
        return f'{shown}<img src="data:image/png;base64,{base64.b64encode(picture.getvalue()).decode()}">'

    def summary(self) -> str:
        """One line: the requested and the applied scales (lowest to highest), and how often the cap acted."""
        s = self.stacked()
        if not s["t"].numel():
            return "no samples"
        share = float(s["active"].double().mean())
        capped = "never capped" if share == 0 else f"capped on {share:.0%} of steps"
        followed = f"; log R {span(s['log_ratio'])}" if "log_ratio" in s else ""
        if self.reference is not None:
            gaps = s["gap"].double().square().mean(1).sqrt()
            followed += f"; {self.reference.gaps.compare(s['t'][:, 0].tolist(), gaps.tolist())}"
        return f"{self._scale_text(s)}; {capped}; largest ratio {_largest(s['ratio']):.3f}{followed}"

    def _scale_text(self, s: Mapping[str, Tensor]) -> str:
        return f"requested scale {self.requested_span(s['asked'])}, applied {span(s['scale'])}"

    def requested_span(self, effective: Tensor) -> str:
        """The scale that the rule names, and the effective one if that differs: "8.0 (effective 1.6 to 8.9)".

        Rules such as apg or an interval change their scale before any cap; a cap over a host names none.
        """
        typed = span(self._typed_scales()) if self._typed else span(effective)
        return typed if typed == span(effective) else f"{typed} (effective {span(effective)})"

    def _typed_scales(self) -> Tensor:
        return torch.cat([torch.as_tensor(one).double().cpu().flatten() for one in self._typed])

    def rows(self) -> list[dict[str, float | int | bool]]:
        """One flat row per evaluation and sample, for tables and data frames."""
        s = {name: value.tolist() for name, value in self.stacked().items()}
        count, batch = len(s["t"]), len(s["t"][0])
        return [
            {"step": i, "sample": j, **{name: values[i][j] for name, values in s.items()}}
            for i in range(count)
            for j in range(batch)
        ]

    def save(self, path: str | Path) -> Path:
        """Writes the rows as .csv, or the rows and the summary as .json; whole or not at all."""
        path = Path(path)
        if path.suffix == ".csv":
            text = StringIO()
            writer = csv.DictWriter(text, _COLUMNS, restval="", lineterminator="\n")
            writer.writeheader()
            writer.writerows(self.rows())
            return write_whole(path, text.getvalue())
        if path.suffix != ".json":
            raise ValueError(f"a record is saved as .json or .csv; got {path.name!r}")
        return write_whole(path, json.dumps(self.contents(), indent=1))

    @classmethod
    def load(cls, path: str | Path) -> Record:
        """The record that `save` wrote: its meter, without the solver's weights, hence without a certificate.

        A number that JSON could not hold comes back as nan.
        """
        path = Path(path)
        text = path.read_text(encoding="utf-8")
        is_csv = path.suffix == ".csv"
        held: dict[str, Any] = {"rows": csv.DictReader(StringIO(text))} if is_csv else json.loads(text)
        steps: dict[int, list[dict[str, float]]] = {}
        for row in held["rows"]:
            steps.setdefault(int(row["step"]), []).append(
                {name: _number(row[name]) for name in _COLUMNS[2:] if row.get(name) not in (None, "")}
            )
        record = cls()
        record._typed = held.get("typed", [])
        for step in steps.values():
            names = (*_FIELDS, "log_ratio") if all("log_ratio" in row for row in step) else _FIELDS
            columns = {
                name: torch.tensor([row.get(name, math.nan) for row in step], dtype=torch.float64)
                for name in names
            }
            columns["active"] = columns["active"] == 1
            record.note(Measure(**columns, allowed=torch.full_like(columns["t"], torch.inf)))
        return record

    def contents(self) -> dict[str, Any]:
        """The content of a JSON file of the record; nan and inf, which JSON lacks, become null."""
        rows = [{k: v if math.isfinite(v) else None for k, v in row.items()} for row in self.rows()]
        scales = self._typed_scales() if self._typed else None
        typed = {} if scales is None else {"typed": [float(scales.min()), float(scales.max())]}
        return {"summary": self.summary(), **typed, "rows": rows}

    def certificate(self) -> Certificate:
        """The bound on the final state; warns if a step was not convex.

        Under a cap the bound is computed from gamma |m_c| at each evaluation, without the guided means.
        Without a cap it is computed from the guided means of this run, so it proves nothing in advance.
        """
        if self._start is None:
            raise ValueError("a certificate needs a record that sample() or trajectory() filled")
        if self._weights is None:
            raise ValueError("a run whose steps add noise has no certificate; use Euler or another ODE step")
        measures = self.measures
        proved = bool(measures) and not any(bool((one.allowed == math.inf).any()) for one in measures)
        radius = iter([one.allowed if proved else one.length for one in measures])
        bound, broken = self._start, []
        for index, (keep, *rest) in enumerate(self._weights):
            means = [next(radius, None) for _ in rest]
            if any(m is None for m in means):
                raise ValueError(
                    f"the run stopped at step {index} of {len(self._weights)}; let it finish first"
                )
            bound = abs(keep) * bound + sum(
                abs(w) * m for w, m in zip(rest, means, strict=True) if m is not None
            )
            if min(keep, *rest) < -1e-12:
                broken.append(index)
        certificate = Certificate(bound, tuple(broken), _largest(self.stacked()["ratio"]), proved)
        if broken:
            warnings.warn(str(certificate), stacklevel=2)
        return certificate

    def plot(self, path: str | Path | None = None) -> Any:
        """The meter as a matplotlib Figure of four panels over time, a thin line per sample.

        In a notebook the figure shows itself; elsewhere give a path, such as `record.plot("meter.png")`.
        """
        figure = self._figure()
        if path is not None:
            with writing(path) as temporary:
                figure.savefig(temporary)
        return figure

    def _figure(self) -> Any:
        s = self.stacked()
        figure = need("matplotlib.figure", "plot").Figure(figsize=(12, 3.4), layout="constrained")
        t = s["t"].mean(1)
        for axes, (name, title) in zip(figure.subplots(1, len(_PANELS)), _PANELS.items(), strict=True):
            applied = name in ("scale", "ratio")  # what the rule did; gap and cosine are the model's
            colour = _APPLIED if applied else _MODEL
            axes.plot(s["t"][:, :50], s[name][:, :50], color=colour, alpha=0.25, linewidth=0.7)
            middle = s[name].square().mean(1).sqrt() if name == "gap" else s[name].mean(1)
            axes.plot(t, middle, color=colour, linewidth=2, label="applied" if name == "scale" else None)
            if name in ("gap", "cosine") and self.reference is not None:
                curves = self.reference.curves
                axes.plot(
                    curves["t"],
                    curves[name],
                    ":",
                    color="#222222",
                    label="real examples" if name == "gap" else None,
                )
            if name == "scale":
                axes.plot(t, s["asked"].mean(1), "--", color=_REQUESTED, label="requested")
            if name == "ratio" and (limits := self._largest_ratios()) is not None:
                axes.plot(t, limits, ":", color="#222222", label="limit of the cap")
            axes.set_title(title, fontsize=11)
            axes.set_xlabel("t (noise at 0, data at 1)", fontsize=10)
        figure.legend(loc="outside lower center", ncols=4, frameon=False)
        return figure

    def _largest_ratios(self) -> Tensor | None:
        """The mean ratio that the cap permits at each evaluation; None without a cap on |m|."""
        measures = self.measures
        limits = torch.stack([(one.allowed * one.ratio / one.length).mean() for one in measures]).cpu()
        return limits if bool(limits.isfinite().all()) else None


def _number(cell: Any) -> float:
    """A cell of a file; CSV holds truth values as words."""
    return float(cell == "True") if cell in ("True", "False") else float(cell)


def _largest(values: Tensor) -> float:
    """The largest that is a number; nan if none is."""
    known = values[~values.isnan()]
    return float(known.max()) if known.numel() else math.nan


def _round_up(value: float) -> str:
    """Four digits that are not below the value: a bound stays one when it is printed."""
    text = f"{value:.4g}"
    if not math.isfinite(value) or float(text) >= value:
        return text
    return f"{float(text) + 10.0 ** (math.floor(math.log10(value)) - 3):.4g}"


def span(values: Tensor) -> str:
    """The lowest and the highest of some scales, or the one that they all are: "1.2 to 7.0", "7.0"."""
    known = values[~values.isnan()]  # a sample that is lost says nothing of the others
    if not known.numel():
        return "nan"
    low, high = float(known.min()), float(known.max())
    return f"{high:.1f}" if high - low < 0.05 else f"{low:.1f} to {high:.1f}"


@dataclass(frozen=True, eq=False)
class Certificate:
    """|x_N| <= bound, for each sample: x_N is a combination of x_0 and the guided means with known weights.

    With convex steps the weights are non-negative and sum to one, so that no state leaves the convex hull of
    the noise and the means; Euler is always convex, Heun only while a step goes at most half of the way.
    `proved` is True if a cap bounds every mean by gamma |m_c| (or its floor): the bound then follows from the
    conditional means alone. Otherwise it is made of the guided means that this run had.
    """

    bound: Tensor
    broken: tuple[int, ...]
    largest_ratio: float
    proved: bool = False

    @property
    def convex(self) -> bool:
        return not self.broken

    def holds(self, x: Tensor) -> bool:
        """Whether the final state keeps the bound, up to rounding."""
        length = lengths(x, x).base
        return bool((length <= self.bound.to(length) * (1 + 16 * torch.finfo(x.dtype).eps)).all())

    def __str__(self) -> str:
        lost = int(self.bound.isnan().sum())
        but = f" (nothing of {lost}, which are NaN)" if lost else ""
        bound = f"|x| <= {_round_up(_largest(self.bound))} over {self.bound.numel() - lost} samples{but}"
        if self.proved:
            what = f"{bound}, proved by the cap from the conditional means alone"
        else:
            what = f"no cap bounds |m| itself, so nothing is proved; this run's guided means give {bound}"
        if self.convex:
            return f"{what}; every step is convex"
        return (
            f"{what}; steps {list(self.broken)} are not convex, so a state may leave the hull of its means: "
            "use Euler there, or a grid whose steps go at most half of the way to t = 1"
        )


@dataclass(frozen=True, eq=False)
class _Displacement:
    """One displacement c * direction, before its measure is worked out."""

    t: Number
    lengths: Lengths  # |m_c|, |direction|, component of m_c along the direction
    coefficient: Number
    asked: Number  # the coefficient before any cap
    gap: Lengths  # |m_c|, |gap|, component of m_c along the gap
    toward: Tensor  # component of the direction along the gap
    turned: bool  # whether the direction may have left the gap
    bound: Tensor | None  # the longest mean that the cap at the end of the rule permits
    log_ratio: Tensor | None = None

    def measure(self) -> Measure:
        conditional, size, along = self.lengths
        gap, c = self.gap.direction, vector(self.coefficient, self.gap.direction)
        asked = vector(self.asked, gap)
        # |m_c + c direction| from its parts along the direction and across it.
        across = (conditional - along.abs()).clamp(min=0).sqrt() * (conditional + along.abs()).sqrt()
        length = torch.hypot(along + c * size, across)
        # With no gap a multiple of it still has a scale; a turned direction has none, and 1 says so.
        share = torch.where(gap == 0, 0.0 if self.turned else 1.0, self.toward / gap)
        seen = (conditional, gap, self.gap.along)
        scales = (1 + c * share, 1 + asked * share)
        allowed = torch.full_like(conditional, torch.inf) if self.bound is None else self.bound
        found = _measure(self.t, seen, *scales, abs(c) < abs(asked), length, allowed)
        return found if self.log_ratio is None else replace(found, log_ratio=self.log_ratio)
