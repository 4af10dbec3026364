"""diffusers: one line in a classic pipeline, a guider in a modular one.

guided(pipe, rule)            a `with` block; gives the record of the pipeline's latest call
guide_pipeline, unguide       the same as two plain calls, for notebooks
PosteriorMeanCappedGuidance   a guider: classifier-free guidance under the cap
ChainGuidance                 a guider: any rule, written as text
Layout                        for `guided` with a pipeline that is not in the table LAYOUTS
"""

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if find_spec("diffusers") is None:
    raise ImportError('this adapter needs diffusers: pip install "meancap[diffusers]"')

from .check import LayoutError
from .layouts import Layout
from .pipelines import guide_pipeline, guided, unguide
from .refused import UNSUPPORTED
from .table import LAYOUTS

if TYPE_CHECKING:
    from .guiders import ChainGuidance, PosteriorMeanCappedGuidance

__all__ = [
    "LAYOUTS",
    "UNSUPPORTED",
    "ChainGuidance",
    "Layout",
    "LayoutError",
    "PosteriorMeanCappedGuidance",
    "guide_pipeline",
    "guided",
    "unguide",
]


def __getattr__(name: str) -> Any:
    """The guiders import diffusers, which takes seconds; `guided` and the table do not."""
    if name in ("ChainGuidance", "PosteriorMeanCappedGuidance"):
        from . import guiders

        return getattr(guiders, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
