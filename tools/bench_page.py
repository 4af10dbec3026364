"""docs/benchmark.md from a benchmark folder: the same sentences for every run, with the numbers of that run.

    python tools/bench_page.py FOLDER docs

writes docs/benchmark.md, and into docs/benchmark/ what the page is made from: run.json, the tables without
the text of each rule (of the results only the references), and the figures. From there it can be made again.
"""

from __future__ import annotations

import json
import math
import re
import sys
from pathlib import Path
from typing import Any

from meancap.files import write_whole
from meancap.lab.problems import PROBLEMS
from meancap.report.bench_findings import Finding, findings
from meancap.runs.bench.families import FINER
from meancap.runs.bench.table_files import csv_text, read_csv

Row = dict[str, Any]
_TEMPLATE = Path(__file__).parent / "benchmark_page.md"


def publish(folder: Path, docs: Path) -> None:
    """The page and what it is made from, into a folder of documents."""
    kept = docs / "benchmark"
    kept.mkdir(parents=True, exist_ok=True)
    for path in [folder / "run.json", *sorted(folder.glob("figures/*.png"))]:
        write_whole(kept / path.name, path.read_bytes())
    for path in sorted(folder.glob("*.csv")):
        rows = [row for row in read_csv(path) if path.stem != "results" or row["group"] == "reference"]
        write_whole(kept / path.name, csv_text([_without_rule(row) for row in rows]).encode())
    write_whole(docs / "benchmark.md", page(kept).encode())


def _without_rule(row: Row) -> Row:
    return {key: value for key, value in row.items() if key != "rule"}


def page(folder: Path) -> str:
    """The whole page as Markdown."""
    run = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    found = findings(folder)
    own = [one for one in found if one.about == "the paper's rule"]
    other = [one for one in found if one.about == "calibration"]
    parts = {
        "SETTINGS": _settings(run),
        "WINS": _listed(own, "wins"),
        "LOSES": _listed(own, "loses"),
        "EVEN": _listed(own, "even"),
        "GAINS": _listed(other, "wins"),
        "COSTS": _listed(other, "loses"),
        "MIXED": _listed(other, "even"),
        "SUMMARY": _summary(read_csv(folder / "summary.csv")),
        "AVERAGES": _averages(read_csv(folder / "open_loop.csv")),
        "MATRIX": _matrix(read_csv(folder / "equal_scale.csv")),
        "ALIGNMENT": _alignment(read_csv(folder / "equal_alignment.csv")),
        "PROBLEMS": _problems(run["problems"]),
    }
    template = _TEMPLATE.read_text(encoding="utf-8")
    return re.sub(r"\{\{([A-Z]+)\}\}", lambda match: parts[match.group(1)], template)


def _settings(run: dict[str, Any]) -> str:
    c = run["config"]
    absent = [one.name for one in PROBLEMS if one.name not in run["problems"]]
    left = f" Not in this run: {', '.join(absent)}." if absent else ""
    more = ", ".join(f"{s:g}" for s in c["extra"] if s not in c["scales"])
    left = (f" For {', '.join(FINER)} also λ in {more}." if more else "") + left
    return (
        f"This run: {len(run['problems'])} problems, {len(run['families'])} rules, λ in "
        f"{', '.join(f'{s:g}' for s in c['scales'])}; {c['blocks']} × {c['points']} samples, {c['steps']} "
        f"Euler steps, {c['resamples']} bootstrap resamples, seed {c['seed']}.{left} The tables: "
        "[results](benchmark/results.csv), [equal scale](benchmark/equal_scale.csv), [equal "
        "alignment](benchmark/equal_alignment.csv), [own best scale](benchmark/tuned.csv), [open "
        "loop](benchmark/open_loop.csv), [calibration](benchmark/calibration.csv), "
        "[summary](benchmark/summary.csv)."
    )


def _listed(found: list[Finding], verdict: str) -> str:
    lines = [f"- {one.text}" for one in found if one.verdict == verdict]
    return "\n".join(lines) or "Nothing in this run."


def _summary(rows: list[Row]) -> str:
    every = sorted((r for r in rows if r["kind"] == "all"), key=lambda r: r["worst"])
    lines = [
        "SW2 over that of a perfect model with the same steps, geometric mean over the problems: with each "
        "rule's best scale, its worst, and its largest.",
        "",
        "| rule | worst scale | best scale | largest scale |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {_cell(r['family'])} | {_band(r, 'worst')} | {_band(r, 'best')} | {_band(r, 'last')} |"
        for r in every
    ]
    return "\n".join(lines)


