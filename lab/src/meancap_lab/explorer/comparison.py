"""What the mixture view compares: a plane of round components, rules with two sliders, and who samples them.

components   x, y, weight, and whether it belongs to the condition; at most 12, all of one width `std`
eta          under-conditioning of the model: its conditional mean lies this share of the way to the other
PRESETS      the paper's three conditions, and scenes in which a scale or a cap behaves differently
rule         text in which λ (or scale) and Γ (or gamma) stand for the sliders; a name before = is kept
engine       numba or library (see `lab.sampler`); 'library' takes any rule and model

A request may take 60 seconds by our own estimate; one that would take longer raises before it starts.
"""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from meancap.notation import number_text
from meancap.prediction import Prediction
from meancap.rules import Rule, catalogue, guide
from meancap.rules.grammar import parse
from meancap.sampling import StepMethod, Times, trajectory, uniform

from ..mixtures.condition import COUNT, PAIR, SINGLE, STD, TRIPLE, Condition, Scene, circle
from ..mixtures.mixture import Mixture
from ..mixtures.problems import Model
from ..mixtures.sampler import engine_for, flow
from ..runs.generate import SOLVERS
from .requests import Request, Work, choice, integer, items, number, one_line, text

# Errors of a rule that was not made for the points or pictures it is given.
RULE_ERRORS = (ValueError, TypeError, RuntimeError, IndexError, ArithmeticError)
_SCENE = ("scene", "components", "std", "eta")
FIELDS = (*_SCENE, "steps", "solver", "n", "seed", "scale", "gamma", "rules", "quick")
_LONGEST_RULE = 600
LIMITS: dict[str, Any] = {
    "rules": 4,
    "samples": 200_000,
    "steps": 500,
    "scale": 30.0,
    "gamma": 10.0,
    "components": 12,
    "farthest": 8.0,
    "heaviest": 100.0,
    "std": (0.01, 1.5),
    "eta": 0.9,
}
_QUICK_FAST, _QUICK_SLOW = 20_000, 2000  # samples while a slider moves: each rule; all slow rules together
_BUDGET = 60.0
_EVALUATIONS = {"euler": 1, "heun": 2, "midpoint": 2, "rk4": 4}
_SECONDS = {"numba": 2e-8, "library": 1.5e-6}  # for one sample and evaluation, on one core
_SLIDERS = re.compile(r"'[^']*'|\"[^\"]*\"|[λΓ]|\b(?:scale|gamma)\b(?!\s*=)")
_OVERLAP, _AWAY, _NOISE = 0.35, 4.0, 2.3

Box = tuple[float, float, float]  # a square: its middle, and half its side


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

    @lru_cache(maxsize=64)  # noqa: B019  (a plane is a small value)
    def condition(self) -> Condition:
        means = torch.tensor([(one.x, one.y) for one in self.components], dtype=torch.float64)
        return Condition(Mixture(means, [one.weight for one in self.components], std=self.std), self.members)

    @lru_cache(maxsize=64)  # noqa: B019
    def model(self) -> Model:
        return Model(self.condition(), self.eta)

    def box(self) -> Box:
        """A square that holds the components and the origin."""
        return _square([(0.0, 0.0), *((c.x, c.y) for c in self.components)], max(3.5 * self.std, 0.45))

    def close(self) -> Box:
        """A square round the members of the condition."""
        return _square([(c.x, c.y) for c in self.components if c.inside], max(5 * self.std, 0.2))

    def wide(self) -> Box:
        """A square that holds the components and nearly all of the noise."""
        corners = ((-_NOISE, -_NOISE), (_NOISE, _NOISE))
        return _square([*corners, *((c.x, c.y) for c in self.components)], 3.5 * self.std)


def _square(points: Iterable[tuple[float, float]], margin: float) -> Box:
    x, y = zip(*points, strict=True)
    half = max(max(x) - min(x), max(y) - min(y)) / 2 + margin
    return (max(x) + min(x)) / 2, (max(y) + min(y)) / 2, half


@lru_cache(maxsize=4)
def start_noise(n: int, seed: int) -> Tensor:
    """The start of every rule, (n, 2) float32; the first of more are the same samples."""
    return torch.randn(n, 2, generator=torch.Generator().manual_seed(seed))


