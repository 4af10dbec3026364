"""Calibration without a knob: radii for a cap from an unguided pilot, or a scale from labelled examples.

The pilot follows the conditional prediction alone, so that guidance cannot calibrate itself. What it finds,
its file and the cap made from it are in `meancap.rules.caps`.

**A scale from data**: lambda(t) learned from examples whose label is trusted, with intervals.

    x_t     t data + (1 - t) noise, for an example of the data and fresh noise
    m_c     what the model says of x_t under the example's own label, m_u without it, D = m_c - m_u

Guided means m_u + lambda D are guesses of the data. The one with the least mean square error has

    lambda(t) = E<data - m_u, D> / E|D|^2

which is 1 for an exact model: m_c = E[data | x, label] leaves an error that is orthogonal to every function
of x and the label, so E<data - m_u, D> = E<m_c - m_u, D>. If a model is under-conditioned,
m_c' = (1 - eta) m_c + eta m_u, its gap is (1 - eta) D and the same expectation gives **1 / (1 - eta)**. So
the curve measures how far the gap of a network is too short (lambda > 1) or too long (lambda < 1) at
each time, without a knob.

It answers which multiple of the gap predicts data best **on average over the states of the data**. A label
leak needs a scale that differs from sample to sample (`meancap.rules.DensityFeedback`), and means that
predict best do not always give the pictures that people like best.

Intervals come from resampling whole examples, each with all its times and noises. Late on the path a gap may
have vanished for all but a few examples; a time whose interval is wider than `WIDEST` says nothing and is
left out of the schedule, which holds the values of its neighbours there.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..files import write_whole
from ..lab.problems import problem
from ..rules import CFG, Values
from ..rules.caps import (
    FEWEST,
    LEVELS,
    Calibration,
    anchor_of,
    calibrated,
    from_pilot,
    load_calibration,
)
from ..sampling import Predict, noise, trajectory
from ..schedules import Piecewise
from .config import sample_seed

__all__ = ["LEVELS", "Calibration", "calibrate", "calibrated", "load_calibration"]

Pilot = tuple[Predict, Tensor]


def calibrate(
    pilots: Iterable[Pilot], times: Sequence[float], *, model: str = "", per: str | None = None
) -> Calibration:
    """Runs a pilot, given as batches of a predictor and its noise (n, ...), and measures it.

    The anchor has one value per 'element' or per 'channel'; by default per element up to `LARGEST` of them.
    """
    if per not in (None, "element", "channel"):
        raise ValueError(f"an anchor is per 'element' or per 'channel'; got {per!r}")
    batches = list(pilots)
    count = sum(len(x) for _, x in batches)
    if count < FEWEST:
        raise ValueError(f"a pilot needs at least {FEWEST} samples for its quantiles; got {count}")
    total = sum(predict(x, times[0]).m_u.double().sum(0).cpu() for predict, x in batches)
    assert isinstance(total, Tensor)
    anchor = anchor_of(total / count, per)
    radii = torch.cat([_radii(predict, x, times, anchor) for predict, x in batches], dim=1)
    return from_pilot(anchor, times[:-1], radii, model)


def _radii(predict: Predict, x: Tensor, times: Sequence[float], anchor: Values) -> Tensor:
    """|m_c - r| along the unguided flow, (steps, n)."""
    radii = []
    for step in trajectory(predict, CFG(1.0), x, times):
        m_c = step.prediction.m_c
        radii.append(
            torch.linalg.vector_norm((m_c - anchor.on(m_c, "anchor")).flatten(1).double(), dim=1).cpu()
        )
    return torch.stack(radii)


def pilots(model: str, samples: int, seed: int = 0, batch: int = 50) -> list[Pilot]:
    """Predictor and noise of each batch; the classes of a network take turns, so that all count alike."""
    kind, _, where = model.partition(":")
    if samples < 1 or batch < 1:
        raise ValueError(f"a pilot needs samples, and a batch of at least one; got {samples} and {batch}")
    seeds = range(seed * 1_000_003, seed * 1_000_003 + samples)
    if kind == "lab" and where:
        exact = problem(where).model()
        start = noise(seeds, (exact.condition.mixture.means.shape[1],)).double()
        return [(exact.predict, start)]
    if kind not in ("fashion", "sit") or (kind == "sit") != bool(where):
        raise ValueError(f"a pilot needs lab:PROBLEM, fashion or sit:PATH; got {model!r}")
    from ..models.classes import fashion, open_sit

    # The pilot looks at latents, so nothing needs to be decoded.
    network = fashion() if kind == "fashion" else open_sit(where, decode=lambda x: x)
    batches: list[Pilot] = []
    for low in range(0, samples, batch):
        members = range(low, min(low + batch, samples))
        labels = [i % network.classes for i in members]
        batches.append((network.predict(labels), noise([seeds[i] for i in members], network.shape)))
    return batches


def examples(
    model: str, count: int, *, data: str | Path | None = None, seed: int = 0, batch: int = 50
) -> list[_Examples]:
    """Predictors under the examples' own labels, and the examples, batch by batch.

    `lab:PROBLEM` draws from its truth; `fashion` and `sit:PATH` take test pictures of Fashion-MNIST.
    """
    kind, _, where = model.partition(":")
    if count < 1 or batch < 1:
        raise ValueError(f"a scale needs examples, and a batch of at least one; got {count} and {batch}")
    draw = torch.Generator().manual_seed(seed)
    if kind == "lab" and where:
        chosen = problem(where)
        return [(chosen.model().predict, chosen.condition().conditional.sample(count, draw))]
    if kind not in ("fashion", "sit") or (kind == "sit") != bool(where):
        raise ValueError(f"a scale is learned for lab:PROBLEM, fashion or sit:PATH; got {model!r}")
    if data is None:
        raise ValueError("a network's scale needs --data DIR, the folder of Fashion-MNIST's idx files")
    from ..models.checkpoint import load_sit
    from ..models.classes import SHIPPED, fashion, open_sit
    from ..models.data import fashion as pictures

    path = SHIPPED if kind == "fashion" else Path(where)
    network = fashion() if kind == "fashion" else open_sit(path)
    pixels = load_sit(path)[1]
    if pixels is None:
        raise ValueError(f"{path.name} makes latents; a scale can be learned for models of pixels only")
    test = pictures(data, train=False)
    order = torch.randperm(len(test.images), generator=draw)[:count]
    return [
        (network.predict(test.labels[part].tolist()), pixels.data(test.images[part]))
        for part in torch.split(order, batch)
    ]


_Examples = tuple[Predict, Tensor]  # a predictor under the labels of a batch, and the batch's data
FORMAT = 1
_FEWEST_EXAMPLES = 32
_WIDEST = 1.0
KNOTS = (0.02, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


@dataclass(frozen=True)
class LearnedScale:
    """lambda at each time, and the ends of its interval."""

    times: tuple[float, ...]
    values: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    examples: int
    level: float = 0.95
    model: str = ""

    @property
    def schedule(self) -> Piecewise:
        """Straight lines between the times that are known, constant before and after."""
        curves = zip(self.times, self.values, self.low, self.high, strict=True)
        known = [(t, value) for t, value, low, high in curves if high - low <= _WIDEST]
        if not known:
            return Piecewise((0.0,), (1.0,))
        return Piecewise(tuple(t for t, _ in known), tuple(value for _, value in known))

    @property
    def rule(self) -> CFG:
        """CFG with this scale; a cap may follow it."""
        return CFG(self.schedule)

    def save(self, path: str | Path) -> Path:
        """Writes the file; it appears whole or not at all."""
        path = Path(path)
        fields = {"format": FORMAT, "kind": "scale", **asdict(self)}
        lines = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in fields.items()]
        return write_whole(path, "{\n" + ",\n".join(lines) + "\n}\n")


def learn_scale(
    batches: Iterable[_Examples],
    times: Sequence[float] = KNOTS,
    *,
    draws: int = 1,
    seed: int = 0,
    level: float = 0.95,
    resamples: int = 1000,
    model: str = "",
) -> LearnedScale:
    """Learns lambda(t) from batches of examples, with `draws` noises for each example and time.

    The noise of example i has a seed of its own, so that batches change nothing.
    """
    knots = tuple(float(t) for t in times)
    if not knots or not all(0 < t < 1 for t in knots):
        raise ValueError(f"learn_scale needs times between 0 and 1, without them; got {list(knots)}")
    if draws < 1 or not 0 < level < 1:
        raise ValueError(f"learn_scale needs draws >= 1 and a level in (0, 1); got {draws} and {level}")
    rows, first = [], 0
    for predict, data in batches:
        rows.append(_products(predict, data, knots, draws, seed, first))
        first += len(data)
    if first < _FEWEST_EXAMPLES:
        raise ValueError(f"a scale needs at least {_FEWEST_EXAMPLES} examples for its interval; got {first}")
    products = torch.cat(rows)  # (examples, times, 2)
    values = _ratio(products.sum(0))
    low, high = _interval(products, level, resamples, seed)
    return LearnedScale(
        tuple(_digits(torch.tensor(knots))), _digits(values), _digits(low), _digits(high), first, level, model
    )


def load_scale(path: str | Path) -> LearnedScale:
    """Reads a file that `meancap calibrate --learn scale` wrote."""
    path = Path(path)
    hint = "write one with `meancap calibrate --learn scale`"
    try:
        read: Any = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise ValueError(f"{path} is no scale file ({error}); {hint}") from None
    if not isinstance(read, dict) or (read.get("format"), read.get("kind")) != (FORMAT, "scale"):
        raise ValueError(f"{path} is no scale file of format {FORMAT}; {hint}")
    try:
        curves = {name: tuple(float(v) for v in read[name]) for name in ("times", "values", "low", "high")}
        learned = LearnedScale(
            **curves, examples=int(read["examples"]), level=float(read["level"]), model=str(read["model"])
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is damaged ({error}); {hint}") from None
    for curve in (learned.values, learned.low, learned.high):
        Piecewise(learned.times, curve)  # refuses what does not fit together
    return learned


def scale_from(path: str | Path) -> Piecewise:
    """The schedule in a file: `CFG(scale_from("scale.json")) | Cap(1.1)`."""
    return load_scale(path).schedule


@torch.no_grad()
def _products(
    predict: Predict, data: Tensor, times: Sequence[float], draws: int, seed: int, first: int
) -> Tensor:
    """<data - m_u, D> and |D|^2 of each example at each time, means over the draws, (n, times, 2)."""
    streams = [torch.Generator().manual_seed(sample_seed(seed, first + i)) for i in range(len(data))]
    sums = torch.zeros(len(data), len(times), 2, dtype=torch.float64)
    for at, t in enumerate(times):
        for _ in range(draws):
            noise = torch.stack([torch.randn(data.shape[1:], generator=one) for one in streams])
            p = predict(torch.lerp(noise.to(data), data, t), t)
            gap = p.delta.flatten(1).double()
            off = (data.to(p.m_u) - p.m_u).flatten(1).double()
            sums[:, at] += torch.stack([(off * gap).sum(1), gap.square().sum(1)], 1).cpu() / draws
    return sums


def _ratio(sums: Tensor) -> Tensor:
    """Where no example has a gap, any scale predicts alike, and 1 changes nothing."""
    cross, square = sums.unbind(-1)
    return torch.where(square > 0, cross / square.clamp(min=torch.finfo(square.dtype).tiny), 1.0)


def _interval(products: Tensor, level: float, resamples: int, seed: int) -> tuple[Tensor, Tensor]:
    """Percentiles of the ratio over resampled examples, (times,) each."""
    n = len(products)
    draw = torch.Generator().manual_seed(sample_seed(seed, 2**31))
    picked = torch.randint(n, (resamples, n), generator=draw)
    counts = torch.zeros(resamples, n, dtype=torch.float64).scatter_add_(
        1, picked, torch.ones(resamples, n, dtype=torch.float64)
    )
    ratios = _ratio(torch.einsum("rn,ntk->rtk", counts, products))
    low, high = ratios.quantile(torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.float64), dim=0)
    return low, high


def _digits(values: Tensor) -> tuple[float, ...]:
    """Five digits: below the error of any number of examples, and a file that people can read."""
    return tuple(float(f"{v:.5g}") for v in values.tolist())
