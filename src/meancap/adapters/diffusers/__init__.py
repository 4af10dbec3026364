"""diffusers: one line in a classic pipeline, a guider in a modular one.

guided(pipe, rule)            a context manager; yields the record of the pipeline's latest call
PosteriorMeanCappedGuidance   a guider: classifier-free guidance under the cap
ChainGuidance                 a guider: any rule, written as text
Layout                        for `guided` with a pipeline that is not in the table LAYOUTS
"""

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ...extras import pip_command

if find_spec("diffusers") is None:
    raise ImportError(f"this needs diffusers; run {pip_command('diffusers')}")

from .guided_pipelines import guided
from .layouts import Layout, LayoutError
from .pipeline_table import LAYOUTS, UNSUPPORTED

if TYPE_CHECKING:
    from .guiders import ChainGuidance, PosteriorMeanCappedGuidance

__all__ = [
    "LAYOUTS",
    "UNSUPPORTED",
    "ChainGuidance",
    "Layout",
    "LayoutError",
    "PosteriorMeanCappedGuidance",
    "guided",
]


def __getattr__(name: str) -> Any:
    """The guiders import diffusers, which takes seconds; `guided` and the table do not."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import guiders

    return getattr(guiders, name)
