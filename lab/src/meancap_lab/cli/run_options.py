"""The options of a run as arguments of a command: one line per field of `RunConfig`."""

from __future__ import annotations

import argparse
from dataclasses import fields
from pathlib import Path
from typing import Any

from ..runs.config import CHOICES, MODELS, TAKERS, RunConfig, takers


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(","))


def _square(text: str) -> tuple[int, int]:
    return int(text), int(text)


# For argparse, by field: help, metavar (none for a choice or a switch), and more.
_OPTIONS: dict[str, tuple[str, str | None, dict[str, Any]]] = {
    "model": (", ".join(MODELS.values()), "M", {"required": True}),
    "rule": ('guidance, such as "CFG(4) | Cap(1.1)", or a file of `calibrate`; none if not given', "R", {}),
    "seed": ("of the run; each sample has one of its own (%(default)s)", "N", {"type": int}),
    "steps": ("with Euler also evaluations (%(default)s)", "N", {"type": int}),
    "dtype": ("precision of the network (%(default)s); guidance stays in float32", None, {}),
    "images": ("one samples.npz (arr_0 uint8 NHWC), no PNG files", None,
               {"action": "store_const", "const": "npz"}),
    "diagnostics": ("keep the guidance meter of every step", None, {"action": "store_true"}),
    "device": ("cpu, cuda or mps; default cuda if there is one, else cpu", "D", {}),
    "threads": ("CPU threads; they are part of the run (%(default)s)", "N", {"type": int}),
    "batch": ("made and saved at once (%(default)s)", "N", {"type": int}),
    "per_class": ("samples of each class or prompt (%(default)s)", "N", {"type": int}),
    "solver": ("euler (default), heun, midpoint or rk4", "S", {}),
    "negative": ("a sentence or class to avoid", "S", {}),
    "classes": ("only these classes, by number or name", "A,B", {"type": _names}),
    "channels": ("guide only the first N latent channels", "N", {"type": int}),
    "sampler": ("'ancestral' adds fresh noise in each step; a scale means another strength there (ode)",
                None, {}),
    "eta": ("its noise level, 0 (ODE) to 1 (default)", "E", {"type": float}),
    "vae": ("autoencoder of a latent model: folder or cached name", "DIR", {}),
    "prompt": ('one sentence, such as "a red disc above a square"', "S", {}),
    "prompts": ("one prompt per line", "FILE", {"type": Path}),
    "noise": ("'stream': one CPU generator over all prompts in order; 'device': the same by the device's own "
              "generator, as in the paper's SD3.5 runs; for other models 'device' draws each sample there",
              None, {}),
    "guidance_scale": ("the pipeline's own scale", "S", {"type": float}),
    "size": ("height and width of the pictures", "PX", {"type": _square}),
}  # fmt: skip
_DEFAULTS = {f.name: f.default for f in fields(RunConfig)}


def add_options(parser: argparse.ArgumentParser, *only: str) -> None:
    """The options of a run, all or some by name, each under the heading of the models that take it."""
    groups: dict[str, Any] = {}
    for name in only or _OPTIONS:
        help, metavar, more = _OPTIONS[name]
        place: Any = parser
        if name in TAKERS and not only:
            title = f"for {takers(name)}"
            place = groups[title] = groups.get(title) or parser.add_argument_group(title)
        flag = "npz" if name == "images" else name.replace("_", "-")
        shape = {"metavar": metavar} if metavar else {"choices": CHOICES[name]} if not more else {}
        default = {} if name == "model" else {"default": _DEFAULTS[name]}
        place.add_argument(f"--{flag}", dest=name, help=help, **default, **shape, **more)


def config_of(args: argparse.Namespace, **given: Any) -> RunConfig:
    """The run that parsed options describe, and what is given beside them."""
    named = {name: getattr(args, name) for name in _OPTIONS if hasattr(args, name)}
    return RunConfig(**{**named, **given})
