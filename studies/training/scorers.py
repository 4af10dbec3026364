"""The networks that score pictures: the classifier of garments and the detector of scenes.

AdamW on one cycle trains both, and both get a JSON card of what was measured. The classifier also has
`fashion_reference.safetensors`: features of the 10,000 held-out test images in half precision, against which
the protocol `fashion` measures.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from meancap.files import write_whole
from meancap_lab.metrics import gaussian
from meancap_lab.metrics.classifiers import FashionClassifier
from meancap_lab.models.data import FASHION, Pictures, read_fashion
from meancap_lab.models.scenes import draw, render
from meancap_lab.models.scenes.measure import SceneDetector, detect
from meancap_lab.tensor_files import write_tensors

BATCH, PEAK, SHIFT, SEED = 128, 3e-3, 2, 0
ANSWERS = ("axis", "shape 1", "colour 1", "shape 2", "colour 2")


def train_one_cycle(
    network: nn.Module, loss_of: Callable[[int], Tensor], steps: int, *, decay: float, rise: float
) -> list[float]:
    """Minimises the loss of each step's batch; `rise` is the share of the steps until the peak rate."""
    optimiser = torch.optim.AdamW(network.parameters(), lr=PEAK, weight_decay=decay)
    cycle = torch.optim.lr_scheduler.OneCycleLR(optimiser, PEAK, total_steps=steps, pct_start=rise)
    losses: list[float] = []
    for step in range(steps):
        loss = loss_of(step)
        optimiser.zero_grad()
        torch.autograd.backward(loss)
        optimiser.step()
        cycle.step()
        losses.append(loss.item())
        if (step + 1) % 50 == 0 or step + 1 == steps:
            print(f"step {step + 1}  loss {losses[-1]:.4f}", file=sys.stderr, flush=True)
    network.eval()
    return losses


