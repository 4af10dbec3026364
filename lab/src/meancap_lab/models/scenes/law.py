"""The law of the scenes: two objects that do not overlap, in front of a grey background.

    shape       disc, square or triangle                          uniform, for each object
    colour      red, yellow, green, cyan, blue or magenta         uniform, for each object
    place       the first object is left of, right of, above or below the second     uniform
    hue         that of the colour word, plus U(-15, 15) degrees
    saturation  U(0.5, 1), value U(0.65, 1)                       so some colours lie on the faces of the cube
    radius      U(5, 7) pixels, for each object
    background  grey of brightness U(0.1, 0.9); "dark" below 0.5, "light" above

Along the axis of the relation the two objects need 2 r_1 + 2 r_2 + 1 pixels; what is left of the 32, less
half a pixel at each border, is split into three by a uniform point of the simplex (before, between, after).
Across it, each centre is U(11, 21). Centres are then at least 11 apart along the axis and at most 10 across
it, so that the relation is never in doubt and objects never overlap.

All of these are independent, so a prompt that fixes some of them leaves the law of the others as it is
written here (a word for the background halves its interval).

A scene becomes a picture by the share of each pixel that each object covers:

    d         signed distance from the pixel's centre to the outline, in pixels, negative inside
    coverage  clamp(1/2 - d, 0, 1): an outline one pixel wide, without jagged edges
    picture   background (1 - coverage_1 - coverage_2) + colour_1 coverage_1 + colour_2 coverage_2

The shapes of radius r: a disc of radius r; a square of half side 0.9 r; a triangle with its apex r above the
centre and a base of 2 r, r below it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

SHAPES = ("disc", "square", "triangle")
COLOURS = ("red", "yellow", "green", "cyan", "blue", "magenta")
PLACES = ("left", "right", "above", "below")
BACKGROUNDS = ("dark", "light")

# The six codes of a prompt, in order, and how many values each has; -1 leaves it open.
ATTRIBUTES = {
    "shape 1": len(SHAPES), "colour 1": len(COLOURS), "shape 2": len(SHAPES), "colour 2": len(COLOURS),
    "place": len(PLACES), "background": len(BACKGROUNDS),
}  # fmt: skip

# What each uniform number lies between; a hue is counted from that of its word.
BOUNDS = {
    "hue": (-15.0, 15.0), "saturation": (0.5, 1.0), "value": (0.65, 1.0), "radius": (5.0, 7.0),
    "brightness": (0.1, 0.9), "across": (11.0, 21.0),
}  # fmt: skip
_GAP = 1.0
_BORDER = 0.5
_SIZE = 32  # pixels of a side
_SQUARE = 0.9
_SLOPE = 1 / math.sqrt(5)  # the sides of the triangle rise 2 for 1 across


@dataclass(frozen=True, eq=False)
class Scenes:
    """A batch of scenes; the second axis of most tensors counts the two objects."""

    shape: Tensor  # (n, 2) index into SHAPES
    colour: Tensor  # (n, 2) index into COLOURS
    place: Tensor  # (n,) index into PLACES: where the first object is, seen from the second
    background: Tensor  # (n,) brightness
    hue: Tensor  # (n, 2) degrees
    saturation: Tensor  # (n, 2)
    value: Tensor  # (n, 2)
    radius: Tensor  # (n, 2) pixels
    centre: Tensor  # (n, 2, 2) x and y in pixels, the picture spanning 0 to 32

    def __len__(self) -> int:
        return len(self.place)

    def codes(self) -> Tensor:
        """The complete prompt of each scene, as (n, 6) codes in the order of ATTRIBUTES."""
        light = (self.background >= sum(BOUNDS["brightness"]) / 2).long()
        pairs = torch.stack([self.shape, self.colour], dim=2).flatten(1)
        return torch.cat([pairs, self.place[:, None], light[:, None]], dim=1)


def draw(wanted: Tensor | int, generator: torch.Generator) -> Scenes:
    """One scene for each row of codes (or that many of the whole law): open attributes follow the law."""
    if isinstance(wanted, int):
        wanted = torch.full((wanted, len(ATTRIBUTES)), -1)
    n = len(wanted)
    counts = torch.tensor(list(ATTRIBUTES.values()))
    free = (torch.rand(n, len(counts), generator=generator) * counts).long()
    code = torch.where(wanted < 0, free, wanted)
    u = torch.rand(n, 2, 4, generator=generator)
    hue = code[:, 1:4:2] * 60.0 + BOUNDS["hue"][1] * (2 * u[..., 0] - 1)
    low, high = BOUNDS["brightness"]
    half = (high - low) / 2
    radius = _between(u[..., 3], BOUNDS["radius"])
    return Scenes(
        shape=code[:, 0:3:2],
        colour=code[:, 1:4:2],
        place=code[:, 4],
        background=low + half * (code[:, 5] + torch.rand(n, generator=generator)),
        hue=hue % 360,
        saturation=_between(u[..., 1], BOUNDS["saturation"]),
        value=_between(u[..., 2], BOUNDS["value"]),
        radius=radius,
        centre=_centres(code[:, 4], radius, generator),
    )


def _centres(place: Tensor, radius: Tensor, generator: torch.Generator) -> Tensor:
    n = len(place)
    first_leads = place % 2 == 0  # left and above come first along their axis
    leading = torch.where(first_leads, radius[:, 0], radius[:, 1])
    trailing = radius.sum(1) - leading
    slack = _SIZE - 2 * _BORDER - _GAP - 2 * radius.sum(1)
    cuts = torch.rand(n, 2, generator=generator).sort(1).values * slack[:, None]
    near = _BORDER + leading + cuts[:, 0]
    far = _BORDER + 2 * leading + _GAP + trailing + cuts[:, 1]
    along = torch.where(first_leads[:, None], torch.stack([near, far], 1), torch.stack([far, near], 1))
    across = _between(torch.rand(n, 2, generator=generator), BOUNDS["across"])
    sideways = (place < 2)[:, None]
    return torch.stack([torch.where(sideways, along, across), torch.where(sideways, across, along)], dim=2)


def _between(u: Tensor, bounds: tuple[float, float]) -> Tensor:
    return bounds[0] + (bounds[1] - bounds[0]) * u


def render(scenes: Scenes) -> Tensor:
    """Pictures (n, 3, 32, 32) in [0, 1]."""
    cover = _masks(scenes)
    ground = scenes.background[:, None, None, None] * (1 - cover.sum(1, keepdim=True))
    return ground + torch.einsum(
        "nkc,nkhw->nchw", _hsv_to_rgb(scenes.hue, scenes.saturation, scenes.value), cover
    )


def _masks(scenes: Scenes) -> Tensor:
    """(n, 2, 32, 32): the share of each pixel that each object covers."""
    return coverage(scenes.shape, scenes.radius, scenes.centre[..., 0], scenes.centre[..., 1])


def coverage(shape: Tensor, radius: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Coverage of one object per entry, whatever the entries' shape; two axes of pixels are added."""
    pixel = torch.arange(_SIZE, dtype=radius.dtype) + 0.5
    shape, r = shape[..., None, None], radius[..., None, None]
    dx = (pixel[None, :] - x[..., None, None]).abs()
    dy = pixel[:, None] - y[..., None, None]
    disc = (dx.square() + dy.square()).sqrt() - r
    square = torch.maximum(dx, dy.abs()) - _SQUARE * r
    triangle = torch.maximum((2 * dx - dy - r) * _SLOPE, dy - r)
    return (0.5 - torch.where(shape == 0, disc, torch.where(shape == 1, square, triangle))).clamp(0, 1)


def _hsv_to_rgb(hue: Tensor, saturation: Tensor, value: Tensor) -> Tensor:
    """Colours in [0, 1] with the channels last."""
    sector = hue[..., None] / 60 + torch.tensor([5.0, 3.0, 1.0])
    k = sector % 6
    ramp = torch.minimum(k, 4 - k).clamp(0, 1)
    return value[..., None] * (1 - saturation[..., None] * ramp)
