"""Something to avoid: rules with a third prediction against CFG with the negative as its reference.

    narrow, wide   eight Gaussians on a circle (std 0.03 and 0.35), exact means. The prompt means components
                   0, 1 and 2, the negative 2 and 3, so that the truth is the law of 0 and 1
    garments       the shipped model asked for a shirt and not a pullover; the shipped classifier counts

A cell is one subject and one rule, with one entry per seed. Every rule has its published values, nothing is
tuned; SLD's warm-up is a fifth of the steps, as 10 of 50 are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..lab import Condition
from ..lab.measures import Ruler
from ..lab.problems import Circle
from ..metrics.classifiers import fashion_classifier
from ..models.classes import ClassModel, fashion
from ..rules import parse
from ..sampling import Predict, autoguidance, beside, noise, sample, uniform
from .cell_folder import CellFolder
from .config import sample_seed, versions

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
class AvoidStudy:
    """How much to run."""

    samples: int = 512  # of a mixture, for each rule and seed
    steps: int = 50
    scales: tuple[float, ...] = (1.5, 3.0, 7.5)
    pictures: int = 60  # of the garments, for each rule and seed
    picture_steps: int = 12
    picture_scales: tuple[float, ...] = (2.0, 5.0)
    seeds: tuple[int, ...] = (0, 1, 2)
    picture_seeds: tuple[int, ...] = (0, 1)

    def __post_init__(self) -> None:
        if self.samples < 2 or self.pictures < 1:
            raise ValueError(
                f"the study needs 2 samples and 1 picture or more; got {self.samples} and {self.pictures}"
            )


@dataclass(frozen=True)
class Line:
    """One rule on one subject."""

    subject: str
    method: str
    scale: float
    rule: str
    as_reference: bool

    @property
    def cell(self) -> str:
        kept = "".join(c if c.isalnum() else "-" for c in f"{self.method}-{self.rule}")
        return f"{self.subject}-{kept.strip('-')}"


def lines(study: AvoidStudy) -> list[Line]:
    """Every rule plain and under Cap(1.1), at every scale."""
    found = []
    for subject in (*WIDTHS, "garments"):
        steps = study.picture_steps if subject == "garments" else study.steps
        found.append(Line(subject, "unguided", 1.0, "CFG(1)", False))
        for method, template, as_reference in METHODS:
            for scale in study.picture_scales if subject == "garments" else study.scales:
                rule = template.format(scale=f"{scale:g}", warmup=steps // 5)
                found += [
                    Line(subject, method, scale, text, as_reference) for text in (rule, f"{rule} | Cap(1.1)")
                ]
    return found


def run_avoid(study: AvoidStudy, out: Path) -> Iterator[str]:
    """Makes what is missing, yielding the name of each finished cell."""
    about = {name: list(v) if isinstance(v, tuple) else v for name, v in asdict(study).items()}
    about |= {"dtype": "float64 on the mixtures, float32 on the garments"}
    cells = CellFolder.begin(out, "avoid", about, versions())
    for line in lines(study):
        if line.cell not in cells:
            made = garments if line.subject == "garments" else mixture
            cells.save(line.cell, made(study, line))
        yield line.cell


@cache
def laws(width: float) -> tuple[Condition, Condition, Condition]:
    """What the prompt means, what the negative means, and the truth: the prompt without the negative."""
    whole = Circle(width).mixture()
    prompt, negative, truth = (Condition(whole, members) for members in (PROMPT, NEGATIVE, TRUTH))
    return prompt, negative, truth


@cache
def ruler(width: float, samples: int) -> Ruler:
    """The measures against the truth."""
    return Ruler(laws(width)[2], samples)


def mixture(study: AvoidStudy, line: Line) -> dict[str, Tensor]:
    """Shares of p(negative | x) and p(truth | x), and SW2 to the truth, one for each seed."""
    prompt, negative, _ = laws(WIDTHS[line.subject])
    measure = ruler(WIDTHS[line.subject], study.samples)
    make = autoguidance if line.as_reference else lambda one, other: beside(one, negative=other)
    predict: Predict = make(prompt.predict, negative.predict)
    found: dict[str, list[float]] = {"avoided": [], "wanted": [], "sw2": []}
    for seed in study.seeds:
        seeds = [sample_seed(seed, i) for i in range(study.samples)]
        x = sample(predict, parse(line.rule), noise(seeds, (2,)).double(), uniform(study.steps))
        found["avoided"].append(float(negative.log_posterior(x, 1.0).exp().mean()))
        found["wanted"].append(float(measure.alignment(x)))
        found["sw2"].append(float(measure.sw2(x)))
    return {name: torch.tensor(values, dtype=torch.float64) for name, values in found.items()}


@cache
def _garments() -> ClassModel:
    return fashion()


def garments(study: AvoidStudy, line: Line) -> dict[str, Tensor]:
    """The class that the shipped classifier sees, and the share of clipped pixels, (seeds, pictures) each."""
    model, classifier = _garments(), fashion_classifier()
    predict = model.predict([SHIRT] * study.pictures, negative=PULLOVER)
    if not line.as_reference and not parse(line.rule).needs:
        predict = model.predict([SHIRT] * study.pictures)
    seen, clipped = [], []
    for seed in study.picture_seeds:
        x = noise([sample_seed(seed, i) for i in range(study.pictures)], model.shape)
        pictures = model.decode(sample(predict, parse(line.rule), x, uniform(study.picture_steps)))
        features = classifier(pictures.permute(0, 2, 3, 1))
        seen.append(features["logits"].argmax(1))
        clipped.append(features["clipped"][:, 0])
    return {"seen": torch.stack(seen), "clipped": torch.stack(clipped)}


def avoid_table(study: AvoidStudy, out: Path) -> list[dict[str, Any]]:
    """One row for each rule: shares with their standard errors, and the distance to the truth."""
    cells, rows = CellFolder(out), []
    for line in lines(study):
        cell = cells.load(line.cell)
        row: dict[str, Any] = {
            "subject": line.subject, "method": line.method, "scale": line.scale, "rule": line.rule
        }  # fmt: skip
        if line.subject == "garments":
            row["clipped"] = float(cell["clipped"].mean())
            for name, label in (("avoided", PULLOVER), ("wanted", SHIRT)):
                hits = (cell["seen"] == label).double().flatten()
                row |= {name: float(hits.mean()), f"{name} ±": float(hits.std() / len(hits) ** 0.5)}
        else:
            for name in ("avoided", "wanted", "sw2"):
                values = cell[name]
                error = float(values.std() / len(values) ** 0.5) if len(values) > 1 else None
                row |= {name: float(values.mean()), f"{name} ±": error}
        rows.append(row)
    for subject, width in WIDTHS.items():
        _, negative, truth = laws(width)
        x = truth.conditional.sample(study.samples, torch.Generator().manual_seed(0))
        floor = ruler(width, study.samples).floor()
        avoided = float(negative.log_posterior(x, 1.0).exp().mean())
        rows.append({"subject": subject, "method": "the truth itself", "scale": 1.0, "rule": "",
                     "avoided": avoided, "wanted": floor["alignment"], "sw2": floor["sw2"]})  # fmt: skip
    return rows
