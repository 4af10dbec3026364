"""What is written beside a result.json, and from it alone: two tables, two figures and a sortable page.

regret    the error of one setting for all problems over that of CFG tuned on each: mean, nine tenths, worst
aligned   the error over that of CFG where both have the alignment of the truth
"""

from __future__ import annotations

import html
import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, NullLocator

from meancap.files import csv_text, write_whole

from ..report import style
from .cases import KINDS
from .families import FIXED, UNGUIDED
from .ratios import EVEN, FEWEST, Ratio, Result, Row

Table = list[dict[str, Any]]
_COLOURS = {
    "cap": style.GREEN, "learned": style.BLUE, "reference": style.VERMILION, "rival": style.GREY,
    "yours": style.PURPLE,
}  # fmt: skip
_ONE_SCALE = "CFG, one λ for all"
SHOWN = (
    "learned λ(t), 512 examples", "learned λ(t), 64 examples",
    "learned λ(t), 512, labels as in training", "learned λ(t), 512, calibrated cap q97", FIXED.name,
    "CFG 2, calibrated cap rms", "CFG 1.5", "CFG 5, anchored cap 1.1", UNGUIDED.name, "CFG 2, Cap 1.1",
    "CFG 5, Cap 1.1", "CFG 9, Cap 1.1", "CFG 2", "CFG 5",
)  # fmt: skip


def write_report(folder: str | Path) -> Path:
    """Tables, figures and leaderboard.html of a folder with a result.json."""
    root = Path(folder)
    result = Result(root)
    for name, table in tables(result).items():
        write_whole(root / f"{name}.csv", csv_text(table))
    for draw in (draw_regret, draw_aligned):
        style.save_figure(draw, root, draw.__name__.removeprefix("draw_"))
    return write_whole(root / "leaderboard.html", page_text(result))


def tables(result: Result) -> dict[str, Table]:
    """All rules at each number of evaluations, and by the kind of error, as plain numbers."""
    rules = [{"evaluations": n, **_plain(row)} for n in result.runs for row in result.rows(n)]
    kinds = []
    for n, run in result.runs.items():
        for rule in run["rules"]:
            for what, column in (("tuned", "sw2 sw2"), ("regret", "all sw2"), ("aligned", None)):
                logs = result.aligned_logs(n, rule) if column is None else result.logs(n, rule, column)
                if logs and not (what != "regret" and rule == FIXED.name):
                    found = result.by_kind(logs)
                    cells = {key: v for kind in KINDS for key, v in _numbers(kind, found[kind]).items()}
                    kinds.append({"evaluations": n, "rule": rule, "what": what, **cells})
    return {"rules": rules, "kinds": kinds}


def text_table(result: Result) -> str:
    """The first 15 rows at the smallest number of evaluations, and every rule of the user's own."""
    n = min(result.runs)
    rows = [row for i, row in enumerate(result.rows(n)) if i < 15 or row.group == "yours"]
    lines = [f"{'rule':<42}{'one setting for all':<22}{'worst':<8}{'tuned':<22}at equal alignment"]
    for row in rows:
        worst = f"{row.regret_worst:.2f}" if row.regret.n else "–"
        lines.append(f"{row.rule:<42}{row.regret!s:<22}{worst:<8}{row.tuned!s:<22}{row.aligned}")
    ran = f"{len(result.problems(n))} problems at {n} evaluations; SW2 over that of CFG tuned on each problem"
    return "\n".join([*lines, ran])


def _plain(row: Row) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in vars(row).items():
        found |= _numbers(name, value) if isinstance(value, Ratio) else {name: _short(value)}
    return found | {"tuned_verdict": row.tuned.verdict, "regret_verdict": row.regret.verdict,
                    "aligned_verdict": row.aligned.verdict}  # fmt: skip


def _numbers(name: str, ratio: Ratio) -> dict[str, Any]:
    parts = {"": ratio.value, "_low": ratio.low, "_high": ratio.high}
    return {f"{name}{end}": _short(value) for end, value in parts.items()} | {f"{name}_n": ratio.n}


def _short(value: Any) -> Any:
    """Four digits; None for what is not a number, so that tables have a gap and not a 'nan'."""
    if not isinstance(value, float):
        return value
    return float(f"{value:.4g}") if math.isfinite(value) else None


