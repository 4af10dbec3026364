"""The catalogue on the page docs/rules.md, by family: a row of the benchmark and a folded sheet per rule.

The site writes it while it is built (the directive `rules` of meancap_site.py). Facts come from the
docstrings of the recipes (`meancap.rules.catalogue()`), figures from the result in docs/benchmark, drawings
from the rules themselves.
"""

from __future__ import annotations

import math
from html import escape
from itertools import groupby
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from meancap.prediction import Prediction
from meancap.rules import CFG, Entry, Rule, catalogue, guide
from meancap.rules.methods import FAMILIES, facts
from meancap_lab.bench.ratios import Ratio, Result, Row

SCALE = 4.0  # of the drawn CFG, and of most rules
GAMMA = 1.1
_STEPS = ((0.2, 0.3), (0.3, 0.4), (0.4, 0.5))
_GAP, _ANGLE = 0.35, math.pi / 3
_UNIT, _LEFT, _TOP, _WIDTH, _HEIGHT = 90.0, 14.0, 112.0, 200, 184
_EDGE = 6.0
_MARKS = {"better": " ▼", "worse": " ▲"}
# Methods that the benchmark knows by another name, mostly with more knobs than the catalogue's recipe.
_BENCHMARK_NAMES = {
    "CFG": "CFG, tuned",
    "pmc": "Cap 1.1 (the paper)",
    "pmc_displacement": "displacement cap, Γ tuned",
    "limited_interval": "interval",
    "density_feedback": "density feedback",
    "policy": "policy (optimal control)",
    "manifold": "manifold (CFG-MP+)",
}

# Methods whose formula was not found or not read: (name, why). Nothing is computed for them.
_NAME_ONLY = (
    (
        "TCG (no number)",
        "matches mean and variance of the guided velocity; withdrawn, its formula was not found",
    ),
    ("Characteristic guidance (2312.07586)", "a fixed point over extra evaluations; its paper was not read"),
    ("Learn to Guide (2510.00815)", "a trained schedule; no weights or code were seen"),
    ("Annealing guidance scale (2506.24108)", "a trained schedule; no weights or code were seen"),
    ("Adversarial schedules (2608.14038)", "a trained schedule; no weights or code were seen"),
    ("Information-theoretic schedule (2606.24025)", "a trained schedule; no weights or code were seen"),
    ("Online feedback (2509.16131)", "scales chosen by evaluators during the run; no code was seen"),
)

# Methods that are known and not included, and why.
_LEFT_OUT = (
    ("NAG (2505.21179)", "acts inside attention layers, not on predictions"),
    ("Difference CFG", "Skimmed CFG's companion takes norms and extremes of a whole batch"),
    (
        "Dynamic CFG schedules of mimic",
        "its own schedules are any schedule here: CFG(Cosine(...)) | Mimic(...)",
    ),
)


def rules_page(result: Result) -> list[str]:
    """What follows the first words of the page, in lines of Markdown."""
    figures = Figures(result)
    lines = [_HEAD.format(count=figures.problems, evaluations=figures.evaluations, scale=SCALE, gamma=GAMMA)]
    for family, group in groupby(catalogue(), key=lambda e: e.family):
        entries = list(group)
        lines += ["", f"## {FAMILIES[family]}", "", "| rule | use it when | one setting for all | tuned |"]
        lines += ["|---|---|---|---|", *(figures.short(e) for e in entries)]
        for e in entries:
            lines += _section(e, figures)
    for title, listed in (("Known by name only", _NAME_ONLY), ("Not here", _LEFT_OUT)):
        lines += ["", f"## {title}", "", *(f"- **{_md(name)}**: {_md(why)}." for name, why in listed)]
    return "\n".join(lines).split("\n")


class Figures:
    """Every rule's row of the benchmark at the smallest number of evaluations."""

    def __init__(self, result: Result) -> None:
        few = min(result.runs)
        self.rows: dict[str, Row] = {row.rule: row for row in result.rows(few)}
        self.evaluations, self.problems = few, max(row.regret.n for row in self.rows.values())
        self.same: dict[str, list[str]] = {}  # by a rule's text, the methods and forms that make it
        for e in catalogue(forms=True):
            if e.kind == "rule":
                self.same.setdefault(str(e.rule()), []).append(e.name)

    def of(self, e: Entry) -> tuple[str, Row | None]:
        """The name of the row, and the row if there is one."""
        same = self.same[str(e.rule())] if e.kind == "rule" else []
        for name in (e.name, *same):
            row = self.rows.get(_BENCHMARK_NAMES.get(name, name))
            if row is not None:
                return row.rule, row
        return "", None

    def short(self, e: Entry) -> str:
        return f"| [`{e.name}`](#{e.name.lower()}) | {_md(e.use)} | {self.cells(e)} |"

    def cells(self, e: Entry) -> str:
        _, row = self.of(e)
        return f"{_marked(row.regret)} | {_marked(row.tuned)}" if row else f"{self.why_not(e)} | "

    def full(self, e: Entry) -> list[str]:
        name, row = self.of(e)
        if row is None:
            return [f"In the benchmark: {self.why_not(e)}."]
        return [
            "| in the benchmark as | problems | one setting for all | worst | tuned | equal alignment |",
            "|---|---|---|---|---|---|",
            f"| {_md(name)} | {row.regret.n} | {row.regret} | {row.regret_worst:.3g} | {row.tuned} | "
            f"{row.aligned} |",
        ]

    @staticmethod
    def why_not(e: Entry) -> str:
        if e.needs:
            return "not run: needs a [third prediction](your-own-network.md#three-predictions)"
        return "not run: needs images" if e.axes > 2 else "not benchmarked yet"


