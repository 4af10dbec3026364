"""numpy, in whose formats a run keeps its samples, or one sentence that says how to get it."""

from __future__ import annotations

try:
    import numpy as np
except ImportError as error:
    raise ImportError('runs need numpy: pip install "meancap[images]"') from error

from numpy import typing as npt

Bytes = npt.NDArray[np.uint8]

__all__ = ["Bytes", "np", "npt"]
