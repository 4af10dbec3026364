"""The page of the study: tables, comparisons with fixed guidance at equal adherence, and the two figures."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator
from torch import Tensor

from meancap_lab.metrics.score import Estimate, difference
from meancap_lab.report import style
from meancap_lab.report.score_page import cell
from meancap_lab.report.style import PAGE, panels
from studies.common import markdown, read_csv

NAMES = {"garments": "garments", "scenes": "scenes, right captions", "wrong": "scenes, wrong captions"}
ADHERENCE = {"garments": "alignment", "scenes": "right", "wrong": "right"}
ANCHORED, INTERVAL = "Cap(1.1, anchor='first')", "Interval(0.2, 1)"
LABELS = {"real": "real pictures", "Cap(1.1, anchor='first')": "anchored cap 1.1"}
# Rows of the table, and the settings that it compares with fixed guidance.
SHOWN = (
    ("real", 0.0), *(("CFG", scale) for scale in (1.0, 1.2, 1.5, 2.0, 3.0, 8.0, 15.0)),
    (ANCHORED, 2.0), (ANCHORED, 3.0), (ANCHORED, 8.0), (ANCHORED, 15.0), (INTERVAL, 3.0), (INTERVAL, 15.0),
    ("Cap(1.1)", 3.0), ("Cap(1.1)", 15.0), ("CapDisplacement(1.15)", 4.0), ("calibrated cap", 4.0),
    ("apg, tuned", 3.0), ("Rescale(0.7)", 3.0), ("learned λ(t)", 1.0), ("path-matched", 1.0),
)  # fmt: skip
COMPARED = (
    (ANCHORED, 2.0), (ANCHORED, 3.0), (ANCHORED, 8.0), (INTERVAL, 3.0), ("Cap(1.1)", 3.0),
    ("CapDisplacement(1.15)", 4.0), ("calibrated cap", 4.0), ("apg, tuned", 3.0), ("Rescale(0.7)", 3.0),
)  # fmt: skip
COLOURS = {
    "real": style.YELLOW, "CFG": style.VERMILION, ANCHORED: style.INK, INTERVAL: style.BLUE,
    "Cap(1.1)": style.GREEN, "apg, tuned": style.AMBER,
    "CapDisplacement(1.15)": style.SKY, "calibrated cap": style.PURPLE,
    "Rescale(0.7)": "#8C6D31", "Cap(1.05)": style.GREY, "learned λ(t)": style.GREY, "path-matched": "#8C1C5A",
}  # fmt: skip
SCALELESS = ("learned λ(t)", "path-matched")
DRAWS = 1000


@dataclass(frozen=True)
class Reading:
    """A rule at a scale over all complete seeds of a model; the scale of real pictures is 0."""

    model: str
    evaluations: int
    method: str
    scale: float
    seeds: tuple[int, ...]
    numbers: Mapping[str, Estimate]


def read_readings(path: Path) -> list[Reading]:
    """Every setting; a seed counts if it has all settings of its model and number of evaluations."""
    groups: dict[tuple[str, int, str, float], dict[int, dict[str, Estimate]]] = {}
    for row in read_csv(path):
        key = row["model"], int(row["evaluations"]), row["method"], float(row["scale"] or 0)
        parts = torch.tensor([float(v) for v in row["parts"].split()], dtype=torch.float64)
        value = float(row["value"])
        e = Estimate(row["number"], value, int(row["pictures"]), parts - parts.mean() + value)
        groups.setdefault(key, {}).setdefault(int(row["seed"]), {})[e.name] = e
    readings = []
    for key, seeds in groups.items():
        same = [own for other, own in groups.items() if other[:2] == key[:2]]
        whole = [seed for seed in seeds if len(same) == 1 or all(seed in own for own in same)]
        if whole:
            numbers = {name: _pooled([seeds[seed][name] for seed in whole]) for name in seeds[whole[0]]}
            readings.append(Reading(*key, tuple(whole), numbers))
    return readings


def _pooled(estimates: Sequence[Estimate]) -> Estimate:
    parts = torch.cat([e.parts for e in estimates if e.parts is not None])
    value = sum(e.value for e in estimates) / len(estimates)
    return Estimate(estimates[0].name, value, sum(e.n for e in estimates), parts)


class Comparison:
    """The readings of one model at one number of evaluations, and fixed guidance between its scales.

    Fixed guidance at equal adherence has the smallest scale that reaches it, on straight lines over log λ
    between scales that were run. Intervals are 95 %: groups of pictures are drawn again with replacement, the
    same ones for all rules, and the whole comparison is made again, the matching scale included.
    """

    def __init__(self, readings: Sequence[Reading], model: str, evaluations: int = 20) -> None:
        self.own = [r for r in readings if (r.model, r.evaluations) == (model, evaluations)]
        self.adherence = ADHERENCE[model]
        self.fixed = sorted((r for r in self.own if r.method == "CFG"), key=lambda r: r.scale)
        self.log_scales = torch.tensor([math.log(r.scale) for r in self.fixed], dtype=torch.float64)
        self.weights = drawn_again(len(_parts(self.fixed[0], "SW2")))

    def curve(self, number: str) -> Tensor:
        """(scales, draws) of fixed guidance."""
        return torch.stack([self.weights @ _parts(r, number) for r in self.fixed])

    def matched(self, r: Reading, number: str) -> tuple[float, float, float, float]:
        """The fixed scale with the adherence of r; r less fixed guidance there, and its interval."""
        at = reaching(self.log_scales, self.curve(self.adherence), self.weights @ _parts(r, self.adherence))
        less = self.weights @ _parts(r, number) - interpolated(self.log_scales, self.curve(number), at)
        redrawn = less[1:][~less[1:].isnan()]
        ends = [math.nan, math.nan]
        # If the match fails in more than a tenth of the draws, the rest would be a selection of them.
        if len(redrawn) >= 0.9 * DRAWS:
            ends = torch.quantile(redrawn, torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
        return math.exp(float(at[0])), float(less[0]), ends[0], ends[1]


def _parts(r: Reading, number: str) -> Tensor:
    parts = r.numbers[number].parts
    assert parts is not None
    return parts


def drawn_again(n: int, draws: int = DRAWS) -> Tensor:
    """(1 + draws, n) weights of groups: the groups themselves, then random draws of them."""
    picks = torch.randint(n, (draws, n), generator=torch.Generator().manual_seed(0))
    counts = torch.zeros(draws, n, dtype=torch.float64).scatter_add_(1, picks, torch.ones(draws, n).double())
    return torch.cat([torch.ones(1, n, dtype=torch.float64), counts]) / n


def interpolated(log_scales: Tensor, curve: Tensor, at: Tensor) -> Tensor:
    """Each column of curve (scales, draws) at its own log scale (draws,); nan outside the scales."""
    left = (torch.searchsorted(log_scales, at.nan_to_num(0.0)) - 1).clamp(0, len(log_scales) - 2)
    low, high = log_scales[left], log_scales[left + 1]
    below, above = (curve.gather(0, (left + k)[None])[0] for k in (0, 1))
    inside = (at >= log_scales[0] - 1e-9) & (at <= log_scales[-1] + 1e-9)
    return torch.where(inside, below + (at - low) / (high - low) * (above - below), torch.nan)


def reaching(log_scales: Tensor, curve: Tensor, level: Tensor) -> Tensor:
    """The smallest log scale at which each column of the curve reaches its level; nan if it never does."""
    found = torch.full_like(level, torch.nan)
    for i in reversed(range(len(log_scales) - 1)):
        a, b = curve[i], curve[i + 1]
        at = log_scales[i] + (level - a) / (b - a).clamp(min=1e-12) * (log_scales[i + 1] - log_scales[i])
        found = torch.where((a < level) & (level <= b), at, found)
    return torch.where(curve[0] >= level, log_scales[0], found)


def parts(folder: Path) -> dict[str, str]:
    """The marked parts of the page."""
    readings = read_readings(folder / "readings.csv")
    return {
        "seeds": seeds_line(readings),
        "precision": precision_line(readings),
        "settings": settings_table(readings),
        "differences": differences_table(readings),
        "evaluations": evaluations_table(readings),
    }


def setting_rows(readings: Sequence[Reading]) -> Iterator[dict[str, object]]:
    """Every number of every setting over all complete seeds, with its 95 % interval, for settings.csv."""
    for r in readings:
        about = {"model": r.model, "evaluations": r.evaluations, "rule": r.method, "scale": r.scale}
        for e in r.numbers.values():
            low, high = e.interval() or ("", "")
            own = {"seeds": len(r.seeds), "pictures": e.n, "number": e.name, "value": e.value}
            yield about | own | {"from": low, "to": high}


def _at(readings: Sequence[Reading], model: str, evaluations: int = 20) -> list[Reading]:
    """Real pictures and all rules of a model; the two models of scenes share their renders."""
    real = "garments" if model == "garments" else "scenes"
    return [r for r in readings if (r.model, r.evaluations) in ((real, 0), (model, evaluations))]


def settings_table(readings: Sequence[Reading]) -> str:
    """Adherence, FD and SW2 of some settings on the three models; settings.csv has the others."""
    own = {(m, r.method, r.scale): r.numbers for m in ADHERENCE for r in _at(readings, m)}
    lines = []
    for method, scale in SHOWN:
        line = [*_named(method, scale)]
        for model, adherence in ADHERENCE.items():
            numbers = own.get((model, method, scale))
            names = adherence, "FD", "SW2"
            line += ["–"] * 3 if numbers is None else [f"{numbers[n].value:.3f}" for n in names]
        lines.append(line)
    head = [f"{NAMES[m]}: {adherence}" for m, adherence in ADHERENCE.items()]
    return markdown(["rule", "λ", *(c for first in head for c in (first, "FD", "SW2"))], lines)


def differences_table(readings: Sequence[Reading]) -> str:
    """Rules less fixed guidance: at equal adherence, on scenes less the fixed scale of least FD x SW2."""
    found: dict[tuple[str, float], list[str]] = {}
    head = ["rule", "λ"]
    for model in ADHERENCE:
        if not any(r.model == model and r.evaluations == 20 for r in readings):
            continue
        c = Comparison(readings, model)
        # With right captions nearly every prompt is right from λ = 1.5 on, which leaves nothing to match.
        best = min(c.fixed, key=lambda r: r.numbers["FD"].value * r.numbers["SW2"].value)
        against = f" less CFG({best.scale:g})" if model == "scenes" else ""
        head += [f"{NAMES[model]}{against}: FD", "SW2"]
        own = {(r.method, r.scale): r for r in c.own}
        for key in COMPARED:
            for number in ("FD", "SW2"):
                text = "–"
                if key in own and model == "scenes":
                    e = difference(own[key].numbers[number], best.numbers[number])
                    text = _less(e.value, *(e.interval() or (math.nan, math.nan)))
                elif key in own:
                    text = _less(*c.matched(own[key], number)[1:])
                found.setdefault(key, []).append(text)
    return markdown(head, [[*_named(*key), *texts] for key, texts in found.items()])


def _named(method: str, scale: float) -> list[str]:
    return [LABELS.get(method, method), f"{scale:g}" if scale and method not in SCALELESS else "–"]


def _less(value: float, low: float, high: float) -> str:
    if math.isnan(value):
        return "–"
    text = f"{value:+.3f}" if math.isnan(low) else f"{value:+.3f} [{low:+.3f}, {high:+.3f}]"
    return f"**{text}**" if low > 0 or high < 0 else text


def seeds_line(readings: Sequence[Reading]) -> str:
    """How many seeds, settings and pictures have run."""
    words = []
    for model, name in NAMES.items():
        own = [r for r in readings if (r.model, r.evaluations) == (model, 20)]
        if own:
            seeds, pictures = len(own[0].seeds), own[0].numbers["FD"].n
            plural = "s" if seeds > 1 else ""
            words.append(
                f"{name}: {len(own)} settings, {seeds} seed{plural} of {pictures // seeds:,} pictures"
            )
    return f"Run: {'; '.join(words)}."


def evaluations_table(readings: Sequence[Reading]) -> str:
    """Adherence, FD and SW2 of the few settings that ran at other numbers of evaluations, one seed."""
    few = list(dict.fromkeys((r.method, r.scale) for r in readings if r.evaluations not in (0, 20)))
    lines = []
    for model, n in dict.fromkeys((r.model, r.evaluations) for r in readings if r.evaluations not in (0, 20)):
        own = {(r.method, r.scale): r.numbers for r in _at(readings, model, n)}
        names = ADHERENCE[model], "FD", "SW2"
        cells = [" · ".join(f"{own[key][k].value:.2f}" for k in names) if key in own else "–" for key in few]
        lines.append([NAMES[model], str(n), *cells])
    if not lines:
        return "Other numbers of evaluations: not run."
    return markdown(["adherence · FD · SW2", "evaluations", *(" ".join(_named(*key)) for key in few)], lines)


def precision_line(readings: Sequence[Reading]) -> str:
    """Garments by a network in bfloat16 less the same garments in float32."""
    own = {(r.model, r.method, r.scale): r.numbers for r in readings if r.model.startswith("garments ")}
    words = []
    for (model, method, scale), numbers in own.items():
        other = own.get(("garments float32", method, scale))
        if model == "garments bfloat16" and other is not None:
            less = [f"{n} {cell(difference(numbers[n], other[n]), sign=True)}" for n in ("FD", "SW2")]
            words.append(f"`{' '.join(_named(method, scale))}` {', '.join(less)}")
    return f"bfloat16 less float32: {'; '.join(words)}." if words else "Float32: not run."


FRONTS = (
    ("garments", "alignment"), ("garments", "FD"),
    ("scenes", "right and drawn"), ("wrong", "right and drawn"),
)  # fmt: skip
ROBUST = {
    "garments": ("FD", "alignment", "recall", "SW2", "brightness"),
    "scenes": ("FD", "right and drawn", "tv background", "SW2", "clipped"),
}
LINES = ("CFG", "Cap(1.1)", ANCHORED, INTERVAL)


def draw_fronts(readings: Sequence[Reading]) -> Figure:
    """SW2 of the pixels against adherence (and FD): a curve per rule, larger points for larger scales."""
    figure, axes = panels(2, 2, PAGE, 6.2)
    for place, (model, number) in zip(axes.flat, FRONTS, strict=True):
        own = _at(readings, model)
        if not any(r.model == model for r in own):
            place.text(0.5, 0.5, "not run", ha="center", transform=place.transAxes)
        for method in dict.fromkeys(r.method for r in own):
            some = sorted((r for r in own if r.method == method), key=lambda r: r.scale)
            x, y = ([r.numbers[n].value for r in some] for n in (number, "SW2"))
            real = method == "real"
            sizes = [110.0 if real else 10 + 3 * (4 if r.method in SCALELESS else r.scale) for r in some]
            look = {
                "marker": "*" if real else "o",
                "color": COLOURS[method],
                "label": LABELS.get(method, method),
            }
            place.plot(x, y, color=COLOURS[method], linewidth=0.9, zorder=2)
            place.scatter(
                x, y, sizes, edgecolor=style.INK if real else "white", linewidth=0.4, zorder=3, **look
            )
            for r, *at in zip(some, x, y, strict=True) if method == "CFG" else ():
                place.annotate(f"{r.scale:g}", at, (3, 3), textcoords="offset points", fontsize=5.5)
        place.set_title(NAMES[model])
        place.set_xlabel(number + (" (less is better)" if number == "FD" else " (more is better)"))
        place.set_ylabel("SW2 of the pixels (less is better)")
        place.set_yscale("log")
        place.set_yticks([0.1, 0.15, 0.2, 0.3, 0.5, 0.8], ["0.1", "0.15", "0.2", "0.3", "0.5", "0.8"])
        place.yaxis.set_minor_locator(NullLocator())
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure


def draw_robustness(readings: Sequence[Reading]) -> Figure:
    """Numbers over the scale; the dashed line is where real pictures are."""
    figure, axes = panels(2, 5, PAGE, 3.8)
    for line, (model, numbers) in zip(axes, ROBUST.items(), strict=True):
        own = _at(readings, model)
        start = next((r for r in own if (r.method, r.scale) == ("CFG", 1.0)), None)
        real = next((r for r in own if r.method == "real"), None)
        if start is None or real is None:
            continue
        for place, number in zip(line, numbers, strict=True):
            for method in LINES:
                some = [start, *(r for r in own if r.method == method and r.scale > 1)]
                x, y = [r.scale for r in some], [r.numbers[number].value for r in some]
                bars = [1.96 * r.numbers[number].error for r in some]
                look = {"color": COLOURS[method], "linewidth": 1, "marker": "o", "markersize": 2}
                place.errorbar(x, y, bars, elinewidth=0.6, label=LABELS.get(method, method), **look)
            level = real.numbers[number].value
            place.axhline(level, color=style.GREY, linestyle="--", linewidth=0.8, label="real pictures")
            place.set_xscale("log")
            place.set_xticks([1, 2, 4, 8, 15], ["1", "2", "4", "8", "15"])
            place.xaxis.set_minor_locator(NullLocator())
            place.set_title(number)
            place.set_xlabel("λ")
        line[0].set_ylabel(NAMES[model])
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=5)
    return figure
