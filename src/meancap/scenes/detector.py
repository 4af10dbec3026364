"""What a picture of a scene shows, as a small network reads it.

    axis     the two objects stand side by side (0) or one above the other (1)
    first    the object on the left, or above: its shape and its colour
    second   the object on the right, or below
    pool     96 numbers below the answers, averaged over 4 x 4 places: the features of distances

Trained on renders with blur, noise, and changed contrast and saturation. A network is fooled by blobs that
are not triangles at all: `form` measures outlines, and a picture should pass both.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...drawing import COLOURS, SHAPES
from ..extractors.base import filled, load_state

WEIGHTS = Path(__file__).parent.parent / "weights" / "scene_detector.safetensors"

# (channels in, channels out, stride): 32 pixels to 16, 8 and 4.
LAYERS = ((3, 24, 1), (24, 48, 2), (48, 64, 2), (64, 96, 2), (96, 96, 1))
ANSWERS = (2, len(SHAPES), len(COLOURS), len(SHAPES), len(COLOURS))


class SceneDetector(nn.Module):
    """The network alone; `detect` reads pictures with it."""

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(
            nn.Conv2d(c_in, c_out, 3, stride, padding=1) for c_in, c_out, stride in LAYERS
        )
        self.head = nn.Linear(16 * LAYERS[-1][1], sum(ANSWERS))

    def forward(self, pictures: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Pooled features, and the logits of each answer, of (batch, 3, 32, 32) pictures in [0, 1]."""
        x = 2 * pictures - 1
        for convolution in self.convolutions:
            x = F.relu(convolution(x))
        return x.mean((2, 3)), self.head(x.flatten(1)).split(ANSWERS, dim=1)


@dataclass(frozen=True, eq=False)
class Readings:
    """What is on each picture, the two objects in reading order: left or above first."""

    axis: Tensor  # (n,) 0 side by side, 1 one above the other
    shape: Tensor  # (n, 2)
    colour: Tensor  # (n, 2)
    pool: Tensor  # (n, 96)

    def codes(self, place: Tensor) -> Tensor:
        """(n, 5) shape, colour, shape, colour, place, the objects in the order that a prompt's place implies.

        Where a prompt says "right of" or "below", its first object is the second in reading order.
        """
        turned = place % 2 == 1
        shape = torch.where(turned[:, None], self.shape.flip(1), self.shape)
        colour = torch.where(turned[:, None], self.colour.flip(1), self.colour)
        seen = 2 * self.axis + turned.long()
        return torch.cat([torch.stack([shape, colour], dim=2).flatten(1), seen[:, None]], dim=1)


def detector(weights: str | Path | None = None) -> SceneDetector:
    """The shipped detector, or another one of the same shape."""
    path = WEIGHTS if weights is None else Path(weights)
    return filled(SceneDetector(), load_state(path), path, "a detector of scenes")


@torch.no_grad()
def detect(network: SceneDetector, pictures: Tensor, batch: int = 256) -> Readings:
    """Reads (n, 3, 32, 32) pictures, uint8 or in [0, 1]."""
    if pictures.dim() != 4 or pictures.shape[1:] != (3, 32, 32):
        raise ValueError(f"the detector reads pictures of 3 x 32 x 32; got {tuple(pictures.shape)}")
    values = pictures.float() / 255 if pictures.dtype == torch.uint8 else pictures
    parts = [network(values[i : i + batch]) for i in range(0, len(values), batch)]
    pool = torch.cat([part[0] for part in parts])
    axis, shape_1, colour_1, shape_2, colour_2 = (
        torch.cat([part[1][k] for part in parts]).argmax(1) for k in range(len(ANSWERS))
    )
    return Readings(axis, torch.stack([shape_1, shape_2], 1), torch.stack([colour_1, colour_2], 1), pool)


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


def codes_in_prompt_order(readings: Readings, codes: Tensor) -> Tensor:
    """(n, 5) what was read, as codes in the order of each prompt's objects.

    A place in the prompt tells which object is meant. Without one, the order that suits the prompt better is
    taken; the place that it implies then carries no information.
    """
    place = codes[:, 4]
    # A prompt's "right of" turns the order even where the picture shows one object above the other.
    straight, turned = (readings.codes(torch.full_like(place, k)) for k in (0, 1))
    fits = [((codes[:, :4] < 0) | (seen[:, :4] == codes[:, :4])).sum(1) for seen in (straight, turned)]
    wants_turn = torch.where(place < 0, fits[1] > fits[0], place % 2 == 1)
    return torch.where(wants_turn[:, None], turned, straight)
