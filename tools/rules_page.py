"""The page docs/rules.md: the catalogue by family, a drawing and a row of the benchmark for each rule.

Everything on it is generated: facts from `meancap.rules.catalogue()`, figures from the readings in
docs/benchmark, drawings from the rules themselves. `write_rules_page` writes the page and docs/rules/*.svg.
"""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Any

from ..files import write_whole
from ..rules import Entry, catalogue
from ..rules.methods.elsewhere import LEFT_OUT, NAME_ONLY
from ..rules.methods.registry import FAMILIES
from ..rules.text.listing import facts
from ..runs.bench.readings import Readings, read_readings
from ..runs.bench.tables import common, summary
from .rule_drawing import GAMMA, SCALE, drawing

_MARKS = {"better": " ▼", "worse": " ▲", "even": ""}
# Methods that the benchmark knows by another name, mostly with more knobs than the catalogue's recipe.
_BENCHMARK_NAMES = {
    "CFG": "fixed CFG",
    "pmc": "cap 1.1 (the paper)",
    "pmc_displacement": "displacement cap, Γ tuned",
    "limited_interval": "interval",
    "density_feedback": "density feedback",
    "policy": "policy (optimal control)",
    "manifold": "manifold (CFG-MP+)",
}


def write_rules_page(docs: Path) -> list[Path]:
    """rules.md and the drawings in rules/, from the readings in benchmark/; what was written."""
    files = {docs / "rules.md": page(read_readings(docs / "benchmark"))}
    files |= {docs / "rules" / f"{e.name}.svg": drawing(e) for e in catalogue() if e.kind == "rule"}
    (docs / "rules").mkdir(exist_ok=True)
    for old in set((docs / "rules").glob("*.svg")) - files.keys():
        old.unlink()
    return [write_whole(path, text.encode()) for path, text in files.items()]


def page(readings: Readings) -> str:
    """The page as Markdown."""
    figures = Figures(readings)
    order = list(FAMILIES)
    entries = sorted(catalogue(), key=lambda e: order.index(e.family))
    families = [(FAMILIES[key], list(group)) for key, group in groupby(entries, key=lambda e: e.family)]
    lines = [_HEAD.format(count=len(figures.problems), scale=SCALE, gamma=GAMMA)]
    for title, group in families:
        lines += [
            "",
            f"**{title}**",
            "",
            "| rule | use it when | one setting for all | tuned |",
            "|---|---|---|---|",
        ]
        lines += [figures.short(e) for e in group]
    for title, group in families:
        lines += ["", f"## {title}"]
        for e in group:
            lines += _section(e, figures)
    for title, listed in (("Known by name only", NAME_ONLY), ("Not here", LEFT_OUT)):
        lines += ["", f"## {title}", "", *(f"- **{_md(name)}**: {_md(why)}." for name, why in listed)]
    return "\n".join(lines) + "\n"


class Figures:
    """Every rule's row of the benchmark, on the problems held out that all of its rules were run on."""

    def __init__(self, readings: Readings) -> None:
        self.problems = common(readings)
        self.rows: dict[str, dict[str, Any]] = {
            row["family"]: row for row in summary(readings, self.problems)
        }
        self.first: dict[str, str] = {}  # by a rule's text, the first method that makes it
        for e in catalogue():
            if e.kind == "rule":
                self.first.setdefault(str(e.rule()), e.name)

    def of(self, e: Entry) -> tuple[str, dict[str, Any] | None]:
        """The name of the row, and the row if there is one."""
        same = self.first.get(str(e.rule()), e.name) if e.kind == "rule" else e.name
        for name in (e.name, same):
            row = self.rows.get(_BENCHMARK_NAMES.get(name, name))
            if row is not None:
                return str(row["family"]), row
        return "", None

    def short(self, e: Entry) -> str:
        _, row = self.of(e)
        cells = [_marked(row, what) for what in ("carried", "tuned")] if row else [self.why_not(e), ""]
        return f"| [`{e.name}`](#{e.name.lower()}) | {_md(e.use)} | {' | '.join(cells)} |"

    def full(self, e: Entry) -> list[str]:
        name, row = self.of(e)
        if row is None:
            return [f"In the benchmark: {self.why_not(e)}."]
        return [
            "| in the benchmark as | one setting for all | against fixed CFG | tuned | against tuned CFG | "
            "worst setting |",
            "|---|---|---|---|---|---|",
            f"| {_md(name)} | {row['carried euler']} | {_versus(row, 'carried')} | {row['tuned euler']} | "
            f"{_versus(row, 'tuned')} | {row['worst'].value:.3g} |",
        ]

    @staticmethod
    def why_not(e: Entry) -> str:
        if e.needs:
            return "not run: needs a third prediction, see [its page](avoid.md)"
        return "not run: needs images" if e.axes > 2 else "not run"


def _marked(row: dict[str, Any], what: str) -> str:
    return f"{row[f'{what} euler'].value:.3g}{_MARKS[row[f'{what} euler versus'].verdict]}"


def _versus(row: dict[str, Any], what: str) -> str:
    ratio = row[f"{what} euler versus"]
    return f"{ratio.value:.3g}{_MARKS[ratio.verdict]}"


def _section(e: Entry, figures: Figures) -> list[str]:
    lines = ["", f"### {e.name}", "", f"{_md(e.title[:1].upper() + e.title[1:])}."]
    if e.use:
        lines[-1] += f" Use it when {_md(e.use)}."
    if e.kind == "rule":
        lines += ["", f"![what {e.name} does to one gap](rules/{e.name}.svg)"]
    lines.append("")
    for name, text in facts(e):
        code = name in ("formula", "type", "which is")
        lines.append(f"- {name}: `{text}`" if code else f"- {name}: {_md(text)}")
    lines += ["", *figures.full(e)]
    if e.defaults:
        lines += ["", "| model | values | source |", "|---|---|---|"]
        lines += [f"| {_md(d.model)} | {_md(d.values)} | {_md(d.source)} |" for d in e.defaults]
    if e.differs:
        lines += ["", "Where ports and readings differ:", "", *(f"- {_md(text)}" for text in e.differs)]
    return lines


def _md(text: str) -> str:
    """Plain text inside Markdown: stars, underscores and bars mean themselves."""
    for mark in "\\*_|<":
        text = text.replace(mark, "\\" + mark)
    return text


_HEAD = """# Every rule

Every guidance method here by family, with its source, its formula, its published values, and where ports of
it differ. Generated by `meancap rules --page docs`; edit the entries, not this page.

Time runs from noise at 0 to data at 1; scale 1 is the conditional prediction. Every reduction is over one
sample. `| Cap(gamma)` may follow any rule and keeps its bound. The names can be typed wherever a rule is:
`parse`, the command line, a configuration.

**The figures** are of [the benchmark](benchmark.md): error over that of a perfect model (SW2, geometric mean)
on the {count} mixtures held out that every rule was run on; 1 would be perfect. *One setting for all* was
chosen on other mixtures, *tuned* on each mixture on other noise; ▼ better and ▲ worse than fixed CFG tuned in
the same way. In brackets 95 % intervals over mixtures: most of them overlap. Small mixtures are no images.
[Which rule when](which-rule.md) tells the families apart.

**The drawings** show one gap, in the plane of `m_c` and `m_c - m_u` and in units of `|m_c|`: u and c are the
two means, n that of something to avoid, CFG the mean of CFG at scale {scale:g}, the circle the ball of the
cap at Γ = {gamma:g}, and red is where the rule goes in the third of three steps, at scale {scale:g} unless it
says another or has none.
Numbers are its place; what leaves the plane is given as a length."""
