"""The Space: the same noise under three rules, on the two shipped models and on the exact mixture.

`garments`, `pictures` and `points` are plain functions of the library; `page` puts them behind sliders.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from meancap import CFG, Cap, Record, Rule, noise, sample, shifted, uniform
from meancap_lab.mixtures import SCENES, flow
from meancap_lab.models import ClassModel, fashion
from meancap_lab.models.scenes import SceneModel, scenes

SCENE_NAMES = {str(scene): scene for scene in SCENES}


@cache
def model() -> ClassModel:
    """Loaded once, when it is first asked for."""
    return fashion()


def rules(scale: float, gamma: float) -> tuple[Rule, Rule, Rule]:
    """Without guidance, with it, and under the cap."""
    return CFG(1), CFG(scale), CFG(scale) | Cap(gamma)


def garments(scale: float, gamma: float, seed: int, steps: int = 20) -> tuple[np.ndarray, str]:
    """Three rows of ten garments, a class each, and what the meter says of the last row."""
    box = model()
    start, rows, record = noise(range(int(seed), int(seed) + 10), box.shape), [], Record()
    for rule in rules(scale, gamma):
        x = sample(
            box.predict(range(10)),
            rule,
            start,
            uniform(int(steps)),
            record=record if "Cap" in str(rule) else None,
        )
        rows.append(box.decode(x)[:, 0].permute(1, 0, 2).flatten(1).numpy())
    return np.concatenate(rows), record.summary()


@cache
def scene_model() -> SceneModel:
    """Loaded once, when it is first asked for."""
    return scenes()


def pictures(
    prompt: str, negative: str, scale: float, gamma: float, seed: int, steps: int = 16
) -> tuple[np.ndarray, str]:
    """Three rows of four pictures of a sentence, and what the meter says of the last row."""
    box = scene_model()
    start, rows, record = noise(range(int(seed), int(seed) + 4), box.shape), [], Record()
    for rule in rules(scale, gamma):
        seen = record if "Cap" in str(rule) else None
        x = sample(box.predict([prompt] * 4, negative), rule, start, shifted(int(steps)), record=seen)
        rows.append(box.decode(x).permute(2, 0, 3, 1).flatten(1, 2).numpy())
    return np.concatenate(rows), record.summary()


def points(scene: str, scale: float, gamma: float, count: int = 1000) -> Figure:
    """Guided samples of a condition on the circle of eight, under the three rules."""
    condition = SCENE_NAMES[scene].condition()
    start = noise(range(int(count)), (2,)).double()
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    for axes, rule in zip(figure.subplots(1, 3, sharex=True, sharey=True), rules(scale, gamma), strict=True):
        end = flow(condition, rule, start, uniform(50)).numpy()
        axes.plot(*SCENE_NAMES[scene].mixture().means.T, "+", color="black")
        axes.scatter(*end.T, s=3, alpha=0.5)
        axes.set_title(str(rule), fontsize=9)
        axes.set_aspect("equal")
    return figure


def page() -> Any:
    """The page, not yet started."""
    import gradio as gr

    with gr.Blocks(title="Posterior-mean cap") as blocks:
        gr.Markdown("# The posterior-mean cap\nThe same noise without guidance, with it, and under the cap.")
        with gr.Row():
            scale = gr.Slider(1, 15, 8, step=0.5, label="guidance scale")
            gamma = gr.Slider(1, 2, 1.1, step=0.01, label="gamma")
        with gr.Tab("garments"):
            seed = gr.Number(0, precision=0, label="seed")
            run = gr.Button("make garments", elem_id="make")
            picture, said = (
                gr.Image(label="CFG 1, CFG, capped"),
                gr.Textbox(label="requested and applied guidance", elem_id="said"),
            )
            run.click(garments, [scale, gamma, seed], [picture, said])
        with gr.Tab("sentences"):
            prompt = gr.Textbox("a red disc left of a blue square", label="prompt")
            negative = gr.Textbox("", label="negative prompt")
            first = gr.Number(0, precision=0, label="seed")
            paint = gr.Button("draw", elem_id="draw")
            shown = gr.Image(label="CFG 1, CFG, capped")
            told = gr.Textbox(label="requested and applied guidance", elem_id="told")
            paint.click(pictures, [prompt, negative, scale, gamma, first], [shown, told])
        with gr.Tab("mixture"):
            scene = gr.Dropdown(list(SCENE_NAMES), value=str(SCENES[2]), label="components of the condition")
            draw = gr.Button("sample", elem_id="sample")
            draw.click(points, [scene, scale, gamma], gr.Plot(elem_id="plot"))
    return blocks


if __name__ == "__main__":
    page().launch()
