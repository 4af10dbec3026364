"""What guidance costs in a diffusers pipeline: a ratio of whole calls, and a share of a transformer call.

    python -m benchmarks.diffusers_overhead
    python -m benchmarks.diffusers_overhead --size 128 --layers 24 --out out/overhead.jsonl   (hours on a CPU)

The transformer has the width of Stable Diffusion 3.5 Medium and random weights, but unless told otherwise one
of its 24 blocks and a latent of 32 x 32 instead of 128 x 128. The last column is the rule on SD3.5's latent
against this transformer, so it overstates its share of the whole model's call many times. `guided / native`
compares two runs and carries their noise; `accounted` is the same ratio by the adapter's time within one run.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import diffusers
import torch

from benchmarks.records import Note, Reading, Row, command, progress
from benchmarks.timing import in_turns, interleaved, ratio, thread_seconds
from meancap import CFG, Cap, apg
from meancap.adapters.comfy.hooks import PostCFG
from meancap.adapters.diffusers import guided
from meancap.adapters.diffusers.guided_pipelines import _Tap
from meancap.adapters.session import Session
from meancap.path import Affine

TOKENS, TEXT, POOLED = 333, 4096, 2048  # a prompt of SD3.5: 77 + 256 tokens
FULL = 128  # its latent at 1024 pixels
RULES = {"Cap(1.15)": Cap(1.15), "CFG(7) | Cap(1.15)": CFG(7.0) | Cap(1.15), "apg(7)": apg(7.0)}
Run = Callable[[], object]


def pipeline(layers: int, size: int) -> Any:
    torch.manual_seed(0)
    transformer = diffusers.SD3Transformer2DModel(
        sample_size=size, num_layers=layers, num_attention_heads=24, joint_attention_dim=TEXT,
        caption_projection_dim=1536, pooled_projection_dim=POOLED, pos_embed_max_size=max(size // 2, 96),
    )  # fmt: skip
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0)
    pipe = diffusers.StableDiffusion3Pipeline(
        transformer.eval().requires_grad_(False), scheduler, *(None,) * 7
    )
    pipe.set_progress_bar_config(disable=True)
    return pipe


def prompts() -> dict[str, torch.Tensor]:
    drawn = torch.Generator().manual_seed(1)
    return {
        "prompt_embeds": torch.randn(1, TOKENS, TEXT, generator=drawn),
        "negative_prompt_embeds": torch.randn(1, TOKENS, TEXT, generator=drawn),
        "pooled_prompt_embeds": torch.randn(1, POOLED, generator=drawn),
        "negative_pooled_prompt_embeds": torch.randn(1, POOLED, generator=drawn),
    }


def calls(pipe: Any, size: int, steps: int) -> dict[str, Run]:
    """Whole pipeline calls, native and guided by each rule."""
    arguments = prompts() | {
        "height": 8 * size, "width": 8 * size, "num_inference_steps": steps, "guidance_scale": 7.0,
        "output_type": "latent",
    }  # fmt: skip

    def native() -> object:
        return pipe(**arguments, generator=torch.Generator().manual_seed(0))

    def with_rule(rule: Any) -> Run:
        def run() -> object:
            with guided(pipe, rule):
                return native()

        return run

    return {"native": native} | {text: with_rule(rule) for text, rule in RULES.items()}


def inside(run: Run) -> tuple[float, float]:
    """Seconds of one guided call, and those of them that the adapter spent.

    The difference of two calls drowns in the noise of the larger part; this does not.
    """
    spent, original = [0.0], _Tap._guide

    def timed(self: _Tap, *args: Any) -> Any:
        start = thread_seconds()
        try:
            return original(self, *args)
        finally:
            spent[0] += thread_seconds() - start

    _Tap._guide = timed
    try:
        start = thread_seconds()
        run()
        whole = thread_seconds() - start
    finally:
        _Tap._guide = original
    return whole, spent[0]


def hook_steps(size: int) -> dict[str, Run]:
    """One call of ComfyUI's hook by each rule, as the host makes it at every step."""
    x, c, u = torch.randn(3, 1, 16, size, size, generator=torch.Generator().manual_seed(0))
    sigma = torch.tensor([0.7])
    options = {"transformer_options": {"sample_sigmas": torch.linspace(1, 0, 51)}}
    args = {
        "denoised": u + 7 * (c - u), "cond_denoised": c, "uncond_denoised": u, "input": x, "sigma": sigma,
        "cond": [], "uncond": [], "cond_scale": 7.0, "model": None, "model_options": options,
    }  # fmt: skip

    def step(hook: PostCFG) -> Run:
        def run() -> object:
            hook.begin()
            return hook(args)

        return run

    return {text: step(PostCFG(rule)) for text, rule in RULES.items()}