class Unfolded(nn.Module):
    """The classifier with the batch norms that `folded` merges into the convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(
            nn.Conv2d(c_in, c_out, 3, stride, padding=1, bias=False)
            for c_in, c_out, stride in FashionClassifier.LAYERS
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(c_out) for _, c_out, _ in FashionClassifier.LAYERS)
        self.head = nn.Linear(FashionClassifier.LAYERS[-1][1], 10)

    def forward(self, images: Tensor) -> Tensor:
        x = (images - FashionClassifier.MEAN) / FashionClassifier.SPREAD
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            x = F.relu(norm(convolution(x)))
        return self.head(x.mean((2, 3)))

    def folded(self) -> FashionClassifier:
        network = FashionClassifier()
        pairs = zip(self.convolutions, self.norms, strict=True)
        network.convolutions = nn.ModuleList(fuse_conv_bn_eval(*pair) for pair in pairs)
        network.head.load_state_dict(self.head.state_dict())
        return network.eval()


def garment_batches(pictures: Pictures) -> Iterator[tuple[Tensor, Tensor]]:
    """Images moved by up to SHIFT pixels both ways, black at the edges, and labels, epoch after epoch."""
    generator, count = torch.Generator().manual_seed(SEED), len(pictures.images)
    while True:
        for rows in torch.randperm(count, generator=generator).split(BATCH)[: count // BATCH]:
            padded = F.pad(pictures.images[rows], (SHIFT,) * 4)
            dy, dx = torch.randint(0, 2 * SHIFT + 1, (2, BATCH, 1, 1), generator=generator)
            y, x = dy + torch.arange(28)[None, :, None], dx + torch.arange(28)[None, None, :]
            moved = padded[torch.arange(BATCH)[:, None, None], 0, y, x][:, None]
            yield moved.float(), pictures.labels[rows]


def train_classifier(data: Path, out: Path, steps: int) -> Path:
    """Writes the classifier with its reference and card; 468 steps are an epoch."""
    begun = time.process_time()
    torch.manual_seed(SEED)
    model, batches = Unfolded(), garment_batches(read_fashion(data))

    def loss_of(_: int) -> Tensor:
        images, labels = next(batches)
        return F.cross_entropy(model(images), labels)

    train_one_cycle(model, loss_of, steps, decay=0.02, rise=0.3)
    network, test = model.folded(), read_fashion(data, train=False)
    with torch.no_grad():
        blocks = [network(block.float()) for block in test.images.split(500)]
    logits, pool, spatial = (torch.cat([b[name] for b in blocks]) for name in ("logits", "pool", "spatial"))
    right, statistics = (logits.argmax(1) == test.labels).float(), gaussian(spatial)
    reference = {"pool": pool.half(), "spatial_mean": statistics.mean}
    reference["spatial_covariance"] = statistics.covariance.float()
    shares = [round(right[test.labels == i].mean().item(), 3) for i in range(len(FASHION))]
    card = {
        "data": "Fashion-MNIST (Zalando Research, MIT licence), 60,000 training images",
        "recipe": f"{steps} steps of {BATCH}, AdamW, one cycle to {PEAK}, weight decay 0.02, "
        f"shifts up to {SHIFT} pixels, seed {SEED}",
        "parameters": sum(p.numel() for p in network.parameters()),
        "test_accuracy": round(right.mean().item(), 4),
        "test_accuracy_per_class": dict(zip(FASHION, shares, strict=True)),
        "test_cross_entropy": round(F.cross_entropy(logits, test.labels).item(), 4),
        "training_cpu_seconds": round(time.process_time() - begun),
    }
    write_tensors(out / "fashion_reference.safetensors", reference, {})
    return _write(out / "fashion_classifier.safetensors", network, card)


def fit_detector(steps: int, batch: int = BATCH) -> tuple[SceneDetector, list[float]]:
    """The detector and its losses; the batch of step k is drawn from a generator seeded by (seed, k)."""
    torch.manual_seed(SEED)
    network = SceneDetector().to(memory_format=torch.channels_last)

    def loss_of(step: int) -> Tensor:
        g = torch.Generator().manual_seed(SEED * 1_000_003 + step)
        scenes = draw(batch, g)
        _, logits = network(spoilt(render(scenes), g))
        answers = answers_of(scenes.codes())
        return torch.stack([F.cross_entropy(a, b) for a, b in zip(logits, answers, strict=True)]).sum()

    return network, train_one_cycle(network, loss_of, steps, decay=0.01, rise=0.1)


def train_detector(out: Path, steps: int) -> Path:
    """Writes the detector with its card."""
    begun = time.process_time()
    network, _ = fit_detector(steps)
    card = {"recipe": {"steps": steps, "batch": BATCH, "rate": PEAK, "seed": SEED}}
    card |= {"training_cpu_seconds": round(time.process_time() - begun), "examination": examine(network)}
    return _write(out / "scene_detector.safetensors", network, card)


def examine(network: SceneDetector, count: int = 10_000, seed: int = 77) -> dict[str, dict[str, float]]:
    """Shares of right answers on renders it never saw: clean, spoilt as in training, and burnt."""
    g = torch.Generator().manual_seed(seed)
    scenes = draw(count, g)
    clean = render(scenes)
    kinds = {"clean": clean, "spoilt": spoilt(clean, g)}
    kinds |= {f"burnt x{k:g}": burnt(clean, k) for k in (1.5, 2.0, 3.0)}
    answers = answers_of(scenes.codes())
    table = {}
    for kind, pictures in kinds.items():
        r = detect(network, pictures)
        given = [r.axis, r.shape[:, 0], r.colour[:, 0], r.shape[:, 1], r.colour[:, 1]]
        hits = torch.stack([a == b for a, b in zip(given, answers, strict=True)], dim=1)
        shares = {name: round(float(v), 5) for name, v in zip(ANSWERS, hits.double().mean(0), strict=True)}
        table[kind] = {**shares, "all": round(float(hits.all(1).double().mean()), 5)}
    return table


def answers_of(codes: Tensor) -> list[Tensor]:
    """The right answers for complete prompts, in the order of ANSWERS."""
    shape, colour, place = codes[:, 0:3:2], codes[:, 1:4:2], codes[:, 4]
    turned = (place % 2 == 1)[:, None]
    shape, colour = (torch.where(turned, v.flip(1), v) for v in (shape, colour))
    return [place // 2, shape[:, 0], colour[:, 0], shape[:, 1], colour[:, 1]]


def spoilt(pictures: Tensor, g: torch.Generator) -> Tensor:
    """Renders with errors of a generator: blur, noise, other contrast and saturation, clipping."""
    n = len(pictures)
    blur, noise, contrast, colour, keep = torch.rand(5, n, 1, 1, 1, generator=g)
    soft = F.avg_pool2d(F.pad(pictures, (1, 1, 1, 1), mode="replicate"), 3, stride=1)
    x = torch.lerp(pictures, soft, blur)
    grey = x.mean(1, keepdim=True)
    x = grey + (0.6 + 1.4 * colour) * (x - grey)
    x = 0.5 + (0.7 + 0.8 * contrast) * (x - 0.5)
    x = x + 0.1 * noise.square() * torch.randn(x.shape, generator=g)
    return torch.where(keep < 0.25, pictures, x).clamp(0, 1)


def burnt(pictures: Tensor, strength: float = 2.0) -> Tensor:
    """Renders changed as strong guidance changes pictures: `strength` times as far from mid grey, clipped."""
    return (0.5 + strength * (pictures - 0.5)).clamp(0, 1)


def _write(path: Path, network: nn.Module, card: dict[str, Any]) -> Path:
    write_whole(path.with_suffix(".json"), json.dumps(card, indent=1) + "\n")
    return write_tensors(path, network.state_dict(), {})