def _marked(ratio: Ratio) -> str:
    return f"{ratio.value:.2f}{_MARKS.get(ratio.verdict, '')}" if ratio.n else "–"


def _section(e: Entry, figures: Figures) -> list[str]:
    """A heading, which links find, and a fold."""
    title = escape(e.title[:1].upper() + e.title[1:])
    lines = ["", f"### {e.name}", "", f"<details><summary>{title}</summary>"]
    if e.kind == "rule":
        lines += ["", drawing(e).rstrip()]
    lines.append("")
    for name, text in facts(e):
        if name == "form":
            continue
        code = name in ("formula", "type", "which is")
        lines.append(f"- {name}: `{text}`" if code else f"- {name}: {_md(text)}")
    lines += ["", *figures.full(e)]
    if forms := [one for one in catalogue(forms=True) if one.form_of == e.name]:
        lines += ["", "| form | type | one setting for all | tuned |", "|---|---|---|---|"]
        lines += [f"| {_md(one.name)} | `{one.text()}` | {figures.cells(one)} |" for one in forms]
    if e.defaults:
        lines += ["", "| model | values | source |", "|---|---|---|"]
        lines += [f"| {_md(d.model)} | {_md(d.values)} | {_md(d.source)} |" for d in e.defaults]
    if e.notes:
        lines += ["", "Where ports and readings differ:", "", *(f"- {_md(text)}" for text in e.notes)]
    return [*lines, "", "</details>"]


def _md(text: str) -> str:
    """Plain text inside Markdown: stars, underscores and bars mean themselves."""
    for mark in "\\*_|<":
        text = text.replace(mark, "\\" + mark)
    return text


_HEAD = """**The figures** are of [the benchmark](benchmark.md) at {evaluations} evaluations: SW2 over that of
CFG tuned on each problem, geometric mean over at most {count} problems. *One setting for all* was chosen on
other problems, *tuned* on each problem on other noise; ▼ better and ▲ worse than tuned CFG by a 95 %
interval. Results on small mixtures may not hold for images.

**The drawings** show one gap, in the plane of `m_c` and `m_c - m_u` and in units of `|m_c|`: u and c are the
two means, n that of something to avoid, CFG the mean of CFG at scale {scale:g}, the circle the ball of the
cap at Γ = {gamma:g}, and red is where the rule goes in the third of three steps, at scale {scale:g} unless it
says another or has none. The numbers are the coordinates of that mean, and its distance from the plane."""


# The drawings.
#
# The plane of the drawing is spanned by m_c and the gap m_c - m_u, in units of |m_c|: m_c lies at (1, 0), the
# unconditional mean below it on the ray of guidance, and the mean of CFG above it on the same ray. The circle
# has the radius 1.1 round the origin, the ball of the paper's cap. A rule that leaves the plane is drawn by
# its projection, with the length of the rest beside it. What a rule may look at and avoid, n, lies
# in the plane as well: at the end of the gap, turned into the direction of m_c.
#
# Every rule sees the same three steps, of which the third is drawn: a rule with memory has then something to
# remember. The means are images of 4 x 16 x 16 with coarse and fine parts, so that rules for images have
# their axes; the gap is 0.35 times as long as m_c and at 60 degrees to it.


class _Point(NamedTuple):
    """A mean in the plane, in units of |m_c|, and how far it lies off the plane."""

    x: float
    y: float
    off: float = 0.0


