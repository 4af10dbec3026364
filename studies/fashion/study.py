"""The paper's image comparison on the shipped model of garments, over several seeds.

    rules        those of `meancap reproduce fashion`, and two caps more
    anchored     CFG(λ) | Cap(1.1, anchor='first'): lengths from the unconditional mean of the first step
    calibrated   CFG(λ) | Cap(1, anchor=r, floor=R): no gamma; radii R(t) measured on an unguided pilot
    APG          its radius at each scale is the one with the lowest FD-fashion on the pilot's noise
    beyond       scales that are for caps alone: fixed guidance is past the truth long before
    sampler      Euler, float32; all rules share noise and classes; no seed is the pilots'

The shipped classifier measures the pictures of all seeds as one set, and each seed alone. readings.csv keeps
for each number what 50 groups of pictures say (its parts): groups hold the same noise and classes under every
rule, so that differences are taken group by group. With --data, as many test pictures are measured against
the others.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from meancap import Record
from meancap.files import write_whole
from meancap.metrics.classifiers import fashion_classifier
from meancap.metrics.distances import frechet_distance
from meancap.metrics.protocols import Generated, Reference, protocol
from meancap.metrics.score import Estimate
from meancap.models import data
from meancap.models.classes import ClassModel, fashion
from meancap.rules import CFG, Cap, Rule, apg, parse
from meancap.runs import paper_protocols
from meancap.runs.calibrate import calibrate
from meancap.runs.config import sample_seed
from meancap.runs.paper_protocols import ImageSetting
from meancap.runs.scoring import shipped_fashion
from meancap.sampling import noise, sample, uniform
from studies.common import Cells, chosen, command, option, write_csv, write_figures, write_page

from .page import REAL, Pooled, comparisons, draw_fronts, parts, read_pooled, write_pooled

HERE = Path(__file__).parent
PILOT, PILOT_SEED, TUNED = 200, 1000, 100  # pictures of the pilot, its seed, pictures of each radius
RADII = (1.25, 2.5, 5.0, 10.0)
GROUPS, BATCH = 50, 50
NUMBERS = ("FD-fashion", "recall", "precision", "alignment", "accuracy", "diversity", "brightness")


@dataclass(frozen=True)
class Study:
    """How much to run."""

    per_class: int = option(5, "pictures of each class, for each seed")
    scales: tuple[float, ...] = option((2.0, 3.0, 6.0), "guidance scales")
    beyond: tuple[float, ...] = option((15.0, 50.0), "scales for caps alone")
    evaluations: int = option(20, "network evaluations")
    seeds: tuple[int, ...] = option((0, 1, 2, 3), "noise seeds")


QUICK = Study(3, (2.0, 6.0), (), 4, (0, 1))


def settings(study: Study, pilots: dict[str, Any]) -> Iterator[ImageSetting]:
    """Every rule at every scale."""
    n, calibrated = study.evaluations, parse(pilots["calibrated"])
    for s in paper_protocols.fashion(study.per_class, study.scales, [n]).settings:
        radius = pilots["radii"].get(f"{s.scale:g}")
        rule = apg(s.scale, radius=radius) if s.method == "APG" else s.rule
        yield ImageSetting(s.method, s.scale, rule, n, s.gamma)
    for scale in (*study.scales, *study.beyond):
        for gamma in (1.05, 1.10) if scale in study.beyond else ():
            yield ImageSetting("PMC", scale, CFG(scale) | Cap(gamma), n, gamma)
        yield ImageSetting("PMC anchored", scale, CFG(scale) | Cap(1.10, anchor="first"), n, 1.10)
        yield ImageSetting("PMC calibrated", scale, CFG(scale) | calibrated, n)


@cache
def garments() -> ClassModel:
    """The shipped model."""
    return fashion()


def make_pictures(rule: Rule, count: int, evaluations: int, seed: int) -> dict[str, Tensor]:
    """Pictures (n, 1, 28, 28) whose classes take turns, and the effective scale."""
    model, made, used = garments(), [], []
    for rows in (range(i, min(i + BATCH, count)) for i in range(0, count, BATCH)):
        record = Record()
        x = noise([sample_seed(seed, i) for i in rows], model.shape)
        predict = model.predict([i % model.classes for i in rows])
        made.append(model.decode(sample(predict, rule, x, uniform(evaluations), record=record)))
        used.append(record.stacked()["scale"].mean() * len(rows) / count)
    return {"pictures": torch.cat(made), "used": torch.stack(used).sum()}


def open_pilots(study: Study, out: Path) -> dict[str, Any]:
    """What pilots.json says, or what the pilots find: APG's radius at each scale, the calibrated cap."""
    path = out / "pilots.json"
    if not path.is_file():
        model, n = garments(), study.evaluations

        def distance(rule: Rule) -> float:
            made = make_pictures(rule, TUNED, n, PILOT_SEED)["pictures"]
            return frechet_distance(features_of(made)["pool"], shipped_fashion().gaussian("pool"))

        x = noise([sample_seed(PILOT_SEED, i) for i in range(PILOT)], model.shape)
        predict = model.predict([i % model.classes for i in range(PILOT)])
        cap = calibrate([(predict, x)], uniform(n), model=model.name).cap()
        radii = {f"{s:g}": min(RADII, key=lambda r, s=s: distance(apg(s, radius=r))) for s in study.scales}
        write_whole(path, json.dumps({"radii": radii, "calibrated": str(cap)}, indent=1) + "\n")
    return dict(json.loads(path.read_text(encoding="utf-8")))


