"""What a picture of a scene shows, how well it is drawn, and what it left open: one number per picture.

Read by a small network (`detect`), trained on renders with blur, noise, and changed contrast and saturation:

    axis     the two objects stand side by side (0) or one above the other (1)
    first    the object on the left, or above: its shape and its colour
    second   the object on the right, or below
    pool     96 numbers below the answers, averaged over 4 x 4 places: the features of distances

A network is fooled by blobs that are not triangles at all, so outlines are measured without one (`forms`):

    background   the median of the pixels that no object colours
    cover        for each pixel, how far it lies from the background towards its object's colour, 0 to 1
    split        the row or column between the objects, where they cover least
    template     the renderer's own coverage of a shape; radius and centre are searched for on a grid
    IoU          sum of min(cover, template) over sum of max(cover, template), at the best fit

Of both, cover and template, what is below 0.15 counts as 0 and what is above 0.85 as 1: noise of a few per
cent in flat areas does not concern the outline, and summed over a picture it would outweigh it. (A
sharp threshold at 1/2 would accept most squares as discs.) The fit also gives the size of each object,
which prompts leave open. Both together (`measure_pictures`) give:

    right       for each attribute that the prompt fixes, whether the detector finds it; "all" is all of them
    drawn       both objects overlap the best template of their demanded shape with IoU > 0.85
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...metrics.extractor import load_network
from ...metrics.per_image import clipped, saturation
from .law import BOUNDS, COLOURS, SHAPES, coverage

_WEIGHTS = Path(__file__).parent / "weights" / "scene_detector.safetensors"

# (channels in, channels out, stride): 32 pixels to 16, 8 and 4.
_LAYERS = ((3, 24, 1), (24, 48, 2), (48, 64, 2), (64, 96, 2), (96, 96, 1))
_ANSWERS = (2, len(SHAPES), len(COLOURS), len(SHAPES), len(COLOURS))


class SceneDetector(nn.Module):
    """The network alone; `detect` reads pictures with it."""

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(
            nn.Conv2d(c_in, c_out, 3, stride, padding=1) for c_in, c_out, stride in _LAYERS
        )
        self.head = nn.Linear(16 * _LAYERS[-1][1], sum(_ANSWERS))

    def forward(self, pictures: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Pooled features, and the logits of each answer, of (batch, 3, 32, 32) pictures in [0, 1]."""
        x = 2 * pictures - 1
        for convolution in self.convolutions:
            x = F.relu(convolution(x))
        return x.mean((2, 3)), self.head(x.flatten(1)).split(_ANSWERS, dim=1)


@dataclass(frozen=True, eq=False)
class Readings:
    """What is on each picture, the two objects in reading order: left or above first."""

    axis: Tensor  # (n,) 0 side by side, 1 one above the other
    shape: Tensor  # (n, 2)
    colour: Tensor  # (n, 2)
    pool: Tensor  # (n, 96)

    def codes(self, place: Tensor) -> Tensor:
        """(n, 5) shape, colour, shape, colour, place, the objects in the order that a prompt's place implies.

        If a prompt has "right of" or "below", its first object is the second in reading order.
        """
        turned = place % 2 == 1
        shape = torch.where(turned[:, None], self.shape.flip(1), self.shape)
        colour = torch.where(turned[:, None], self.colour.flip(1), self.colour)
        seen = 2 * self.axis + turned.long()
        return torch.cat([torch.stack([shape, colour], dim=2).flatten(1), seen[:, None]], dim=1)


def detector(weights: str | Path | None = None) -> SceneDetector:
    """The shipped detector, or another one of the same shape."""
    path = _WEIGHTS if weights is None else Path(weights)
    return load_network(SceneDetector(), path, "a detector of scenes")


@torch.no_grad()
def detect(network: SceneDetector, pictures: Tensor, batch: int = 256) -> Readings:
    """Reads (n, 3, 32, 32) pictures, uint8 or in [0, 1]."""
    if pictures.dim() != 4 or pictures.shape[1:] != (3, 32, 32):
        raise ValueError(f"the detector reads pictures of 3 x 32 x 32; got {tuple(pictures.shape)}")
    values = pictures.float() / 255 if pictures.dtype == torch.uint8 else pictures
    parts = [network(values[i : i + batch]) for i in range(0, len(values), batch)]
    pool = torch.cat([part[0] for part in parts])
    axis, shape_1, colour_1, shape_2, colour_2 = (
        torch.cat([part[1][k] for part in parts]).argmax(1) for k in range(len(_ANSWERS))
    )
    return Readings(axis, torch.stack([shape_1, shape_2], 1), torch.stack([colour_1, colour_2], 1), pool)


