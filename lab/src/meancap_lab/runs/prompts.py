"""Runs of a diffusers pipeline over a file of prompts, one line each.

    index         the number of a prompt's line, from 0; a blank line keeps its number and makes no sample, so
                  that deleting a prompt shifts no other prompt's noise, file name or pairing
    per sample    noise from a generator of its own, seeded by the run's seed and the index
    stream        noise from one generator that serves all lines in order; the process that makes line i first
                  draws what lines 0 to i - 1 would have used
    device        the same by the device's own generator, as in the paper's SD3.5 runs on a GPU

`coco_prompts` makes such a file from the captions of COCO, by the rule of the authors' generate_coco_sd35.py
(github.com/ppposition/pmc @ b27a9640): the first caption of each image by its number, shuffled by a seed.

Prompts are made one at a time: in half precision an image depends on the size of its batch.
"""

from __future__ import annotations

import copy
import hashlib
import json
import random
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from meancap.files import sha256_of, write_whole
from meancap.rules import parse
from meancap.sampling.checks import need_scale_first
from meancap.sampling.stochastic import generator_of

from ..extras import need
from ..models.checkpoint import load_pretrained
from .config import RunConfig, RunIdentity, sample_seed, versions
from .generate import MadeBlock, MakeBlock, PreparedRun, Tick, device_generator, dtype_name, read_prompts

Pipeline = Any  # a diffusers pipeline


def open_pipeline(source: str | Path, *, dtype: torch.dtype, device: str) -> Pipeline:
    """A pipeline from a folder or from the local Hugging Face cache; nothing is downloaded."""
    pipe = load_pretrained(need("diffusers", "diffusers").DiffusionPipeline, source, dtype)
    pipe.set_progress_bar_config(disable=True)
    return pipe.to(device)


@dataclass(frozen=True, eq=False)
class PipelineSource:
    """A diffusers pipeline."""

    pipe: Pipeline
    name: str
    sha256: str

    def prepare(self, config: RunConfig) -> PreparedRun:
        """A run of one picture per prompt; without a rule the pipeline guides by its own scale."""
        if config.prompts is None:
            raise ValueError("a pipeline needs --prompts FILE, one prompt per line")
        prompts, rule = read_prompts(config.prompts), parse(config.rule) if config.rule else None
        if rule is not None:
            need_scale_first(rule)
            if absent := [name for name in rule.needs if name != "weak"]:
                raise ValueError(f"{rule} needs the prediction {absent[0]!r}, which no pipeline makes")
        if config.guidance_scale is None and (rule is None or rule.caps):
            raise ValueError(
                "give --guidance-scale: without a rule, or with a rule that only caps, the pipeline "
                "applies its own guidance"
            )
        network = _denoiser(self.pipe)
        run = config.identity(
            model=self.name,
            model_sha256=self.sha256,
            rule="" if rule is None else str(rule),
            times=_scheduler_grid(self.pipe, config.steps, config.sigmas),
            count=len(prompts),
            solver=type(self.pipe.scheduler).__name__,
            batch=1,
            dtype=dtype_name(config, network.dtype),
            device=network.device.type,
            prompts_sha256=hashlib.sha256("\n".join(prompts).encode()).hexdigest(),
            # A full chain replaces the pipeline's combination; the scale only has to switch guidance on.
            guidance_scale=2.0 if config.guidance_scale is None else float(config.guidance_scale),
            sigmas=tuple(float(s) for s in config.sigmas),
        )
        made_with = versions(("diffusers", "transformers"))
        return PreparedRun(run, _prompt_blocks(self.pipe, run, prompts), made_with)


def coco_prompts(captions: Path, out: Path, count: int = 5000, seed: int = 42) -> dict[str, Any]:
    """Writes `count` prompts to `out`, and beside it as .json what is returned: source, rule, seed, order."""
    try:
        rows = json.loads(captions.read_text(encoding="utf-8"))["annotations"]
        ordered = sorted(rows, key=lambda row: (row["image_id"], row["id"]))
        first = {row["image_id"]: " ".join(str(row["caption"]).split()) for row in reversed(ordered)}
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(
            f"{captions} holds no captions of COCO ({error!r}); give captions_val2017.json"
        ) from None
    images = sorted(first)
    if not 1 <= count <= len(images):
        raise ValueError(f"--count must be from 1 to {len(images)}, the images of {captions}; got {count}")
    random.Random(seed).shuffle(images)
    text = "".join(f"{first[image]}\n" for image in images[:count])
    write_whole(out, text)
    about = {
        "source": captions.name,
        "source_sha256": sha256_of(captions),
        "rule": "first caption of each image by caption id, images in order, shuffled by random.Random(seed)",
        "seed": seed,
        "prompts_sha256": hashlib.sha256(text.encode()).hexdigest(),
        "images": images[:count],
    }
    write_whole(out.with_suffix(".json"), json.dumps(about) + "\n")
    return about


