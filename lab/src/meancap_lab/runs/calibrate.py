"""What a calibration measures: a rule by path matching, a scale from labelled examples, radii from a pilot.

Each ends in a `meancap.Calibration`: a rule, its provenance and the curves of its examples.

**A rule from examples**: the candidate whose paths look most like those of the examples under their own
conditions (`path_matching`). `match_examples` takes predictors and tensors, `match_pipeline` a diffusers
pipeline and pictures with captions. Finished runs can be kept in a folder, so that a stopped calibration
resumes.

**Radii from a pilot** that follows the conditional prediction alone, so that guidance cannot calibrate
itself: `run_pilot` runs a `meancap.rules.Pilot`, which `guided(pipe, Pilot())` does in a pipeline.

**A scale from data**: lambda(t) learned from examples whose label is trusted, with intervals.

    x_t     t data + (1 - t) noise, for an example of the data and fresh noise
    m_c     the model's mean at x_t under the example's own label, m_u without it, D = m_c - m_u

Guided means m_u + lambda D are guesses of the data. The one with the least mean square error has

    lambda(t) = E<data - m_u, D> / E|D|^2

which is 1 for an exact model: m_c = E[data | x, label] leaves an error that is orthogonal to every function
of x and the label, so E<data - m_u, D> = E<m_c - m_u, D>. If a model is under-conditioned,
m_c' = (1 - eta) m_c + eta m_u, its gap is (1 - eta) D and the same expectation gives **1 / (1 - eta)**. So
the curve measures how far the gap of a network is too short (lambda > 1) or too long (lambda < 1) at
each time, with nothing to tune.

It gives the multiple of the gap that predicts data best **on average over the states of the data**. A label
leak needs a scale that differs from sample to sample (`meancap.rules.DensityFeedback`), and means that
predict best do not always give the pictures that people like best.

The error of the estimate comes from leaving out each example in turn, with all its times. Late on the path a
gap may have vanished for all but a few examples: the error is large, and `shrunk_scale` returns about 1.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from meancap.files import writing
from meancap.record import Record
from meancap.rules import CFG, Calibration, Pilot, Rule, parse
from meancap.sampling import Predict, noise, sample
from meancap.sampling.stochastic import generator_of
from meancap.schedules import Piecewise

from ..extras import need
from ..mixtures.problems import problem
from .config import sample_seed
from .path_matching import (
    FEWEST_EXAMPLES,
    Follow,
    PathMatch,
    PathStatistics,
    digits,
    match_paths,
    path_statistics,
)

_LARGEST_ANCHOR = 1024  # elements that a text can still hold
_Examples = tuple[Predict, Tensor]  # a predictor under the conditions of a batch, and the batch's data
_Walk = Callable[[Rule | None], list[PathStatistics]]  # of a rule, or of the examples for None

CANDIDATES = (
    *(f"CFG({scale})" for scale in (1, 1.25, 1.5, 2, 3, 5)),
    *(f"CFG({scale}) | Cap(1.05, anchor='first')" for scale in (2, 4)),
    *(f"CFG({scale}) | Cap(1.1, anchor='first')" for scale in (2, 3, 5)),
    "CFG(3) | Cap(1.1)",
)


def match_examples(
    batches: Iterable[_Examples],
    times: Sequence[float],
    rules: Sequence[str] = CANDIDATES,
    *,
    seed: int = 0,
    model: str = "",
    folder: Path | None = None,
    tick: Callable[[], object] = bool,
) -> PathMatch:
    """Chooses among `rules` by path matching, on batches of a predictor and its examples (n, ...).

    The noise of each example has its own seed, so the result does not depend on the batches. The cost is one
    evaluation per example and time, for the examples and for each rule. Finished runs are kept in `folder`;
    `tick` is called after each.
    """
    parts = list(batches)
    digest = hashlib.sha256(b"".join(data.cpu().float().numpy().tobytes() for _, data in parts)).hexdigest()

    def walk(rule: Rule | None) -> list[PathStatistics]:
        found, first = [], 0
        for predict, data in parts:
            record, seeds = Record(), [sample_seed(seed, first + i) for i in range(len(data))]
            start = noise(seeds, data.shape[1:]).to(data)
            sample(predict, Follow(data) if rule is None else rule, start, times, record=record)
            found.append(path_statistics(record))
            first += len(data)
        return found

    count = sum(len(data) for _, data in parts)
    return _choose(walk, rules, [model, digest, seed, list(times)], count, folder, tick)


def match_pipeline(
    pipe: Any,
    pictures: Sequence[Any] | Tensor,
    captions: Sequence[str],
    rules: Sequence[str] = CANDIDATES,
    *,
    seed: int = 0,
    folder: Path | None = None,
    tick: Callable[[], object] = bool,
    **call: Any,
) -> PathMatch:
    """Chooses among `rules` by path matching, for a diffusers pipeline and pictures with captions.

    Pictures are PIL images of one size, encoded by the pipeline's own autoencoder, or a tensor of its latents
    (n, ...) as its scheduler steps them. `call` holds the arguments of every call, which must turn guidance
    on (the default is guidance_scale=2). The cost is one call per picture, for the examples and for each
    rule. Pipelines that start at t > 0 (EDM and v-prediction grids) start from pure noise, also for examples.
    """
    from meancap.adapters.diffusers import guided

    if len(pictures) != len(captions):
        raise ValueError(f"each picture needs its caption; got {len(pictures)} and {len(captions)}")
    latents = pictures if isinstance(pictures, Tensor) else encode_pictures(pipe, pictures, seed)
    if not isinstance(pictures, Tensor):
        call = {"width": pictures[0].width, "height": pictures[0].height, **call}
    call = {"guidance_scale": 2.0, "output_type": "latent", **call}
    digest = hashlib.sha256(latents.cpu().float().numpy().tobytes()).hexdigest()

    def walk(rule: Rule | None) -> list[PathStatistics]:
        found = []
        for i, caption in enumerate(captions):
            generator = generator_of(sample_seed(seed, i))
            follow = Follow(latents[i : i + 1]) if rule is None else rule
            with torch.no_grad(), guided(pipe, follow) as record:
                pipe(caption, generator=generator, **call)
            found.append(path_statistics(record))
        return found

    key = [type(pipe).__name__, digest, seed, *captions, repr(sorted(call.items()))]
    return _choose(walk, rules, key, len(captions), folder, tick)


@torch.no_grad()
def encode_pictures(pipe: Any, pictures: Sequence[Any], seed: int = 0) -> Tensor:
    """Latents of PIL pictures as the pipeline's scheduler steps them, from its own autoencoder."""
    vae = pipe.vae
    pixels = pipe.image_processor.preprocess(list(pictures)).to(vae.device, vae.dtype)
    found = []
    for i, one in enumerate(pixels.split(1)):
        generator = generator_of(sample_seed(seed, i))
        z = vae.encode(one).latent_dist.sample(generator)
        z = (z - (getattr(vae.config, "shift_factor", None) or 0.0)) * vae.config.scaling_factor
        found.append(pipe._pack_latents(z, *z.shape) if hasattr(pipe, "_pack_latents") else z)
    return torch.cat(found)


