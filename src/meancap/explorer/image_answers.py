"""What the image view answers: pictures as text, the meter of each, means over a rule's images.

command   the `meancap generate` that makes the same files, where the seeds are those of a run
"""

from __future__ import annotations

import shlex
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..models.data import FASHION
from ..rules import Rule
from ..runs.config import sample_seed

if TYPE_CHECKING:
    from .painter import Picture
    from .subjects import Want


@dataclass(frozen=True)
class Asked:
    """A request, checked."""

    model: str
    wanted: tuple[Want, ...]
    classes: tuple[int | str, ...]  # what the images take turns in: classes, or one sentence
    steps: int
    texts: tuple[str, ...]
    rules: tuple[Rule | str, ...]  # a sentence where a text is no rule
    frames: tuple[int, ...]  # the steps whose pictures are sent; the last one always is


def answer(asked: Asked, pictures_of: Sequence[Mapping[Want, Picture]]) -> dict[str, Any]:
    """The view's answer: every rule's pictures, or why it has none."""
    from .subjects import subject_of

    subject, names = subject_of(asked.wanted[0]), list(FASHION)
    if asked.model == "scenes":
        names = [str(asked.classes[0])]
    labels = [want.label if isinstance(want.label, int) else 0 for want in asked.wanted]

    entries: list[dict[str, Any]] = []
    for said, rule, made in zip(asked.texts, asked.rules, pictures_of, strict=True):
        if isinstance(rule, str):
            entries.append({"text": said, "error": rule})
            continue
        pictures = [made[want] for want in asked.wanted]
        entries.append(
            {
                "text": said,
                "rule": str(rule),
                "command": command(asked, rule),
                "numbers": mean_numbers(pictures, labels),
                "pictures": [_one(picture, len(asked.frames)) for picture in pictures],
            }
        )
    return {
        "model": subject.name,
        "size": subject.shape[-1],
        "channels": subject.shape[0],
        "classes": names,
        "steps": asked.steps,
        "times": [float(t) for t in subject.times(asked.steps)[:-1]],
        "frame_steps": list(asked.frames),
        "images": [
            {"seed": want.seed, "label": label} for want, label in zip(asked.wanted, labels, strict=True)
        ],
        "rules": entries,
    }


def _one(picture: Picture, frames: int) -> dict[str, Any]:
    return {
        "frames": pixel_text(picture.frames[-frames:]),
        "meter": {name: _digits(picture.meter[name]) for name in ("scale", "asked", "ratio", "gap", "cosine")}
        | {"active": [int(on) for on in picture.meter["active"].tolist()]},
        "numbers": meter_numbers(picture),
        "finite": picture.finite,
        "sure": picture.reading.sure,
        "sees": picture.reading.sees,
        "hit": picture.reading.hit,
    }


def meter_numbers(picture: Picture) -> dict[str, Any]:
    """The meter in five numbers: what was asked for, what was granted, how often and how far."""
    scale, asked = picture.meter["scale"], picture.meter["asked"]
    return {
        "asked": [float(asked.min()), float(asked.max())],
        "first": float(scale[0]),
        "last": float(scale[-1]),
        "capped": float(picture.meter["active"].double().mean()),
        "ratio": float(picture.meter["ratio"].max()),
    }


def mean_numbers(pictures: Sequence[Picture], labels: Sequence[int]) -> dict[str, Any]:
    """Means over a rule's images; diversity where every class has two of them."""
    from ..metrics import diversity

    readings = [p.reading for p in pictures]
    pool = torch.stack([r.pool for r in readings])
    scale = torch.stack([p.meter["scale"] for p in pictures])
    paired = all(labels.count(label) > 1 for label in set(labels))
    return {
        "accuracy": sum(r.hit for r in readings) / len(readings),
        "sure": _mean([r.sure for r in readings]),
        "diversity": diversity(pool, torch.tensor(labels)) if paired else None,
        "brightness": _mean([r.brightness for r in readings]),
        "saturation": _mean([r.saturation for r in readings]),
        "first": float(scale[:, 0].mean()),
        "last": float(scale[:, -1].mean()),
        "capped": float(torch.stack([p.meter["active"] for p in pictures]).double().mean()),
        "ratio": max(float(p.meter["ratio"].max()) for p in pictures),
    }


def _mean(values: Sequence[float | None]) -> float | None:
    """Of numbers that all pictures have, or none has."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def command(asked: Asked, rule: Rule) -> str | None:
    """The command that makes the same files, where these seeds are those of a run."""
    from .painter import BLOCK  # the bits of a picture may depend on how many are made at once

    seeds = [want.seed for want in asked.wanted]
    run = seeds[0] // sample_seed(1, 0)
    if seeds[0] != sample_seed(run, 0) or any(b != a + 1 for a, b in pairwise(seeds)):
        return None
    each = -(-len(seeds) // len(asked.classes))
    which = f"--classes {','.join(map(str, asked.classes))}"
    if asked.model == "scenes":
        against = asked.wanted[0].negative
        which = f"--prompt {shlex.quote(str(asked.classes[0]))}"
        which += f" --negative {shlex.quote(against)}" if against else ""
    return (
        f'meancap generate --model {asked.model} --rule "{rule}" {which} '
        f"--per-class {each} --steps {asked.steps} --seed {run} --batch {BLOCK} --out RUN"
    )


def _digits(values: Tensor) -> list[float]:
    """Six digits of each: more than a plot or a table shows."""
    return [float(f"{value:.6g}") for value in values.tolist()]


def pixel_text(pixels: Tensor) -> str:
    """The bytes of a picture, as JSON can hold them."""
    return b64encode(pixels.contiguous().numpy().tobytes()).decode()
