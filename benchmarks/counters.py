"""Costs that do not depend on the machine or its load: kernels, bytes, memory, calls of the network.

    python -m benchmarks --counters     writes them down, in counters.json beside this file

`tests/test_cost.py` counts again and fails where one has grown.

    kernels   what torch dispatches, views and allocations apart: `reference` on the CPU, without numba and
              with a record; `device` as on a GPU
    bytes     what these kernels read and write, in sizes of one input tensor
    memory    the most that is held beyond the inputs, the result included, in the same unit
    network   samples that go through the network for one picture
    calls     of functions of this package in one step of `CFG(7) | Cap(1.1)`, and how often from file to file
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import torch

import meancap
from benchmarks.step import without_numba
from benchmarks.timing import counted, peak_bytes
from meancap import (
    CFG,
    Cap,
    Interval,
    Prediction,
    Record,
    Rule,
    apg,
    euler,
    guided_velocity,
    heun,
    sample,
    uniform,
)
from meancap.adapters.diffusers import guided
from meancap.rules import Phases, StepInterval
from meancap.sampling import StepMethod
from meancap_lab.models.sit import NetworkPredictor, SiT, SiTConfig

FILE = Path(__file__).with_name("counters.json")
STEPS = {
    "float32 1x16x128x128": ((1, 16, 128, 128), torch.float32),
    "float32 8x16x128x128": ((8, 16, 128, 128), torch.float32),
    "float32 1x16x21x60x104": ((1, 16, 21, 60, 104), torch.float32),
    "float32 1x4096x64": ((1, 4096, 64), torch.float32),
    "float32 64x4x32x32": ((64, 4, 32, 32), torch.float32),
    "bfloat16 1x16x128x128": ((1, 16, 128, 128), torch.bfloat16),
    "bfloat16 8x16x128x128": ((8, 16, 128, 128), torch.bfloat16),
}
RULES: dict[str, tuple[Rule, StepMethod]] = {
    "CFG(4) | Cap(1.1)": (CFG(4) | Cap(1.1), euler),
    "CFG(4) | Interval(0.2, 0.8) | Cap(1.1)": (CFG(4) | Interval(0.2, 0.8) | Cap(1.1), euler),
    "CFG(4) | StepInterval(3, 9)": (CFG(4) | StepInterval(3, 9), euler),
    "Phases(4, CFG(1), CFG(4))": (Phases(4, CFG(1), CFG(4)), euler),
    "CFG(1)": (CFG(1), euler),
    "CFG(1), heun": (CFG(1), heun),
    "apg(4) | Interval(0.2, 0.8)": (apg(4) | Interval(0.2, 0.8), euler),
}
SMALL = SiTConfig(size=8, channels=1, patch=4, width=16, depth=2, heads=2, classes=10, learn_sigma=False)


def step(shape: tuple[int, ...], dtype: torch.dtype, rule: Rule) -> Callable[[], object]:
    """One guidance step with its diagnostics."""
    g = torch.Generator().manual_seed(0)
    x, v_c, other = (torch.randn(shape, generator=g) for _ in range(3))
    inputs = [v.to(dtype) for v in (x, v_c, v_c + 0.5 * other)]
    return lambda: guided_velocity(rule, inputs[0], 0.3, *inputs[1:], record=Record())


def network(rule: Rule, solver: StepMethod) -> float:
    """Samples through the network for one picture in ten steps, counted at its last layer."""
    model, rows = SiT(SMALL).requires_grad_(False).eval(), []
    model.final_layer.linear.register_forward_pre_hook(lambda _, args: rows.append(len(args[0])))
    predict = NetworkPredictor(model, torch.arange(3), SMALL.classes)
    sample(predict, rule, torch.zeros(3, 1, 8, 8), uniform(10), solver)
    return sum(rows) / 3


def collect() -> Iterator[tuple[str, float]]:
    for name, (shape, dtype) in STEPS.items():
        run, size = step(shape, dtype, CFG(5) | Cap(1.1)), torch.Size(shape).numel() * dtype.itemsize
        kernels, moved = counted(without_numba(run))
        yield f"reference: kernels, {name}", len(kernels)
        yield f"reference: bytes, {name}", round(moved / size, 2)
        yield f"reference: memory, {name}", round(peak_bytes(without_numba(run)) / size, 2)
        yield f"device: kernels, {name}", device_kernels(shape, dtype)
        yield f"step: memory, {name}", round(peak_bytes(run) / size, 2)
    for name, (rule, solver) in RULES.items():
        yield f"generation: network, {name}", network(rule, solver)
    yield from _predictions()
    for name, run in _loops().items():
        few, many = called(lambda run=run: run(4)), called(lambda run=run: run(5))
        yield f"calls per step, {name}", len(many) - len(few)
        yield f"changes of file per step, {name}", _changes(many) - _changes(few)


def device_kernels(shape: tuple[int, ...], dtype: torch.dtype) -> int:
    """Kernels of one step as a device runs it, counted on meta tensors: nothing may wait for a value."""
    x, v_c, v_u = (torch.empty(shape, dtype=dtype, device="meta") for _ in range(3))
    return len(counted(lambda: guided_velocity(CFG(5) | Cap(1.1), x, 0.3, v_c, v_u))[0])


def called(run: Callable[[], object]) -> list[str]:
    """The file of each function of this package that is called, in order."""
    run()
    root, files = str(Path(meancap.__file__).parent), []

    def note(frame, event, _) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(root):
            files.append(frame.f_code.co_filename)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(before)
    return files


def _changes(files: list[str]) -> int:
    return sum(a != b for a, b in pairwise(files))


def _loops() -> dict[str, Callable[[int], object]]:
    """Runs of so many steps: our own loop, and a diffusers pipeline."""
    from diffusers import FlowMatchEulerDiscreteScheduler, SD3Transformer2DModel, StableDiffusion3Pipeline

    from benchmarks.diffusers_overhead import prompts

    x, c, u = torch.randn(3, 2, 4, 8, 8, generator=torch.Generator().manual_seed(0))
    rule = CFG(7) | Cap(1.1)
    small = {"sample_size": 8, "num_layers": 1, "attention_head_dim": 8, "num_attention_heads": 2}
    transformer = SD3Transformer2DModel(**small, caption_projection_dim=16, pos_embed_max_size=8)
    pipe = StableDiffusion3Pipeline(transformer.eval(), FlowMatchEulerDiscreteScheduler(), *(None,) * 7)
    pipe.set_progress_bar_config(disable=True)

    def in_pipeline(steps: int) -> object:
        with guided(pipe, rule):
            return pipe(
                **prompts(), height=64, width=64, num_inference_steps=steps, guidance_scale=7.0,
                output_type="latent",
            )  # fmt: skip

    return {
        "sample": lambda steps: sample(
            lambda y, t: Prediction.from_velocity(y, t, c, u), rule, x, [i / steps for i in range(steps + 1)]
        ),
        "a diffusers pipeline": in_pipeline,
    }


def _predictions() -> Iterator[tuple[str, float]]:
    model, x = SiT(SMALL).requires_grad_(False).eval(), torch.zeros(3, 1, 8, 8)
    predict = NetworkPredictor(model, torch.arange(3), SMALL.classes)
    yield "generation: kernels of both predictions", len(counted(lambda: predict(x, 0.5))[0])
    yield "generation: kernels of the conditional one", len(counted(lambda: predict.conditional(x, 0.5))[0])


def save() -> Path:
    from benchmarks.records import whole

    return whole(FILE, json.dumps(dict(collect()), indent=1) + "\n")


def recorded() -> dict[str, float]:
    found: dict[str, float] = json.loads(FILE.read_text())
    return found