def features_of(pictures: Tensor) -> dict[str, Tensor]:
    """What the shipped classifier says of pictures (n, 1, 28, 28)."""
    return fashion_classifier()(pictures.permute(0, 2, 3, 1), [""] * len(pictures))


def readings(study: Study, cells: Cells, folder: Path | None) -> Iterator[Pooled]:
    """Every setting over all seeds; then the test pictures, if their folder is given."""
    by, count = protocol("fashion"), 10 * study.per_class
    labels = torch.arange(count) % 10
    for s in settings(study, open_pilots(study, cells.folder)):
        work = partial(make_pictures, s.rule, count, s.evaluations)
        made = [cells.make(f"{s.name}-seed{seed}", partial(work, seed)) for seed in study.seeds]
        features = [features_of(cell["pictures"]) for cell in made]
        joined = {name: torch.cat([one[name] for one in features]) for name in features[0]}
        numbers = measure(Generated(joined, labels.repeat(len(made))), shipped_fashion())
        each = [
            {e.name: e.value for e in by.measure(Generated(f, labels), shipped_fashion())} for f in features
        ]
        seeds = {name: tuple(values[name] for values in each) for name in numbers}
        used = sum(float(cell["used"]) for cell in made) / len(made)
        yield Pooled(s.method, s.scale, s.gamma, s.evaluations, str(s.rule), used, numbers, seeds)
    if folder is not None:
        yield real_pictures(folder, count * len(study.seeds))


def real_pictures(folder: Path, count: int) -> Pooled:
    """As many test pictures of each class as a setting has, against all others."""
    test = data.fashion(folder, train=False)
    places = [torch.nonzero(test.labels == k)[: count // 10, 0] for k in range(10)]
    own = torch.stack(places, dim=1).flatten()
    rest = torch.ones(len(test.labels), dtype=torch.bool)
    rest[own] = False
    features = features_of(test.images)
    others = Reference("the other test pictures", {name: value[rest] for name, value in features.items()})
    made = Generated({name: value[own] for name, value in features.items()}, test.labels[own])
    return Pooled(REAL, None, None, 0, "", 0.0, measure(made, others), {})


def measure(made: Generated, reference: Reference) -> dict[str, Estimate]:
    """The numbers of a set of pictures, in a random order that is the same for all rules."""
    assert made.labels is not None
    order = torch.randperm(len(made.labels), generator=torch.Generator().manual_seed(0))
    mixed = Generated({name: value[order] for name, value in made.features.items()}, made.labels[order])
    estimates = protocol("fashion").measure(mixed, reference)
    return {e.name: grouped(e) for e in estimates if e.name in NUMBERS}


def grouped(e: Estimate) -> Estimate:
    """The same number with a part for each group of pictures instead of each picture."""
    if e.parts is None or len(e.parts) <= GROUPS:
        return e
    group = torch.arange(len(e.parts)) % GROUPS
    total = torch.zeros(GROUPS, dtype=torch.float64).index_add_(0, group, e.parts.double())
    return Estimate(e.name, e.value, e.n, total / group.bincount())


def main(argv: Sequence[str] | None = None) -> None:
    p = command(__doc__, "python -m studies.fashion --out out/fashion", Study())
    p.add_argument("--data", type=Path, metavar="DIR", help="the files of Fashion-MNIST, for real pictures")
    args = p.parse_args(argv)
    out = HERE if args.page else args.out
    if not args.page:
        study = chosen(args, Study(), QUICK)
        cells = Cells(out, study, model=garments().sha256)
        write_pooled([*readings(study, cells, args.data)], out / "readings.csv")
    pooled = read_pooled(out / "readings.csv")
    write_csv(out / "compared.csv", comparisons(pooled))
    write_figures(out, {"fronts": lambda: draw_fronts(pooled)})
    if args.page:
        write_page(HERE, parts(HERE))
