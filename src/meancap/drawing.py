"""Deprecated: the former place of `meancap.scenes`; it goes with the next release."""

from __future__ import annotations

import importlib
import warnings
from typing import Any


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(name)
    warnings.warn(f"meancap.drawing.{name} is now meancap.scenes.{name}", DeprecationWarning, stacklevel=2)
    return getattr(importlib.import_module("meancap.scenes"), name)
