"""Two ComfyUI nodes: a pilot of unguided runs that writes a calibration, and the cap made from such a file.

The file is that of `meancap.adapters.diffusers.calibrate` and `meancap calibrate`: an anchor per channel and
radii over time. Euler makes one evaluation per noise level, so each radius has a time of its own.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import comfy.samplers
import folder_paths
from comfy_api.latest import io

from ...rules.caps import FEWEST, LEVELS, Calibration, load_calibration
from .node_parts import CATEGORY, patched, schema, window, window_problem
from .pilot_hook import PilotHook

log = logging.getLogger(__name__)

_CFG = 2.0  # any but 1, at which ComfyUI skips the negative; the conditional mean alone is followed
_PROMPTS = "\n".join(
    f"{what}, {how}"
    for how in ("a photograph", "an oil painting", "a pencil drawing", "at night")
    for what in ("a lighthouse", "a cat on a chair", "a busy street", "two pears")
)


class CalibrateGuidance(io.ComfyNode):
    """Runs the pilot and writes its file."""

    @classmethod
    def define_schema(cls) -> Any:
        return schema(
            node_id="MeancapCalibrateGuidance",
            display_name="Calibrate Guidance",
            category=CATEGORY,
            description=(
                "Samples every prompt without guidance and measures how far the model's estimates go by "
                "themselves. Writes a calibration file for the Calibrated Cap. Costs one run of the sampler "
                f"for each prompt. Prompts times batch must be at least {FEWEST}; a few hundred are better."
            ),
            inputs=[
                io.Model.Input("model"),
                io.Clip.Input("clip", tooltip="Encodes the prompts."),
                io.Conditioning.Input("negative", tooltip="As you sample with it later."),
                io.Latent.Input("latent", tooltip="Its size and batch are those of every run."),
                io.String.Input("prompts", default=_PROMPTS, multiline=True, tooltip="One on each line."),
                io.Int.Input("seed", default=0, min=0, max=2**32, tooltip="Prompt i gets seed + i."),
                io.Int.Input("steps", default=20, min=1, max=1000, tooltip="Steps of Euler in each run."),
                io.Combo.Input(
                    "scheduler", options=list(comfy.samplers.KSampler.SCHEDULERS), default="simple",
                    tooltip="As you sample later: radii are measured at its noise levels.",
                ),
                io.String.Input(
                    "filename_prefix", default="calibration/model",
                    tooltip="Where the file goes in the output folder.",
                ),
            ],
            outputs=[io.String.Output(display_name="file"), io.String.Output(display_name="text")],
            is_output_node=True,
        )  # fmt: skip

    @classmethod
    def execute(
        cls, model: Any, clip: Any, negative: Any, latent: dict[str, Any], prompts: str, seed: int,
        steps: int, scheduler: str, filename_prefix: str,
    ) -> Any:  # fmt: skip
        lines = [line.strip() for line in prompts.splitlines() if line.strip()]
        count = len(lines) * latent["samples"].shape[0]
        if count < FEWEST:
            raise ValueError(
                f"a pilot needs at least {FEWEST} samples; {len(lines)} prompts times the latent's batch of "
                f"{latent['samples'].shape[0]} make {count}"
            )
        positives = [clip.encode_from_tokens_scheduled(clip.tokenize(line)) for line in lines]
        measured = _pilot(model, positives, negative, latent, seed, steps, scheduler)
        folder, name, counter, sub, _ = folder_paths.get_save_image_path(
            filename_prefix, folder_paths.get_output_directory()
        )
        file = measured.save(Path(folder, f"{name}_{counter:05}_.json"))
        shown = Path(sub, file.name).as_posix()
        text = f"{measured.model}\n{measured.samples} samples, written to {shown}"
        log.info("%s", text)
        return io.NodeOutput(shown, text, ui={"text": (text,)})


def _pilot(
    model: Any, positives: list[Any], negative: Any, latent: dict[str, Any], seed: int, steps: int,
    scheduler: str,
) -> Calibration:  # fmt: skip
    from nodes import common_ksampler  # KSampler's function

    hook, m = PilotHook(), model.clone()
    m.set_model_sampler_post_cfg_function(hook)
    for i, positive in enumerate(positives):
        hook.pilot.begin()
        common_ksampler(m, seed + i, steps, _CFG, "euler", scheduler, positive, negative, latent)
    cost = f"{len(positives)} runs, {hook.pilot.evaluations} steps, two predictions each"
    return hook.pilot.calibration(f"{type(model.model).__name__}: {cost}")


class CalibratedCap(io.ComfyNode):
    """The cap that a calibration file stands for."""

    @classmethod
    def define_schema(cls) -> Any:
        return schema(
            node_id="MeancapCalibratedCap",
            display_name="Calibrated Cap",
            category=CATEGORY,
            description=(
                "A cap from a calibration file: guidance may take the estimate as far from the anchor as "
                "unguided estimates of the pilot went, not farther. Needs no gamma to be chosen. Goes last: "
                "put it after every other model node. Does nothing at cfg 1."
            ),
            inputs=[
                io.Model.Input("model", tooltip="The one that was calibrated, at the same size."),
                io.String.Input(
                    "file", default="calibration/model_00001_.json",
                    tooltip="In the output or input folder; or wire in the file of Calibrate Guidance.",
                ),
                io.Combo.Input(
                    "level", options=list(LEVELS), default="q90",
                    tooltip="Which radius of the pilot: q90 holds nine of ten unguided estimates.",
                ),
                io.Float.Input(
                    "gamma", default=1.0, min=1.0, max=100.0, step=0.01, round=0.001,
                    tooltip="How much farther than the estimate for the prompt alone is allowed anyway.",
                ),
                *window(),
            ],
            outputs=[io.Model.Output()],
        )  # fmt: skip

    @classmethod
    def fingerprint_inputs(cls, file: str = "", **others: Any) -> Any:
        """A file that was written anew is read anew."""
        path = _inside(file)
        return None if path is None else path.stat().st_mtime_ns

    @classmethod
    def execute(
        cls, model: Any, file: str, level: str, gamma: float, start: float = 0.0, end: float = 1.0
    ) -> Any:
        if problem := window_problem(start, end):
            raise ValueError(problem)
        path = _inside(file)
        if path is None:
            raise ValueError(f"no calibration {file!r} in the output or input folder; run Calibrate Guidance")
        return io.NodeOutput(patched(model, load_calibration(path).cap(gamma, level), start, end))


def _inside(file: str) -> Path | None:
    """The file, if ComfyUI's output or input folder has it; workflows of strangers reach no other place."""
    for folder in (folder_paths.get_output_directory(), folder_paths.get_input_directory()):
        root = Path(folder).resolve()
        path = (root / file).resolve()
        if path.is_relative_to(root) and path.is_file():
            return path
    return None
