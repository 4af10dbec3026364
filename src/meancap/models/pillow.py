"""Pillow, or one sentence that says how to get it."""

from __future__ import annotations

try:
    from PIL import Image
except ImportError as error:
    raise ImportError('pictures need Pillow: pip install "meancap[images]"') from error

__all__ = ["Image"]
