"""The table of pipelines for people: as aligned text, and as Markdown for the documentation."""

from __future__ import annotations

from .layouts import Layout
from .refused import UNSUPPORTED
from .schedulers import FAMILIES
from .table import LAYOUTS

_HEAD = ("pipeline", "predictions", "scale", "λ", "remarks")


def rows() -> list[tuple[str, ...]]:
    """One row per supported pipeline, in the order of the table."""
    return [(name, *_cells(layout), layout.note) for name, layout in LAYOUTS.items()]


def _cells(layout: Layout) -> tuple[str, str, str]:
    parts = ", ".join(layout.order)
    how = f"one call: {parts}" if layout.calls == "together" else f"a call each: {parts}"
    how += "; negated" if layout.sign == -1 else ""
    return how, layout.scale, "s + 1" if layout.offset else "its own" if layout.scale == "guider" else "s"


def text() -> str:
    """What `meancap pipelines` prints."""
    table = [_HEAD, *rows()]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in table]
    lines += ["", "schedulers: " + ", ".join(_short(name) for name in FAMILIES), "", "cannot be guided:"]
    lines += [f"  {', '.join(names)}: {reason}" for reason, names in _reasons().items()]
    return "\n".join(lines)


def markdown() -> str:
    """The same for docs/diffusers.md, a row for each layout; without "Pipeline", which every name ends in."""
    groups: dict[Layout, list[str]] = {}
    for name, layout in LAYOUTS.items():
        groups.setdefault(layout, []).append(name.removesuffix("Pipeline"))
    table = [("pipelines", *_HEAD[1:]), ("---",) * len(_HEAD)]
    table += [(", ".join(names), *_cells(layout), layout.note) for layout, names in groups.items()]
    lines = ["| " + " | ".join(row) + " |" for row in table]
    lines += ["", "Schedulers: " + ", ".join(_short(name) for name in FAMILIES) + "."]
    lines += ["", "Cannot be guided, and say so:", ""]
    for reason, names in _reasons().items():
        lines.append(f"- {reason}: {', '.join(n.removesuffix('Pipeline') for n in names)}.")
    return "\n".join(line.rstrip() for line in lines)


def _reasons() -> dict[str, list[str]]:
    names: dict[str, list[str]] = {}
    for name, reason in UNSUPPORTED.items():
        names.setdefault(reason, []).append(name)
    return names


def _short(name: str) -> str:
    return name.removesuffix("Scheduler")