def _ring(scene: Scene, std: float = STD, move: float = 0.0, eta: float = 0.0) -> Plane:
    places = (circle(COUNT) + move).tolist()
    parts = (
        Component(x, y, w, k in scene.members)
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
        _ring(TRIPLE, move=_AWAY / math.sqrt(2)),
    ),
    "under": Preset(
        "Under-conditioned",
        "A model half-way to unconditional: λ = 2 would make it exact.",
        _ring(TRIPLE, eta=0.5),
    ),
}


def read_plane(request: Request) -> Plane:
    """The plane that a request describes: a preset by name, or components of its own."""
    name = choice(request, "scene", (*PRESETS, "own"), "triple")
    if name != "own":
        return PRESETS[name].plane
    parts = [
        _component(one, k) for k, one in enumerate(items(request, "components", 2, LIMITS["components"]))
    ]
    if not sum(c.weight for c in parts if c.inside) > 0:
        raise ValueError("the condition needs a component with weight; put one into it")
    if not sum(c.weight for c in parts if not c.inside) > 0:
        raise ValueError("guidance needs a component with weight outside the condition; take one out of it")
    narrowest, widest = LIMITS["std"]
    std = number(request, "std", narrowest, widest, STD)
    return Plane(tuple(parts), std, number(request, "eta", 0.0, LIMITS["eta"], 0.0))


def _component(one: object, k: int) -> Component:
    if not isinstance(one, (list, tuple)) or len(one) != 4:
        raise ValueError(f"component {k} must be a list of x, y, weight and whether it is in the condition")
    named = dict(zip(("x", "y", "weight"), one, strict=False))
    try:
        x, y = (number(named, axis, -LIMITS["farthest"], LIMITS["farthest"]) for axis in "xy")
        weight = number(named, "weight", 0.0, LIMITS["heaviest"])
    except ValueError as error:
        raise ValueError(f"component {k}: {error}") from None
    return Component(x, y, weight, bool(one[3]))


@dataclass(frozen=True)
class Settings:
    """The rules to compare, and what they share."""

    steps: int
    solver: str
    n: int
    seed: int
    sliders: tuple[float, float]  # scale and gamma
    rules: tuple[str, ...]
    quick: bool

    @property
    def times(self) -> Times:
        return uniform(self.steps)

    @property
    def step(self) -> StepMethod:
        return SOLVERS[self.solver]

    @property
    def evaluations(self) -> int:
        return self.steps * _EVALUATIONS[self.solver]


def read_settings(request: Request) -> Settings:
    """The settings of a request, every number within its bounds."""
    return Settings(
        integer(request, "steps", 1, LIMITS["steps"], 50),
        choice(request, "solver", SOLVERS, "euler"),
        integer(request, "n", 100, LIMITS["samples"], 20_000),
        integer(request, "seed", 0, 2**31 - 1, 0),
        read_sliders(request),
        read_rule_texts(request),
        bool(request.get("quick", False)),
    )


def read_sliders(request: Request) -> tuple[float, float]:
    """Scale and gamma."""
    scale = number(request, "scale", 0.0, LIMITS["scale"], 3.0)
    return scale, number(request, "gamma", 1.0, LIMITS["gamma"], 1.1)


def read_rule_texts(request: Request) -> tuple[str, ...]:
    rules = items(request, "rules", 1, LIMITS["rules"], ["CFG(λ)"])
    return tuple(text({"rule": one}, "rule", _LONGEST_RULE) for one in rules)


def rule_menu(axes: int) -> list[dict[str, str]]:
    """The rules of the catalogue for samples with so many axes and no more inputs, with λ for the scale."""
    return [
        {"name": e.name, "title": e.title, "text": e.call.replace("{scale}", "λ")}
        for e in catalogue()
        if e.kind == "rule" and e.axes <= axes and not e.needs
    ]


def fill_sliders(template: str, scale: float, gamma: float) -> str:
    """The rule's text with the sliders' values."""

    def value(match: re.Match[str]) -> str:
        token = match.group()
        if token[0] in "'\"":
            return token
        return number_text(scale if token in ("λ", "scale") else gamma)

    return _SLIDERS.sub(value, template)


def read_rule(template: str, scale: float, gamma: float) -> Rule:
    """The rule that a template stands for."""
    if not template.strip():
        raise ValueError("type a rule, such as CFG(λ) | Cap(Γ), or pick one")
    return parse(fill_sliders(template, scale, gamma))


