"""The mixture view's routes; the numbers come from the same functions as the paper's table (`gmm`).

mixture/about   presets, bounds, solvers, the catalogue and the paper's nine settings: what the page offers
mixture/check   {"text", "scale", "gamma"} -> the rule in full, or the sentence about what is wrong
mixture/run     every rule from the same noise: points and numbers; "quick" while a slider moves
mixture/meter   every rule on a few samples: paths, guided means, effective scale over time
mixture/field   one rule at one time: p(condition | x), velocities, and where a cap acts

occupancy, tv, mean_error, ratios   `lab.branches`; occupancy with its binomial standard error
kl                                  `lab.measures`: KL(q | p) of what the sampler makes, +- one error
points                              int16 in units of a box, base64; -32768 marks what lies outside it
"""

from __future__ import annotations

import base64
import math
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from meancap.record import Record
from meancap.rules import Rule, guide
from meancap.sampling import trajectory

from ..mixtures.branches import branches
from ..mixtures.condition import Condition
from ..mixtures.gmm_settings import PAPER_SAMPLES, SETTINGS, STEPS, Setting
from ..mixtures.measures import displaced, kl_terms, log_volumes
from ..runs.generate import SOLVERS
from ..runs.paper_protocols import paper_source, paper_table
from . import comparison
from .comparison import PRESETS, RULE_ERRORS, Box, Plane, Settings
from .requests import Request, Route, Work, check_fields, integer, number, one_line

OUTSIDE, FULL = -32768, 32000  # of packed points: the mark, and the side of the box
KL_POINTS = 1000
_LOST = 1e4  # a sample beyond it has run away
_POINTS, _METERED, _PATHS, _FRAMES = 6000, 256, 128, 100
_GRID, _ARROWS, _LATEST = 72, 15, 0.99  # at t = 1 a mean does not determine a velocity
_SMALL = 1e-3


def _about(request: Request, work: Work) -> dict[str, Any]:
    check_fields(request, ())
    return {
        "presets": [
            {"name": name, "title": p.title, "about": p.about, **_plane(p.plane)}
            for name, p in PRESETS.items()
        ],
        "solvers": list(SOLVERS),
        "limits": comparison.LIMITS,
        "rules": comparison.rule_menu(axes=2),
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
        "compiling": comparison.COMPILED.busy,
    }


def _plane(plane: Plane) -> dict[str, Any]:
    return {
        "components": [list(c) for c in plane.components],
        "members": list(plane.members),
        "std": plane.std,
        "eta": plane.eta,
        "target": plane.condition().conditional.weights.tolist(),
        "box": plane.box(),
        "close": plane.close(),
    }


def _template(setting: Setting) -> str:
    """The rule of a setting, with its scale and its cap on the sliders."""
    if setting.guidance == "Conditional":
        return str(setting.rule)
    return "CFG(λ) | Cap(Γ)" if setting.gamma else "CFG(λ)"


def _check(request: Request, work: Work) -> dict[str, str]:
    check_fields(request, ("text", "scale", "gamma"))
    return comparison.check_rule(request)


def _run(request: Request, work: Work) -> dict[str, Any]:
    check_fields(request, (*comparison.FIELDS, "points"))
    plane, settings = comparison.read_plane(request), comparison.read_settings(request)
    points = integer(request, "points", 1, _POINTS, _POINTS)
    rules = [comparison.rule_or_error(one, *settings.sliders) for one in settings.rules]
    engines = [comparison.choose_engine(plane, r, settings) if isinstance(r, Rule) else "" for r in rules]
    if not settings.quick:
        comparison.check_budget(settings, [one for one in engines if one])
    start, slow = comparison.start_noise(settings.n, settings.seed), engines.count("library")
    entries: list[dict[str, Any]] = []
    for template, rule, engine in zip(settings.rules, rules, engines, strict=True):
        work.check()
        if isinstance(rule, str):
            entries.append({"text": template, "error": rule})
            continue
        n = comparison.sample_count(settings, engine, slow)
        try:
            entry = _entry(plane, rule, start[:n], settings, engine, work, points)
        except RULE_ERRORS as error:
            entry = {"error": f"{rule} cannot run on points in the plane: {one_line(error, 300)}"}
        paper = _paper_row(str(request.get("scene", "triple")), settings, rule)
        entries.append({"text": template, "rule": str(rule), "paper": paper, **entry})
    return {
        **_plane(plane),
        "n": settings.n,
        "quick": settings.quick,
        "rules": entries,
        "exact": _exact(plane, settings.n, settings.seed),
        "compiling": comparison.COMPILED.busy,
    }


