"""The table of diffusers pipelines as text: what `meancap pipelines` prints, and the page of the site."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

from meancap.adapters.diffusers import LAYOUTS, UNSUPPORTED, Layout
from meancap.adapters.diffusers.pipeline_table import ELSEWHERE
from meancap.adapters.diffusers.schedulers import FAMILIES

_Value = TypeVar("_Value")

_HEAD = ("pipelines", "rules", "predictions", "scale", "λ", "remarks")


def _cells(layout: Layout) -> tuple[str, str, str, str, str]:
    parts = ", ".join(layout.order).replace("*", "any")
    how = f"one call: {parts}" if layout.calls == "together" else f"a call each: {parts}"
    how += "; negated" if layout.sign == -1 else ""
    own = layout.scale == "guider" or layout.caps_only
    scale = "s + 1" if layout.offset else "its own" if own else "s"
    return "caps" if layout.caps_only else "all", how, layout.scale, scale, layout.note


def _short(names: Iterable[str], ending: str = "Pipeline") -> str:
    return ", ".join(name.removesuffix(ending) for name in names)


def pipelines_text() -> str:
    """What `meancap pipelines` prints: a row for each pipeline."""
    table = [_HEAD, *((name, *_cells(layout)) for name, layout in LAYOUTS.items())]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in table]
    lines += ["", "schedulers: " + _short(FAMILIES, "Scheduler"), "", "cannot be guided:"]
    lines += [f"  {', '.join(names)}: {reason}" for reason, names in _groups(UNSUPPORTED).items()]
    return "\n".join([*lines, *(f"  modules {part}*: {reason}" for part, reason in ELSEWHERE.items())])


def pipelines_markdown() -> str:
    """The same for docs/diffusers.md, a row for each layout; without "Pipeline", which every name ends in."""
    table = [_HEAD, ("---",) * len(_HEAD)]
    table += [(_short(names), *_cells(layout)) for layout, names in _groups(LAYOUTS).items()]
    lines = ["| " + " | ".join(row) + " |" for row in table]
    lines += ["", f"Schedulers: {_short(FAMILIES, 'Scheduler')}.", "", "Cannot be guided, and say so:", ""]
    lines += [f"- {reason}: {_short(names)}." for reason, names in _groups(UNSUPPORTED).items()]
    lines += [f"- {reason}: modules `{part}*`." for part, reason in ELSEWHERE.items()]
    return "\n".join(line.rstrip() for line in lines)


def _groups(table: Mapping[str, _Value]) -> dict[_Value, list[str]]:
    """The names of each value."""
    found: dict[_Value, list[str]] = {}
    for name, value in table.items():
        found.setdefault(value, []).append(name)
    return found
