"""The pages that a benchmark's numbers stand on, from its readings: the same sentences for every run.

    python tools/bench_page.py FOLDER docs      from a folder of `meancap bench lab`
    python tools/bench_page.py docs             again, from what the documents keep

keeps run.json, readings.csv and coverage.json in docs/benchmark/, draws the figures there, and writes
docs/benchmark.md, docs/which-rule.md and the marked parts of docs/choosing-gamma.md. Then write docs/rules.md
with tools/rules_page.py.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from meancap.files import write_whole
from meancap.lab.measures import Ruler
from meancap.lab.problems import KINDS
from meancap.lab.problems import problem as problem_named
from meancap.report import bench_figures, style
from meancap.report.document import with_parts
from meancap.report.leaderboard import settings
from meancap.runs.bench.config import NAMED
from meancap.runs.bench.families import FIXED, GAMMAS, PAPER, PERFECT
from meancap.runs.bench.intervals import Ratio, coverage
from meancap.runs.bench.readings import Readings, read_readings
from meancap.runs.bench.tables import common, held_out, kinds, matched, named, selected, summary

Row = dict[str, Any]
_TOOLS = Path(__file__).parent
_MARK = {"better": " ▼", "worse": " ▲", "even": ""}
_EVERY = "every problem held out"


def publish(folder: Path, docs: Path) -> None:
    """The pages and what they are made from, into a folder of documents."""
    kept = docs / "benchmark"
    kept.mkdir(parents=True, exist_ok=True)
    if folder != kept:
        for name in ("run.json", "readings.csv"):
            write_whole(kept / name, (folder / name).read_bytes())
        write_whole(kept / "coverage.json", json.dumps(_coverages(read_readings(kept)), indent=1) + "\n")
    for draw in (bench_figures.ranking, bench_figures.fronts):
        for path in style.save_figure(draw, kept, draw.__name__):
            if path.suffix == ".png":
                write_whole(kept / path.name, path.read_bytes())
            path.unlink()
    (kept / "figures").rmdir()
    for name, text in pages(docs).items():
        write_whole(docs / name, text.encode())


def pages(docs: Path) -> dict[str, str]:
    """The text of each page, from docs/benchmark and, for a page with marked parts, from itself."""
    numbers = Numbers(docs / "benchmark")
    choosing = (docs / "choosing-gamma.md").read_text(encoding="utf-8")
    marked = {"gamma table": numbers.gammas(), "gamma reading": numbers.gamma_reading()}
    return {
        "benchmark.md": _filled("benchmark_page.md", numbers.benchmark()),
        "which-rule.md": re.sub(
            r"\{\{([^}]+)\}\}",
            lambda match: numbers.rows(match[1].split("; ")),
            (_TOOLS / "which_rule_page.md").read_text(encoding="utf-8"),
        ),
        "choosing-gamma.md": with_parts(choosing, marked),
    }


def _filled(template: str, parts: dict[str, str]) -> str:
    text = (_TOOLS / template).read_text(encoding="utf-8")
    return re.sub(r"\{\{([A-Z]+)\}\}", lambda match: parts[match[1]], text)


def _coverages(readings: Readings) -> dict[str, float]:
    """Coverage of the intervals over blocks, simulated at the floor of each named problem."""
    c = readings.config
    rulers = {name: Ruler(problem_named(name).condition(), c.points, c.slices) for name in NAMED}
    return {name: round(coverage(ruler, c.named_blocks, 1000), 3) for name, ruler in rulers.items()}


class Numbers:
    """Every number of the pages."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.readings = read_readings(folder)
        self.summary = summary(self.readings)
        self.by_name = {row["family"]: row for row in self.summary}
        self.kinds = {row["family"]: row for row in kinds(self.readings)}
        self.aligned = matched(self.readings, "aligned")
        self.effective = matched(self.readings, "effective")
        self.everywhere = summary(self.readings, common(self.readings))
        most = len(held_out(self.readings))
        self.main = [row for row in self.summary if row["problems"] == most]
        self.rules = [row for row in self.main if row["group"] != "reference"]

    def benchmark(self) -> dict[str, str]:
        return {
            "SETTINGS": settings(self.readings),
            "HEADLINE": self.headline(),
            "TOP": self.top(),
            "PAPER": self.paper(),
            "SELECTED": self.selection(),
            "EULER": self.by_euler(),
            "AUDITS": self.audits(),
            "KINDS": self.kind_table(),
            "ALIGNED": _against(self.aligned, "equal alignment"),
            "EFFECTIVE": _against(self.effective, "equal effective scale"),
            "ALL": self.all(),
            "NAMED": self.named(),
            "PROBLEMS": self.problems(),
            "COVERAGE": self.coverage(),
        }

    def headline(self) -> str:
        own, fixed = self.by_name[PAPER.name], self.by_name[FIXED.name]
        first = self.rules[0]
        place = [row["family"] for row in self.rules].index(PAPER.name) + 1
        tuned = sorted(self.rules, key=lambda row: row["tuned euler"].value)
        also = [row["family"] for row in tuned].index(PAPER.name) + 1
        return (
            f"**On {own['carried euler'].n} mixtures that nothing was tuned on**, with one setting for all, "
            f"fixed CFG has {fixed['carried euler']} times the error of a perfect model, the paper's "
            f"cap (Γ = 1.1) {own['carried euler']}, and the first of the {len(self.rules)} rules, "
            f"{first['family']}, {first['carried euler']}. The cap is number {place}. Against fixed CFG, "
            f"problem by problem, the cap is **{_word(own['carried euler versus'])}**.\n\n"
            f"**Tuned on each mixture** (other noise than it is scored on) fixed CFG has "
            f"{fixed['tuned euler']}, the cap {own['tuned euler']}, and the first, {tuned[0]['family']}, "
            f"{tuned[0]['tuned euler']}. The cap is number {also}; against fixed CFG it is "
            f"**{_word(own['tuned euler versus'])}**.{self.calls()}"
        )

    def calls(self) -> str:
        """Density feedback costs calls: what it has with as many as the others, where that was run."""
        rows = {row["family"]: row for row in self.everywhere}
        full, half = (rows.get(f"density feedback{more}") for more in ("", ", equal calls"))
        if full is None or half is None:
            return ""
        return (
            "\n\nDensity feedback asks the model twice per step. With half the steps, so with as many calls "
            f"as the others, it has {half['carried euler']} with one setting for all and "
            f"{half['tuned euler']} tuned, on the {half['problems']} problems where that was run; with all "
            f"steps it has {full['carried euler']} and {full['tuned euler']} there, fixed CFG "
            f"{rows[FIXED.name]['carried euler']} and {rows[FIXED.name]['tuned euler']}."
        )

    def top(self) -> str:
        shown = [*self.rules[:10], *(self.by_name[n] for n in ("no guidance", FIXED.name, "known optimum"))]
        if self.by_name[PAPER.name] not in shown:
            shown.append(self.by_name[PAPER.name])
        return _summary_table(shown, numbered=10)

    def paper(self) -> str:
        """Every comparison of the paper's rule with fixed CFG, good or bad, one line each."""
        own = self.by_name[PAPER.name]
        lines = [
            ("one setting for all", own["carried euler versus"]),
            ("one setting for all, converged solver", own["carried midpoint versus"]),
            ("tuned on each problem", own["tuned euler versus"]),
            ("tuned on each problem, converged solver", own["tuned midpoint versus"]),
        ]
        for table, what in ((self.aligned, "equal alignment"), (self.effective, "equal effective scale")):
            lines += [(what, row["versus"]) for row in table if row["family"] == PAPER.name]
        here, fixed = self.kinds[PAPER.name], self.kinds[FIXED.name]
        rows = [f"| {what} | {ratio} | {ratio.n} | {ratio.verdict} |" for what, ratio in lines]
        each = [
            f"| {kind} | {here[f'{kind} carried']} | {fixed[f'{kind} carried']} | "
            f"{here[f'{kind} tuned']} | {fixed[f'{kind} tuned']} |"
            for kind in KINDS
        ]
        worst = own["worst"], self.by_name[FIXED.name]["worst"]
        return "\n".join(
            [
                "| comparison | error over that of fixed CFG [95 %] | problems | the cap is |",
                "|---|---|---|---|",
                *rows,
                "",
                f"At the worst of the settings tried the error is {worst[0]} times that of a perfect model "
                f"for the cap, {worst[1]} for fixed CFG (whose scale goes to 20 and not to 1000).",
                "",
                "Excess by the error of the model:",
                "",
                "| model's error | cap, one setting | CFG, one setting | cap, tuned | CFG, tuned |",
                "|---|---|---|---|---|",
                *each,
            ]
        )

    def selection(self) -> str:
        parts = []
        for what, title in (("carried", "One setting for all"), ("tuned", "Tuned on each problem")):
            gained, often = selected(self.readings, what)
            names = ", ".join(f"{name} ({share:.0%})" for name, share in often)
            parts.append(
                f"{title}: {gained} times the error of fixed CFG ({gained.verdict}); chosen most often: "
                f"{names}."
            )
        return " ".join(parts)

    def by_euler(self) -> str:
        marked = [row for row in self.rules if row["by euler"]]
        if not marked:
            return "No rule that is better than fixed CFG by Euler loses that with the converged solver."
        lines = [
            f"- {_cell(row['family'])}: carried over {row['carried euler versus']}, converged "
            f"{row['carried midpoint versus']}; tuned {row['tuned euler versus']}, converged "
            f"{row['tuned midpoint versus']} (error over that of fixed CFG)"
            for row in marked
        ]
        return "\n".join(
            [
                f"{len(marked)} rules are better than fixed CFG by Euler and not with the converged solver:",
                "",
                *lines,
            ]
        )

    def audits(self) -> str:
        better = [r["family"] for r in self.effective if r["versus"].verdict == "better"]
        worse = [r["family"] for r in self.effective if r["versus"].verdict == "worse"]
        beats = [r for r in self.rules if r["tuned euler versus"].verdict == "better"]
        fixed = self.kinds[FIXED.name]
        consistent = [
            r["family"]
            for r in beats
            if all(
                self.kinds[r["family"]][f"{k} tuned"].value <= 1.02 * fixed[f"{k} tuned"].value for k in KINDS
            )
        ]
        carried = [r["family"] for r in self.rules if r["carried euler versus"].verdict == "better"]
        return (
            "*Guidance Matters* ([2602.22570](https://arxiv.org/abs/2602.22570)) finds "
            "that most gains vanish at equal effective scale. Here, each tuned rule against fixed CFG at the "
            f"scale that the rule's displacement had along the gap: of {len(self.effective)} rules "
            f"{len(better)} stay better ({_listed(better)}), {len(worse)} are worse ({_listed(worse)}).\n\n"
            "*Revisiting CFG* ([2608.16786](https://arxiv.org/abs/2608.16786)) finds that nothing beats CFG "
            f"consistently. Here {len(beats)} of {len(self.rules)} rules beat tuned fixed CFG "
            f"over {_EVERY}; {len(consistent)} of these are not worse by more than 2 % for any kind of error "
            f"({_listed(consistent)}). With one setting for all {len(carried)} beat it "
            f"({_listed(carried)})."
        )

    def kind_table(self) -> str:
        shown = [row["family"] for row in self.main if row["family"] != PERFECT.name]
        head = " | ".join(KINDS)
        lines = [f"| rule | {head} |", "|---" * (len(KINDS) + 1) + "|"]
        for name in shown:
            row = self.kinds[name]
            cells = (f"{_value(row[f'{k} carried'])} · {_value(row[f'{k} tuned'])}" for k in KINDS)
            lines.append(f"| {_cell(name)} | {' | '.join(cells)} |")
        return "\n".join(lines)

    def all(self) -> str:
        text = _summary_table(self.everywhere)
        if len(self.everywhere) == len(self.main):
            return text
        rules, most = len(self.everywhere), len(held_out(self.readings))
        return (
            f"All {rules} on the {len(common(self.readings))} problems held out that every one of them was "
            f"run on; the tables above are of the {len(self.main)} that were run on all {most}.\n\n{text}"
        )

    def named(self) -> str:
        parts = []
        table = named(self.readings)
        for problem in dict.fromkeys(row["problem"] for row in table):
            here = [row for row in table if row["problem"] == problem]
            ranked = [row for row in here if row["group"] != "reference"]
            shown = [
                row
                for row in here
                if row in ranked[:8] or row["group"] == "reference" or row["family"] == PAPER.name
            ]
            lines = [
                f"**{problem}**: {problem_named(problem).about}",
                "",
                "| rule | setting | SW2, Euler | excess, Euler | excess, converged |",
                "|---|---|---|---|---|",
            ]
            for row in shown:
                setting = ", ".join(f"{_symbol(k)} = {v:g}" for k, v in row["setting"].items()) or "–"
                lines.append(
                    f"| {_cell(row['family'])} | {setting} | {row['sw2 euler']} | {row['excess euler']} | "
                    f"{row['excess midpoint']} |"
                )
            parts.append("\n".join(lines))
        return "\n\n".join(parts) or "Not run."

    def problems(self) -> str:
        counts = {kind: sum(problem_named(n).kind == kind for n in held_out(self.readings)) for kind in KINDS}
        return ", ".join(f"{count} {kind}" for kind, count in counts.items())

    def coverage(self) -> str:
        shares = json.loads((self.folder / "coverage.json").read_text(encoding="utf-8"))
        return ", ".join(f"{name} {share:.1%}" for name, share in shares.items())

    def gammas(self) -> str:
        titles = {f"cap {g:g}" if g != 1.1 else PAPER.name: f"`Cap({g:g})`" for g in GAMMAS}
        titles |= {
            "cap, Γ tuned": "`Cap`, Γ tuned", "anchored cap, Γ tuned": "anchored, Γ tuned",
            "displacement cap, Γ tuned": "`CapDisplacement`, Γ tuned",
            "calibrated cap, rms": "calibrated, rms", "calibrated cap, q90": "calibrated, q90",
        }  # fmt: skip
        lines = [f"| rule | {' | '.join(KINDS)} | all |", "|---" * (len(KINDS) + 2) + "|"]
        for name, title in {FIXED.name: "fixed CFG", **titles}.items():
            here, every = self.kinds[name], self.by_name[name]
            cells = [f"{_value(here[f'{k} carried'])} · {_value(here[f'{k} tuned'])}" for k in KINDS]
            both = f"{_value(every['carried euler'])} · {_value(every['tuned euler'])}"
            lines.append(f"| {title} | {' | '.join(cells)} | {both} |")
        return "\n".join(lines)

    def gamma_reading(self) -> str:
        plain = [f"cap {g:g}" if g != 1.1 else PAPER.name for g in GAMMAS]
        caps = [
            *plain,
            *(row["family"] for row in self.rules if row["group"] == "cap" and row["family"] not in plain),
        ]
        lines = []
        for kind in KINDS:
            best = min(plain, key=lambda name: self.kinds[name][f"{kind} tuned"].value)
            first = min(caps, key=lambda name: self.kinds[name][f"{kind} tuned"].value)
            fixed = self.kinds[FIXED.name][f"{kind} tuned"]
            lines.append(
                f"- **{kind}**: of the five Γ the best is {_gamma(best)} "
                f"({_value(self.kinds[best][f'{kind} tuned'])} against {_value(fixed)} of fixed CFG, both "
                f"tuned); of all caps {first} ({_value(self.kinds[first][f'{kind} tuned'])})."
            )
        verdicts = {
            what: [name for name in caps if self.by_name[name][f"{what} euler versus"].verdict == "better"]
            for what in ("carried", "tuned")
        }
        losing = {
            what: [name for name in caps if self.by_name[name][f"{what} euler versus"].verdict == "worse"]
            for what in ("carried", "tuned")
        }
        words = [
            f"{title} {_listed(verdicts[what])} beat it and {_listed(losing[what])} lose to it"
            for what, title in (("tuned", "tuned,"), ("carried", "with one setting for all,"))
        ]
        lines.append(
            f"- **Over all problems, against fixed CFG**: {'; '.join(words)}. The other caps cannot be told "
            "from it."
        )
        return "\n".join(lines)

    def rows(self, names: list[str]) -> str:
        lines = [
            "| rule | problems | one setting for all | against fixed CFG | tuned | against tuned CFG | "
            "worst setting | equal alignment |",
            "|---" * 8 + "|",
        ]
        aligned = {row["family"]: row["versus"] for row in self.aligned}
        for name in names:
            if name not in self.by_name:
                raise ValueError(f"no rule of this run is called {name!r}")
            row = self.by_name[name]
            versus, tuned = row["carried euler versus"], row["tuned euler versus"]
            lines.append(
                f"| {_cell(name)} | {row['problems']} | {row['carried euler']} | "
                f"{_value(versus)}{_MARK[versus.verdict]} | "
                f"{row['tuned euler']} | {_value(tuned)}{_MARK[tuned.verdict]} | {_value(row['worst'])} | "
                f"{_value(aligned[name]) if name in aligned else '–'} |"
            )
        return "\n".join(lines)


