"""The mixture view's questions about paths: where samples go, and the velocities that move them.

meter   a few samples of every rule with their guided means, and the effective scale over time
field   one rule at one time: p(condition | x) on a lattice, the guided and the conditional velocity
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..record import Record
from ..rules import Rule, guide
from ..sampling import trajectory
from . import comparison, scene
from .comparison import RULE_ERRORS, Settings, attempt, read_settings
from .jobs import Work
from .numbers import packed, shades
from .requests import Request, integer, number, only
from .scene import Plane, read_plane

METERED, PATHS, FRAMES = 256, 128, 100
GRID, ARROWS, LATEST = 72, 15, 0.99  # at t = 1 a mean does not determine a velocity
_SMALL = 1e-3
_FIELDS = (*scene.FIELDS, *comparison.FIELDS)


def meter(request: Request, work: Work) -> dict[str, Any]:
    """The paths of a few samples under every rule."""
    only(request, (*_FIELDS, "paths"))
    plane, settings = read_plane(request), read_settings(request)
    paths = integer(request, "paths", 1, PATHS, PATHS)
    start = plane.noise(settings.n, settings.seed)[:METERED].double()
    entries: list[dict[str, Any]] = []
    for template in settings.rules:
        rule = attempt(settings, template)
        if isinstance(rule, str):
            entries.append({"error": rule})
            continue
        try:
            entries.append(_metered(plane, rule, start, settings, work, paths))
        except RULE_ERRORS as error:
            entries.append({"error": " ".join(str(error).split())[:300]})
    return {"box": plane.wide(), "metered": len(start), "rules": entries}


def _metered(
    plane: Plane, rule: Rule, start: Tensor, settings: Settings, work: Work, paths: int
) -> dict[str, Any]:
    record, first = Record(), [0]
    states, means, times = [], [], []
    every = -(-settings.steps // FRAMES)
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
        "states": packed(torch.stack(states), plane.wide()),
        "means": packed(torch.stack(means), plane.wide()),
        "paths": min(paths, len(start)),
        "t": seen["t"][:, 0].tolist(),
        "low": low.tolist(),
        "middle": middle.tolist(),
        "high": high.tolist(),
        "asked": seen["asked"].nanmedian(1).values.tolist(),
        "capped": seen["active"].mean(1).tolist(),
        "largest_ratio": float(seen["ratio"].max()),
    }


def field(request: Request, work: Work) -> dict[str, Any]:
    """The landscape of the condition and the velocities at one time, under one rule."""
    only(request, (*_FIELDS, "t", "index"))
    plane, settings = read_plane(request), read_settings(request)
    t = number(request, "t", 0.0, 1.0, 0.5)
    rule = attempt(settings, settings.rules[integer(request, "index", 0, len(settings.rules) - 1, 0)])
    if isinstance(rule, str):
        return {"error": rule}
    box = plane.wide()
    when = min(t, LATEST)
    fine, coarse = _lattice(box, GRID), _lattice(box, ARROWS)
    odds = plane.condition().log_posterior(fine, when).exp()
    x = torch.cat([fine, coarse])
    record = Record()
    p = plane.model().predict(x, when).until(min(1.0, when + 1 / settings.steps))
    try:
        m, _ = guide(rule, p, record=record)
    except RULE_ERRORS as error:
        return {"error": " ".join(str(error).split())[:300]}
    active = record.stacked()["active"][0, : len(fine)]
    toward, alone = (((mean - x) / (1 - when))[len(fine) :] for mean in (m, p.m_c))
    return {
        "t": when,
        "box": box,
        "grid": GRID,
        "posterior": shades(odds),
        "arrows": ARROWS,
        "guided": _rounded(toward),
        "conditional": _rounded(alone),
        "capped": shades(active.double()),
        "capped_share": float(active.double().mean()),
        "remembers": rule.has_state,
        "range": [float(odds.min()), float(odds.max())],
    }


def _lattice(box: tuple[float, float, float], count: int) -> Tensor:
    """The middles of count x count cells, from the upper left corner, row by row."""
    cx, cy, half = box
    way = (torch.arange(count, dtype=torch.float64) + 0.5) / count * 2 - 1
    y, x = torch.meshgrid(cy - half * way, cx + half * way, indexing="ij")
    return torch.stack([x, y], -1).reshape(-1, 2)


def _rounded(v: Tensor) -> list[list[float]]:
    return [[round(one, 4) for one in row] for row in v.tolist()]
