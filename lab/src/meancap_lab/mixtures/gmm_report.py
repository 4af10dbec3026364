"""The report of a `reproduce gmm` folder: its tables and words, every number in them read from the folder."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from meancap.files import remove_leftovers, write_whole

from ..report import style
from ..report.document import Block, Code, FigureFile, Heading, Table, Text, aligned, html, markdown
from .gmm_figures import (
    DIGITS,
    FIGURES,
    SCENES,
    Row,
    cell_numbers,
    cell_text,
    read_limits,
    read_run,
    read_table,
)

_HEADS = ("occupancy %", "variance ratio", "TV", "mean error")
_Table = dict[tuple[str, str], Row]
_Limits = dict[tuple[str, str, str], list[Row]]
_CAPTIONS = {
    "overview": """**The cap at one real state.** From x the field points to a posterior mean. Fixed CFG
        extrapolates along the dashed ray to a mean far outside the data; the cap stops where the mean would
        be longer than Γ times the conditional one. Every point is computed, none is drawn by hand.""",
    "endpoints": """**Samples at t = 1.** Diamonds are the conditioned means; the inset enlarges component
        0, with the circle that holds 95 % of its target.""",
    "marginals": "**Marginals, 101 bins, against the exact target.** One vertical scale per column.",
    "landscape": """**The landscape that guidance climbs.** log p(A | x) for A = {0,1,2}; diamonds are the
        conditioned components at t μ, white lines are levels. On every circle it peaks on the middle ray,
        and along a ray it rises outward without end.""",
    "trajectories": """**Paths and the means they follow.** Within a column all three rules start from the
        same noise; the first means of fixed CFG lie outside the frame.""",
    "meter": """**The guidance meter.** The cap grants little while the gap is wide and releases by itself
        when it closes; the ratio never passes Γ.""",
    "contraction": """**How much of the contraction is Euler's.** Left: what Euler steps alone leave of the
        variance of one Gaussian. Right: every branch of the table, with 50 Euler steps and in continuous
        time.""",
}


def write_report(folder: str | Path) -> Iterator[Path]:
    """Draws every figure and then writes both reports, yielding each file as it appears."""
    folder = Path(folder)
    for name, draw in FIGURES.items():
        yield from style.save_figure(draw, folder, name)
    content = _blocks(folder)
    for name, text in (("report.md", markdown(content)), ("report.html", html(content, folder))):
        yield write_whole(folder / name, text)
    for place in (folder, folder / "figures"):
        remove_leftovers(place)


def table_text(folder: Path) -> str:
    """The table for a terminal: ours beside the paper's, and the largest |z| of each row."""
    lines = []
    for row in read_table(folder).values():
        ours, paper = ([cell_text(row[kind + m], d) for m, d in DIGITS.items()] for kind in ("", "paper_"))
        largest = max(abs(z) for metric in DIGITS for z in cell_numbers(row[f"z_{metric}"]))
        lines.append((row["members"], row["guidance"], "ours", *ours, f"{largest:.1f}"))
        lines.append(("", "", "paper", *paper, ""))
    heads = ("A", "guidance", "", *_HEADS, "largest |z|")
    return aligned(Table(heads, (tuple(lines),), names=len(heads)))


def _blocks(folder: Path) -> list[Block]:
    run, table, limits = read_run(folder), read_table(folder), read_limits(folder)
    return [
        Heading("The eight-point mixture of Peng & Ma, run again", 1),
        _verdict(table),
        Heading("The table"),
        _how_compared(run),
        _comparison(table),
        Heading("What comes out"),
        _picture("endpoints"),
        _picture("marginals"),
        Heading("Which part of the contraction is Euler's"),
        _euler(run, limits),
        _euler_loss(table, limits),
        _picture("contraction"),
        Heading("What the variance ratio hides"),
        *_shape(limits),
        Heading("How it comes about"),
        *map(_picture, ("overview", "landscape", "trajectories", "meter")),
        Heading("What this experiment cannot show"),
        Text("""The fields are exact and the target is p(x | A), so no guidance at all is optimal here,
            and every metric of the table rewards doing less. The table shows what guidance costs, and what
            the cap saves of it. Whether guidance is worth its cost is a question about imperfect models, of
            which there is none here."""),
        Heading("How it was made"),
        *_how_made(run),
    ]


