"""`meancap.extras` for this package, whose extras are the library's and its own."""

from __future__ import annotations

from typing import Any

from meancap import extras

_LIBRARY = ("diffusers", "fast", "plot")


def pip_command(extra: str) -> str:
    """The command that installs an extra of either package."""
    return extras.pip_command(extra, "." if extra in _LIBRARY else "./lab")


def need(module: str, extra: str) -> Any:
    """Return the imported `module`, which the extra `extra` of either package installs."""
    return extras.need(module, extra, "." if extra in _LIBRARY else "./lab")