def _predictions(names: tuple[str, ...]) -> list[Prediction]:
    """The three steps that every rule is drawn on, with further predictions of these names."""
    draw = torch.Generator().manual_seed(0)

    def image() -> Tensor:
        fine, coarse = (torch.randn(1, 4, n, n, generator=draw, dtype=torch.float64) for n in (16, 4))
        return fine + 2 * F.interpolate(coarse, scale_factor=4.0, mode="bilinear")

    noise, mean, across = image(), image(), image()
    predictions = []
    for t, s in _STEPS:
        m_c = mean + 0.1 * image()
        along = m_c / m_c.norm()
        side = across + 0.1 * image()
        side = side - (side * along).sum() * along
        gap = math.cos(_ANGLE) * along + math.sin(_ANGLE) * side / side.norm()
        m_u = m_c - _GAP * m_c.norm() * gap
        p = Prediction.from_mean((1 - t) * noise + t * m_c, t, m_c, m_u)
        third = m_u + _GAP * m_c.norm() * along
        predictions.append(p.beside(**dict.fromkeys(names, third)).until(s))
    return predictions


def drawn_mean(rule: Rule) -> _Point:
    """Where the guided mean of the third step lies."""
    state = rule.init()
    for p in (steps := _predictions(rule.needs)):
        m, state = guide(rule, p, state)
    p = steps[-1]
    size = p.m_c.norm()
    along = p.m_c / size
    side = p.delta - (p.delta * along).sum() * along
    side = side / side.norm()
    x, y = (round(float((m * axis).sum() / size), 6) + 0.0 for axis in (along, side))  # no -0
    return _Point(x, y, float((m / size - x * along - y * side).norm()))


def drawing(entry: Entry) -> str:
    """The drawing of a rule as the text of an SVG file."""
    mean, fixed = drawn_mean(entry.rule()), drawn_mean(CFG(SCALE))
    start = _Point(1 - _GAP * math.cos(_ANGLE), -_GAP * math.sin(_ANGLE))
    inside = _within(mean)
    labels = [f"{mean.off:.2f} off the plane"] if mean.off >= 0.005 else []
    labels += [] if inside[:2] == mean[:2] else ["outside the frame"]
    own = f"scale {entry.scale:g}: " if "{scale}" in entry.call and entry.scale != SCALE else ""
    rows = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" '
        f'viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" font-size="10">',
        f"<title>{entry.name} on one gap</title>",
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#fff"/>',
        f'<circle cx="{_LEFT:g}" cy="{_TOP:g}" r="{GAMMA * _UNIT:g}" fill="#eef4fb" stroke="#7aa6d8"/>',
        _line(_Point(0, 0), _Point(1, 0), "#bbb"),
        _line(start, fixed, "#999", dashed=True),
        _line(_Point(1, 0), inside, "#c0392b"),
        _dot(start, "#fff", "u", "#555"),
        _dot(_Point(1, 0), "#333", "c", "#333"),
        *([_dot(_Point(start.x + _GAP, start.y), "#fff", "n", "#555")] if entry.needs else []),
        _dot(fixed, "#fff", "CFG", "#999"),
        _dot(inside, "#c0392b", "", "#c0392b"),
        f'<text x="4" y="{_HEIGHT - 17}" fill="#c0392b">{own}{mean.x:.2f}, {mean.y:.2f}</text>',
        f'<text x="4" y="{_HEIGHT - 5}" fill="#c0392b">{", ".join(labels)}</text>',
        "</svg>",
    ]
    return "\n".join(rows) + "\n"


def _within(p: _Point) -> _Point:
    """The point, or the last one of the way to it from m_c that the frame shows."""
    across = ((_EDGE - _LEFT) / _UNIT, (_WIDTH - _EDGE - _LEFT) / _UNIT)
    upward = ((_TOP - _HEIGHT + 28) / _UNIT, (_TOP - _EDGE) / _UNIT)
    share = 1.0
    for start, end, (low, high) in ((1.0, p.x, across), (0.0, p.y, upward)):
        if not low <= end <= high:
            share = min(share, ((high if end > high else low) - start) / (end - start))
    return _Point(1 + share * (p.x - 1), share * p.y) if share < 1 else p


def _at(p: _Point) -> tuple[str, str]:
    return f"{_LEFT + _UNIT * p.x:.1f}", f"{_TOP - _UNIT * p.y:.1f}"


def _line(a: _Point, b: _Point, colour: str, dashed: bool = False) -> str:
    (x1, y1), (x2, y2) = _at(a), _at(b)
    dashes = ' stroke-dasharray="3 3"' if dashed else ""
    return f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{colour}"{dashes}/>'


def _dot(p: _Point, fill: str, name: str, colour: str) -> str:
    x, y = _at(p)
    label = (
        f'<text x="{float(x) + 6:.1f}" y="{float(y) + 10:.1f}" fill="{colour}">{name}</text>' if name else ""
    )
    return f'<circle cx="{x}" cy="{y}" r="3.5" fill="{fill}" stroke="{colour}"/>{label}'
