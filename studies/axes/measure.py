"""The numbers of a set of pictures, each with the pseudo-values of groups of pictures.

    FD, recall   of features against real ones: the 64 numbers below the answer of the shipped classifier of
                 garments, or the 96 of the detector of scenes
    alignment    garments: the classifier's probability of the class that was asked for
    clauses      scenes: share of the prompt's clauses that the detector finds; right: it finds all of them
    drawn        scenes: both outlines are those of the shapes that the prompt names (IoU > 0.85)
    diversity    distance of the features of two pictures of one class, or of one prompt
    SW2          root of the mean squared Wasserstein distance of the pixels along 128 random directions,
                 within each class of garments, over all prompts of scenes; in units of the model's data
    white        garments: share of pixels at 255
    clipped      scenes: share of channel values at 0 or 255
    tv           scenes: total variation between the background (or radius) and the law

Real garments are test pictures, 1,000 of each class; real scenes are ten renders of each prompt.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from meancap_lab.metrics.classifiers import fashion_classifier
from meancap_lab.metrics.distances import frechet_estimate
from meancap_lab.metrics.manifold import recall_estimate
from meancap_lab.metrics.per_image import brightness, class_probability, diversity_estimate
from meancap_lab.metrics.score import Estimate, mean_estimate
from meancap_lab.models.data import Pixels
from meancap_lab.models.scenes import detect, detector, draw, measure_pictures, render
from meancap_lab.models.scenes.law import BOUNDS

DIRECTIONS, GROUPS, RENDERS, CELLS = 128, 50, 10, 10


def sliced_distance(x: Tensor, real: Tensor, label: Tensor, real_label: Tensor) -> Estimate:
    """SW2 between (n, d) and (m, d) points within each label, with a part for each point of x.

    In one dimension the derivative of W2^2 is the potential phi with phi' = 2 (x - T(x)), T the monotone map.
    """
    directions = torch.randn(x.shape[1], DIRECTIONS, generator=torch.Generator().manual_seed(0))
    directions /= directions.norm(dim=0)
    moved = torch.zeros(len(x), dtype=torch.float64)
    squares, kinds = [], label.unique().tolist()
    for kind in kinds:
        rows = (label == kind).nonzero()[:, 0]
        own, order = (x[rows] @ directions).double().sort(0)
        other = (real[real_label == kind] @ directions).double().sort(0).values
        # Each own point has a block of quantiles of the other side: their mean, and what they spread.
        level = (torch.arange(len(own) * RENDERS) + 0.5) / (len(own) * RENDERS)
        blocks = other[(level * len(other)).long()].reshape(len(own), RENDERS, DIRECTIONS)
        squares.append((own[:, None] - blocks).square().mean())
        pull = own - blocks.mean(1)
        steps = own.diff(dim=0) * (pull[1:] + pull[:-1])
        potential = torch.cat([torch.zeros_like(own[:1]), steps.cumsum(0)])
        potential = torch.empty_like(own).scatter_(0, order, potential - potential.mean(0))
        moved[rows] = potential.mean(1) * len(x) / (len(kinds) * len(rows))
    value = float(torch.stack(squares).mean().sqrt())
    return Estimate("SW2", value, len(x), value + moved / (2 * value))


@dataclass(frozen=True, eq=False)
class Garments:
    """Real garments: what the numbers of generated ones compare with."""

    images: Tensor
    labels: Tensor
    pixels: Pixels

    @cached_property
    def pool(self) -> Tensor:
        return _classify(self.images)["pool"]

    def measure(self, pictures: Tensor, labels: Tensor) -> list[Estimate]:
        own, real = _classify(pictures), self.pool
        images = pictures.permute(0, 2, 3, 1)
        white = (pictures == 255).double().mean((1, 2, 3))
        return [
            frechet_estimate("FD", own["pool"], real),
            mean_estimate("alignment", class_probability(own["logits"], labels)),
            recall_estimate(real, own["pool"]),
            diversity_estimate("diversity", own["pool"], labels),
            sliced_distance(self._flat(pictures), self._flat(self.images), labels, self.labels),
            mean_estimate("brightness", brightness(images)),
            mean_estimate("white", white),
        ]

    def _flat(self, pictures: Tensor) -> Tensor:
        return self.pixels.data(pictures).flatten(1)


def _classify(pictures: Tensor) -> dict[str, Tensor]:
    return fashion_classifier()(pictures.permute(0, 2, 3, 1), [""] * len(pictures))


@dataclass(frozen=True, eq=False)
class Scenes:
    """Renders of prompts: what the numbers of generated scenes compare with."""

    codes: Tensor
    pixels: Pixels
    seed: int

    @cached_property
    def real(self) -> Tensor:
        return renders(self.codes.repeat(RENDERS, 1), self.seed)

    @cached_property
    def pool(self) -> Tensor:
        return detect(detector(), self.real).pool

    def measure(self, pictures: Tensor, codes: Tensor) -> list[Estimate]:
        m = measure_pictures(detector(), pictures, codes)
        pool, prompt = m.readings.pool, codes.unique(dim=0, return_inverse=True)[1]
        own, real = (self.pixels.data(p).flatten(1) for p in (pictures, self.real))
        hits = torch.stack([v for k, v in m.right.items() if k not in ("all", "background")])
        shares = {
            "clauses": hits.double().mean(0),
            "right": m.right["all"],
            "drawn": m.drawn,
            "right and drawn": m.right["all"] & m.drawn,
            "iou": m.forms.iou.mean(1),
            "saturation": m.saturation,
            "clipped": m.clipped,
        }
        return [
            *(mean_estimate(name, values) for name, values in shares.items()),
            frechet_estimate("FD", pool, self.pool),
            recall_estimate(self.pool, pool),
            diversity_estimate("diversity", pool, prompt),
            sliced_distance(own, real, torch.zeros(len(own)), torch.zeros(len(real))),
            law_distance("background", m.forms.background[:, None], BOUNDS["brightness"]),
            law_distance("radius", m.forms.radius, BOUNDS["radius"]),
        ]


def renders(codes: Tensor, seed: int) -> Tensor:
    """A picture of the law for each prompt."""
    return (render(draw(codes, torch.Generator().manual_seed(seed))) * 255).round().byte()


def law_distance(name: str, values: Tensor, bounds: tuple[float, float]) -> Estimate:
    """Total variation between (n, k) values and U(bounds), with the pseudo-value of each group left out.

    The histogram has ten equal cells, and one at each side for what lies outside the bounds.
    """
    low, high = bounds
    index = ((values.double() - low) / (high - low) * CELLS).floor().clamp(-1, CELLS).long() + 1
    law = torch.tensor([0.0, *[1 / CELLS] * CELLS, 0.0], dtype=torch.float64)
    group = torch.arange(len(values)) % GROUPS

    def distance(kept: Tensor) -> float:
        counts = index[kept].flatten().bincount(minlength=CELLS + 2).double()
        return float((counts / counts.sum() - law).abs().sum() / 2)

    value, *left = (distance(group != k) for k in range(-1, GROUPS))
    parts = GROUPS * value - (GROUPS - 1) * torch.tensor(left, dtype=torch.float64)
    return Estimate(f"tv {name}", value, len(values), parts)


def grouped(e: Estimate) -> Estimate:
    """The same number with a part for each group of pictures (i modulo GROUPS) instead of each picture."""
    if e.parts is None or len(e.parts) <= GROUPS:
        return e
    group = torch.arange(len(e.parts)) % GROUPS
    total = torch.zeros(GROUPS, dtype=torch.float64).index_add_(0, group, e.parts.double())
    return Estimate(e.name, e.value, e.n, total / group.bincount())