def _choose(
    walk: _Walk,
    rules: Sequence[str],
    key: list[Any],
    count: int,
    folder: Path | None,
    tick: Callable[[], object],
) -> PathMatch:
    """Walks the examples and every rule, with the finished ones kept in `folder`, and matches them."""

    def kept(rule: Rule | None) -> PathStatistics:
        name = hashlib.sha256(json.dumps([*key, str(rule)]).encode()).hexdigest()[:20]
        path = None if folder is None else folder / f"{name}.pt"
        if path is not None and path.is_file():
            found = PathStatistics(*torch.load(path, weights_only=True))
        else:
            parts = walk(rule)
            found = PathStatistics(parts[0].times, torch.cat([part.values for part in parts]))
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
                with writing(path) as temporary:
                    torch.save(tuple(found), temporary)
        tick()
        return found

    if count < FEWEST_EXAMPLES:
        raise ValueError(f"path matching needs {FEWEST_EXAMPLES} examples; got {count}")
    chosen = [parse(rule) for rule in rules]
    real = kept(None)
    return match_paths(real, {str(rule): kept(rule) for rule in chosen}, model=key[0])


def draw_match(match: PathMatch, path: str | Path) -> Path:
    """Draws the squared gap of each rule over that of the examples, and the mismatches with intervals."""
    figures = need("matplotlib.figure", "report")
    figure = figures.Figure(figsize=(9, 3.4), layout="constrained")
    curves, bars = figure.subplots(1, 2)
    order = sorted(match.candidates, key=lambda one: one.mismatch)
    for i, one in enumerate(order):
        ratios = [match.gaps.ratio(t, g) for t, g in zip(match.times, one.curves["gap"], strict=True)]
        best = one.rule == match.rule
        curves.plot(match.times, ratios, color="#009E73" if best else "#73777F", linewidth=2 if best else 0.6)
        bars.plot([one.low, one.high], [i, i], color="#009E73" if best else "#73777F")
        bars.plot([one.mismatch], [i], "o", color="#009E73" if best else "#73777F")
    curves.axhline(1, color="#222222", linestyle=":")
    curves.set(yscale="log", xlabel="t (noise at 0)", title="squared gap over that of the examples")
    bars.set(xlabel="mismatch (standard deviations)", title=f"{match.examples} examples: {match.rule}")
    bars.set_yticks(range(len(order)), [one.rule for one in order], fontsize=7)
    bars.invert_yaxis()
    with writing(path) as temporary:
        figure.savefig(temporary, format="png")
    return Path(path)