def _averages(rows: list[Row]) -> str:
    rivals = {
        "open_loop": "open loop",
        "open_loop_push": "open loop, by push",
        "fixed_mean": "fixed mean",
        "fixed_push": "fixed push",
    }
    lines = [
        "What feedback is worth: better / even / worse settings by the paired difference of SW2, and the "
        "geometric mean of the ratio, against CFG with the rule's own mean schedule, the same weighted by "
        "the gap, and fixed CFG at its mean effective scale, plain and weighted by the gap. Below 1 the rule "
        "is more than a weaker CFG.",
        "",
        f"| rule | {' | '.join(rivals.values())} |",
        "|---" * (len(rivals) + 1) + "|",
    ]
    for family in dict.fromkeys(r["family"] for r in rows):
        cells = []
        for key in rivals:
            here = [r for r in rows if r["family"] == family and r.get(f"sw2_{key}") and r["sw2"]]
            seen = [r[f"sw2_vs_{key}_verdict"] for r in here]
            counts = " / ".join(str(seen.count(word)) for word in ("better", "even", "worse"))
            ratio = (
                math.exp(sum(math.log(r["sw2"] / r[f"sw2_{key}"]) for r in here) / len(here))
                if here
                else None
            )
            cells.append("–" if ratio is None else f"{counts}, {ratio:.3g}")
        lines.append(f"| {_cell(family)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _matrix(rows: list[Row]) -> str:
    here = [r for r in rows if r["scale"] == 3]
    problems = list(dict.fromkeys(r["problem"] for r in here))
    families = list(dict.fromkeys(r["family"] for r in here))
    known = {(r["family"], r["problem"]): r for r in here}
    lines = [
        "SW2; ▼ significantly below fixed CFG, ▲ above it, by the paired difference.",
        "",
        f"| rule | {' | '.join(problems)} |",
        "|---" * (len(problems) + 1) + "|",
    ]
    for family in families:
        cells = []
        for problem in problems:
            row = known.get((family, problem))
            mark = {"better": " ▼", "worse": " ▲"}.get(row["sw2_vs_cfg_verdict"], "") if row else ""
            cells.append(f"{row['sw2']:.3g}{mark}" if row and row["sw2"] is not None else "–")
        lines.append(f"| {_cell(family)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _alignment(rows: list[Row]) -> str:
    parts = [
        "Half of the way from no guidance to certainty where the model is exact, nine tenths of the way to "
        "the truth elsewhere; problems whose alignment is complete without guidance are left out, and so are "
        "rules whose alignment jumps by more than 0.1 between the two scales it is interpolated from. The "
        "ten lowest errors, and the paper's rule."
    ]
    for problem in dict.fromkeys(r["problem"] for r in rows):
        known = [r for r in rows if r["problem"] == problem and r["reached"] and r["resolved"]]
        here = sorted(known, key=lambda r: r["sw2"])
        own = [r for r in rows if r["problem"] == problem and r["family"] == "pmc"]
        if not own:
            continue
        shown = here[:10] + [r for r in here[10:] if r["family"] in ("pmc", "cfg")]
        title = f"**{problem}, alignment {own[0]['alignment']:.3g}**"
        if not own[0]["reached"]:
            title += f" (the paper's rule does not reach it: {own[0]['highest']:.3g} at most)"
        lines = [title, "", "| rule | λ | SW2 | minus fixed CFG | KL |", "|---|---|---|---|---|"]
        for r in shown:
            kl = "–" if r["kl"] is None else f"{r['kl']:.3g}"
            gap = "–" if r["sw2_vs_cfg"] is None else _band(r, "sw2_vs_cfg")
            lines.append(f"| {_cell(r['family'])} | {r['scale']:.3g} | {_band(r, 'sw2')} | {gap} | {kl} |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _problems(names: list[str]) -> str:
    lines = ["| problem | what it is | exact optimum |", "|---|---|---|"]
    for one in PROBLEMS:
        if one.name in names:
            best = "none that is fixed" if one.best_scale is None else f"λ = {one.best_scale:g}"
            lines.append(f"| {one.name} | {_cell(one.about)} | {best} |")
    return "\n".join(lines)


def _band(row: Row, key: str) -> str:
    low, high = row[f"{key}_low"], row[f"{key}_high"]
    value = f"{row[key]:.3g}"
    return value if low is None else f"{value} [{low:.3g}, {high:.3g}]"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    publish(Path(sys.argv[1]), Path(sys.argv[2]))
