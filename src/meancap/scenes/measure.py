"""Everything that is measured on pictures of the scenes, one number per picture, and its law.

right       for each attribute that the prompt fixes, whether the detector finds it; "all" is all of them
drawn       both objects overlap the best template of their demanded shape with IoU > 0.85
open words  what the detector finds for the words that a prompt leaves open; by the law they are uniform
open        what no word fixes, each moved to U(0, 1) by the law: background, radius, saturation, value, hue
spread      the standard deviation of an open number over that of the law
tv          total variation between the histogram of an open attribute and the law: ten cells for a number and
            two for what lies outside its range, one for each word
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property

import torch
from torch import Tensor

from ...drawing import ATTRIBUTES
from ...drawing.law import BRIGHTNESS, HUE, RADIUS, SATURATION, VALUE
from ..colour import clipped, saturation
from .detector import Readings, SceneDetector, codes_in_prompt_order, detect
from .form import Forms, forms

DRAWN = 0.85
WORDS = ("shape 1", "colour 1", "shape 2", "colour 2")
CELLS = 10


@dataclass(frozen=True, eq=False)
class Measured:
    """Pictures with the prompts (n, 6 codes) they were asked for."""

    codes: Tensor
    readings: Readings
    forms: Forms
    saturation: Tensor  # (n,) HSV saturation, mean over pixels, as in the paper
    clipped: Tensor  # (n,) share of channel values at 0 or 255

    @cached_property
    def seen(self) -> Tensor:
        """(n, 5) what is on each picture, the objects in the prompt's order."""
        return codes_in_prompt_order(self.readings, self.codes)

    @property
    def right(self) -> dict[str, Tensor]:
        """Whether each demanded attribute is there; nothing demanded counts as right."""
        hit = (self.codes[:, :5] < 0) | (self.seen == self.codes[:, :5])
        # Which of two indistinguishable objects is the first cannot be seen: an open place fixes nothing.
        light = (self.forms.background >= sum(BRIGHTNESS) / 2).long()
        ground = (self.codes[:, 5] < 0) | (light == self.codes[:, 5])
        hits = dict(zip((*WORDS, "place"), hit.unbind(1), strict=True)) | {"background": ground}
        return hits | {"all": torch.stack(list(hits.values())).all(0)}

    @property
    def drawn(self) -> Tensor:
        return (self.forms.iou > DRAWN).all(1)

    @property
    def open_numbers(self) -> dict[str, Tensor]:
        """What no word fixes, as values that the law makes U(0, 1)."""
        f = self.forms
        hue, chroma, value = hsv(f.rgb)
        word = (hue / 60).round()
        low, high = BRIGHTNESS
        ground, half = self.codes[:, 5], (high - low) / 2
        start = torch.where(ground == 1, low + half, torch.full_like(f.background, low))
        width = torch.where(ground < 0, 2 * half, half)
        return {
            "background": (f.background - start) / width,
            "radius": _share(f.radius, RADIUS).flatten(),
            "saturation": _share(chroma, SATURATION).flatten(),
            "value": _share(value, VALUE).flatten(),
            "hue": ((hue - 60 * word + HUE) / (2 * HUE)).flatten(),
        }

    @property
    def open_words(self) -> dict[str, Tensor]:
        """What was found for each word that prompts left open; a place only by its axis."""
        words = {
            kind: torch.cat([self.seen[self.codes[:, k] < 0, k] for k in columns])
            for kind, columns in (("shape", (0, 2)), ("colour", (1, 3)))
        }
        return words | {"axis": self.readings.axis[self.codes[:, 4] < 0]}


