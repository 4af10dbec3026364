"""Reading a request: every field is checked and bounded, and an error is one sentence.

A request is a JSON object. Each function takes it with the name of a field and returns a value that can be
used; `only` refuses unknown fields, which are mostly misspelt names.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

Request = Mapping[str, Any]


def only(request: Request, known: Collection[str]) -> None:
    """Refuses fields outside `known`."""
    odd = [name for name in request if name not in known]
    if odd:
        raise ValueError(f"no field is called {odd[0][:40]!r}; there are {', '.join(known)}")


def number(request: Request, name: str, low: float, high: float, default: float | None = None) -> float:
    """A finite number in [low, high]."""
    value = request.get(name, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{name} is a number from {low:g} to {high:g}; got {_short(value)}")
    if not (low <= value <= high):  # false for nan too
        raise ValueError(f"{name} is a number from {low:g} to {high:g}; got {_short(value)}")
    return float(value)


def integer(request: Request, name: str, low: int, high: int, default: int | None = None) -> int:
    """A whole number in [low, high]."""
    value = request.get(name, default)
    real = isinstance(value, float) and math.isfinite(value) and value == int(value)
    if isinstance(value, bool) or not (isinstance(value, int) or real) or not low <= value <= high:
        raise ValueError(f"{name} is a whole number from {low:,} to {high:,}; got {_short(value)}")
    return int(value)


def choice(request: Request, name: str, among: Collection[str], default: str | None = None) -> str:
    """One of some words."""
    value = request.get(name, default)
    if not isinstance(value, str) or value not in among:
        raise ValueError(f"{name} is one of {', '.join(among)}; got {_short(value)}")
    return value


def text(request: Request, name: str, longest: int, default: str | None = None) -> str:
    """A string of bounded length."""
    value = request.get(name, default)
    if not isinstance(value, str):
        raise ValueError(f"{name} is a text of at most {longest} characters; got {_short(value)}")
    if len(value) > longest:
        raise ValueError(f"{name} has at most {longest} characters; got {len(value)}")
    return value


def items(
    request: Request, name: str, fewest: int, most: int, default: Sequence[Any] | None = None
) -> list[Any]:
    """A list of bounded length."""
    value = request.get(name, default)
    if not isinstance(value, (list, tuple)):
        raise ValueError(f"{name} is a list of {fewest} to {most} entries; got {_short(value)}")
    if not fewest <= len(value) <= most:
        raise ValueError(f"{name} has {fewest} to {most} entries; got {len(value)}")
    return list(value)


def _short(value: Any) -> str:
    if value is None:
        return "nothing"
    try:
        said = repr(value)
    except ValueError:  # an integer of thousands of digits has no decimal form
        said = "a number too long to print"
    return said if len(said) <= 60 else said[:57] + "..."
