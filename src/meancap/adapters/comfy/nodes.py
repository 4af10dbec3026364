"""The nodes that ComfyUI loads: Posterior-Mean Cap, Guidance Rule, Guidance Report and Calibrate Guidance.

Only this module imports ComfyUI. It uses only what version 0.3.48 of its node interface has, and never
changes the model that comes in: a node patches a clone. A file is read from ComfyUI's own folders only.
"""

from __future__ import annotations

import inspect
import logging
from pathlib import Path
from typing import Any

import comfy.samplers
import folder_paths
from comfy.patcher_extension import WrappersMP
from comfy_api.latest import ComfyExtension, io, ui

from ...rules import Calibration, Cap, CapDisplacement, Pilot, Rule, parse
from ...rules.calibration import FEWEST, LEVELS
from ...sampling.checks import need_scale_first
from .hooks import PilotHook, PostCFG, draw_run

_log = logging.getLogger(__name__)

_ALIASES = ["cfg", "pmc", "pmc-cfg", "guidance", "cap", "rescale", "burn", "oversaturation"]


def _schema(name: str, description: str, inputs: list[Any], outputs: list[Any], **more: Any) -> Any:
    """A node's schema, with search words if this version of ComfyUI accepts them."""
    if "search_aliases" in inspect.signature(io.Schema).parameters:
        more["search_aliases"] = _ALIASES
    identity = "Meancap" + name.replace(" ", "").replace("-", "")
    return io.Schema(
        node_id=identity, display_name=name, category="advanced/guidance", description=description,
        inputs=inputs, outputs=outputs, **more,
    )  # fmt: skip


def _window() -> list[Any]:
    """start and end, which are rarely needed; newer frontends hide them by default."""
    told = {
        "start": "Share of the run at which the node begins to act; before, the workflow's result stands.",
        "end": "Share of the run at which the node stops acting.",
    }
    limits = {"min": 0.0, "max": 1.0, "step": 0.01, "round": 0.001, "optional": True}
    fields = [
        io.Float.Input(name, default=float(name == "end"), tooltip=tip, **limits)
        for name, tip in told.items()
    ]
    for field in fields:  # 0.3.48 takes it here, not as an argument
        field.extra_dict = {"advanced": True}
    return fields


def _patched(model: Any, rule: Rule, start: float, end: float) -> Any:
    """A clone of the model whose runs are guided by the rule, and reported."""
    hook = PostCFG(rule, start, end)

    def run(executor: Any, *values: Any, **named: Any) -> Any:
        hook.begin()
        latent = executor(*values, **named)
        hook.run.made(latent)
        _log.info("%s: %s", rule, hook.run.headline())
        return latent

    def predict(executor: Any, model: Any, conds: Any, x: Any, timestep: Any, options: Any) -> Any:
        if hook.needs_negative({"model": model, "sigma": timestep, "model_options": options}, conds):
            return executor(model, conds, x, timestep, options)
        positive = executor(model, [conds[0], None], x, timestep, options)[0]
        return [positive, positive]

    m = model.clone()
    m.set_model_sampler_post_cfg_function(hook)
    m.add_wrapper_with_key(WrappersMP.OUTER_SAMPLE, "meancap", run)
    m.add_wrapper_with_key(WrappersMP.CALC_COND_BATCH, "meancap", predict)
    return m


_FORMS = {"ball": Cap, "displacement": CapDisplacement}
_CHANGED = (
    "This latent is not the one that a run made (it was changed since, or holds several tensors); this is "
    "the latest run of the model."
)
_SEVERAL = (
    "Not written into images: this workflow has several reports, and an image does not know which is its own."
)


