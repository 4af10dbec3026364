"""Something to avoid: rules with a third prediction against CFG with the negative as its reference.

    narrow, wide   eight Gaussians on a circle (std 0.03 and 0.35), exact means, float64. The prompt means
                   components 0, 1 and 2, the negative 2 and 3, so that the truth is the law of 0 and 1
    garments       the shipped model asked for a shirt and not a pullover, float32; the shipped classifier
                   counts

A cell is one subject, rule and seed. Rules have their published values, nothing is tuned; SLD's warm-up is a
fifth of the steps, as 10 of 50 are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import torch
from torch import Tensor

from meancap.rules import parse
from meancap.sampling import autoguidance, beside, noise, sample, uniform
from meancap_lab.metrics.classifiers import fashion_classifier
from meancap_lab.mixtures import Condition
from meancap_lab.mixtures.measures import Ruler
from meancap_lab.mixtures.problems import Circle
from meancap_lab.models.classes import fashion
from meancap_lab.report.style import BLUE, GREEN, GREY, PAGE, panels
from meancap_lab.runs.config import sample_seed
from studies import common
from studies.common import Cells, Row, option

WIDTHS = {"narrow": 0.03, "wide": 0.35}
PROMPT, NEGATIVE, TRUTH = (0, 1, 2), (2, 3), (0, 1)
SHIRT, PULLOVER = 6, 2
# The name of each method, its rule, and whether the negative is the reference in the place of no condition.
METHODS = (
    ("CFG, no negative", "CFG({scale})", False),
    ("CFG, negative as reference", "CFG({scale})", True),
    ("Perp-Neg", "perp_neg({scale})", False),
    ("contrastive CFG", "contrastive({scale})", False),
    ("SLD", "sld({scale}, warmup={warmup})", False),
    ("CRG (second-hand)", "crg({scale})", False),
)


@dataclass(frozen=True)
class Study:
    """How much to run."""

    samples: int = option(512, "samples of a mixture, for each rule and seed")
    steps: int = option(50, "Euler steps on mixtures")
    scales: tuple[float, ...] = option((1.5, 3.0, 7.5), "guidance scales on mixtures")
    seeds: tuple[int, ...] = option((0, 1, 2), "noise seeds of the mixtures")
    pictures: int = option(60, "pictures of garments, for each rule and seed")
    picture_steps: int = option(12, "Euler steps on garments")
    picture_scales: tuple[float, ...] = option((2.0, 5.0), "guidance scales on garments")
    picture_seeds: tuple[int, ...] = option((0, 1), "noise seeds of the garments")


QUICK = Study(64, 10, (3.0,), (0, 1), 6, 4, (2.0,), (0,))


@dataclass(frozen=True)
class Line:
    """One rule on one subject."""

    subject: str
    method: str
    scale: float
    rule: str
    as_reference: bool = False


def lines(study: Study) -> Iterator[Line]:
    """Every rule plain and under Cap(1.1), at every scale."""
    for subject in (*WIDTHS, "garments"):
        steps = study.picture_steps if subject == "garments" else study.steps
        yield Line(subject, "unguided", 1.0, "CFG(1)")
        for method, template, as_reference in METHODS:
            for scale in study.picture_scales if subject == "garments" else study.scales:
                rule = template.format(scale=f"{scale:g}", warmup=steps // 5)
                for text in (rule, f"{rule} | Cap(1.1)"):
                    yield Line(subject, method, scale, text, as_reference)


@cache
def laws(width: float) -> tuple[Condition, Condition, Condition]:
    """What the prompt means, what the negative means, and the truth: the prompt without the negative."""
    whole = Circle(width).mixture()
    return Condition(whole, PROMPT), Condition(whole, NEGATIVE), Condition(whole, TRUTH)


@cache
def ruler(width: float, samples: int) -> Ruler:
    """The measures against the truth."""
    return Ruler(laws(width)[2], samples)


def mixture_cell(study: Study, line: Line, seed: int) -> dict[str, Tensor]:
    """Shares of p(negative | x) and p(truth | x), and SW2 to the truth."""
    prompt, negative, _ = laws(WIDTHS[line.subject])
    measure = ruler(WIDTHS[line.subject], study.samples)
    make = autoguidance if line.as_reference else lambda one, other: beside(one, negative=other)
    start = noise([sample_seed(seed, i) for i in range(study.samples)], (2,)).double()
    x = sample(make(prompt.predict, negative.predict), parse(line.rule), start, uniform(study.steps))
    avoided = negative.log_posterior(x, 1.0).exp().mean()
    values = {"avoided": avoided, "wanted": measure.alignment(x), "sw2": measure.sw2(x)}
    return {name: torch.as_tensor(value, dtype=torch.float64) for name, value in values.items()}


def garment_cell(study: Study, line: Line, seed: int) -> dict[str, Tensor]:
    """The class that the shipped classifier sees in each picture."""
    model, rule = fashion(), parse(line.rule)
    third = {"negative": PULLOVER} if line.as_reference or rule.needs else {}
    predict = model.predict([SHIRT] * study.pictures, **third)
    x = noise([sample_seed(seed, i) for i in range(study.pictures)], model.shape)
    pictures = model.decode(sample(predict, rule, x, uniform(study.picture_steps)))
    return {"seen": fashion_classifier()(pictures.permute(0, 2, 3, 1))["logits"].argmax(1)}


def readings(study: Study, cells: Cells) -> Iterator[Row]:
    """One row for each rule: shares with their standard errors, and the distance to the truth."""
    for line in lines(study):
        row: Row = {"subject": line.subject, "method": line.method, "scale": line.scale, "rule": line.rule}
        garments = line.subject == "garments"
        work, seeds = (garment_cell, study.picture_seeds) if garments else (mixture_cell, study.seeds)
        name = f"{line.subject}-{line.method}-{line.rule}"
        made = [cells.make(f"{name}-seed{s}", partial(work, study, line, s)) for s in seeds]
        if garments:
            seen = torch.cat([cell["seen"] for cell in made])
            values = {"avoided": seen == PULLOVER, "wanted": seen == SHIRT}
        else:
            values = {k: torch.stack([cell[k] for cell in made]) for k in ("avoided", "wanted", "sw2")}
        for key, value in values.items():
            row[key] = float(value.double().mean())
            row[f"{key} ±"] = float(value.double().std() / len(value) ** 0.5) if len(value) > 1 else ""
        yield row
    for subject, width in WIDTHS.items():
        _, negative, truth = laws(width)
        x = truth.conditional.sample(study.samples, torch.Generator().manual_seed(0))
        floor = ruler(width, study.samples).floor()
        row = {"subject": subject, "method": "the truth itself", "scale": 1.0, "rule": ""}
        row["avoided"] = float(negative.log_posterior(x, 1.0).exp().mean())
        yield row | {"wanted": floor["alignment"], "sw2": floor["sw2"]}


def parts(folder: Path) -> dict[str, str]:
    """The table of the page: each rule plain and capped, its scales in order."""
    groups: dict[str, dict[str, list[Row]]] = {}
    for row in common.read_csv(folder / "readings.csv"):
        name = row["method"] + (", Cap(1.1)" if row["rule"].endswith("Cap(1.1)") else "")
        groups.setdefault(name, {}).setdefault(row["subject"], []).append(row)
    columns = [("narrow", "avoided"), ("narrow", "sw2"), ("wide", "avoided"), ("wide", "sw2"),
               ("garments", "avoided"), ("garments", "wanted")]  # fmt: skip
    table = [
        [name, *(", ".join(f"{float(r[key]):.2f}" for r in of.get(s, [])) or "–" for s, key in columns)]
        for name, of in groups.items()
    ]
    head = ["rule", "narrow: avoided", "distance", "wide: avoided", "distance", "pullovers", "shirts"]
    return {"readings": common.markdown(head, table)}


def draw(cells: Cells):
    """What should be avoided over the distance to the truth or the share of shirts."""
    figure, axes = panels(1, 3, PAGE, 2.4)
    rows = [row for row in common.read_csv(cells.folder / "readings.csv") if row["rule"]]
    for place, subject in zip(axes[0], (*WIDTHS, "garments"), strict=True):
        x = "wanted" if subject == "garments" else "sw2"
        for label, colour, mark in (("plain", BLUE, "o"), ("Cap(1.1)", GREEN, "o"), ("unguided", GREY, "D")):
            own = [r for r in rows if r["subject"] == subject and _label(r) == label]
            points = [[float(r[key]) for r in own] for key in (x, "avoided")]
            place.plot(*points, mark, color=colour, markersize=3, label=label)
        place.set(title=subject, xlabel="shirts" if x == "wanted" else "distance to the truth (SW2)")
        if x == "sw2":
            place.set_xscale("log")
            place.set_xticks([0.1, 0.3, 1, 3, 10], ["0.1", "0.3", "1", "3", "10"])
            place.set_xticks([], minor=True)
    axes[0, 0].set_ylabel("share that should be avoided")
    axes[0, 2].legend(fontsize=6)
    return figure


def _label(row: dict[str, str]) -> str:
    if row["method"] == "unguided":
        return "unguided"
    return "Cap(1.1)" if row["rule"].endswith("Cap(1.1)") else "plain"


def main(argv: Sequence[str] | None = None) -> None:
    example = "python -m studies.avoid --out out/avoid"
    common.run(argv, __doc__, example, (Study(), QUICK), readings, parts, {"avoided": draw})
