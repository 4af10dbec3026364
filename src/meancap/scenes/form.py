"""Outlines of the objects in a picture of a scene, measured without a network.

    background   the median of the pixels that no object colours
    cover        for each pixel, how far it lies from the background towards its object's colour, 0 to 1
    split        the row or column between the objects, where they cover least
    template     the renderer's own coverage of a shape; radius and centre are searched for on a grid
    IoU          sum of min(cover, template) over sum of max(cover, template), at the best fit

Of both, cover and template, what is below 0.15 counts as 0 and what is above 0.85 as 1: noise of a few per
cent in flat areas does not concern the outline, and summed over a picture it would outweigh it. (A
sharp threshold at 1/2 would accept most squares as discs.)

A blob that a network takes for a disc overlaps no disc well. The fit also tells the size, the place and the
colour of each object, which prompts leave open.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...drawing import SHAPES, coverage
from ...drawing.law import RADIUS

FAINT = 0.15
_COLOURED = 0.12  # chroma above this belongs to an object; the palest object of the law has 0.325


@dataclass(frozen=True, eq=False)
class Forms:
    """What was measured on each picture, the two objects in reading order: left or above first."""

    iou: Tensor  # (n, 2) with the best template of `shape`
    shape: Tensor  # (n, 2) the demanded shape, or the best fitting one where none was demanded
    radius: Tensor  # (n, 2)
    centre: Tensor  # (n, 2, 2)
    rgb: Tensor  # (n, 2, 3) in [0, 1]
    background: Tensor  # (n,)


def forms(pictures: Tensor, axis: Tensor, shape: Tensor, batch: int = 64) -> Forms:
    """Fits templates to (n, 3, 32, 32) pictures; `axis` and the demanded `shape` (n, 2) are in reading order.

    A demanded shape of -1 stands for whichever shape fits best.
    """
    values = pictures.float() / 255 if pictures.dtype == torch.uint8 else pictures.float()
    rows = [slice(i, i + batch) for i in range(0, len(values), batch)]
    parts = [_forms(values[r], axis[r], shape[r]) for r in rows]
    return Forms(*(torch.cat([getattr(p, name) for p in parts]) for name in Forms.__dataclass_fields__))


def _forms(pictures: Tensor, axis: Tensor, wanted: Tensor) -> Forms:
    chroma = pictures.amax(1) - pictures.amin(1)
    coloured = chroma > _COLOURED
    background = background_of(pictures, coloured)
    halves = split(coloured.float(), axis)
    covers, colours = zip(*(cover_of(pictures, background, coloured, half) for half in halves), strict=True)
    cover = torch.stack(covers, dim=1)
    shape = best_shapes(cover, wanted) if bool((wanted < 0).any()) else wanted
    iou, radius, x, y = fit_template(cover, shape)
    return Forms(
        iou=iou,
        shape=shape,
        radius=radius,
        centre=torch.stack([x, y], dim=2),
        rgb=torch.stack(colours, dim=1),
        background=background.mean(1),
    )


def best_shapes(cover: Tensor, wanted: Tensor) -> Tensor:
    """The demanded shapes; where none is demanded, the one whose best template overlaps most."""
    iou = torch.stack([fit_template(cover, torch.full_like(wanted, k))[0] for k in range(len(SHAPES))])
    return torch.where(wanted < 0, iou.argmax(0), wanted)


def background_of(pictures: Tensor, coloured: Tensor) -> Tensor:
    """(n, 3): the median colour of the pixels that no object colours."""
    values = pictures.flatten(2).masked_fill(coloured.flatten(1)[:, None], torch.nan)
    return values.nanmedian(2).values.nan_to_num(0.5)


def split(coloured: Tensor, axis: Tensor) -> list[Tensor]:
    """Two masks (n, 32, 32) that part the picture where it is coloured least, across the axis."""
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


def cover_of(pictures: Tensor, background: Tensor, coloured: Tensor, half: Tensor) -> tuple[Tensor, Tensor]:
    """Coverage (n, 32, 32) by the object in one half of the picture, and its colour (n, 3)."""
    inside = coloured & half
    chroma = (pictures.amax(1) - pictures.amin(1)).masked_fill(~inside, 0)
    # Edge pixels are mixed with the background: the colour is the median of the more coloured half.
    strong = inside & (chroma > 0.5 * chroma.amax((1, 2), keepdim=True))
    colour = pictures.flatten(2).masked_fill(~strong.flatten(1)[:, None], torch.nan).nanmedian(2).values
    colour = torch.where(colour.isnan(), background, colour)
    way = colour - background
    moved = torch.einsum("nchw,nc->nhw", pictures - background[..., None, None], way)
    cover = moved / way.square().sum(1).clamp(min=1e-6)[:, None, None]
    return beyond_noise(cover) * half, colour


def beyond_noise(cover: Tensor) -> Tensor:
    """0 below FAINT, 1 above 1 - FAINT, and a straight line between."""
    return ((cover - FAINT) / (1 - 2 * FAINT)).clamp(0, 1)


def fit_template(cover: Tensor, shape: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The best IoU with a template of a shape, and its radius and centre, for covers (n, k, 32, 32)."""
    size = cover.shape[-1]
    pixel = torch.arange(size) + 0.5
    mass = cover.sum((-2, -1)).clamp(min=1e-6)
    x = (cover.sum(-2) * pixel).sum(-1) / mass
    y = (cover.sum(-1) * pixel).sum(-1) / mass
    area = torch.tensor([torch.pi, 3.24, 2.0])[shape]
    radius = (mass / area).sqrt().clamp(RADIUS[0] - 2, RADIUS[1] + 2)
    # A triangle's centre of mass lies a third of its radius below the middle of its height.
    y = torch.where(shape == 2, y - radius / 3, y)
    best = torch.zeros_like(mass)
    for step in (1.0, 0.5, 0.25, 0.125):
        grid = torch.cartesian_prod(*[torch.tensor([-1.0, 0.0, 1.0]) * step] * 3)
        r, cx, cy = (v[..., None] + grid[:, k] for k, v in enumerate((radius, x, y)))
        template = beyond_noise(coverage(shape[..., None].expand_as(r), r, cx, cy, size))
        both = torch.minimum(template, cover[..., None, :, :]).sum((-2, -1))
        either = torch.maximum(template, cover[..., None, :, :]).sum((-2, -1))
        best, index = (both / either.clamp(min=1e-6)).max(-1)
        radius, x, y = (v.gather(-1, index[..., None])[..., 0] for v in (r, cx, cy))
    return best, radius, x, y