def steps_of_rules(size: int) -> dict[str, Run]:
    """One evaluation of each rule, its record included."""
    x, c, u = torch.randn(3, 1, 16, size, size, generator=torch.Generator().manual_seed(0))
    nominal, edge = u + 7 * (c - u), Affine(a=1.0, k=-0.7, t=0.3)

    def step(session: Session) -> Run:
        return lambda: session.guide(edge, x, c, u, nominal)

    return {text: step(Session(rule)) for text, rule in RULES.items()}


def measure(options: argparse.Namespace) -> Iterator[Row]:
    logging.disable(logging.WARNING)
    layers, size, steps, rounds = options.layers, options.size, options.steps, 1 if options.quick else 3
    pipe, shown = pipeline(layers, size), prompts()
    inputs = {
        "hidden_states": torch.randn(2, 16, size, size),
        "timestep": torch.full((2,), 500.0),
        "encoder_hidden_states": torch.cat([shown["negative_prompt_embeds"], shown["prompt_embeds"]]),
        "pooled_projections": torch.cat(
            [shown["negative_pooled_prompt_embeds"], shown["pooled_prompt_embeds"]]
        ),
    }
    progress("one call of the transformer")
    with torch.no_grad():
        transformer = interleaved({"transformer": lambda: pipe.transformer(**inputs)}, rounds)["transformer"]
    yield Note(
        "diffusers_overhead",
        f"One call of a transformer with {layers} block(s) of width 1536, both predictions of a latent of "
        f"16x{size}x{size}: {transformer:.3f} s. SD3.5 Medium has 24 blocks and a latent of 16x128x128, so "
        "shares overstate many times what a rule costs there.",
    )
    made = calls(pipe, size, steps)
    progress("whole calls of the pipeline")
    whole = in_turns(made, rounds)
    here, full = (interleaved(steps_of_rules(s), 10 * rounds) for s in (size, FULL))
    hooks = interleaved(hook_steps(FULL), 10 * rounds)
    for text in RULES:
        found = partial(Reading, "diffusers_overhead", f"`{text}`")
        yield found("guided / native", **ratio(whole, text, "native"))
        accounts = [inside(made[text]) for _ in range(rounds)]
        yield found("accounted - 1", min(spent / (whole - spent) for whole, spent in accounts))
        yield found("adapter, us per step", 1e6 * min(spent for _, spent in accounts) / steps)
        yield found("rule / transformer", here[text] / transformer)
        yield found(f"rule on 16x{FULL}x{FULL}, ms", 1000 * full[text])
        yield found("the same / transformer", full[text] / transformer)
        yield found(f"ComfyUI's hook on 16x{FULL}x{FULL}, ms", 1000 * hooks[text])


def main() -> int:
    options = [
        ("--layers", {"type": int, "default": 1, "help": "blocks of the transformer; SD3.5 Medium has 24"}),
        ("--size", {"type": int, "default": 32, "help": "height and width of the latent; SD3.5 has 128"}),
        ("--steps", {"type": int, "default": 2, "help": "steps of a call"}),
    ]
    return command("diffusers_overhead", __doc__, measure, options)


if __name__ == "__main__":
    sys.exit(main())
