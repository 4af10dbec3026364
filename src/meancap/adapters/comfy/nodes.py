"""The ComfyUI nodes: Posterior-Mean Cap, Guidance Rule, Guidance Report; the list of all that ComfyUI loads.

Only this module, `calibration_nodes` and `node_parts` import ComfyUI. They use only what version 0.3.48 of
its node interface has, and never change the model that comes in: a node patches a clone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import folder_paths
from comfy_api.latest import ComfyExtension, io, ui

from ...rules import Cap, CapDisplacement, parse
from ...sampling.checks import need_cap_last
from .calibration_nodes import CalibratedCap, CalibrateGuidance
from .hooks import PostCFG
from .node_parts import CATEGORY, patched, schema, window, window_problem
from .plot import image

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
        return schema(
            node_id="MeancapPosteriorMeanCap",
            display_name="Posterior-Mean Cap",
            category=CATEGORY,
            description=(
                "Keeps as much of the guidance as fits: the guided estimate of the clean image may be at "
                "most gamma times as long as the one for your prompt alone. Goes last: put it after every "
                "other model node. Does nothing at cfg 1 (distilled models). PMC-CFG, Peng & Ma 2026."
            ),
            inputs=[
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
                *window(),
            ],
            outputs=[io.Model.Output()],
        )  # fmt: skip

    @classmethod
    def validate_inputs(cls, start: float | None = None, end: float | None = None) -> bool | str:
        """Of start and end only: ComfyUI shows a complaint at the first input that is named here."""
        return window_problem(start, end) or True

    @classmethod
    def execute(cls, model: Any, gamma: float, form: str, start: float = 0.0, end: float = 1.0) -> Any:
        if form not in _FORMS:  # older versions of ComfyUI do not look
            raise ValueError(f"form is one of {', '.join(_FORMS)}; got {form!r}")
        return io.NodeOutput(patched(model, _FORMS[form](gamma), start, end))


class GuidanceRule(io.ComfyNode):
    """Any rule, as text."""

    @classmethod
    def define_schema(cls) -> Any:
        return schema(
            node_id="MeancapGuidanceRule",
            display_name="Guidance Rule",
            category=CATEGORY,
            description=(
                "Any guidance of meancap as text. Caps alone, such as Cap(1.1, per='channel'), limit what "
                "the workflow made. Any other chain, such as CFG(7) | Rescale(0.7) | Cap(1.1), replaces the "
                "workflow's guidance and brings its own scale; the sampler's cfg then only has to differ "
                "from 1. Goes last: put it after every other model node."
            ),
            inputs=[
                io.Model.Input("model"),
                io.String.Input(
                    "rule", default="CFG(7) | Cap(1.1)", multiline=True,
                    tooltip="Rules joined by |, applied from left to right; time runs from 0, the noise, "
                    "to 1, the image.",
                ),
                *window(),
            ],
            outputs=[io.Model.Output()],
        )  # fmt: skip

    @classmethod
    def validate_inputs(cls, rule: str | None = None) -> bool | str:
        """Of the rule only; `execute` looks at start and end."""
        if isinstance(rule, str):
            try:
                need_cap_last(parse(rule))
            except ValueError as error:
                return str(error)
        return True

    @classmethod
    def execute(cls, model: Any, rule: str, start: float = 0.0, end: float = 1.0) -> Any:
        if problem := window_problem(start, end):
            raise ValueError(problem)
        return io.NodeOutput(patched(model, parse(rule), start, end))


class GuidanceReport(io.ComfyNode):
    """What guidance did in one run, as text and as a picture."""

    @classmethod
    def define_schema(cls) -> Any:
        return schema(
            node_id="MeancapGuidanceReport",
            display_name="Guidance Report",
            category=CATEGORY,
            description=(
                "What guidance did in the run that made this latent: how often it was capped, and the "
                "effective CFG of every step, as text and as a picture. Wire it between sampler and VAE "
                "Decode, with the model that the sampler used. Images saved after it carry the text."
            ),
            inputs=[
                io.Latent.Input("latent", tooltip="From the sampler; it goes through unchanged."),
                io.Model.Input("model", tooltip="As the sampler got it, with a cap or a rule on it."),
                io.String.Input(
                    "filename_prefix", default="guidance/report",
                    tooltip="Where picture and numbers (JSON) go in the output folder; empty saves neither.",
                ),
            ],
            outputs=[
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
                "this model carries no Posterior-Mean Cap and no Guidance Rule; put one before the sampler "
                "(gamma 100 measures without changing anything)"
            )
        run = hooks[-1].run_of(latent["samples"])
        text, plot = run.text(), image(run)
        if run.calls and not run.is_of(latent["samples"]):
            text = f"{text}\n{_CHANGED}"
        if cls.hidden and cls.hidden.extra_pnginfo is not None:  # what later nodes write into images
            if _reports(cls.hidden.prompt) == 1:
                cls.hidden.extra_pnginfo["meancap"] = text
            else:  # every image of the workflow would carry the reports of all its branches
                text = f"{text}\n{_SEVERAL}"
        if not filename_prefix.strip():
            shown = ui.PreviewImage(plot, cls=cls).as_dict()
        else:
            saved = ui.ImageSaveHelper.get_save_images_ui(plot, filename_prefix, cls=cls)
            shown = saved.as_dict()
            if len(run.record):
                run.record.about = run.about()
                run.record.save(_beside(shown["images"][0]))
        return io.NodeOutput(latent, text, plot, ui={**shown, "text": (text,)})


def _reports(prompt: Any) -> int:
    """How many reports a workflow has."""
    return sum(one.get("class_type") == "MeancapGuidanceReport" for one in (prompt or {}).values())


def _beside(saved: Any) -> Path:
    """The JSON file next to a picture that ComfyUI saved, and has kept inside its output folder."""
    picture = Path(folder_paths.get_output_directory(), saved["subfolder"], saved["filename"])
    return picture.with_suffix(".json")


class Meancap(ComfyExtension):
    """The nodes, as ComfyUI asks for them."""

    async def get_node_list(self) -> list[type]:
        return [PosteriorMeanCap, GuidanceRule, GuidanceReport, CalibrateGuidance, CalibratedCap]


async def comfy_entrypoint() -> Meancap:
    return Meancap()