def _summary_table(rows: list[Row], numbered: int = 0) -> str:
    lines = [
        "| | rule | one setting for all | converged | tuned on each | converged | worst setting |",
        "|---" * 7 + "|",
    ]
    for i, row in enumerate(rows):
        cells = []
        for what in ("carried", "tuned"):
            for solver in ("euler", "midpoint"):
                own, versus = row[f"{what} {solver}"], row[f"{what} {solver} versus"]
                cells.append(f"{own if solver == 'euler' else _value(own)}{_MARK[versus.verdict]}")
        mark = " (E)" if row["by euler"] else ""
        number = str(i + 1) if i < numbered else ""
        lines.append(
            f"| {number} | {_cell(row['family'])}{mark} | {' | '.join(cells)} | {_value(row['worst'])} |"
        )
    return "\n".join(lines)


def _against(table: list[Row], what: str) -> str:
    lines = [
        f"| rule | error over that of fixed CFG at {what} [95 %] | problems | it is |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {_cell(r['family'])} | {r['versus']} | {r['versus'].n} | {r['versus'].verdict} |" for r in table
    ]
    return "\n".join(lines)


def _word(ratio: Ratio) -> str:
    """A verdict with its number."""
    return f"{ratio.verdict} ({ratio})"


def _value(ratio: Ratio) -> str:
    return f"{ratio.value:.3g}" if ratio.n else "–"


def _gamma(name: str) -> str:
    return "1.1" if name == PAPER.name else name.removeprefix("cap ")


def _symbol(knob: str) -> str:
    return {"scale": "λ", "gamma": "Γ", "pi": "π"}.get(knob, knob)


def _listed(names: list[str]) -> str:
    return ", ".join(names) or "none"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    *source, target = map(Path, sys.argv[1:])
    publish(source[0] if source else target / "benchmark", target)