def run_pilot(batches: Iterable[tuple[Predict, Tensor]], times: Sequence[float]) -> Pilot:
    """Runs a pilot on batches of a predictor and its noise (n, ...), without guidance.

    The anchor has one value per element, or per channel if there are more than 1024 elements.
    """
    pilot: Pilot | None = None
    for predict, x in batches:
        if pilot is None:
            pilot = Pilot("element" if x[0].numel() <= _LARGEST_ANCHOR or x.dim() == 2 else "channel")
        sample(predict, pilot, x, times)
    return pilot or Pilot()


def examples(
    model: str, count: int, *, data: str | Path | None = None, seed: int = 0, batch: int = 50
) -> list[_Examples]:
    """Predictors under the examples' own conditions, and the examples, batch by batch.

    `lab:PROBLEM` and `scenes` draw from their laws; `fashion` and `sit:PATH` take test pictures of
    Fashion-MNIST from the folder `data`.
    """
    kind, _, where = model.partition(":")
    if count < 1 or batch < 1:
        raise ValueError(
            f"a calibration needs examples, and a batch of at least one; got {count} and {batch}"
        )
    draw = generator_of(seed)
    if kind == "lab" and where:
        chosen = problem(where)
        return [(chosen.model().predict, chosen.condition().conditional.sample(count, draw))]
    if kind == "scenes":
        from ..models.scenes import draw as draw_scenes
        from ..models.scenes import render, scenes

        scene_model, drawn = scenes(where or None), draw_scenes(count, draw)
        made, codes = scene_model.pixels.data(255 * render(drawn)), drawn.codes()
        codes[:, -1] = -1  # captions of the two objects; the background is left open
        return [
            (scene_model.predict(part), one)
            for part, one in zip(torch.split(codes, batch), torch.split(made, batch), strict=True)
        ]
    if kind not in ("fashion", "sit") or (kind == "sit") != bool(where):
        raise ValueError(
            f"examples are available for lab:PROBLEM, scenes, fashion and sit:PATH; got {model!r}"
        )
    if data is None:
        raise ValueError(f"{model} needs --data DIR, the folder of Fashion-MNIST's idx files")
    from ..models.checkpoint import load_sit
    from ..models.classes import SHIPPED, fashion, open_sit
    from ..models.data import read_fashion

    path = SHIPPED if kind == "fashion" else Path(where)
    network = fashion() if kind == "fashion" else open_sit(path)
    pixels = load_sit(path)[1]
    if pixels is None:
        raise ValueError(f"{path.name} generates latents; a calibration needs a model of pixels")
    test = read_fashion(data, train=False)
    order = torch.randperm(len(test.images), generator=draw)[:count]
    return [
        (network.predict(test.labels[part].tolist()), pixels.data(test.images[part]))
        for part in torch.split(order, batch)
    ]


