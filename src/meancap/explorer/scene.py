"""What the mixture view samples: round components in the plane, some of them the condition, and a model.

components   x, y, weight, and whether it belongs to the condition; at most 12
std          the one width of all components
eta          under-conditioning of the model: its conditional mean lies this share of the way to the other
PRESETS      the paper's three conditions, and the places where a scale or a cap behaves differently
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from ..lab.condition import COUNT, PAIR, SINGLE, STD, TRIPLE, Condition, Scene, circle
from ..lab.mixture import Mixture
from ..lab.problems import Model
from .requests import Request, choice, items, number

MOST_COMPONENTS, FARTHEST, HEAVIEST = 12, 8.0, 100.0
NARROWEST, WIDEST, WORST = 0.01, 1.5, 0.9
OWN = "own"
FIELDS = ("scene", "components", "std", "eta")
_OVERLAP, _AWAY, _NOISE = 0.35, 4.0, 2.3


class Component(NamedTuple):
    x: float
    y: float
    weight: float
    inside: bool


@dataclass(frozen=True)
class Plane:
    """A truth in the plane, the condition on it, and how wrong the model is."""

    components: tuple[Component, ...]
    std: float = STD
    eta: float = 0.0

    @property
    def members(self) -> tuple[int, ...]:
        return tuple(k for k, one in enumerate(self.components) if one.inside)

    def condition(self) -> Condition:
        return _condition(self)

    def model(self) -> Model:
        return _model(self)

    def noise(self, n: int, seed: int) -> Tensor:
        """The start of every rule, (n, 2) float32; the first of more are the same samples."""
        return _noise(seed, n)

    def box(self) -> tuple[float, float, float]:
        """A square that holds the components and the origin: its middle, and half its side."""
        return _square([(0.0, 0.0), *((c.x, c.y) for c in self.components)], max(3.5 * self.std, 0.45))

    def close(self) -> tuple[float, float, float]:
        """A square round the members of the condition."""
        return _square([(c.x, c.y) for c in self.components if c.inside], max(5 * self.std, 0.2))

    def wide(self) -> tuple[float, float, float]:
        """A square that holds the components and nearly all of the noise."""
        corners = ((-_NOISE, -_NOISE), (_NOISE, _NOISE))
        return _square([*corners, *((c.x, c.y) for c in self.components)], 3.5 * self.std)


def _square(points: Iterable[tuple[float, float]], margin: float) -> tuple[float, float, float]:
    x, y = zip(*points, strict=True)
    half = max(max(x) - min(x), max(y) - min(y)) / 2 + margin
    return (max(x) + min(x)) / 2, (max(y) + min(y)) / 2, half


@lru_cache(maxsize=64)
def _condition(plane: Plane) -> Condition:
    means = torch.tensor([(one.x, one.y) for one in plane.components], dtype=torch.float64)
    return Condition(Mixture(means, [one.weight for one in plane.components], std=plane.std), plane.members)


@lru_cache(maxsize=64)
def _model(plane: Plane) -> Model:
    return Model(plane.condition(), plane.eta)


@lru_cache(maxsize=4)
def _noise(seed: int, n: int) -> Tensor:
    return torch.randn(n, 2, generator=torch.Generator().manual_seed(seed))


def _ring(scene: Scene, std: float = STD, move: tuple[float, float] = (0.0, 0.0), eta: float = 0.0) -> Plane:
    places = circle(COUNT).tolist()
    parts = (
        Component(x + move[0], y + move[1], w, k in scene.members)
        for k, ((x, y), w) in enumerate(zip(places, scene.weights, strict=True))
    )
    return Plane(tuple(parts), std, eta)


class Preset(NamedTuple):
    title: str
    about: str
    plane: Plane
    paper: Scene | None = None


PRESETS: dict[str, Preset] = {
    "single": Preset("Paper {0}", "One of eight narrow modes.", _ring(SINGLE), SINGLE),
    "pair": Preset("Paper {0,1}", "Two neighbours, 68 % to 32 %: is the balance kept?", _ring(PAIR), PAIR),
    "triple": Preset("Paper {0,1,2}", "Three neighbours of equal weight.", _ring(TRIPLE), TRIPLE),
    "overlap": Preset(
        "Overlapping", f"The same three, so wide ({_OVERLAP}) that they overlap.", _ring(TRIPLE, _OVERLAP)
    ),
    "off-centre": Preset(
        "Off-centre",
        f"The same three round a point {_AWAY:g} from the origin, from which the cap measures lengths.",
        _ring(TRIPLE, move=(_AWAY / math.sqrt(2), _AWAY / math.sqrt(2))),
    ),
    "under": Preset(
        "Under-conditioned",
        "A model half-way to unconditional: λ = 2 would make it exact.",
        _ring(TRIPLE, eta=0.5),
    ),
}


def read_plane(request: Request) -> Plane:
    """The plane that a request describes: a preset by name, or components of its own."""
    name = choice(request, "scene", (*PRESETS, OWN), "triple")
    if name != OWN:
        return PRESETS[name].plane
    parts = [_component(one, k) for k, one in enumerate(items(request, "components", 2, MOST_COMPONENTS))]
    if not sum(c.weight for c in parts if c.inside) > 0:
        raise ValueError("the condition needs a component with weight; put one into it")
    if not sum(c.weight for c in parts if not c.inside) > 0:
        raise ValueError("a component with weight must lie outside the condition, or nothing is to be guided")
    std = number(request, "std", NARROWEST, WIDEST, STD)
    return Plane(tuple(parts), std, number(request, "eta", 0.0, WORST, 0.0))


def paper_scene(request: Request) -> Scene | None:
    """The condition of the paper that is asked for, if it is one."""
    preset = PRESETS.get(str(request.get("scene", "triple")))
    return preset.paper if preset else None


def _component(one: object, k: int) -> Component:
    if not isinstance(one, (list, tuple)) or len(one) != 4:
        raise ValueError(f"component {k} is a list of x, y, weight and whether it is in the condition")
    named = dict(zip(("x", "y", "weight"), one, strict=False))
    try:
        x, y = (number(named, axis, -FARTHEST, FARTHEST) for axis in "xy")
        weight = number(named, "weight", 0.0, HEAVIEST)
    except ValueError as error:
        raise ValueError(f"component {k}: {error}") from None
    return Component(x, y, weight, bool(one[3]))
