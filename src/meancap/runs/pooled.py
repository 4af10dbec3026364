"""The seeds of a study together: each setting's pictures measured as one set, in few enough numbers to ship.

    value   of all pictures of a setting, whatever their seed
    seeds   the same number of each seed alone
    parts   what 50 groups of pictures say the number is (see `metrics.score`); groups hold the same noise and
            classes under every rule, so that differences are taken group by group
    real    as many test pictures, against the rest of them: where no generated picture needs to go beyond

The groups are drawn at random once, because classes take turns in a run. Features must have been taken
before (`score_runs`).
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

import torch

from ..files import write_whole
from ..metrics.extractor import Features
from ..metrics.protocols import Generated, Protocol, Reference, protocol
from ..metrics.score import Estimate
from ..models.data import fashion
from .folder import Run
from .protocols import ImageSetting
from .scoring import FeatureCache, fashion_folder, open_target, read_scores, shipped_fashion

GROUPS = 50
NUMBERS = ("FD-fashion", "recall", "precision", "alignment", "accuracy", "diversity", "brightness")
REAL = "Test pictures"
_COLUMNS = ("method", "scale", "gamma", "evaluations", "rule", "scale used", "n", "number", "value")


@dataclass(frozen=True)
class Pooled:
    """One setting of a study over all its seeds."""

    method: str
    scale: float | None
    gamma: float | None
    evaluations: int
    rule: str
    used: float  # the effective scale, mean over steps and pictures
    numbers: Mapping[str, Estimate]
    seeds: Mapping[str, tuple[float, ...]]

    @property
    def label(self) -> str:
        """The method with its gamma."""
        return self.method if self.gamma is None else f"{self.method} {self.gamma:g}"


def pooled_study(settings: Sequence[ImageSetting], folders: Sequence[Path]) -> Iterator[Pooled]:
    """Yields every setting, from the folders of the seeds; then the test pictures, if they can be read."""
    by = protocol("fashion")
    count = 0
    for s in settings:
        runs = [folder / s.name for folder in folders]
        made = _generated(runs, by)
        count = len(made.labels) if made.labels is not None else 0
        found = {e.name: grouped(e) for e in by.measure(_mixed(made), shipped_fashion()) if e.name in NUMBERS}
        each = [{score.name: score.value for score in read_scores(run)} for run in runs]
        seeds = {name: tuple(values[name] for values in each) for name in found}
        used = sum(float(Run.open(run).meter["scale"].mean()) for run in runs) / len(runs)
        yield Pooled(s.method, s.scale, s.gamma, s.evaluations, str(s.rule), used, found, seeds)
    if (real := real_pictures(count, by)) is not None:
        yield real


def real_pictures(count: int, by: Protocol) -> Pooled | None:
    """As many test pictures of each class as a setting has, against all others; None without the data set."""
    try:
        pictures = fashion(fashion_folder(), train=False)
    except FileNotFoundError:
        return None
    places = [torch.nonzero(pictures.labels == k)[: count // 10, 0] for k in range(10)]
    chosen = torch.stack(places, dim=1).flatten()
    rest = torch.ones(len(pictures.labels), dtype=torch.bool)
    rest[chosen] = False
    network = by.load(None)
    features = network(pictures.images.permute(0, 2, 3, 1), [""] * len(rest))
    others = {name: value[rest] for name, value in features.items()}
    reference = Reference("the other test pictures", others)
    own = Generated({name: value[chosen] for name, value in features.items()}, pictures.labels[chosen])
    found = {e.name: grouped(e) for e in by.measure(_mixed(own), reference) if e.name in NUMBERS}
    return Pooled(REAL, None, None, 0, "", 0.0, found, {})


def grouped(e: Estimate) -> Estimate:
    """The same number with a part for each group of pictures instead of each picture."""
    if e.parts is None or len(e.parts) <= GROUPS:
        return e
    group = torch.arange(len(e.parts)) % GROUPS
    total = torch.zeros(GROUPS, dtype=torch.float64).index_add_(0, group, e.parts.double())
    return Estimate(e.name, e.value, e.n, total / group.bincount())


def write_pooled(settings: Sequence[Pooled], path: Path) -> Path:
    """A line for each setting and number; the file appears whole or not at all."""
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*_COLUMNS, "seeds", "parts"])
    for s in settings:
        for i, (name, e) in enumerate(s.numbers.items()):
            rule = s.rule if i == 0 else ""  # that of a calibrated cap is long
            about = [s.method, _said(s.scale), _said(s.gamma), s.evaluations, rule, f"{s.used:.5g}", e.n]
            parts = [] if e.parts is None else e.parts.tolist()
            lists = [" ".join(f"{v:.5g}" for v in values) for values in (s.seeds.get(name, ()), parts)]
            writer.writerow([*about, name, f"{e.value:.6g}", *lists])
    return write_whole(path, text.getvalue())


def read_pooled(path: Path) -> list[Pooled]:
    """What `write_pooled` wrote."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    groups: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in _COLUMNS[:4]), []).append(row)
    return [_read(lines) for lines in groups.values()]


def _read(lines: Sequence[dict[str, str]]) -> Pooled:
    first = lines[0]
    numbers, seeds = {}, {}
    for row in lines:
        parts = torch.tensor([float(v) for v in row["parts"].split()], dtype=torch.float64)
        numbers[row["number"]] = Estimate(row["number"], float(row["value"]), int(row["n"]), parts)
        seeds[row["number"]] = tuple(float(v) for v in row["seeds"].split())
    scale, gamma = (float(first[k]) if first[k] else None for k in ("scale", "gamma"))
    return Pooled(
        first["method"], scale, gamma, int(first["evaluations"]), first["rule"], float(first["scale used"]),
        numbers, seeds,
    )  # fmt: skip


def _generated(runs: Sequence[Path], by: Protocol) -> Generated:
    targets = [open_target(run) for run in runs]
    extractor = by.load(None)
    parts = [FeatureCache.of(t.folder / "features", by.name, extractor, t.images).load() for t in targets]
    features: Features = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    labels = [t.labels for t in targets if t.labels is not None]
    return Generated(features, torch.cat(labels))


def _mixed(made: Generated) -> Generated:
    """The same pictures in a random order, which is the same for all rules."""
    assert made.labels is not None
    order = torch.randperm(len(made.labels), generator=torch.Generator().manual_seed(0))
    return Generated({name: value[order] for name, value in made.features.items()}, made.labels[order])


def _said(value: float | None) -> str:
    return "" if value is None else f"{value:g}"