def measure_pictures(network: SceneDetector, pictures: Tensor, codes: Tensor) -> Measured:
    """Reads (n, 3, 32, 32) uint8 pictures."""
    readings = detect(network, pictures)
    place = codes[:, 4]
    axis = torch.where(place < 0, readings.axis, place // 2)
    wanted = _in_reading_order(codes, readings)
    images = pictures.permute(0, 2, 3, 1)
    return Measured(codes, readings, forms(pictures, axis, wanted), saturation(images), clipped(images))


def joined_measures(parts: Sequence[Measured]) -> Measured:
    """Several sets of pictures as one."""
    return Measured(
        torch.cat([p.codes for p in parts]),
        Readings(*(torch.cat([getattr(p.readings, f.name) for p in parts]) for f in fields(Readings))),
        Forms(*(torch.cat([getattr(p.forms, f.name) for p in parts]) for f in fields(Forms))),
        torch.cat([p.saturation for p in parts]),
        torch.cat([p.clipped for p in parts]),
    )


def some_measures(m: Measured, kept: Tensor) -> Measured:
    """The pictures that a mask (n,) keeps."""
    return Measured(
        m.codes[kept],
        Readings(*(getattr(m.readings, f.name)[kept] for f in fields(Readings))),
        Forms(*(getattr(m.forms, f.name)[kept] for f in fields(Forms))),
        m.saturation[kept],
        m.clipped[kept],
    )


def summary(m: Measured) -> dict[str, float]:
    """The means of a set of pictures."""
    right = m.right
    values = {f"right {name}": float(v.double().mean()) for name, v in right.items()}
    values |= {
        "drawn": float(m.drawn.double().mean()),
        "iou": float(m.forms.iou.double().mean()),
        "right and drawn": float((right["all"] & m.drawn).double().mean()),
        "saturation": float(m.saturation.mean()),
        "clipped": float(m.clipped.mean()),
    }
    values |= {f"spread {k}": float(v.double().std() * 12**0.5) for k, v in m.open_numbers.items()}
    values |= {f"tv {k}": number_tv(v) for k, v in m.open_numbers.items()}
    counts = {"shape": ATTRIBUTES["shape 1"], "colour": ATTRIBUTES["colour 1"], "axis": 2}
    values |= {f"tv {k}": word_tv(v, counts[k]) for k, v in m.open_words.items() if len(v)}
    return values


def number_tv(values: Tensor, cells: int = CELLS) -> float:
    """Total variation between values and U(0, 1), over equal cells and one at each side for the rest."""
    index = (values.double() * cells).floor().clamp(-1, cells).long() + 1
    law = torch.tensor([0.0, *[1 / cells] * cells, 0.0], dtype=torch.float64)
    return float((index.bincount(minlength=cells + 2).double() / len(values) - law).abs().sum() / 2)


def word_tv(values: Tensor, count: int) -> float:
    """Total variation between words and the uniform law."""
    return float((values.bincount(minlength=count).double() / len(values) - 1 / count).abs().sum() / 2)


def violated(m: Measured, negative: Tensor) -> Tensor:
    """Whether a picture shows what its negative prompt (n, 6) names: such an object, or such a ground."""
    thing = negative[:, :2]
    seen = m.seen[:, :4].reshape(-1, 2, 2)
    same = ((thing[:, None] < 0) | (seen == thing[:, None])).all(2).any(1)
    light = (m.forms.background >= sum(BRIGHTNESS) / 2).long()
    ground = light == negative[:, 5]
    return torch.where((thing < 0).all(1), ground, same)


def hsv(rgb: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Hue in degrees, saturation and value of colours with their channels last."""
    high, low = rgb.amax(-1), rgb.amin(-1)
    chroma = (high - low).clamp(min=1e-6)
    r, g, b = rgb.unbind(-1)
    hue = torch.where(
        high == r, ((g - b) / chroma) % 6, torch.where(high == g, (b - r) / chroma + 2, (r - g) / chroma + 4)
    )
    return 60 * hue, (high - low) / high.clamp(min=1e-6), high


def mean_tv(summary_values: Mapping[str, float]) -> float:
    """The mean total variation over all open attributes of a summary."""
    values = [v for k, v in summary_values.items() if k.startswith("tv ")]
    return sum(values) / len(values)


def _share(values: Tensor, bounds: tuple[float, float]) -> Tensor:
    return (values - bounds[0]) / (bounds[1] - bounds[0])


def _in_reading_order(codes: Tensor, readings: Readings) -> Tensor:
    """The demanded shapes (n, 2), left or above first; what is open is taken from the detector."""
    seen = codes_in_prompt_order(readings, codes)
    turned = seen[:, 4] % 2 == 1
    wanted = torch.where(codes[:, 0:3:2] < 0, seen[:, 0:3:2], codes[:, 0:3:2])
    return torch.where(turned[:, None], wanted.flip(1), wanted)