def _entry(
    plane: Plane, rule: Rule, start: Tensor, settings: Settings, engine: str, work: Work, points: int
) -> dict[str, Any]:
    end, condition = comparison.end_points(plane, rule, start, settings, engine, work), plane.condition()
    lost = float((~(end.abs() < _LOST).all(1)).double().mean())
    seen = {"engine": engine, "n": len(end), "points": _pack(end[:points], plane.box()), "lost": lost}
    seen["close"] = _pack(end[:points], plane.close())
    if lost:
        return {**seen, "numbers": None}
    measures = _numbers(condition, end)
    if not settings.quick:
        # The compiled loop works in single precision, which is too coarse for the derivatives of the map.
        first = start[:KL_POINTS].double()
        starts = torch.cat([first, displaced(first)])
        ends = comparison.end_points(plane, rule, starts, settings, "library", work)
        moved = log_volumes(ends[len(first) :])
        terms = kl_terms(first, ends[: len(first)], moved, condition.conditional)
        measures |= {"kl": float(terms.mean()), "kl_error": float(terms.std() / math.sqrt(len(terms)))}
    return {**seen, "numbers": measures}


@lru_cache(maxsize=16)
def _exact(plane: Plane, n: int, seed: int) -> dict[str, Any]:
    """The numbers of as many samples of the truth itself: the values that a perfect sampler would have."""
    draw = torch.Generator().manual_seed(seed + 1)  # a stream that differs from the noise
    condition = plane.condition()
    return _numbers(condition, condition.conditional.sample(n, draw))


def _numbers(condition: Condition, x: Tensor) -> dict[str, Any]:
    """What `branches` measures of samples (n, 2), one entry per member if it has one."""
    shape, n = branches(condition, x), len(x)
    share = shape.occupancy
    return {
        "n": n,
        "occupancy": share.tolist(),
        "occupancy_error": (share * (1 - share) / n).sqrt().tolist(),
        "tv": shape.tv,
        "mean_error": shape.mean_error,
        "variance_ratio": shape.variance_ratio.tolist(),
        "radial_ratio": shape.radial_ratio.tolist(),
        "tangential_ratio": shape.tangential_ratio.tolist(),
    }


def _paper_row(scene: str, settings: Settings, rule: Rule) -> dict[str, str] | None:
    """The paper's own row, if this rule is one of its settings."""
    paper = PRESETS[scene].paper if scene in PRESETS else None
    if paper is None or settings.steps != STEPS or settings.solver != "euler":
        return None
    for one in SETTINGS:
        if one.scene == paper and one.rule == rule:
            rows = {(row["members"], row["guidance"]): row for row in paper_table("gmm")}
            return rows[one.members, one.guidance]
    return None


def _meter(request: Request, work: Work) -> dict[str, Any]:
    check_fields(request, (*comparison.FIELDS, "paths"))
    plane, settings = comparison.read_plane(request), comparison.read_settings(request)
    paths = integer(request, "paths", 1, _PATHS, _PATHS)
    start = comparison.start_noise(settings.n, settings.seed)[:_METERED].double()
    entries: list[dict[str, Any]] = []
    for template in settings.rules:
        rule = comparison.rule_or_error(template, *settings.sliders)
        if isinstance(rule, str):
            entries.append({"error": rule})
            continue
        try:
            entries.append(_metered(plane, rule, start, settings, work, paths))
        except RULE_ERRORS as error:
            entries.append({"error": one_line(error, 300)})
    return {"box": plane.wide(), "metered": len(start), "rules": entries}


