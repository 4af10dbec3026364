"""The mixture view's questions about whole rules; each is a route of `server`, and those of `paths` are too.

mixture/about   presets, bounds, solvers, the catalogue and the paper's nine settings: what the page offers
mixture/check   {"text", "scale", "gamma"} -> the rule in full, or the sentence that says what is wrong
mixture/run     every rule from the same noise: points and numbers; "quick" while a slider moves
mixture/meter   every rule on a few samples: paths, guided means, effective scale over time
mixture/field   one rule at one time: p(condition | x), velocities, and where a cap acts
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from ..rules import Rule, catalogue
from ..runs.gmm.config import PAPER_SAMPLES, SETTINGS, STEPS, Setting
from ..runs.protocols import paper_source, paper_table
from . import comparison, paths, scene
from .comparison import COMPILED, RULE_ERRORS, Settings, attempt, read_rule, read_settings
from .jobs import Route, Work
from .numbers import divergence, lost, numbers, packed
from .requests import Request, integer, number, only, text
from .scene import PRESETS, Plane, paper_scene, read_plane

POINTS, KL_POINTS = 6000, 1000
FIELDS = (*scene.FIELDS, *comparison.FIELDS)


def about(request: Request, work: Work) -> dict[str, Any]:
    """All that the page offers."""
    only(request, ())
    return {
        "presets": [
            {"name": name, "title": p.title, "about": p.about, **_plane(p.plane)}
            for name, p in PRESETS.items()
        ],
        "solvers": list(comparison.SOLVERS),
        "limits": {
            "rules": comparison.MOST_RULES,
            "samples": comparison.MOST_SAMPLES,
            "steps": comparison.MOST_STEPS,
            "scale": comparison.LARGEST_SCALE,
            "gamma": comparison.LARGEST_GAMMA,
            "components": scene.MOST_COMPONENTS,
            "farthest": scene.FARTHEST,
            "heaviest": scene.HEAVIEST,
            "std": [scene.NARROWEST, scene.WIDEST],
            "eta": scene.WORST,
        },
        "rules": [
            {"name": e.name, "title": e.title, "text": e.call.replace("{scale}", "λ")}
            for e in catalogue()
            if e.kind == "rule" and e.axes <= 2 and not e.needs
        ],
        "paper": {
            "source": paper_source("gmm"),
            "steps": STEPS,
            "samples": PAPER_SAMPLES,
            "settings": [
                {
                    "scene": next(n for n, p in PRESETS.items() if p.paper == s.scene),
                    "members": s.members,
                    "guidance": s.guidance,
                    "rule": str(s.rule),
                    "template": _template(s),
                    "scale": float(s.scale or 1),
                    "gamma": float(s.gamma or 1),
                }
                for s in SETTINGS
            ],
        },
        "compiling": COMPILED.busy,
    }


def check(request: Request, work: Work) -> dict[str, Any]:
    """What a rule's text stands for."""
    only(request, ("text", "scale", "gamma"))
    scale = number(request, "scale", 0.0, comparison.LARGEST_SCALE, 3.0)
    gamma = number(request, "gamma", 1.0, comparison.LARGEST_GAMMA, 1.1)
    try:
        return {"rule": str(read_rule(text(request, "text", comparison.LONGEST_RULE), scale, gamma))}
    except ValueError as error:  # an unfinished text is not a bad request
        return {"error": str(error)}


def run(request: Request, work: Work) -> dict[str, Any]:
    """Where the samples of every rule end, with their numbers."""
    only(request, (*FIELDS, "points"))
    plane, settings = read_plane(request), read_settings(request)
    points = integer(request, "points", 1, POINTS, POINTS)
    rules = [attempt(settings, one) for one in settings.rules]
    engines = [comparison.engine(plane, r, settings) if isinstance(r, Rule) else "" for r in rules]
    if not settings.quick:
        comparison.allowed(settings, [one for one in engines if one])
    start, slow = plane.noise(settings.n, settings.seed), engines.count("library")
    entries: list[dict[str, Any]] = []
    for template, rule, engine in zip(settings.rules, rules, engines, strict=True):
        work.check()
        if isinstance(rule, str):
            entries.append({"text": template, "error": rule})
            continue
        n = comparison.samples_for(settings, engine, slow)
        try:
            entry = _entry(plane, rule, start[:n], settings, engine, work, points)
        except RULE_ERRORS as error:
            entry = {
                "error": f"{rule} cannot run on points in the plane: {' '.join(str(error).split())[:300]}"
            }
        entries.append(
            {"text": template, "rule": str(rule), "paper": _paper(request, settings, rule), **entry}
        )
    return {
        **_plane(plane),
        "n": settings.n,
        "quick": settings.quick,
        "rules": entries,
        "exact": _exact(plane, settings.n, settings.seed),
        "compiling": COMPILED.busy,
    }


@lru_cache(maxsize=16)
def _exact(plane: Plane, n: int, seed: int) -> dict[str, Any]:
    """The numbers of as many samples of the truth itself: the values that a perfect sampler would have."""
    condition = plane.condition()
    draw = torch.Generator().manual_seed(seed + 1)  # a stream that differs from the noise
    return numbers(condition, condition.conditional.sample(n, draw))


def _entry(
    plane: Plane, rule: Rule, start: Tensor, settings: Settings, engine: str, work: Work, points: int
) -> dict[str, Any]:
    end = comparison.ends(plane, rule, start, settings, engine, work)
    seen = {"engine": engine, "n": len(end), "points": packed(end[:points], plane.box()), "lost": lost(end)}
    seen["close"] = packed(end[:points], plane.close())
    if seen["lost"]:
        return {**seen, "numbers": None}
    measures = numbers(plane.condition(), end)
    if not settings.quick:
        # The compiled loop works in single precision, which is too coarse for the derivatives of the map.
        fine = "torch" if engine == "numba" else engine
        measures |= divergence(
            plane.condition(),
            start[:KL_POINTS],
            lambda x: comparison.ends(plane, rule, x, settings, fine, work),
        )
    return {**seen, "numbers": measures}


def _plane(plane: Plane) -> dict[str, Any]:
    law = plane.condition().conditional
    return {
        "components": [list(c) for c in plane.components],
        "members": list(plane.members),
        "std": plane.std,
        "eta": plane.eta,
        "target": law.weights.tolist(),
        "box": plane.box(),
        "close": plane.close(),
    }


def _template(setting: Setting) -> str:
    """The rule of a setting, with its scale and its cap on the sliders."""
    if setting.guidance == "Conditional":
        return str(setting.rule)
    return "CFG(λ) | Cap(Γ)" if setting.gamma else "CFG(λ)"


def _paper(request: Request, settings: Settings, rule: Rule) -> dict[str, str] | None:
    """The paper's own row, where this rule is one of its settings."""
    one = paper_scene(request)
    if one is None or settings.steps != STEPS or settings.solver != "euler":
        return None
    for setting in SETTINGS:
        if setting.scene == one and setting.rule == rule:
            rows = paper_table("gmm")
            return next(
                r for r in rows if (r["members"], r["guidance"]) == (setting.members, setting.guidance)
            )
    return None


ROUTES: dict[str, Route] = {
    "mixture/about": about,
    "mixture/check": check,
    "mixture/run": run,
    "mixture/meter": paths.meter,
    "mixture/field": paths.field,
}
