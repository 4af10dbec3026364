"""One notation for rules and schedules, in logs, legends, files and on the command line.

    CFG(7) | Cap(1.1)        Cap(1.1, anchor=[0.1, -0.2])        CFG(Linear(1, 7))

A frozen dataclass is written as its name and its fields: those without a default by position, the others by
name and only where they differ from it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any


def write(value: Any) -> str:
    """The text that `parse` reads back as an equal value."""
    if isinstance(value, bool) or value is None:
        return repr(value)
    if isinstance(value, (int, float)):
        return number_text(float(value))
    if isinstance(value, str):
        return f"'{value}'"
    if isinstance(value, (tuple, list)):
        return "[" + ", ".join(map(write, value)) + "]"
    if dataclasses.is_dataclass(value):
        return f"{type(value).__name__}({', '.join(_arguments(value))})"
    if hasattr(value, "tolist"):
        return write(value.tolist())
    return str(value)


def number_text(value: float) -> str:
    """A float as people write it: 7 and not 7.0."""
    text = repr(value)
    return text[:-2] if text.endswith(".0") else text


def _arguments(value: Any) -> list[str]:
    arguments = []
    for field in dataclasses.fields(value):
        v = getattr(value, field.name)
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            arguments.append(write(v))
        elif v != field.default:
            arguments.append(f"{field.name}={write(v)}")
    return arguments


def described(value: object) -> str:
    """What was passed, short enough for an error of one sentence."""
    if hasattr(value, "shape"):
        return f"a tensor of shape {tuple(value.shape)}"
    if value is None or isinstance(value, str | int | float):
        return repr(value)
    items = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    tensors = len(items) > 0 and all(hasattr(v, "shape") for v in items)
    return f"a {type(value).__name__}" + (f" of {len(items)} tensors" if tensors else "")
