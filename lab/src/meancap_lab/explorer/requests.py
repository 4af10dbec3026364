"""What the server and its routes share: a request, the work on it, and strict JSON.

A route is a function of (request, work). It reads the fields of its request with the functions below, which
raise one sentence if a field is missing or out of bounds. It calls `work.check()` a few times a second, or
`work.tell(share, words, partial)`; both raise Left once nobody waits for the result (do not catch it). It
returns what `write_json` can write.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

Request = Mapping[str, Any]
Route = Callable[[Request, "Work"], Any]


class Left(Exception):
    """The client no longer waits for this work."""


class Work:
    """One piece of work, which continues while `wanted()` is true."""

    def __init__(self, wanted: Callable[[], bool] = lambda: True) -> None:
        self.wanted = wanted
        self.share, self.said, self.partial = 0.0, "", None

    def check(self) -> None:
        """Raise Left if the client has left."""
        if not self.wanted():
            raise Left

    def tell(self, share: float, said: str = "", partial: Any = None) -> None:
        """Report progress in [0, 1], a few words about it, and what can be shown already."""
        self.check()
        self.share, self.said = min(max(share, 0.0), 1.0), said
        if partial is not None:
            self.partial = partial


def check_fields(request: Request, fields: Collection[str]) -> None:
    """Raise if the request has a field outside `fields`, mostly a misspelt name."""
    unknown = [name for name in request if name not in fields]
    if unknown:
        raise ValueError(f"unknown field {unknown[0][:40]!r}; known fields: {', '.join(fields) or 'none'}")


def number(request: Request, name: str, low: float, high: float, default: float | None = None) -> float:
    """A finite number in [low, high]."""
    value = request.get(name, default)
    # The comparison is false for nan too.
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        raise ValueError(f"{name} must be a number from {low:g} to {high:g}; got {_short(value)}")
    return float(value)


def integer(request: Request, name: str, low: int, high: int, default: int | None = None) -> int:
    """A whole number in [low, high]."""
    value = request.get(name, default)
    whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    if isinstance(value, bool) or not whole or not low <= value <= high:
        raise ValueError(f"{name} must be a whole number from {low:,} to {high:,}; got {_short(value)}")
    return int(value)


def choice(request: Request, name: str, among: Collection[str], default: str) -> str:
    """One of some words."""
    value = request.get(name, default)
    if not isinstance(value, str) or value not in among:
        raise ValueError(f"{name} must be one of {', '.join(among)}; got {_short(value)}")
    return value


def text(request: Request, name: str, longest: int, default: str | None = None) -> str:
    """A string of bounded length."""
    value = request.get(name, default)
    if not isinstance(value, str) or len(value) > longest:
        raise ValueError(f"{name} must be a text of at most {longest} characters; got {_short(value)}")
    return value


def items(
    request: Request, name: str, fewest: int, most: int, default: Sequence[Any] | None = None
) -> list[Any]:
    """A list of bounded length."""
    value = request.get(name, default)
    if not isinstance(value, (list, tuple)) or not fewest <= len(value) <= most:
        raise ValueError(f"{name} must be a list of {fewest} to {most} entries; got {_short(value)}")
    return list(value)


def _short(value: Any) -> str:
    if value is None:
        return "nothing"
    try:
        shown = repr(value)
    except ValueError:  # an integer of thousands of digits has no decimal form
        shown = "a number too long to print"
    return shown if len(shown) <= 60 else shown[:57] + "..."


def one_line(error: BaseException, longest: int = 400) -> str:
    """The text of an error for the user, without line breaks."""
    line = " ".join(str(error).split()) or type(error).__name__
    return line if len(line) <= longest else line[: longest - 3] + "..."


def read_object(raw: bytes) -> dict[str, Any]:
    """The JSON object in some bytes; NaN and Infinity, which Python writes, become null."""
    try:
        value = json.loads(raw, parse_constant=lambda name: None)
    except (ValueError, RecursionError):
        raise ValueError("the request is not JSON") from None
    if not isinstance(value, dict):
        raise ValueError("a request must be a JSON object")
    return value


def write_json(value: Any) -> bytes:
    """The shortest JSON, with null for numbers that are not finite and ? for half of a surrogate pair."""
    line = json.dumps(_only_finite(value), allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    return line.encode(errors="replace")


def _only_finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _only_finite(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_only_finite(one) for one in value]
    return value