def _picture(name: str) -> FigureFile:
    return FigureFile(f"figures/{name}.png", _CAPTIONS[name])


def _verdict(table: _Table) -> Text:
    scores = [z for row in table.values() for m in DIGITS for z in cell_numbers(row[f"z_{m}"])]
    largest, beyond = max(map(abs, scores)), sum(abs(z) > 2 for z in scores)
    fixed, capped = (cell_numbers(table["{0,1,2}", g]["tv"])[0] for g in ("Fixed CFG", "PMC-CFG"))
    if largest <= 4:
        within = f"{math.ceil(10 * largest) / 10:.1f} standard deviations of ours"
        agree = f"**All {len(scores)} numbers of the paper's table lie within {within}**"
    else:
        far = f"{sum(abs(z) > 4 for z in scores)} of {len(scores)} numbers of the paper's table"
        agree = f"**{far} are over 4 standard deviations from ours**"
    return Text(f"""{agree}, {beyond or "none"} of them beyond 2. Guidance at λ = 3 moves and narrows the
        branches and feeds the middle one; the cap Γ = 1.1 takes most of that back: on {{0,1,2}} the
        occupancy is off by {fixed:.3f} in total variation under fixed CFG and by {capped:.3f} under the
        cap.""")


def _how_compared(run: dict[str, Any]) -> Text:
    n, repeats = run["config"]["samples"], run["config"]["repeats"]
    draws = f"one draw of {n:,} samples" if repeats == 1 else f"means of {repeats} draws of {n:,} samples"
    source = "these repeats" if run["spread"] == "own repeats" else "the repeats that come with the package"
    text = f"""Ours are {draws} in each row. z is (paper − ours) over the standard deviation of that
        difference, both sides being draws; the spread of one draw is that of {source} and stands in
        `table.csv`."""
    if n < 200_000:
        text += """ With fewer samples than the paper's 200,000, total variation and mean error carry a bias
            of chance (they are lengths, and the length of noise is positive), so their z-scores lean to one
            side."""
    return Text(text)


def _euler(run: dict[str, Any], limits: _Limits) -> Text:
    def single(guidance: str) -> tuple[float, float, str]:
        row = limits["{0}", guidance, "variance_ratio"][0]
        steps, exact = float(row["euler"]), float(row["continuous"])
        return steps, exact, f"{_euler_part(steps, exact):.0%}"

    capped, fixed = single("PMC-CFG"), single("Fixed CFG")
    tv = float(limits["{0,1,2}", "Conditional", "tv"][0]["euler"])
    ratios = [row for rows in limits.values() for row in rows if row["metric"] == "variance_ratio"]
    error, change = (max(float(row[k]) for row in ratios) for k in ("standard_error", "grid_error"))
    return Text(f"""Fifty Euler steps narrow a branch even where nothing guides: the variance of one
        Gaussian comes out as R_50 = {run["finished"]["R_50"]:.10f} of its exact value, by a closed formula,
        and the first row of the table is that and nothing else; in continuous time its ratio is 1. The
        singleton under the cap is {capped[0]:.3f} with Euler and {capped[1]:.3f} without, so that
        {capped[2]} of its contraction is Euler's; under fixed CFG it is {fixed[0]:.3f} and {fixed[1]:.3f},
        {fixed[2]}. The order of the rules stays, the sizes do not. Occupancies shift as well: the total
        variation of the unguided triple, {tv:.4f} in expectation, is Euler's alone. The columns below are
        expectations over quasi-random noise. Continuous time is fourth-order Runge–Kutta on a graded grid;
        standard errors are at most {error:.4f}, and half as many steps change no ratio by more than
        {change:.4f}.""")


