"""Calibration on any pipeline of the table: a few unguided calls tell the anchor and the radii of a cap."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch

from ...rules.caps import Calibration
from ..pilot import Pilot
from .layouts import Layout
from .pipelines import tap_of


def calibrate(
    pipe: Any, prompts: Sequence[str], *, seed: int = 0, layout: Layout | None = None, **call: Any
) -> Calibration:
    """Calls the pipeline once for each prompt, unguided, and measures its conditional means.

    `call` holds the further arguments of every call, of which one must turn guidance on (guidance_scale=7):
    both predictions are needed, but the conditional one alone is followed. At least 16 samples are wanted;
    a few hundred make good quantiles. Save the result, and cap by it:

        found = calibrate(pipe, prompts, guidance_scale=7, num_inference_steps=28)
        found.save("model.json")
        with guided(pipe, found.cap(level="q90")): ...
    """
    known = inspect.signature(type(pipe).__call__).parameters
    if "output_type" in known:
        call.setdefault("output_type", "latent")  # no picture is wanted
    pilot, tap = Pilot(), tap_of(pipe, layout, verify=True)
    tap.push(pilot)
    try:
        for i, prompt in enumerate(prompts):
            generator = {"generator": torch.Generator().manual_seed(seed + i)} if "generator" in known else {}
            with torch.no_grad():
                pipe(prompt, **{**generator, **call})
    finally:
        tap.pop(pilot)
    cost = f"{len(prompts)} calls, {pilot.evaluations} steps, two predictions each"
    return pilot.calibration(f"{type(pipe).__name__}: {cost}")
