"""What is sent between page and server: strict JSON, and errors as one sentence."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from typing import Any

from .jobs import SENTENCES

_LONGEST = 400


class _NotFinite(ValueError):
    pass


def read_object(raw: bytes) -> dict[str, Any]:
    """The JSON object in some bytes; anything else is refused with a sentence."""
    try:
        value = json.loads(raw, parse_constant=_not_finite)
    except _NotFinite:
        raise
    except (ValueError, RecursionError):
        raise ValueError("the request is not JSON") from None
    if not isinstance(value, dict):
        raise ValueError("a request is a JSON object")
    return value


def write_json(value: Any) -> bytes:
    """The shortest JSON, with null for numbers that JSON cannot write, and ? for half of a surrogate pair."""
    text = json.dumps(only_finite(value), allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    return text.encode(errors="replace")


def only_finite(value: Any) -> Any:
    """The same with None for numbers that are not finite."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: only_finite(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [only_finite(one) for one in value]
    return value


def sentence(error: BaseException) -> str:
    """The text for the user: one line, never a traceback. A fault of the server is printed as well."""
    said = " ".join(str(error).split()) or type(error).__name__
    said = said if len(said) <= _LONGEST else said[: _LONGEST - 3] + "..."
    if isinstance(error, SENTENCES):
        return said
    print(f"meancap explore: {type(error).__name__}: {said}", file=sys.stderr)
    return f"this could not be worked out ({said})"


def _not_finite(name: str) -> float:
    raise _NotFinite(f"numbers are finite; got {name}")