def _comparison(table: _Table) -> Table:
    """Ours, the paper's and z, three lines for each setting."""
    groups = []
    for row in table.values():
        head = (row["members"], row["guidance"], row["scale"], row["gamma"] or "—")
        ours = (cell_text(row[m], digits) for m, digits in DIGITS.items())
        paper = (cell_text(row[f"paper_{m}"], digits) for m, digits in DIGITS.items())
        z = (cell_text(row[f"z_{m}"], 1, sign="+") for m in DIGITS)
        groups.append(((*head, "ours", *ours), ("", "", "", "", "paper", *paper), ("", "", "", "", "z", *z)))
    return Table(("A", "guidance", "λ", "Γ", "", *_HEADS), tuple(groups), names=5)


def _euler_loss(table: _Table, limits: _Limits) -> Table:
    """The variance ratio of every branch with Euler steps and in continuous time, and the rule of its row."""
    groups: dict[str, list[tuple[str, ...]]] = {}
    for (members, guidance, metric), rows in limits.items():
        for row in rows if metric == "variance_ratio" else ():
            steps, exact = float(row["euler"]), float(row["continuous"])
            head = (members, guidance, f"`{table[members, guidance]['rule']}`", row["position"])
            error = f"± {float(row['standard_error']):.3f}"
            part = min(_euler_part(steps, exact), 1)
            lost = (f"{max(1 - exact, 0):.3f}", f"{exact - steps:.3f}", f"{part:.0%}")
            groups.setdefault(members, []).append((*head, f"{steps:.3f}", f"{exact:.3f}", error, *lost))
    columns = ("A", "guidance", "rule", "branch", "50 Euler steps", "continuous", "", "lost to guidance")
    return Table((*columns, "lost to Euler", "Euler's part"), tuple(map(tuple, groups.values())), names=4)


def _euler_part(steps: float, exact: float) -> float:
    """The part of the contraction 1 - steps that is gone in continuous time."""
    return (exact - steps) / (1 - steps)


def _shape(limits: _Limits) -> tuple[Text, Table]:
    """The variance along the ray of a branch and across it."""
    ratios = ("radial_ratio", "tangential_ratio")
    along, across = (float(limits["{0}", "PMC-CFG", metric][0]["continuous"]) for metric in ratios)
    text = Text(f"""The trace adds a branch's spread along its own ray and across it. In continuous time
        the cap leaves a singleton {along:.0%} of its variance along the ray and {across:.0%} of that across
        it: of the diversity it restores much less than of the length. Ratios above 1 come from samples on
        their way between branches.""")
    groups = []
    for members in SCENES:
        lines = []
        for guidance in style.GUIDANCE:
            cells = [
                " / ".join(f"{float(r[column]):.3f}" for r in limits[members, guidance, metric])
                for column in ("euler", "continuous")
                for metric in ratios
            ]
            lines.append((members, guidance, *cells))
        groups.append(tuple(lines))
    columns = ("A", "guidance", "along, Euler", "across, Euler", "along, continuous", "across, continuous")
    return text, Table(columns, tuple(groups), names=2)


def _how_made(run: dict[str, Any]) -> list[Block]:
    versions = ", ".join(f"{name} {version}" for name, version in run["made_with"].items())
    return [
        Code(run["command"]),
        *map(Text, run["protocol"]),
        Text(f"""Every row has noise of its own, named by seed, repeat and setting. Made with {versions},
            Python {run["python"]} on {run["machine"]}, engine {run["engine"]}. The engines agree up to
            rounding, and neither chunks nor threads change a number. Same seed and machine, same
            `table.csv`, byte for byte. Samples, histograms, paths and the meter are in `data/`, every
            figure also as SVG in `figures/`."""),
    ]