def page_text(result: Result) -> str:
    """The page with all rules; its script writes texts only, so no rule can become markup."""
    ran = "; ".join(f"{len(result.problems(n))} problems at {n} evaluations" for n in result.runs)
    data = json.dumps(tables(result)["rules"], ensure_ascii=False).replace("<", "\\u003c")
    parts = {"RAN": html.escape(ran), "DATA": data}
    template = Path(__file__).with_name("leaderboard.html").read_text(encoding="utf-8")
    return re.sub(r"\{\{([A-Z]+)\}\}", lambda match: parts[match.group(1)], template)


def draw_regret(folder: Path) -> Figure:
    """One panel for each number of evaluations: mean with its interval, nine tenths and the worst problem."""
    result = Result(folder)
    names = {row.rule for row in result.rows(min(result.runs)) if row.rule in SHOWN or row.group == "yours"}

    def mark(panel: Axes, row: Row, height: int) -> None:
        panel.plot(row.regret_q90, height, "|", color=style.GREY, ms=6)
        panel.plot(row.regret_worst, height, "x", color=style.GREY, ms=3)

    figure = _draw_ratios(result, names, "regret", mark, (1, 2, 4, 8, 16, 32), (0.8, 60))
    middle = figure.axes[len(result.runs) // 2]
    middle.set_xlabel("SW2 of one setting for all over that of CFG tuned on each problem")
    marks = [
        Line2D([], [], color=style.INK, marker="o", ms=3, lw=1.2, label="geometric mean, 95 %"),
        Line2D([], [], color=style.GREY, marker="|", ms=6, ls="", label="nine tenths of the problems"),
        Line2D([], [], color=style.GREY, marker="x", ms=3, ls="", label="worst problem"),
    ]
    figure.legend(handles=marks, loc="outside lower center", ncols=3)
    return figure


def draw_aligned(folder: Path) -> Figure:
    """Error over that of CFG at the truth's alignment, and how many problems reach it."""
    result = Result(folder)
    names = set(result.runs[min(result.runs)]["aligned"]) - {FIXED.name}

    def mark(panel: Axes, row: Row, height: int) -> None:
        note, where = f"{row.reached} of {row.wanted}", panel.get_yaxis_transform()
        panel.text(1, height, note, transform=where, ha="right", va="bottom", fontsize=5)

    figure = _draw_ratios(result, names, "aligned", mark, (0.6, 0.8, 1, 1.25, 1.6), (0.5, 2))
    for panel in figure.axes:
        panel.axvspan(1 / EVEN, EVEN, color=style.PALE, alpha=0.5, lw=0)
    middle = figure.axes[len(result.runs) // 2]
    middle.set_xlabel("SW2 over that of CFG, both at the truth's alignment; n of m problems reach it")
    return figure


def _draw_ratios(
    result: Result,
    names: set[str],
    column: str,
    mark: Callable[[Axes, Row, int], None],
    ticks: tuple[float, ...],
    limits: tuple[float, float],
) -> Figure:
    """A panel for each number of evaluations, the rules from the largest ratio up to the smallest."""
    rows = {n: {name: result.row(n, name) for name in names} for n in result.runs}
    shown = sorted(names, key=lambda name: -getattr(rows[min(rows)][name], column).value)
    figure, panels = style.panels(1, len(rows), style.PAGE, 0.2 * len(shown) + 0.9, sharey=True)
    for panel, (n, found) in zip(panels[0], rows.items(), strict=True):
        for height, row in enumerate(found[name] for name in shown):
            ratio, colour = getattr(row, column), _COLOURS[row.group]
            if ratio.n:
                panel.plot(ratio.value, height, "o", color=colour, ms=3.5)
                mark(panel, row, height)
            if ratio.n >= FEWEST:
                panel.plot([ratio.low, ratio.high], [height, height], color=colour, lw=1.4)
        panel.set(xscale="log", xlim=limits, title=f"{n} evaluations, {len(result.problems(n))} problems")
        panel.xaxis.set_minor_locator(NullLocator())
        panel.set_xticks(ticks)
        panel.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
        panel.axvline(1, color=style.INK, lw=0.7, ls="--")
    panels[0, 0].set_yticks(range(len(shown)), [_ONE_SCALE if name == FIXED.name else name for name in shown])
    return figure
