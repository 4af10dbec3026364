"""What the nodes share: their schema, the inputs `start` and `end`, and a model patched with a rule."""

from __future__ import annotations

import inspect
import logging
from typing import Any

from comfy.patcher_extension import WrappersMP
from comfy_api.latest import io

from ...rules import Rule
from .hooks import PostCFG

log = logging.getLogger(__name__)

CATEGORY = "advanced/guidance"
ALIASES = ["cfg", "pmc", "pmc-cfg", "guidance", "cap", "rescale", "burn", "oversaturation"]


def schema(**fields: Any) -> Any:
    """A node's schema, with words to find it by where this version of ComfyUI takes them."""
    if "search_aliases" in inspect.signature(io.Schema).parameters:
        fields["search_aliases"] = ALIASES
    return io.Schema(**fields)


def window() -> list[Any]:
    """start and end, which are rarely needed; newer frontends hide them by default."""
    fields = [
        io.Float.Input(
            "start", default=0.0, min=0.0, max=1.0, step=0.01, round=0.001, optional=True,
            tooltip="Share of the run at which the node begins to act; before, the workflow's result stands.",
        ),
        io.Float.Input(
            "end", default=1.0, min=0.0, max=1.0, step=0.01, round=0.001, optional=True,
            tooltip="Share of the run at which the node stops acting.",
        ),
    ]  # fmt: skip
    for field in fields:
        field.extra_dict = {"advanced": True}
    return fields


def window_problem(start: float | None, end: float | None) -> str | None:
    """What is wrong with start and end; ComfyUI leaves to a node what its validation names."""
    if not 0 <= (start or 0) <= 1 or not 0 <= (1 if end is None else end) <= 1:
        return f"start and end are shares of the run, from 0 to 1; got {start} and {end}"
    if start is not None and end is not None and start > end:
        return f"start ({start:g}) must not be after end ({end:g})"
    return None


def patched(model: Any, rule: Rule, start: float, end: float) -> Any:
    """A clone of the model whose runs are guided by the rule, and reported."""
    hook = PostCFG(rule, start, end)

    def run(executor: Any, *values: Any, **named: Any) -> Any:
        hook.begin()
        latent = executor(*values, **named)
        hook.run.made(latent)
        log.info("%s: %s", rule, hook.run.headline())
        return latent

    m = model.clone()
    m.set_model_sampler_post_cfg_function(hook)
    m.add_wrapper_with_key(WrappersMP.OUTER_SAMPLE, "meancap", run)
    return m