def rule_or_error(template: str, scale: float, gamma: float, shape: Sequence[int] = ()) -> Rule | str:
    """The rule, tried on one prediction of this shape if given; or the sentence about what is wrong."""
    m_c, m_u = (torch.linspace(low, 1, math.prod(shape)).reshape(1, *shape) for low in (-1.0, -0.5))
    try:
        rule = read_rule(template, scale, gamma)
        if shape:
            guide(rule, Prediction(torch.zeros_like(m_c), 0.0, m_c, m_u, 0.05))
    except RULE_ERRORS as error:
        return one_line(error, 300)
    return rule


def check_rule(request: Request, shape: Sequence[int] = ()) -> dict[str, str]:
    """The rule in full, or the error of an unfinished text, which is not a bad request."""
    rule = rule_or_error(text(request, "text", _LONGEST_RULE), *read_sliders(request), shape)
    return {"error": rule} if isinstance(rule, str) else {"rule": str(rule)}


def choose_engine(plane: Plane, rule: Rule, settings: Settings) -> str:
    """The fastest engine that can sample this rule now; numba only once its loop is compiled."""
    if plane.eta:
        return "library"
    fastest = engine_for(plane.condition(), rule, torch.zeros(1, 2), settings.times, settings.step)
    return "library" if fastest == "numba" and not COMPILED.ready(plane) else fastest


def check_budget(settings: Settings, engines: Sequence[str]) -> None:
    """Raise if a request would keep this machine busy for minutes."""
    seconds = settings.n * settings.evaluations * sum(_SECONDS[one] for one in engines)
    if seconds > _BUDGET:
        raise ValueError(
            f"{settings.n:,} samples with {settings.steps} {settings.solver} steps would take about "
            f"{seconds:,.0f} seconds with these rules, and a request may take {_BUDGET:g}; "
            "choose fewer samples or steps"
        )


def sample_count(settings: Settings, engine: str, slow: int) -> int:
    """How many samples a rule gets: all of them, or what can be shown while a slider moves."""
    if not settings.quick:
        return settings.n
    share = _QUICK_SLOW * 50 // (max(slow, 1) * max(settings.evaluations, 50))
    return min(settings.n, max(share, 200) if engine == "library" else _QUICK_FAST)


def end_points(
    plane: Plane, rule: Rule, start: Tensor, settings: Settings, engine: str, work: Work
) -> Tensor:
    """The final samples; an exact model in the precision of `start`, an inexact one in float64."""
    if engine != "library":
        work.check()
        return flow(plane.condition(), rule, start, settings.times, settings.step, engine=engine)
    x = start.double()
    for one in trajectory(plane.model().predict, rule, x, settings.times, settings.step):
        work.check()
        x = one.x_next
    return x


class _Compiled:
    """Which loops numba has compiled in this process; others are compiled in the background."""

    def __init__(self) -> None:
        self._begun: dict[tuple[int, int], threading.Thread] = {}
        self._lock = threading.Lock()

    @property
    def busy(self) -> bool:
        return any(thread.is_alive() for thread in list(self._begun.values()))

    def ready(self, plane: Plane) -> bool:
        """Whether the loop for this plane is compiled; if not, this starts its compilation."""
        weighted = [one for one in plane.components if one.weight]
        shape = (sum(one.inside for one in weighted), len(weighted))  # a loop is compiled for each
        with self._lock:
            if shape not in self._begun:
                self._begun[shape] = threading.Thread(target=_sample_once, args=(plane,), daemon=True)
                self._begun[shape].start()
        return not self._begun[shape].is_alive()

    def warm(self) -> None:
        """Start to compile the loops of the presets; does nothing without numba."""
        for _, _, plane, _ in PRESETS.values():
            if engine_for(plane.condition(), parse("CFG(1)"), torch.zeros(1, 2), (0.0, 1.0)) == "numba":
                self.ready(plane)

    def wait(self, seconds: float = 3.0) -> None:
        """Wait for compilations that were begun: the interpreter must not exit while a thread compiles."""
        end = time.monotonic() + seconds
        for thread in list(self._begun.values()):
            thread.join(max(0.0, end - time.monotonic()))


def _sample_once(plane: Plane) -> None:
    flow(plane.condition(), parse("CFG(1)"), torch.zeros(1, 2), (0.0, 1.0))


COMPILED = _Compiled()