def _codes_in_prompt_order(readings: Readings, codes: Tensor) -> Tensor:
    """(n, 5) what was read, as codes in the order of each prompt's objects.

    A place in the prompt fixes which object is meant. Without one, the order that suits the prompt better is
    taken; the place that it implies then carries no information.
    """
    place = codes[:, 4]
    # A prompt's "right of" turns the order even where the picture shows one object above the other.
    straight, turned = (readings.codes(torch.full_like(place, k)) for k in (0, 1))
    fits = [((codes[:, :4] < 0) | (seen[:, :4] == codes[:, :4])).sum(1) for seen in (straight, turned)]
    wants_turn = torch.where(place < 0, fits[1] > fits[0], place % 2 == 1)
    return torch.where(wants_turn[:, None], turned, straight)


_FAINT = 0.15
_COLOURED = 0.12  # chroma above this belongs to an object; the palest object of the law has 0.325


@dataclass(frozen=True, eq=False)
class Forms:
    """What was measured on each picture, the two objects in reading order: left or above first."""

    iou: Tensor  # (n, 2) with the best template of the demanded shape
    radius: Tensor  # (n, 2)
    background: Tensor  # (n,)


def forms(pictures: Tensor, axis: Tensor, shape: Tensor, batch: int = 64) -> Forms:
    """Fits templates to (n, 3, 32, 32) pictures; `axis` and demanded `shape` (n, 2) in reading order."""
    values = pictures.float() / 255 if pictures.dtype == torch.uint8 else pictures.float()
    rows = [slice(i, i + batch) for i in range(0, len(values), batch)]
    parts = [_forms(values[r], axis[r], shape[r]) for r in rows]
    return Forms(*(torch.cat([getattr(p, name) for p in parts]) for name in Forms.__dataclass_fields__))


def _forms(pictures: Tensor, axis: Tensor, wanted: Tensor) -> Forms:
    chroma = pictures.amax(1) - pictures.amin(1)
    coloured = chroma > _COLOURED
    background = _background_of(pictures, coloured)
    halves = _split(coloured.float(), axis)
    cover = torch.stack([_cover_of(pictures, background, coloured, half) for half in halves], dim=1)
    return Forms(*_fit_template(cover, wanted), background.mean(1))


def _background_of(pictures: Tensor, coloured: Tensor) -> Tensor:
    """(n, 3): the median colour of the pixels that no object colours."""
    values = pictures.flatten(2).masked_fill(coloured.flatten(1)[:, None], torch.nan)
    return values.nanmedian(2).values.nan_to_num(0.5)


def _split(coloured: Tensor, axis: Tensor) -> list[Tensor]:
    """Two _masks (n, 32, 32) that part the picture where it is coloured least, across the axis."""
    size = coloured.shape[1]
    mass = torch.where((axis == 0)[:, None], coloured.sum(1), coloured.sum(2))
    low, high = size // 3, size - size // 3
    inner = mass[:, low:high]
    # The middle one of the emptiest lines.
    least = inner == inner.amin(1, keepdim=True)
    index = torch.arange(low, high, dtype=coloured.dtype)
    at = (least * index).sum(1) / least.sum(1)
    line = torch.arange(size, dtype=coloured.dtype)
    before = line[None] < at[:, None] + 0.5
    first = torch.where((axis == 0)[:, None, None], before[:, None, :], before[:, :, None])
    first = first.expand_as(coloured)
    return [first, ~first]


def _cover_of(pictures: Tensor, background: Tensor, coloured: Tensor, half: Tensor) -> Tensor:
    """Coverage (n, 32, 32) by the object in one half of the picture."""
    inside = coloured & half
    chroma = (pictures.amax(1) - pictures.amin(1)).masked_fill(~inside, 0)
    # Edge pixels are mixed with the background: the colour is the median of the more coloured half.
    strong = inside & (chroma > 0.5 * chroma.amax((1, 2), keepdim=True))
    colour = pictures.flatten(2).masked_fill(~strong.flatten(1)[:, None], torch.nan).nanmedian(2).values
    colour = torch.where(colour.isnan(), background, colour)
    way = colour - background
    moved = torch.einsum("nchw,nc->nhw", pictures - background[..., None, None], way)
    cover = moved / way.square().sum(1).clamp(min=1e-6)[:, None, None]
    return _beyond_noise(cover) * half


