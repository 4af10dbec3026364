"""Known leaks on a network: which guidance undoes wrong labels, at equal network calls.

    model     Fashion-MNIST, trained with a share of its labels replaced (`meancap train --label-noise`)
    pi        what the rule needs to know of it, 1 - share * 10 / 9: a wrong label names another class
    arm       a rule and its sampler; an arm with several candidates is tuned on noise of its own seed
    calls     of the network for each sample, probes and rival classes included; all arms have `calls` at most

Everything is scored by the shipped classifier, against the class that was asked for: accuracy, FD-fashion
and recall against the test pictures, diversity within a class. Arms share their noise seed by seed, so that
differences are paired. Tuning chooses the candidate with the lowest FD-fashion.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..files import read_tensors, sha256_of
from ..metrics.classifiers import fashion_classifier
from ..metrics.distances import frechet_distance, frechet_estimate
from ..metrics.manifold import recall_at
from ..metrics.per_image import class_hits, diversity_estimate
from ..metrics.score import Estimate, difference, mean_estimate
from ..models.classes import ClassModel, open_sit
from ..rules import CFG, Cap, DensityFeedback, Rule, apg, density_feedback, fbg
from ..sampling import Predict, ancestral, noise, trajectory, uniform
from ..sampling.density_ratio import memoryless_gain
from .calibrate import LearnedScale, examples, learn_scale, load_scale
from .cell_folder import CellFolder
from .config import sample_seed, versions
from .ratio_repairs import Renoised, Rivals
from .scoring import shipped_fashion

TUNE_SEED = 900
BATCH = 40


@dataclass(frozen=True)
class LabelNoiseStudy:
    """How much to run."""

    samples: int = 80  # for each arm and seed; classes take turns
    calls: int = 40
    trusted: int = 200  # test pictures with their labels, for the scale from data

    def __post_init__(self) -> None:
        if self.samples < 20 or self.samples % 10 or self.calls < 8 or self.trusted < 32:
            raise ValueError(f"the study needs 20 samples by tens, 8 calls and 32 pictures; got {self}")


@dataclass(frozen=True)
class Arm:
    """A line of the table."""

    name: str
    candidates: tuple[Rule, ...]
    eta: float = 0.0
    per_step: int = 2  # network calls
    ratio: str = ""  # 'renoised' or 'rivals': another way to log R

    def steps(self, calls: int) -> int:
        """Rivals need ten more calls in each of the first steps, before t = 1/4."""
        return calls // self.per_step if self.ratio != "rivals" else max(4, calls // 5)


def arms(share: float, learned: LearnedScale, calls: int) -> list[Arm]:
    """What is compared on a model with this share of wrong labels; every arm on the noisiest kind."""
    pi = round(1 - share * 10 / 9, 4) if share else 0.8333
    steps = calls // 2
    noisy = share >= 0.2
    found = [
        Arm("unguided", (CFG(1.0),)),
        Arm("CFG", tuple(CFG(v) for v in (1.5, 2.0, 3.0, 5.0, *([8.0] if noisy else [])))),
        Arm("scale from data", (learned.rule,)),
        Arm("CFG, ancestral", tuple(CFG(v) for v in (1.5, 2.0, 3.0, *([5.0] if noisy else []))), eta=1.0),
        Arm("feedback, known π, ancestral", (density_feedback(pi, most=10.0),), eta=1.0),
    ]
    if not noisy:
        return found
    # R is held from t = 0.5 on, where the gaps of a network stop telling of the class.
    settings = ((0.5, 1.0), (0.3, 1.0), (0.3, 2.0), (0.15, 1.0), (0.05, 1.0))
    tuned = tuple(density_feedback(v, most=10.0, temperature=heat, until=0.5) for v, heat in settings)
    return [
        *found,
        Arm("unguided, ancestral", (density_feedback(1 - 1e-9, most=10.0),), eta=1.0),
        Arm("feedback, known π", (density_feedback(pi, most=10.0),), per_step=4),
        Arm("CFG and Cap 1.1", tuple(CFG(v) | Cap(1.1) for v in (5.0, 15.0))),
        Arm("APG", tuple(apg(v, radius=15.0) for v in (3.0, 6.0, 12.0))),
        Arm("FBG, ancestral", tuple(fbg(steps, pi=v) for v in (pi, 0.95)), eta=1.0),
        Arm("feedback, tuned, ancestral", tuned, eta=1.0),
        Arm("feedback, re-noised R", (density_feedback(pi, most=10.0),), per_step=4, ratio="renoised"),
        Arm("feedback, rival classes, ancestral", (density_feedback(pi, most=10.0),), 1.0, ratio="rivals"),
    ]


def share_of(path: Path) -> float:
    """The share of wrong labels that a model was trained with, from its file."""
    header = read_tensors(path)[1]
    if "training" not in header:
        raise ValueError(f"{path} does not say how it was trained; make it with `meancap train`")
    return float(json.loads(header["training"]).get("label_noise", 0.0))


def run_label_noise(
    study: LabelNoiseStudy, models: Sequence[Path], data: Path, out: Path, seeds: Sequence[int] = (0, 1, 2)
) -> Iterator[str]:
    """Makes what is missing, the noisiest model first, yielding the name of each finished cell."""
    shares = {share_of(path): path for path in models}
    about = {"models": {f"{share:g}": sha256_of(path)[:16] for share, path in sorted(shares.items())}}
    cells = CellFolder.begin(out, "label-noise", asdict(study) | about, versions())
    for share in sorted(shares, reverse=True):
        model = open_sit(shares[share])
        learned = trusted_scale(out, shares[share], share, study, data)
        if f"real-{share:g}" not in cells:
            cells.save(f"real-{share:g}", real_ratios(model, shares[share], data, study))
            yield f"real-{share:g}"
        for arm in arms(share, learned, study.calls):
            tuned = range(len(arm.candidates)) if len(arm.candidates) > 1 else ()
            yield from _made(cells, model, share, arm, study, [(k, TUNE_SEED) for k in tuned])
            best = chosen(cells, share, arm)
            yield from _made(cells, model, share, arm, study, [(best, seed) for seed in seeds])


def _made(
    cells: CellFolder, model: ClassModel, share: float, arm: Arm, study: LabelNoiseStudy,
    todo: Sequence[tuple[int, int]],
) -> Iterator[str]:  # fmt: skip
    """Makes the missing cells of an arm, each a candidate and a seed."""
    for candidate, seed in todo:
        name = _cell_name(share, arm, candidate, seed)
        if name not in cells:
            cells.save(name, make_cell(model, arm, arm.candidates[candidate], study, seed))
        yield name


def chosen(cells: CellFolder, share: float, arm: Arm) -> int:
    """The place of the candidate with the lowest FD-fashion on the noise of tuning."""
    if len(arm.candidates) == 1:
        return 0
    reference = shipped_fashion().features["pool"]
    names = [_cell_name(share, arm, k, TUNE_SEED) for k in range(len(arm.candidates))]
    scores = [frechet_distance(cells.load(name)["pool"], reference) for name in names]
    return scores.index(min(scores))


def trusted_scale(out: Path, model: Path, share: float, study: LabelNoiseStudy, data: Path) -> LearnedScale:
    """The scale from test pictures with their right labels, learned once and kept in the folder."""
    path = out / f"scale-{share:g}.json"
    if not path.is_file():
        batches = examples(f"sit:{model}", study.trusted, data=data)
        learn_scale(batches, model=f"{share:.0%} of labels wrong").save(path)
    return load_scale(path)


def make_cell(
    model: ClassModel, arm: Arm, rule: Rule, study: LabelNoiseStudy, seed: int
) -> dict[str, Tensor]:
    """The samples of one arm and seed: what the classifier says of them, and log R along the way."""
    made = [
        _batch(model, arm, rule, study, range(first, min(first + BATCH, study.samples)), seed)
        for first in range(0, study.samples, BATCH)
    ]
    return {key: torch.cat([one[key] for one in made], dim=0) for key in made[0]}


@torch.no_grad()
def _batch(
    model: ClassModel, arm: Arm, rule: Rule, study: LabelNoiseStudy, rows: range, seed: int
) -> dict[str, Tensor]:
    labels, seeds = [i % 10 for i in rows], [sample_seed(seed, i) for i in rows]
    predict: Predict = model.predict(labels)
    if arm.ratio == "renoised":
        assert isinstance(rule, DensityFeedback)
        predict = Renoised(predict, rule, seeds)
    elif arm.ratio == "rivals":
        predict = Rivals(model, labels)
    x, ratios = noise(seeds, model.shape), []
    times = uniform(arm.steps(study.calls))
    for step in trajectory(predict, rule, x, times, ancestral(seeds, arm.eta)):
        x = step.x_next
        if "log_ratio" in step.prediction.extra:
            ratios.append(step.prediction.extra["log_ratio"].float())
    pictures = model.decode(x)
    seen = fashion_classifier()(pictures.permute(0, 2, 3, 1), [""] * len(rows))
    found = {"pool": seen["pool"], "logits": seen["logits"], "pictures": pictures[:, 0]}
    found["labels"] = torch.tensor(labels)
    return found | ({"log_ratio": torch.stack(ratios, 1)} if ratios else {})


@torch.no_grad()
def real_ratios(model: ClassModel, path: Path, data: Path, study: LabelNoiseStudy) -> dict[str, Tensor]:
    """log R of test pictures on their way to noise, under the right label and under another class.

    The way is the memoryless run backwards, so that log R adds up as it does when pictures are made.
    """
    count, times = 60, [t for t in uniform(study.calls // 2) if t <= 0.6]
    predict, pictures = examples(f"sit:{path}", count, data=data, seed=TUNE_SEED, batch=count)[0]
    right = torch.tensor(predict.labels[:count])  # type: ignore[attr-defined]
    g = torch.Generator().manual_seed(TUNE_SEED)
    wrong = (right + torch.randint(1, 10, right.shape, generator=g)) % 10
    y, states, before = pictures, [], 0.0
    for t in reversed(times[1:]):
        sigma = (1 - t) / t
        y = y + (sigma**2 - before**2) ** 0.5 * torch.randn(y.shape, generator=g)
        before = sigma
        states.append(t * y)
    states.append(torch.randn(y.shape, generator=g))
    found = {"times": torch.tensor(times)}
    for name, labels in (("right", right), ("wrong", wrong)):
        asked = model.predict(labels)
        steps = [asked(x, t) for x, t in zip(reversed(states), times, strict=True)]
        gains = [memoryless_gain(a, b) for a, b in pairwise(steps)]
        found[name] = torch.stack([torch.zeros_like(gains[0]), *gains], 1).cumsum(1).float()
    return found


def label_noise_table(
    study: LabelNoiseStudy, models: Sequence[Path], data: Path, out: Path, seeds: Sequence[int] = (0, 1, 2)
) -> Iterator[dict[str, Any]]:
    """One row for each model and arm, with its paired difference to tuned CFG on the ODE."""
    cells, reference = CellFolder(out), shipped_fashion().features["pool"]
    for path in sorted(models, key=share_of, reverse=True):
        share = share_of(path)
        todo = arms(share, trusted_scale(out, path, share, study, data), study.calls)
        made = {arm.name: joined_cells(cells, share, arm, seeds) for arm in todo}
        fixed = estimates(made["CFG"], reference)
        for arm in todo:
            own = estimates(made[arm.name], reference)
            row: dict[str, Any] = {"wrong labels": share, "arm": arm.name}
            rule = arm.candidates[chosen(cells, share, arm)]
            row |= {"rule": str(rule), "steps": arm.steps(study.calls)}
            row |= {"samples": len(made[arm.name]["labels"])}
            for name, estimate in own.items():
                less = difference(estimate, fixed[name])
                row |= estimate.columns(name) | less.columns(f"{name} less CFG")
            row["recall"] = recall_at(reference, made[arm.name]["pool"].float())
            yield row


def joined_cells(cells: CellFolder, share: float, arm: Arm, seeds: Sequence[int]) -> dict[str, Tensor]:
    """The samples of all seeds, under the candidate that tuning chose."""
    best = chosen(cells, share, arm)
    each = [cells.load(_cell_name(share, arm, best, seed)) for seed in seeds]
    return {key: torch.cat([one[key] for one in each]) for key in each[0]}


def estimates(made: dict[str, Tensor], reference: Tensor) -> dict[str, Estimate]:
    """Accuracy, FD-fashion and diversity, each with a part for every sample."""
    pool, labels = made["pool"].float(), made["labels"]
    found = [
        mean_estimate("accuracy", class_hits(made["logits"], labels)),
        frechet_estimate("FD", pool, reference),
        diversity_estimate("diversity", pool, labels),
    ]
    return {one.name: one for one in found}


def _cell_name(share: float, arm: Arm, candidate: int, seed: int) -> str:
    plain = arm.name.lower().replace(",", "").replace(" ", "-").replace("π", "pi")
    return f"noise{share:g}-{plain}-{candidate}-seed{seed}"