_FEWEST_EXAMPLES = 32
LARGEST = 10.0  # a learned scale lies between 0 and this
KNOTS = (0.02, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


def learn_scale(
    batches: Iterable[_Examples], times: Sequence[float] = KNOTS, *, seed: int = 0, model: str = ""
) -> Calibration:
    """Learns lambda(t) from batches of examples, with one noise for each example and time.

    The rule is CFG(Piecewise(...)) with `shrunk_scale` of the estimate. The curves are the estimate and the
    ends "low" and "high" of its 95 % interval. Example i has its own noise, so that batches change nothing.
    """
    knots = tuple(float(t) for t in times)
    if not knots or not all(0 < t < 1 for t in knots):
        raise ValueError(f"learn_scale needs times between 0 and 1, without them; got {list(knots)}")
    rows, first = [], 0
    for predict, data in batches:
        rows.append(_products(predict, data, knots, seed, first))
        first += len(data)
    if first < _FEWEST_EXAMPLES:
        raise ValueError(f"a scale needs at least {_FEWEST_EXAMPLES} examples for its interval; got {first}")
    products = torch.cat(rows)  # (examples, times, 2)
    value, without = _ratio(products.sum(0)), _ratio(products.sum(0) - products)
    error = ((first - 1) / first * (without - without.mean(0)).square().sum(0)).sqrt()
    spans = {"estimate": value, "low": value - 1.96 * error, "high": value + 1.96 * error}
    curves = {"t": knots, **{name: digits(*curve.nan_to_num(1.0)) for name, curve in spans.items()}}
    rule = CFG(Piecewise(knots, digits(*shrunk_scale(value, error))))
    calls = 2 * first * len(knots)
    return Calibration(rule.parts, "least squares", model, first, seed, calls, curves=curves)


def shrunk_scale(value: Tensor, error: Tensor) -> Tensor:
    """An estimated scale drawn towards 1 by its standard error, between 0 and `LARGEST`.

    With a = value - 1 it is 1 + a w / (w + error^2), w = min(a^2, 1): the mean of lambda under a normal prior
    round 1 that is as wide as the effect itself, 1 at most. So 1 + a / 2 if the error is as large as the
    effect, and 1 if nothing is known.
    """
    a = value - 1
    width = a.square().clamp(max=1.0)
    scale = 1 + a * width / (width + error.square())
    return scale.nan_to_num(1.0).clamp(0.0, LARGEST)  # 0 / 0 is no effect, and no error


@torch.no_grad()
def _products(predict: Predict, data: Tensor, times: Sequence[float], seed: int, first: int) -> Tensor:
    """<data - m_u, D> and |D|^2 of each example at each time, (n, times, 2)."""
    streams = [generator_of(sample_seed(seed, first + i)) for i in range(len(data))]
    found = []
    for t in times:
        noise = torch.stack([torch.randn(data.shape[1:], generator=one) for one in streams])
        p = predict(torch.lerp(noise.to(data), data, t), t)
        gap = p.delta.flatten(1).double()
        off = (data.to(p.m_u) - p.m_u).flatten(1).double()
        found.append(torch.stack([(off * gap).sum(1), gap.square().sum(1)], 1).cpu())
    return torch.stack(found, 1)


def _ratio(sums: Tensor) -> Tensor:
    """Where no example has a gap, any scale predicts alike, and 1 changes nothing."""
    cross, square = sums.unbind(-1)
    return torch.where(square > 0, cross / square.clamp(min=torch.finfo(square.dtype).tiny), 1.0)
