"""Training the detector of the scenes on renders, spoilt in the ways a generator spoils them."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from meancap.files import write_tensors, write_whole
from meancap.scenes import draw, render
from meancap.scenes.measure import SceneDetector, detect

NAMES = ("axis", "shape 1", "colour 1", "shape 2", "colour 2")


@dataclass(frozen=True)
class DetectorConfig:
    """The recipe: AdamW on one cycle; every batch is drawn from a generator seeded by (seed, step)."""

    steps: int = 3000
    batch: int = 128
    rate: float = 3e-3
    seed: int = 0


def train_detector(config: DetectorConfig) -> Iterator[tuple[int, float, SceneDetector]]:
    """Yields the step, its loss and the network after every step."""
    with torch.random.fork_rng(devices=[]):  # leaves the caller's random numbers unchanged
        torch.manual_seed(config.seed)
        network = SceneDetector()
    network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimiser = torch.optim.AdamW(network.parameters(), lr=config.rate, weight_decay=0.01)
    cycle = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, config.rate, total_steps=config.steps, pct_start=0.1
    )
    for step in range(config.steps):
        g = torch.Generator().manual_seed(config.seed * 1_000_003 + step)
        scenes = draw(config.batch, g)
        _, logits = network(spoilt(render(scenes), g))
        answers = answers_of(scenes.codes())
        loss = torch.stack([F.cross_entropy(a, b) for a, b in zip(logits, answers, strict=True)]).sum()
        optimiser.zero_grad()
        torch.autograd.backward(loss)
        optimiser.step()
        cycle.step()
        yield step + 1, float(loss.detach()), network


def examine(network: SceneDetector, count: int = 10_000, seed: int = 77) -> dict[str, dict[str, float]]:
    """Shares of right answers on renders it never saw: clean, spoilt as in training, and burnt."""
    g = torch.Generator().manual_seed(seed)
    scenes = draw(count, g)
    clean = render(scenes)
    kinds: dict[str, Tensor] = {"clean": clean, "spoilt": spoilt(clean, g)}
    kinds |= {f"burnt x{k:g}": burnt(clean, k) for k in (1.5, 2.0, 3.0)}
    answers = answers_of(scenes.codes())
    table = {}
    for kind, pictures in kinds.items():
        r = detect(network, pictures)
        given = [r.axis, r.shape[:, 0], r.colour[:, 0], r.shape[:, 1], r.colour[:, 1]]
        hits = torch.stack([a == b for a, b in zip(given, answers, strict=True)], dim=1)
        shares = {name: round(float(v), 5) for name, v in zip(NAMES, hits.double().mean(0), strict=True)}
        table[kind] = {**shares, "all": round(float(hits.all(1).double().mean()), 5)}
    return table


def run_detector(out: Path, config: DetectorConfig) -> Path:
    """scene_detector.safetensors, and beside it a JSON file with the recipe and the examination."""
    out.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    for step, loss, trained in train_detector(config):
        network = trained
        if step % 50 == 0 or step == config.steps:
            print(f"step {step}  loss {loss:.4f}", file=sys.stderr, flush=True)
    seconds = round(time.monotonic() - began, 1)
    network.eval()
    path = write_tensors(out / "scene_detector.safetensors", network.state_dict(), {})
    about = {"recipe": asdict(config), "seconds": seconds, "examination": examine(network)}
    write_whole(path.with_suffix(".json"), json.dumps(about, indent=1) + "\n")
    return path


def answers_of(codes: Tensor) -> list[Tensor]:
    """The right answers for complete prompts, in the order of NAMES."""
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
