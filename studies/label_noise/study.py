"""Known leaks on a network: which guidance undoes wrong labels, at equal network calls.

    model     Fashion-MNIST, trained with a share of its labels replaced (`python -m studies.training fashion
              --wrong 0.3`); the file says the share
    pi        what the rule needs to know of it, 1 - share * 10 / 9: a wrong label names another class
    arm       a rule and its sampler; an arm with several candidates is tuned on noise of its own seed
    calls     of the network for each sample, probes included; all arms have `calls` at most

The shipped classifier scores everything against the class that was asked for: accuracy, FD-fashion and recall
against the test pictures; float32. Arms share their noise seed by seed, so that
differences are paired. Tuning chooses the candidate with the lowest FD-fashion.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor

from meancap.files import sha256_of
from meancap.rules import CFG, Calibration, Cap, Rule, apg, density_feedback, fbg
from meancap.sampling import ancestral, noise, trajectory, uniform
from meancap.sampling.ratio_tracker import memoryless_gain
from meancap_lab.metrics.classifiers import fashion_classifier
from meancap_lab.metrics.distances import frechet_distance, frechet_estimate
from meancap_lab.metrics.manifold import recall_at
from meancap_lab.metrics.per_image import class_hits
from meancap_lab.metrics.score import Estimate, difference, mean_estimate
from meancap_lab.models.classes import ClassModel, open_sit
from meancap_lab.report.style import BLUE, GREY, PAGE, VERMILION, panels
from meancap_lab.runs.calibrate import examples, learn_scale
from meancap_lab.runs.config import sample_seed
from meancap_lab.runs.scoring import shipped_fashion
from meancap_lab.tensor_files import read_tensors
from studies import common
from studies.common import Cells, Row, interval, interval_columns, option

HERE = Path(__file__).parent
TUNE_SEED = 900


@dataclass(frozen=True)
class Study:
    """How much to run."""

    samples: int = option(80, "pictures for each arm and seed, by tens; classes take turns")
    calls: int = option(40, "network calls for each picture")
    trusted: int = option(200, "test pictures with their labels, for the scale from data")
    seeds: tuple[int, ...] = option((0, 1, 2), "noise seeds")


QUICK = Study(20, 8, 32, (0,))


@dataclass(frozen=True)
class Arm:
    """A line of the table."""

    name: str
    candidates: tuple[Rule, ...]
    eta: float = 0.0
    per_step: int = 2  # network calls

    def cell(self, share: float, candidate: int, seed: int) -> str:
        return f"noise{share:g}-{self.name.replace('π', 'pi')}-{candidate}-seed{seed}"


def arms(share: float, learned: Rule, calls: int) -> list[Arm]:
    """What is compared on a model with this share of wrong labels; every arm on the noisiest kind."""
    pi = round(1 - share * 10 / 9, 4) if share else 0.8333
    noisy = share >= 0.2
    plain = [
        Arm("unguided", (CFG(1.0),)),
        Arm("CFG", tuple(CFG(v) for v in (1.5, 2.0, 3.0, 5.0, *([8.0] if noisy else [])))),
        Arm("scale from data", (learned,)),
        Arm("CFG, ancestral", tuple(CFG(v) for v in (1.5, 2.0, 3.0, *([5.0] if noisy else []))), eta=1.0),
        Arm("feedback, known π, ancestral", (density_feedback(pi, most=10.0),), eta=1.0),
    ]
    if not noisy:
        return plain
    # R is held from t = 0.5 on, where the gaps of a network stop telling of the class.
    settings = ((0.5, 1.0), (0.3, 1.0), (0.3, 2.0), (0.15, 1.0), (0.05, 1.0))
    tuned = tuple(density_feedback(v, most=10.0, temperature=heat, until=0.5) for v, heat in settings)
    return [
        *plain,
        Arm("unguided, ancestral", (density_feedback(1 - 1e-9, most=10.0),), eta=1.0),
        Arm("feedback, known π", (density_feedback(pi, most=10.0),), per_step=4),
        Arm("CFG and Cap 1.1", tuple(CFG(v) | Cap(1.1) for v in (5.0, 15.0))),
        Arm("APG", tuple(apg(v, radius=15.0) for v in (3.0, 6.0, 12.0))),
        Arm("FBG, ancestral", tuple(fbg(calls // 2, pi=v) for v in (pi, 0.95)), eta=1.0),
        Arm("feedback, tuned, ancestral", tuned, eta=1.0),
    ]


def share_of(path: Path) -> float:
    """The share of wrong labels that a model was trained with, from its file."""
    return float(json.loads(read_tensors(path)[1]["training"]).get("label_noise", 0.0))


def best_candidate(cells: Cells, model: ClassModel, share: float, arm: Arm, study: Study) -> int:
    """The place of the candidate with the lowest FD-fashion on the noise of tuning."""
    scores = []
    for k, rule in enumerate(arm.candidates if len(arm.candidates) > 1 else ()):
        cell = cells.make(
            arm.cell(share, k, TUNE_SEED), partial(make_cell, model, arm, rule, study, TUNE_SEED)
        )
        scores.append(frechet_distance(cell["pool"], shipped_fashion().features["pool"]))
    return scores.index(min(scores)) if scores else 0


@torch.no_grad()
def make_cell(model: ClassModel, arm: Arm, rule: Rule, study: Study, seed: int) -> dict[str, Tensor]:
    """The samples of one arm and seed: what the classifier says of them, and log R along the way."""
    labels = [i % 10 for i in range(study.samples)]
    seeds, times = [sample_seed(seed, i) for i in range(study.samples)], uniform(study.calls // arm.per_step)
    x, ratios = noise(seeds, model.shape), []
    for step in trajectory(model.predict(labels), rule, x, times, ancestral(seeds, arm.eta)):
        x = step.x_next
        if "log_ratio" in step.prediction.extra:
            ratios.append(step.prediction.extra["log_ratio"].float())
    seen = fashion_classifier()(model.decode(x).permute(0, 2, 3, 1), [""] * len(labels))
    cell = {"pool": seen["pool"], "logits": seen["logits"], "labels": torch.tensor(labels)}
    return cell | ({"log_ratio": torch.stack(ratios, 1)} if ratios else {})


@torch.no_grad()
def real_ratios(model: ClassModel, path: Path, data: Path, study: Study) -> dict[str, Tensor]:
    """log R of test pictures on their way to noise, under the right label and under another class.

    The way is the memoryless run backwards, so that log R adds up as it does when pictures are made.
    """
    count, times = 60, [t for t in uniform(study.calls // 2) if t <= 0.6]
    predict, pictures = examples(f"sit:{path}", count, data=data, seed=TUNE_SEED, batch=count)[0]
    right = predict.rows[0]
    g = torch.Generator().manual_seed(TUNE_SEED)
    wrong = (right + torch.randint(1, 10, right.shape, generator=g)) % 10
    y, states, before = pictures, [], 0.0
    for t in reversed(times[1:]):
        sigma = (1 - t) / t
        y = y + (sigma**2 - before**2) ** 0.5 * torch.randn(y.shape, generator=g)
        before = sigma
        states.append(t * y)
    states.append(torch.randn(y.shape, generator=g))
    curves = {"times": torch.tensor(times)}
    for name, labels in (("right", right), ("wrong", wrong)):
        predict = model.predict(labels)
        steps = [predict(x, t) for x, t in zip(reversed(states), times, strict=True)]
        gains = [memoryless_gain(a, b) for a, b in pairwise(steps)]
        curves[name] = torch.stack([torch.zeros_like(gains[0]), *gains], 1).cumsum(1).float()
    return curves


def measure_model(study: Study, cells: Cells, path: Path, data: Path) -> Iterator[tuple[str, Row]]:
    """Rows of readings.csv and of ratios.csv for one network, each arm with its difference to tuned CFG."""
    share, model = share_of(path), open_sit(path)
    reference = shipped_fashion().features["pool"]
    real = cells.make(f"real-{share:g}", partial(real_ratios, model, path, data, study))
    for t in (0.2, 0.4, 0.6):
        k = int((real["times"] - t).abs().argmin())
        name = f"real pictures, t = {t}"
        yield "ratios", {"wrong labels": share} | ratio_row(name, real["right"][:, k], real["wrong"][:, k])
    fixed: dict[str, Estimate] = {}
    kept = cells.folder / f"scale-{share:g}.json"
    if not kept.is_file():
        learn_scale(examples(f"sit:{path}", study.trusted, data=data)).save(kept)
    todo = arms(share, Calibration.load(kept), study.calls)
    for arm in sorted(todo, key=lambda arm: arm.name != "CFG"):  # the others are compared with it
        best = best_candidate(cells, model, share, arm, study)
        rule = arm.candidates[best]
        work = partial(make_cell, model, arm, rule, study)
        each = [cells.make(arm.cell(share, best, s), partial(work, s)) for s in study.seeds]
        made = {key: torch.cat([one[key] for one in each]) for key in each[0]}
        pool, hits = made["pool"].float(), class_hits(made["logits"], made["labels"])
        own = {"accuracy": mean_estimate("accuracy", hits), "FD": frechet_estimate("FD", pool, reference)}
        fixed = fixed or own
        row: Row = {"wrong labels": share, "arm": arm.name, "rule": str(rule)}
        row |= {"steps": study.calls // arm.per_step, "samples": len(made["labels"])}
        for name, estimate in own.items():
            less = difference(estimate, fixed[name])
            row |= interval_columns(estimate, name) | interval_columns(less, f"{name} less CFG")
        yield "readings", row | {"recall": recall_at(reference, pool)}
        if "log_ratio" in made:
            ratio = made["log_ratio"][:, round(0.4 * made["log_ratio"].shape[1])]
            hit = made["logits"].argmax(1) == made["labels"]
            yield "ratios", {"wrong labels": share} | ratio_row(arm.name, ratio[hit], ratio[~hit])


def ratio_row(arm: str, hits: Tensor, misses: Tensor) -> Row:
    """How well log R tells hits from misses: the chance that a hit has the higher value, and the means."""
    auc = float((hits[:, None] > misses[None]).double().mean())
    return {"arm": arm, "AUC": auc, "hits": float(hits.mean()), "misses": float(misses.mean())}


def parts(folder: Path) -> dict[str, str]:
    """The table of the page: the arms of the noisiest network."""
    table = []
    for r in common.read_csv(folder / "readings.csv"):
        if float(r["wrong labels"]) == 0.3 and r["arm"] != "unguided, ancestral":
            accuracy, distance, recall = (f"{float(r[name]):.2f}" for name in ("accuracy", "FD", "recall"))
            less = [interval(r, f"{name} less CFG", "+") for name in ("accuracy", "FD")]
            first, second = ("", "") if r["arm"] == "CFG" else less
            table.append([r["arm"], accuracy, first, distance, second, recall])
    head = ["30 % wrong labels", "accuracy", "less CFG", "FD-fashion", "less CFG", "recall"]
    return {"readings": common.markdown(head, table)}


def draw_arms(folder: Path):
    """FD-fashion over accuracy, one point with its intervals for each arm of the noisiest model."""
    every = common.read_csv(folder / "readings.csv")
    share = max(float(r["wrong labels"]) for r in every)
    rows = [r for r in every if float(r["wrong labels"]) == share]
    figure, axes = panels(1, 2, PAGE, 2.9)
    place = axes[0, 0]
    colours = {"CFG": VERMILION, "feedback": BLUE}
    for number, r in enumerate(rows):
        (x, left, right), (y, low, high) = (
            [float(r[f"{name}{end}"]) for end in ("", " from", " to")] for name in ("accuracy", "FD")
        )
        colour = colours.get(r["arm"].replace(",", "").split()[0], GREY)
        place.plot([left, right, x, x, x], [y, y, y, low, high], color=colour, linewidth=0.7)
        place.plot(x, y, "o", color=colour, markersize=3)
        place.annotate(str(number + 1), (x, y), (3, 3), textcoords="offset points", fontsize=6)
    place.set(xlabel="accuracy", ylabel="FD-fashion", title=f"{share:.0%} of labels wrong")
    names = "\n".join(f"{k + 1}  {r['arm']}" for k, r in enumerate(rows))
    axes[0, 1].axis("off")
    axes[0, 1].text(0, 1, names, va="top", fontsize=6.5)
    return figure


def main(argv: Sequence[str] | None = None) -> None:
    example = "python -m studies.label_noise --data DIR --models noise-0.3/model.safetensors --out out/noise"
    p = common.command(__doc__, example, Study())
    p.add_argument("--models", type=Path, nargs="+", metavar="FILE", help="weights by studies.training")
    p.add_argument("--data", type=Path, metavar="DIR", help="the files of Fashion-MNIST")
    args = p.parse_args(argv)
    if args.page:
        return common.write_page(HERE, parts(HERE))
    if not args.models or args.data is None:
        raise ValueError("give --models FILE ... and --data DIR")
    study = common.chosen(args, Study(), QUICK)
    hashes = {f"{share_of(path):g}": sha256_of(path)[:16] for path in args.models}
    cells = Cells(args.out, study, models=hashes)
    tables: dict[str, list[Row]] = {"readings": [], "ratios": []}
    for path in sorted(args.models, key=share_of, reverse=True):
        for table, row in measure_model(study, cells, path, args.data):
            tables[table].append(row)
    for name, rows in tables.items():
        common.write_csv(args.out / f"{name}.csv", rows)
    return common.write_figures(args.out, {"arms": lambda: draw_arms(args.out)})