def _scheduler_grid(pipe: Pipeline, steps: int, sigmas: Sequence[float]) -> tuple[float, ...]:
    """The grid t = 1 - sigma that the pipeline's scheduler will walk, read off a copy of it."""
    scheduler = copy.deepcopy(pipe.scheduler)
    if scheduler.config.get("use_dynamic_shifting", False):
        raise ValueError(
            f"{type(pipe).__name__} shifts its grid by the size of the picture, so its grid is not known "
            "in advance; use a scheduler without dynamic shifting"
        )
    if sigmas:
        scheduler.set_timesteps(sigmas=list(sigmas))
    else:
        scheduler.set_timesteps(steps)
    return tuple(1 - float(s) for s in scheduler.sigmas)


def _prompt_blocks(pipe: Pipeline, run: RunIdentity, prompts: Sequence[str]) -> MakeBlock:
    """The maker of a prompt run's blocks, one prompt each."""
    from meancap.adapters.diffusers import guided

    stream = _NoiseStream(pipe, run)

    def make(block: int, tick: Tick) -> MadeBlock:
        prompt = prompts[block]
        if not prompt:
            return MadeBlock(np.zeros((0, 1, 1, 3), np.uint8), [])
        seed = sample_seed(run.seed, block) if run.noise == "per sample" else run.seed
        generator = generator_of(seed) if run.noise == "per sample" else stream.at(block)
        call: dict[str, Any] = {
            "guidance_scale": run.guidance_scale,
            "num_inference_steps": len(run.times) - 1,
        }
        if run.sigmas:
            call["sigmas"] = list(run.sigmas)
        if run.size is not None:
            call["height"], call["width"] = run.size
        meter, calls = None, list[int]()
        guidance = guided(pipe, parse(run.rule)) if run.rule else nullcontext()

        def count(*_: Any) -> None:
            tick(min(len(calls), len(run.times) - 1))
            calls.append(1)

        counting = _denoiser(pipe).register_forward_pre_hook(count)
        with torch.no_grad(), counting, guidance as record:
            image = pipe(prompt, generator=generator, output_type="np", **call).images[0]
        if run.diagnostics and record:
            meter = {name: value.numpy() for name, value in record.stacked().items()}
        record_line: dict[str, Any] = {
            "index": block,
            "seed": seed,
            "prompt": prompt,
            "evaluations": len(calls),
        }
        if not np.isfinite(image).all():
            record_line["finite"] = False
        picture = np.nan_to_num(np.asarray(image) * 255).round().clip(0, 255).astype(np.uint8)
        return MadeBlock(picture[None], [record_line], meter)

    return make


class _NoiseStream:
    """One generator for all prompts in order, wound forward to any of them."""

    def __init__(self, pipe: Pipeline, config: RunIdentity) -> None:
        self.config, self.dtype = config, _denoiser(pipe).dtype
        height, width = config.size or (pipe.default_sample_size * pipe.vae_scale_factor,) * 2
        channels = _denoiser(pipe).config.in_channels
        self.shape = (1, channels, height // pipe.vae_scale_factor, width // pipe.vae_scale_factor)
        self.device = _denoiser(pipe).device if config.noise == "device" else torch.device("cpu")
        self.generator, self.next = self._begin(), 0

    def _begin(self) -> torch.Generator:
        return device_generator(self.config.seed, self.device)

    def at(self, index: int) -> torch.Generator:
        """A generator that draws next what a run in order would have drawn for this index."""
        if index < self.next:
            self.generator, self.next = self._begin(), 0
        while self.next < index:
            torch.randn(self.shape, generator=self.generator, dtype=self.dtype, device=self.device)
            self.next += 1
        copied = torch.Generator(self.device)
        copied.set_state(self.generator.get_state())
        return copied


def _denoiser(pipe: Pipeline) -> Any:
    """The network that a pipeline calls at every step."""
    for name in ("transformer", "unet"):
        if getattr(pipe, name, None) is not None:
            return getattr(pipe, name)
    raise ValueError(f"{type(pipe).__name__} has neither a transformer nor a unet to guide")
