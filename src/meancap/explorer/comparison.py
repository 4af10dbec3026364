"""The rules that a page compares: text, where λ and Γ stand for the page's two sliders.

    CFG(λ) | Cap(Γ)        λ or scale, Γ or gamma, wherever a value may stand; a name before = is left alone
    numba, torch, library  which engine samples it (see `lab.sampler`); 'library' takes any rule and model

A request may take BUDGET seconds by our own estimate; one that would take longer is refused before it starts.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..lab.plan import plan
from ..lab.sampler import engine_for, flow
from ..notation import number_text as written
from ..rules import Rule
from ..rules.parse import parse
from ..sampling import StepMethod, Times, euler, heun, midpoint, rk4, trajectory, uniform
from .jobs import Work
from .requests import Request, choice, integer, items, number, text
from .scene import PRESETS, Plane

SOLVERS: dict[str, StepMethod] = {"euler": euler, "heun": heun, "midpoint": midpoint, "rk4": rk4}
MOST_RULES, LONGEST_RULE = 4, 600
MOST_SAMPLES, MOST_STEPS, LARGEST_SCALE, LARGEST_GAMMA, LARGEST_SEED = 200_000, 500, 30.0, 10.0, 2**31 - 1
QUICK_FAST, QUICK_SLOW = 20_000, 2000  # samples while a slider moves: each rule; all slow rules together
BUDGET = 60.0
FIELDS = ("steps", "solver", "n", "seed", "scale", "gamma", "rules", "quick")
# A rule that was not made for points in the plane may fail in these ways; its entry then says so.
RULE_ERRORS = (ValueError, TypeError, RuntimeError, IndexError, ArithmeticError)
_EVALUATIONS = {"euler": 1, "heun": 2, "midpoint": 2, "rk4": 4}
_SECONDS = {"numba": 2e-8, "torch": 8e-8, "library": 1.5e-6}  # for one sample and evaluation, on one core
_SLIDERS = re.compile(r"'[^']*'|\"[^\"]*\"|[λΓ]|\b(?:scale|gamma)\b(?!\s*=)")


@dataclass(frozen=True)
class Settings:
    """The rules to compare, and what they share."""

    steps: int
    solver: str
    n: int
    seed: int
    scale: float
    gamma: float
    rules: tuple[str, ...]
    quick: bool

    @property
    def times(self) -> Times:
        return uniform(self.steps)

    @property
    def step(self) -> StepMethod:
        return SOLVERS[self.solver]


def read_settings(request: Request) -> Settings:
    """The settings of a request, every number within its bounds."""
    rules = items(request, "rules", 1, MOST_RULES, ["CFG(λ)"])
    for one in rules:
        text({"rule": one}, "rule", LONGEST_RULE)
    return Settings(
        integer(request, "steps", 1, MOST_STEPS, 50),
        choice(request, "solver", SOLVERS, "euler"),
        integer(request, "n", 100, MOST_SAMPLES, 20_000),
        integer(request, "seed", 0, LARGEST_SEED, 0),
        number(request, "scale", 0.0, LARGEST_SCALE, 3.0),
        number(request, "gamma", 1.0, LARGEST_GAMMA, 1.1),
        tuple(rules),
        bool(request.get("quick", False)),
    )


def with_slider_values(template: str, scale: float, gamma: float) -> str:
    """The rule's text with the sliders' values."""

    def value(match: re.Match[str]) -> str:
        token = match.group()
        if token[0] in "'\"":
            return token
        return written(scale if token in ("λ", "scale") else gamma)

    return _SLIDERS.sub(value, template)


def read_rule(template: str, scale: float, gamma: float) -> Rule:
    """The rule that a template stands for; what is wrong with it is one sentence."""
    if not template.strip():
        raise ValueError("type a rule, such as CFG(λ) | Cap(Γ), or pick one")
    try:
        return parse(with_slider_values(template, scale, gamma))
    except ValueError as error:
        # The full list of names would fill the page, and the menu beside the field has it.
        what, known, _ = str(error).partition("; known are ")
        raise ValueError(f"{what}; pick one from the list beside it" if known else what) from None


def attempt(settings: Settings, template: str) -> Rule | str:
    """The rule, or the sentence that says why the text is not one."""
    try:
        return read_rule(template, settings.scale, settings.gamma)
    except ValueError as error:
        return str(error)


def engine(plane: Plane, rule: Rule, settings: Settings) -> str:
    """The fastest engine that can sample this rule now; numba only once its loop is compiled."""
    if plane.eta:
        return "library"
    condition = plane.condition()
    fastest = engine_for(condition, rule, torch.zeros(1, 2), settings.times, settings.step)
    return "torch" if fastest == "numba" and not COMPILED.ready(plane) else fastest


def allowed(settings: Settings, engines: Sequence[str]) -> None:
    """Refuses a request that would keep this machine busy for minutes."""
    each = settings.n * settings.steps * _EVALUATIONS[settings.solver]
    seconds = sum(each * _SECONDS[one] for one in engines)
    if seconds > BUDGET:
        raise ValueError(
            f"{settings.n:,} samples with {settings.steps} {settings.solver} steps would take about "
            f"{seconds:,.0f} seconds with these rules, and a request may take {BUDGET:g}; "
            "choose fewer samples or steps"
        )


def samples_for(settings: Settings, engine: str, slow: int) -> int:
    """How many samples a rule gets: all of them, or what can be shown while a slider moves."""
    if not settings.quick:
        return settings.n
    share = QUICK_SLOW * 50 // (max(slow, 1) * max(settings.steps * _EVALUATIONS[settings.solver], 50))
    return min(settings.n, max(share, 200) if engine == "library" else QUICK_FAST)


def ends(plane: Plane, rule: Rule, start: Tensor, settings: Settings, engine: str, work: Work) -> Tensor:
    """Where the samples end; an exact model in the precision of `start`, an inexact one in float64."""
    if engine != "library":
        work.check()
        return flow(plane.condition(), rule, start, settings.times, settings.step, engine=engine)
    x = start.double()
    for one in trajectory(plane.model().predict, rule, x, settings.times, settings.step):
        work.check()
        x = one.x_next
    return x


class Compiled:
    """Which loops numba has compiled in this process; others are compiled in the background."""

    def __init__(self) -> None:
        self._ready: set[tuple[int, int]] = set()
        self._begun: dict[tuple[int, int], threading.Thread] = {}
        self._lock = threading.Lock()

    @property
    def busy(self) -> bool:
        return any(thread.is_alive() for thread in list(self._begun.values()))

    def ready(self, plane: Plane) -> bool:
        """Whether the loop for this plane is compiled; if not, this starts its compilation."""
        shape = _shape(plane)
        with self._lock:
            if shape not in self._begun:
                self._begun[shape] = threading.Thread(target=self._compile, args=(plane,), daemon=True)
                self._begun[shape].start()
        return shape in self._ready

    def warm(self) -> None:
        """Starts to compile the loops of the presets; does nothing without numba."""
        for preset in PRESETS.values():
            rule = parse("CFG(1)")
            if engine_for(preset.plane.condition(), rule, torch.zeros(1, 2), (0.0, 1.0)) == "numba":
                self.ready(preset.plane)

    def wait(self, seconds: float = 3.0) -> None:
        """Waits for compilations that were begun: the interpreter must not exit while a thread compiles."""
        end = time.monotonic() + seconds
        for thread in list(self._begun.values()):
            thread.join(max(0.0, end - time.monotonic()))

    def _compile(self, plane: Plane) -> None:
        flow(plane.condition(), parse("CFG(1)"), torch.zeros(1, 2), (0.0, 1.0))
        self._ready.add(_shape(plane))


def _shape(plane: Plane) -> tuple[int, int]:
    """Members and components with weight, for which a loop is compiled."""
    loop = plan(plane.condition(), parse("CFG(1)"))
    return (0, 0) if loop is None else (loop.inside, len(loop.means))


COMPILED = Compiled()