class PosteriorMeanCap(io.ComfyNode):
    """A cap over what the workflow made."""

    @classmethod
    def define_schema(cls) -> Any:
        return _schema(
            "Posterior-Mean Cap",
            (
                "Keeps as much of the guidance as fits: the guided estimate of the clean image may be at "
                "most gamma times as long as the one for your prompt alone. Goes last: put it after every "
                "other model node. Does nothing at cfg 1 (distilled models). PMC-CFG, Peng & Ma 2026."
            ),
            [
                io.Model.Input("model"),
                io.Float.Input(
                    "gamma", default=1.1, min=1.0, max=100.0, step=0.01, round=0.001,
                    tooltip="How much longer guidance may make the estimate. 1.05 strict, 1.1 usual, "
                    "1.3 loose; 100 never acts and only measures. Where every step is capped, a higher cfg "
                    "changes nothing.",
                ),
                io.Combo.Input(
                    "form", options=list(_FORMS), default="ball",
                    tooltip="ball: |m| <= gamma |m_c|, the paper's rule. displacement: |m - m_c| <= "
                    "(gamma - 1) |m_c|, its SD3.5 rule, the stricter of the two at the same gamma.",
                ),
                *_window(),
            ],
            [io.Model.Output()],
        )  # fmt: skip

    @classmethod
    def execute(cls, model: Any, gamma: float, form: str, start: float = 0.0, end: float = 1.0) -> Any:
        return io.NodeOutput(_patched(model, _FORMS[form](gamma), start, end))


def _rule_of(text: str) -> Rule:
    """The rule of a text, or of a calibration's file in ComfyUI's output or input folder."""
    name = text.strip()
    if not name.endswith(".json"):
        return parse(text)
    for folder in (folder_paths.get_output_directory(), folder_paths.get_input_directory()):
        path = Path(folder, name).resolve()
        if path.is_relative_to(Path(folder).resolve()) and path.is_file():
            return Calibration.load(path)
    raise ValueError(f"ComfyUI's output and input folders hold no file {name}; give its name in one of them")


class GuidanceRule(io.ComfyNode):
    """Any rule, as text or from the file of a calibration."""

    @classmethod
    def define_schema(cls) -> Any:
        return _schema(
            "Guidance Rule",
            (
                "Any guidance of meancap as text. Caps alone, such as Cap(1.1, per='channel'), limit what "
                "the workflow made. Any other chain, such as CFG(7) | Rescale(0.7) | Cap(1.1), replaces the "
                "workflow's guidance and brings its own scale; the sampler's cfg then only has to differ "
                "from 1. Goes last: put it after every other model node."
            ),
            [
                io.Model.Input("model"),
                io.String.Input(
                    "rule", default="CFG(7) | Cap(1.1)", multiline=True,
                    tooltip="Rules joined by |, applied from left to right; time runs from 0, the noise, "
                    "to 1, the image. Or the file of a calibration in the output or input folder, such as "
                    "calibration/model_00001_.json.",
                ),
                *_window(),
            ],
            [io.Model.Output()],
        )  # fmt: skip

    @classmethod
    def validate_inputs(cls, rule: str | None = None) -> bool | str:
        """Of the rule only: ComfyUI leaves to a node what is named here."""
        if isinstance(rule, str):
            try:
                need_scale_first(_rule_of(rule))
            except ValueError as error:
                return str(error)
        return True

    @classmethod
    def execute(cls, model: Any, rule: str, start: float = 0.0, end: float = 1.0) -> Any:
        return io.NodeOutput(_patched(model, _rule_of(rule), start, end))


