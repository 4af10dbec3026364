"""The words of the report, every number in them read from the folder."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from ..document import Block, Code, FigureFile, Heading, Items, Text
from . import read, tables

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
    "agreement": """**The paper's numbers in units of chance.** Numbers that chance cannot move are left
        out.""",
}


def blocks(folder: Path) -> list[Block]:
    """The whole report."""
    run = read.run(folder)
    return [
        Heading("The eight-point mixture of Peng & Ma, run again", 1),
        _verdict(folder),
        Heading("The table"),
        _how_compared(run),
        tables.comparison(folder),
        _picture("agreement"),
        Heading("What comes out"),
        _picture("endpoints"),
        _picture("marginals"),
        Heading("Which part of the contraction is Euler's"),
        _euler(folder, run),
        tables.euler_loss(folder),
        _picture("contraction"),
        Heading("What the variance ratio hides"),
        _shape(folder),
        tables.shape(folder),
        Heading("How it comes about"),
        *map(_picture, ("overview", "landscape", "trajectories", "meter")),
        Heading("What this experiment cannot show"),
        _prose("""The fields are exact and the target is p(x | A), so no guidance at all is optimal here,
            and every metric of the table rewards doing less. The table shows what guidance costs, and what
            the cap saves of it. Whether guidance is worth its cost is a question about imperfect models, of
            which there is none here."""),
        Heading("How it was made"),
        *_how_made(run),
    ]


def _picture(name: str) -> FigureFile:
    return FigureFile(f"figures/{name}.png", _joined(_CAPTIONS[name]))


def _verdict(folder: Path) -> Text:
    scores, table = tables.scores(folder), read.table(folder)
    largest, beyond = max(map(abs, scores)), sum(abs(z) > 2 for z in scores)
    fixed, capped = (read.numbers(table["{0,1,2}", g]["tv"])[0] for g in ("Fixed CFG", "PMC-CFG"))
    if largest <= 4:
        within = f"{math.ceil(10 * largest) / 10:.1f} standard deviations of ours"
        agree = f"**All {len(scores)} numbers of the paper's table lie within {within}**"
    else:
        far = f"{sum(abs(z) > 4 for z in scores)} of {len(scores)} numbers of the paper's table"
        agree = f"**{far} are over 4 standard deviations from ours**"
    return _prose(f"""{agree}, {beyond or "none"} of them beyond 2. Guidance at λ = 3 moves and narrows the
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
    return _prose(text)


def _euler(folder: Path, run: dict[str, Any]) -> Text:
    limits = read.limits(folder)

    def single(guidance: str) -> tuple[float, float, str]:
        row = limits["{0}", guidance, "variance_ratio"][0]
        steps, exact = float(row["euler"]), float(row["continuous"])
        return steps, exact, f"{tables.share(steps, exact):.0%}"

    capped, fixed = single("PMC-CFG"), single("Fixed CFG")
    tv = float(limits["{0,1,2}", "Conditional", "tv"][0]["euler"])
    ratios = [row for rows in limits.values() for row in rows if row["metric"] == "variance_ratio"]
    error, change = (max(float(row[k]) for row in ratios) for k in ("standard_error", "grid_error"))
    return _prose(f"""Fifty Euler steps narrow a branch even where nothing guides: the variance of one
        Gaussian comes out as R_50 = {run["finished"]["R_50"]:.10f} of its exact value, by a closed formula,
        and the first row of the table is that and nothing else; in continuous time its ratio is 1. The
        singleton under the cap is {capped[0]:.3f} with Euler and {capped[1]:.3f} without, so that
        {capped[2]} of its contraction is Euler's; under fixed CFG it is {fixed[0]:.3f} and {fixed[1]:.3f},
        {fixed[2]}. The order of the rules stays, the sizes do not. Occupancies shift as well: the total
        variation of the unguided triple, {tv:.4f} in expectation, is Euler's alone. The columns below are
        expectations over quasi-random noise. Continuous time is fourth-order Runge–Kutta on a graded grid;
        standard errors are at most {error:.4f}, and half as many steps change no ratio by more than
        {change:.4f}.""")


def _shape(folder: Path) -> Text:
    limits = read.limits(folder)
    along, across = (
        float(limits["{0}", "PMC-CFG", metric][0]["continuous"])
        for metric in ("radial_ratio", "tangential_ratio")
    )
    return _prose(f"""The trace adds a branch's spread along its own ray and across it. In continuous time
        the cap leaves a singleton {along:.0%} of its variance along the ray and {across:.0%} of that across
        it: of the diversity it restores much less than of the length. Ratios above 1 come from samples on
        their way between branches.""")


def _how_made(run: dict[str, Any]) -> list[Block]:
    versions = ", ".join(f"{name} {version}" for name, version in run["made_with"].items())
    return [
        Code(run["command"]),
        Items(tuple(run["protocol"])),
        _prose(f"""Every row has noise of its own, named by seed, repeat and setting. Made with {versions},
            Python {run["python"]} on {run["machine"]}, engine {run["engine"]}. The engines agree up to
            rounding, and neither chunks nor threads change a number. Same seed and machine, same
            `table.csv`, byte for byte. Samples, histograms, paths and the meter are in `data/`, every
            figure also as SVG in `figures/`."""),
    ]


def _prose(text: str) -> Text:
    return Text(_joined(text))


def _joined(text: str) -> str:
    return " ".join(text.split())
