"""One report from the records of all benchmarks: Markdown for reading in place, HTML as one file.

out/bench/NAME.jsonl  →  REPORT.md, REPORT.html, figures/*.svg beside this file
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.chart import chart
from benchmarks.counters import recorded
from benchmarks.records import Curve, Note, Reading, Row, Setting, number, read, shown, whole
from meancap_lab.report.document import Block, Drawing, Heading, Table, Text, html, markdown

TITLES = {
    "step": "The guidance step against diffusers",
    "gmm": "The mixture sampler against a naive loop and flow_matching",
    "generation": "Pictures from the shipped SiT against a loop of two calls",
    "metrics": "The metrics against torchmetrics, scipy and GEMM",
    "diffusers_overhead": "Guidance within a diffusers pipeline",
    "startup": "Importing the package and the command",
}
ABOUT = {
    "step": "Cost of one step over that of diffusers' `ClassifierFreeGuidance` on the same tensors: below 1, "
    "it is cheaper than plain CFG. The caches are flushed before each timed call, as after a network.",
    "gmm": "How many times as fast as the peer. The exp roofline counts the exponentials alone.",
    "generation": "How many times as fast as the peer, and the bytes in which the pictures differ. The "
    "second table says why a rule that always acts gains little: products, gelu and attention must be done "
    "for both predictions, whoever calls the network. It is timed beside the runs, and carries their noise.",
    "metrics": "How many times as fast as the peer, and shares of this machine's matrix product.",
    "diffusers_overhead": "A whole pipeline call with a rule over the same call without.",
    "startup": "CPU seconds of a fresh process over those of `import torch` in the same run.",
}
INTRODUCTION = (
    "Every ratio compares contenders that took turns in one process: the median over the rounds, and in "
    "brackets the least and the largest. Times are CPU time of one thread. What misses a goal is in **bold**."
)
COUNTED = (
    "Kernels that torch dispatches, bytes they touch and memory held, in sizes of one input tensor; samples "
    "through the network for one picture in ten steps. They do not depend on the machine, and the tests fail "
    "where one grows."
)
_DARK = """
svg.chart { max-width: 100%; height: auto; }
figure { display: inline-block; vertical-align: top; margin: 1rem .5rem; width: 29rem; max-width: 100%; }
th, td { white-space: normal; } th.n { max-width: 8rem; } td.n { white-space: nowrap; }
@media (prefers-color-scheme: dark) {
:root { --ink: #e6e6e6; --grey: #a0a4ab; --line: #3a3d42; --tint: #24272b; --blue: #56b4e9; }
body { background: #17191c; } }
</style>"""


def write(records: Path, target: Path) -> list[Path]:
    """Reads every benchmark's records in one folder and writes the report into another."""
    files = [path for name in TITLES if (path := records / f"{name}.jsonl").is_file()]
    if not files:
        raise FileNotFoundError(f"no records in {records}; run `python -m benchmarks` first")
    found = {path.stem: read(path) for path in files}
    blocks, drawings = document(found)
    (target / "figures").mkdir(parents=True, exist_ok=True)
    for drawing in drawings:
        whole(target / drawing.path, drawing.svg + "\n")
    page = html(blocks, target).replace("\n</style>", _DARK)
    return [whole(target / "REPORT.md", markdown(blocks)), whole(target / "REPORT.html", page)]


def document(found: dict[str, list[Row]]) -> tuple[list[Block], list[Drawing]]:
    rows = [row for one in found.values() for row in one]
    blocks: list[Block] = [
        Heading("Benchmarks", 1),
        Text(INTRODUCTION),
    ]
    if any(isinstance(row, Setting) and row.quick for row in rows):
        blocks.append(Text("**A quick run**: few rounds and cases, so that ratios are rough."))
    blocks += goals([row for row in rows if isinstance(row, Reading)])
    drawings: list[Drawing] = []
    for name, these in found.items():
        blocks.append(Heading(TITLES.get(name, name)))
        if name in ABOUT:
            blocks.append(Text(ABOUT[name]))
        blocks += [Text(row.text) for row in these if isinstance(row, Note)]
        readings = [row for row in these if isinstance(row, Reading)]
        for part in dict.fromkeys(r.bench for r in readings):
            blocks.append(pivot([r for r in readings if r.bench == part]))
        made = figures(name, [row for row in these if isinstance(row, Curve)])
        blocks += made
        drawings += made
    blocks += counters()
    blocks += settings([row for row in rows if isinstance(row, Setting)])
    return blocks, drawings


def goals(readings: Sequence[Reading]) -> list[Block]:
    """Every goal beside what was reached, the missed ones first."""
    aims = sorted((r for r in readings if r.goal is not None), key=lambda r: bool(r.met))
    missed = sum(not r.met for r in aims)
    groups = tuple(
        tuple(
            (r.bench, r.case, r.what, f"{'at most' if r.at_most else 'at least'} {number(r.goal or 0)}",
             shown(r) if r.met else f"**{shown(r)}**", "met" if r.met else "**missed**")
            for r in aims if bool(r.met) == met
        )
        for met in (False, True)
    )  # fmt: skip
    return [
        Heading("Goals"),
        Text(f"{len(aims) - missed} of {len(aims)} goals were met, {missed} missed."),
        Table(("benchmark", "case", "what", "goal", "reached", ""), tuple(g for g in groups if g), names=3),
    ]


def pivot(readings: Sequence[Reading]) -> Table:
    """Cases down, quantities across."""
    across = tuple(dict.fromkeys(r.what for r in readings))
    down = dict.fromkeys(r.case for r in readings)
    cells = {(r.case, r.what): shown(r) if r.met is not False else f"**{shown(r)}**" for r in readings}
    rows = tuple((case, *(cells.get((case, what), "") for what in across)) for case in down)
    return Table(("", *across), (rows,))


def figures(bench: str, curves: Sequence[Curve]) -> list[Drawing]:
    """One drawing for each title."""
    found = []
    for i, title in enumerate(dict.fromkeys(curve.title for curve in curves)):
        these = [curve for curve in curves if curve.title == title]
        caption = f"**{title}.** In {these[0].unit}; both axes are logarithmic."
        found.append(Drawing(chart(these), f"figures/{bench}-{i + 1}.svg", caption))
    return found


def counters() -> list[Block]:
    """What was recorded; the test suite counts again."""
    steps, others = [], []
    for name, value in recorded().items():
        kind, _, rest = name.partition(": ")
        what, _, case = rest.partition(", ")
        if kind == "step":
            steps.append(Reading(kind, case, what, value))
        else:
            others.append((kind, f"{what}, `{case}`" if what == "network" else rest, f"{value:g}"))
    table = Table(("", "counter", "recorded"), (tuple(others),), names=2)
    return [Heading("Counters without noise"), Text(COUNTED), pivot(steps), table]


def settings(found: Sequence[Setting]) -> list[Block]:
    first = found[0]
    versions = " · ".join(f"{name} {version}" for name, version in first.packages.items())
    rows = tuple((s.bench, str(s.threads), f"{s.load:g}") for s in found)
    same = all(s.packages == first.packages and s.processor == first.processor for s in found)
    note = "" if same else " **The benchmarks were not all run with these.**"
    return [
        Heading("Where it was measured"),
        Text(f"{first.processor}. {versions}.{note}"),
        Table(("benchmark", "threads", "load average at the start"), (rows,)),
    ]