def _beyond_noise(cover: Tensor) -> Tensor:
    """0 below _FAINT, 1 above 1 - _FAINT, and a straight line between."""
    return ((cover - _FAINT) / (1 - 2 * _FAINT)).clamp(0, 1)


def _fit_template(cover: Tensor, shape: Tensor) -> tuple[Tensor, Tensor]:
    """The best IoU with a template of a shape, and its radius, for covers (n, k, 32, 32)."""
    size = cover.shape[-1]
    pixel = torch.arange(size) + 0.5
    mass = cover.sum((-2, -1)).clamp(min=1e-6)
    x = (cover.sum(-2) * pixel).sum(-1) / mass
    y = (cover.sum(-1) * pixel).sum(-1) / mass
    area = torch.tensor([torch.pi, 3.24, 2.0])[shape]
    radius = (mass / area).sqrt().clamp(BOUNDS["radius"][0] - 2, BOUNDS["radius"][1] + 2)
    # A triangle's centre of mass lies a third of its radius below the middle of its height.
    y = torch.where(shape == 2, y - radius / 3, y)
    best = torch.zeros_like(mass)
    for step in (1.0, 0.5, 0.25, 0.125):
        grid = torch.cartesian_prod(*[torch.tensor([-1.0, 0.0, 1.0]) * step] * 3)
        r, cx, cy = (v[..., None] + grid[:, k] for k, v in enumerate((radius, x, y)))
        template = _beyond_noise(coverage(shape[..., None].expand_as(r), r, cx, cy))
        both = torch.minimum(template, cover[..., None, :, :]).sum((-2, -1))
        either = torch.maximum(template, cover[..., None, :, :]).sum((-2, -1))
        best, index = (both / either.clamp(min=1e-6)).max(-1)
        radius, x, y = (v.gather(-1, index[..., None])[..., 0] for v in (r, cx, cy))
    return best, radius


_DRAWN = 0.85
_WORDS = ("shape 1", "colour 1", "shape 2", "colour 2")


@dataclass(frozen=True, eq=False)
class Measured:
    """Pictures with the prompts (n, 6 codes) that they were made for."""

    codes: Tensor
    readings: Readings
    forms: Forms
    saturation: Tensor  # (n,) HSV saturation, mean over pixels, as in the paper
    clipped: Tensor  # (n,) share of channel values at 0 or 255

    @cached_property
    def seen(self) -> Tensor:
        """(n, 5) what is on each picture, the objects in the prompt's order."""
        return _codes_in_prompt_order(self.readings, self.codes)

    @property
    def right(self) -> dict[str, Tensor]:
        """Whether each demanded attribute is there; nothing demanded counts as right."""
        hit = (self.codes[:, :5] < 0) | (self.seen == self.codes[:, :5])
        # Which of two indistinguishable objects is the first cannot be seen: an open place fixes nothing.
        light = (self.forms.background >= sum(BOUNDS["brightness"]) / 2).long()
        ground = (self.codes[:, 5] < 0) | (light == self.codes[:, 5])
        hits = dict(zip((*_WORDS, "place"), hit.unbind(1), strict=True)) | {"background": ground}
        return hits | {"all": torch.stack(list(hits.values())).all(0)}

    @property
    def drawn(self) -> Tensor:
        return (self.forms.iou > _DRAWN).all(1)


def measure_pictures(network: SceneDetector, pictures: Tensor, codes: Tensor) -> Measured:
    """Reads (n, 3, 32, 32) uint8 pictures."""
    readings = detect(network, pictures)
    place = codes[:, 4]
    axis = torch.where(place < 0, readings.axis, place // 2)
    wanted = _in_reading_order(codes, readings)
    images = pictures.permute(0, 2, 3, 1)
    return Measured(codes, readings, forms(pictures, axis, wanted), saturation(images), clipped(images))


def _in_reading_order(codes: Tensor, readings: Readings) -> Tensor:
    """The demanded shapes (n, 2), left or above first; what is open is taken from the detector."""
    seen = _codes_in_prompt_order(readings, codes)
    turned = seen[:, 4] % 2 == 1
    wanted = torch.where(codes[:, 0:3:2] < 0, seen[:, 0:3:2], codes[:, 0:3:2])
    return torch.where(turned[:, None], wanted.flip(1), wanted)
