"""Numbers of many pictures of scenes: what they got right, and the law of what prompts leave open.

    open words  what the detector finds for the words that a prompt leaves open; by the law they are uniform
    open        what no word fixes, moved to U(0, 1) by the law: background, radius, saturation, value, hue
    spread      the standard deviation of an open number over that of the law
    tv          total variation between the histogram of an open attribute and the law: ten cells for a number
                and two for what lies outside its range, one for each word

Shares of pictures have intervals that stay right near 0 and 1, where a bootstrap of 96 hits out of 96 has no
width at all: Wilson's for a share, Agresti and Min's for the difference of two shares on the same pictures.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields

import torch
from torch import Tensor

from meancap.scenes import ATTRIBUTES, Measured, Readings
from meancap.scenes.law import BOUNDS
from meancap.scenes.measure import Forms

_CELLS = 10
_Z = 1.959964  # 95 %


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
    values |= {f"spread {k}": float(v.double().std() * 12**0.5) for k, v in open_numbers(m).items()}
    values |= {f"tv {k}": _number_tv(v) for k, v in open_numbers(m).items()}
    counts = {"shape": ATTRIBUTES["shape 1"], "colour": ATTRIBUTES["colour 1"], "axis": 2}
    values |= {f"tv {k}": _word_tv(v, counts[k]) for k, v in open_words(m).items() if len(v)}
    return values


def open_numbers(m: Measured) -> dict[str, Tensor]:
    """What no word fixes, as values that the law makes U(0, 1)."""
    f = m.forms
    hue, chroma, value = _hsv(f.rgb)
    word = (hue / 60).round()
    low, high = BOUNDS["brightness"]
    ground, half = m.codes[:, 5], (high - low) / 2
    start = torch.where(ground == 1, low + half, torch.full_like(f.background, low))
    width = torch.where(ground < 0, 2 * half, half)
    return {
        "background": (f.background - start) / width,
        "radius": _share(f.radius, BOUNDS["radius"]).flatten(),
        "saturation": _share(chroma, BOUNDS["saturation"]).flatten(),
        "value": _share(value, BOUNDS["value"]).flatten(),
        "hue": _share(hue - 60 * word, BOUNDS["hue"]).flatten(),
    }


def open_words(m: Measured) -> dict[str, Tensor]:
    """What was found for each word that prompts left open; a place only by its axis."""
    words = {
        kind: torch.cat([m.seen[m.codes[:, k] < 0, k] for k in columns])
        for kind, columns in (("shape", (0, 2)), ("colour", (1, 3)))
    }
    return words | {"axis": m.readings.axis[m.codes[:, 4] < 0]}


def _number_tv(values: Tensor) -> float:
    """Total variation between values and U(0, 1), over equal cells and one at each side for the rest."""
    cells = _CELLS
    index = (values.double() * cells).floor().clamp(-1, cells).long() + 1
    law = torch.tensor([0.0, *[1 / cells] * cells, 0.0], dtype=torch.float64)
    return float((index.bincount(minlength=cells + 2).double() / len(values) - law).abs().sum() / 2)


def _word_tv(values: Tensor, count: int) -> float:
    """Total variation between words and the uniform law."""
    return float((values.bincount(minlength=count).double() / len(values) - 1 / count).abs().sum() / 2)


def mean_tv(summary_values: Mapping[str, float]) -> float:
    """The mean total variation over all open attributes of a summary."""
    values = [v for k, v in summary_values.items() if k.startswith("tv ")]
    return sum(values) / len(values)


def violated(m: Measured, negative: Tensor) -> Tensor:
    """Whether a picture shows what its negative prompt (n, 6) names: such an object, or such a ground."""
    thing = negative[:, :2]
    seen = m.seen[:, :4].reshape(-1, 2, 2)
    same = ((thing[:, None] < 0) | (seen == thing[:, None])).all(2).any(1)
    light = (m.forms.background >= sum(BOUNDS["brightness"]) / 2).long()
    ground = light == negative[:, 5]
    return torch.where((thing < 0).all(1), ground, same)


def _hsv(rgb: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Hue in degrees, saturation and value of colours with their channels last."""
    high, low = rgb.amax(-1), rgb.amin(-1)
    chroma = (high - low).clamp(min=1e-6)
    r, g, b = rgb.unbind(-1)
    hue = torch.where(
        high == r, ((g - b) / chroma) % 6, torch.where(high == g, (b - r) / chroma + 2, (r - g) / chroma + 4)
    )
    return 60 * hue, (high - low) / high.clamp(min=1e-6), high


def _share(values: Tensor, bounds: tuple[float, float]) -> Tensor:
    return (values - bounds[0]) / (bounds[1] - bounds[0])


def share_interval(hits: int, n: int) -> tuple[float, float]:
    """95 % interval of a share."""
    if not 0 <= hits <= n or n == 0:
        raise ValueError(f"a share needs hits between 0 and a positive n; got {hits} of {n}")
    p = hits / n
    centre = (p + _Z**2 / (2 * n)) / (1 + _Z**2 / n)
    half = _Z / (1 + _Z**2 / n) * math.sqrt(p * (1 - p) / n + _Z**2 / (4 * n * n))
    low, high = max(0.0, centre - half), min(1.0, centre + half)
    return (0.0 if hits == 0 else low), (1.0 if hits == n else high)


def paired_interval(gained: int, lost: int, n: int) -> tuple[float, float]:
    """95 % interval of (gained - lost) / n on n pictures that both rules drew."""
    if min(gained, lost) < 0 or gained + lost > n or n == 0:
        raise ValueError(f"gained and lost are kinds of the n pictures; got {gained}, {lost} of {n}")
    more, b, c = n + 2, gained + 0.5, lost + 0.5
    centre = (b - c) / more
    half = _Z * math.sqrt(b + c - (b - c) ** 2 / more) / more
    return max(-1.0, centre - half), min(1.0, centre + half)