def _metered(
    plane: Plane, rule: Rule, start: Tensor, settings: Settings, work: Work, paths: int
) -> dict[str, Any]:
    record, first = Record(), [0]
    states, means, times = [], [], []
    every = -(-settings.steps // _FRAMES)
    x = start
    for one in trajectory(plane.model().predict, rule, start, settings.times, settings.step, record=record):
        work.check()
        first.append(len(record))
        x = one.x_next
        if one.index % every == 0:
            states.append(one.x[:paths])
            means.append(one.m[:paths])
            times.append(one.t)
    states.append(x[:paths])
    means.append(x[:paths])
    seen = {name: value[first[:-1]].double() for name, value in record.stacked().items()}
    if rule.turns:  # where the gap vanishes, what such a rule adds is not a multiple of it
        for name in ("scale", "asked"):
            seen[name][seen["gap"] < _SMALL * plane.std] = torch.nan
    low, middle, high = seen["scale"].nanquantile(torch.tensor([0.1, 0.5, 0.9]).double(), 1)
    return {
        "rule": str(rule),
        "times": [*times, 1.0],
        "states": _pack(torch.stack(states), plane.wide()),
        "means": _pack(torch.stack(means), plane.wide()),
        "paths": min(paths, len(start)),
        "t": seen["t"][:, 0].tolist(),
        "low": low.tolist(),
        "middle": middle.tolist(),
        "high": high.tolist(),
        "asked": seen["asked"].nanmedian(1).values.tolist(),
        "capped": seen["active"].mean(1).tolist(),
        "largest_ratio": float(seen["ratio"].max()),
    }


def _field(request: Request, work: Work) -> dict[str, Any]:
    check_fields(request, (*comparison.FIELDS, "t", "index"))
    plane, settings = comparison.read_plane(request), comparison.read_settings(request)
    when = min(number(request, "t", 0.0, 1.0, 0.5), _LATEST)
    index = integer(request, "index", 0, len(settings.rules) - 1, 0)
    rule = comparison.rule_or_error(settings.rules[index], *settings.sliders)
    if isinstance(rule, str):
        return {"error": rule}
    box, record = plane.wide(), Record()
    fine, coarse = _lattice(box, _GRID), _lattice(box, _ARROWS)
    odds = plane.condition().log_posterior(fine, when).exp()
    x = torch.cat([fine, coarse])
    p = plane.model().predict(x, when).until(min(1.0, when + 1 / settings.steps))
    try:
        m, _ = guide(rule, p, record=record)
    except RULE_ERRORS as error:
        return {"error": one_line(error, 300)}
    active = record.stacked()["active"][0, : len(fine)].double()
    guided, conditional = (((mean - x) / (1 - when))[len(fine) :] for mean in (m, p.m_c))
    return {
        "t": when,
        "box": box,
        "grid": _GRID,
        "posterior": _shades(odds),
        "arrows": _ARROWS,
        "guided": _rounded(guided),
        "conditional": _rounded(conditional),
        "capped": _shades(active),
        "capped_share": float(active.mean()),
        "remembers": rule.has_state,
        "range": [float(odds.min()), float(odds.max())],
    }


def _lattice(box: Box, count: int) -> Tensor:
    """The middles of count x count cells, from the upper left corner, row by row."""
    cx, cy, half = box
    way = (torch.arange(count, dtype=torch.float64) + 0.5) / count * 2 - 1
    y, x = torch.meshgrid(cy - half * way, cx + half * way, indexing="ij")
    return torch.stack([x, y], -1).reshape(-1, 2)


def _rounded(v: Tensor) -> list[list[float]]:
    return [[round(one, 4) for one in row] for row in v.tolist()]


def _pack(points: Tensor, box: Box) -> str:
    """Points (..., 2) in a square: its middle is (0, 0) and its sides are at +-FULL."""
    cx, cy, half = box
    scaled = (points.double() - torch.tensor([cx, cy], dtype=torch.float64)) / half * FULL
    known = (scaled.abs() <= 32767).all(-1, keepdim=True)  # false for nan too
    return _base64(torch.where(known, scaled, float(OUTSIDE)).round().to(torch.int16))


def _shades(values: Tensor) -> str:
    """Numbers in [0, 1] as bytes."""
    return _base64((values.clamp(0, 1) * 255).round().to(torch.uint8))


def _base64(whole: Tensor) -> str:
    return base64.b64encode(whole.contiguous().numpy().tobytes()).decode("ascii")


ROUTES: dict[str, Route] = {
    "mixture/about": _about,
    "mixture/check": _check,
    "mixture/run": _run,
    "mixture/meter": _meter,
    "mixture/field": _field,
}