class GuidanceReport(io.ComfyNode):
    """What guidance did in one run, as text and as a picture."""

    @classmethod
    def define_schema(cls) -> Any:
        return _schema(
            "Guidance Report",
            (
                "What guidance did in the run that made this latent: how often it was capped, and the "
                "effective CFG of every step, as text and as a picture. Wire it between sampler and VAE "
                "Decode, with the model that the sampler used. Images saved after it carry the text."
            ),
            [
                io.Latent.Input("latent", tooltip="From the sampler; it goes through unchanged."),
                io.Model.Input("model", tooltip="As the sampler got it, with a cap or a rule on it."),
                io.String.Input(
                    "filename_prefix", default="guidance/report",
                    tooltip="Where picture and numbers (JSON) go in the output folder; empty saves neither.",
                ),
            ],
            [
                io.Latent.Output(),
                io.String.Output(display_name="text"),
                io.Image.Output(display_name="plot"),
            ],
            hidden=[io.Hidden.prompt, io.Hidden.extra_pnginfo, io.Hidden.unique_id],
            is_output_node=True,
        )  # fmt: skip

    @classmethod
    def execute(cls, latent: dict[str, Any], model: Any, filename_prefix: str) -> Any:
        hooks = [
            hook
            for hook in model.model_options.get("sampler_post_cfg_function", [])
            if isinstance(hook, PostCFG)
        ]
        if not hooks:
            raise ValueError(
                "this model has no Posterior-Mean Cap and no Guidance Rule; put one before the sampler "
                "(gamma 100 measures without changing anything)"
            )
        run = hooks[-1].run_of(latent["samples"])
        text, plot = run.text(), draw_run(run)
        if run.calls and not run.is_of(latent["samples"]):
            text = f"{text}\n{_CHANGED}"
        if cls.hidden and cls.hidden.extra_pnginfo is not None:  # what later nodes write into images
            kinds = [one.get("class_type") for one in (cls.hidden.prompt or {}).values()]
            if kinds.count("MeancapGuidanceReport") == 1:
                cls.hidden.extra_pnginfo["meancap"] = text
            else:  # every image of the workflow would carry the reports of all its branches
                text = f"{text}\n{_SEVERAL}"
        if not filename_prefix.strip():
            shown = ui.PreviewImage(plot, cls=cls).as_dict()
        else:
            saved = ui.ImageSaveHelper.get_save_images_ui(plot, filename_prefix, cls=cls)
            shown = saved.as_dict()
            if len(run):
                picture = shown["images"][0]  # ComfyUI has kept it inside its output folder
                file = Path(folder_paths.get_output_directory(), picture["subfolder"], picture["filename"])
                run.save(file.with_suffix(".json"))
        return io.NodeOutput(latent, text, plot, ui={**shown, "text": (text,)})


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
        return _schema(
            "Calibrate Guidance",
            (
                "Samples every prompt without guidance and measures how far the model's estimates go by "
                "themselves. Gives a cap as text for Guidance Rule: wire it in, or copy it there. It "
                "lets guidance go as far as unguided estimates went, not farther, and needs no gamma. Costs "
                "one run of the sampler for each prompt. Prompts times batch must be at least "
                f"{FEWEST}; a few hundred are better."
            ),
            [
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
                io.Combo.Input(
                    "level", options=list(LEVELS), default="q90",
                    tooltip="Which radius of the pilot: q90 holds nine of ten unguided estimates.",
                ),
                io.String.Input(
                    "filename_prefix", default="calibration/model",
                    tooltip="Where the file goes in the output folder; Guidance Rule takes its name.",
                ),
            ],
            [io.String.Output(display_name="rule"), io.String.Output(display_name="text")],
            is_output_node=True,
        )  # fmt: skip

    @classmethod
    def execute(
        cls, model: Any, clip: Any, negative: Any, latent: dict[str, Any], prompts: str, seed: int,
        steps: int, scheduler: str, level: str, filename_prefix: str,
    ) -> Any:  # fmt: skip
        lines = [line.strip() for line in prompts.splitlines() if line.strip()]
        count = len(lines) * latent["samples"].shape[0]
        if count < FEWEST:
            raise ValueError(
                f"a pilot needs at least {FEWEST} samples; {len(lines)} prompts times the latent's batch of "
                f"{latent['samples'].shape[0]} make {count}"
            )
        from nodes import common_ksampler  # KSampler's function

        pilot, m = Pilot(), model.clone()
        hook = PilotHook(pilot)
        m.set_model_sampler_post_cfg_function(hook)
        for i, line in enumerate(lines):
            positive = clip.encode_from_tokens_scheduled(clip.tokenize(line))
            hook.begin()
            common_ksampler(m, seed + i, steps, _CFG, "euler", scheduler, positive, negative, latent)
        found = pilot.calibration(level, model=type(model.model).__name__, seed=seed)
        folder, name, counter, sub, _ = folder_paths.get_save_image_path(
            filename_prefix, folder_paths.get_output_directory()
        )
        file = found.save(Path(folder, f"{name}_{counter:05}_.json"))
        shown, rule = Path(sub, file.name).as_posix(), str(found)
        cost = f"{found.examples} samples, {found.calls} network calls"
        text = f"{found.model}: {cost}, written to {shown}\n{rule}"
        _log.info("%s", text)
        return io.NodeOutput(rule, text, ui={"text": (text,)})


class Meancap(ComfyExtension):
    """The nodes, as ComfyUI asks for them."""

    async def get_node_list(self) -> list[type]:
        return [PosteriorMeanCap, GuidanceRule, GuidanceReport, CalibrateGuidance]


async def comfy_entrypoint() -> Meancap:
    return Meancap()
