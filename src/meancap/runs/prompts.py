"""Runs of a diffusers pipeline over a file of prompts, one line each.

    index         the number of a prompt's line, from 0; a blank line keeps its number and makes no sample, so
                  that deleting a prompt shifts no other prompt's noise, file name or pairing
    per sample    noise from a generator of its own, seeded by the run's seed and the index
    stream        noise from one generator that serves all lines in order, as in the paper's SD3.5 runs; the
                  process that makes line i first draws what lines 0 to i - 1 would have used

Prompts are made one at a time: in half precision an image depends on the size of its batch. Text encoders get
a cache, so that a run encodes the empty prompt once; a text is known by the tokens that an encoder receives,
so the cache works with any pipeline and returns the encoder's own output.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..extras import need
from ..models.checkpoint import load_pretrained
from ..rules import parse
from .config import RunConfig, sample_seed
from .generate import MadeBlock, MakeBlock

Pipeline = Any  # a diffusers pipeline


def read_prompts(path: str | Path) -> list[str]:
    """The lines of a prompt file, blank ones as empty text."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text (byte {error.start})") from None
    lines = [line.strip() for line in text.split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    if not lines:
        raise ValueError(f"{path} holds no prompt")
    return lines


def open_pipeline(source: str | Path, *, dtype: torch.dtype, device: str) -> Pipeline:
    """A pipeline from a folder or from the local Hugging Face cache; nothing is downloaded."""
    pipe = load_pretrained(need("diffusers", "diffusers").DiffusionPipeline, source, dtype)
    pipe.set_progress_bar_config(disable=True)
    return pipe.to(device)


def scheduler_grid(pipe: Pipeline, steps: int, sigmas: Sequence[float]) -> tuple[float, ...]:
    """The grid t = 1 - sigma that the pipeline's scheduler will walk, read off a copy of it."""
    scheduler = copy.deepcopy(pipe.scheduler)
    if scheduler.config.get("use_dynamic_shifting", False):
        raise ValueError(
            f"{type(pipe).__name__} shifts its grid by the size of the picture, so that it is not known "
            "beforehand; give it a scheduler without dynamic shifting"
        )
    if sigmas:
        scheduler.set_timesteps(sigmas=list(sigmas))
    else:
        scheduler.set_timesteps(steps)
    return tuple(1 - float(s) for s in scheduler.sigmas)


def prompt_blocks(pipe: Pipeline, config: RunConfig, prompts: Sequence[str]) -> MakeBlock:
    """The maker of a prompt run's blocks, one prompt each."""
    from ..adapters.diffusers import guided

    stream, texts = _NoiseStream(pipe, config), _TextCache(pipe)

    def make(block: int) -> MadeBlock:
        prompt = prompts[block]
        if not prompt:
            return MadeBlock(np.zeros((0, 1, 1, 3), np.uint8), [])
        seed = sample_seed(config.seed, block) if config.noise == "per sample" else config.seed
        generator = stream.at(block) if config.noise == "stream" else torch.Generator().manual_seed(seed)
        call: dict[str, Any] = {
            "guidance_scale": config.guidance_scale,
            "num_inference_steps": len(config.times) - 1,
        }
        if config.sigmas:
            call["sigmas"] = list(config.sigmas)
        if config.size is not None:
            call["height"], call["width"] = config.size
        calls = _CallCounter(denoiser(pipe))
        meter = None
        with torch.no_grad(), calls, texts:
            if config.rule:
                with guided(pipe, parse(config.rule)) as record:
                    image = pipe(prompt, generator=generator, output_type="np", **call).images[0]
                if config.diagnostics and len(record):
                    meter = {name: value.numpy() for name, value in record.stacked().items()}
            else:
                image = pipe(prompt, generator=generator, output_type="np", **call).images[0]
        record_line = {"index": block, "seed": seed, "prompt": prompt, "evaluations": calls.count}
        picture = (np.asarray(image) * 255).round().clip(0, 255).astype(np.uint8)
        return MadeBlock(picture[None], [record_line], meter)

    return make


class _NoiseStream:
    """One generator for all prompts in order, wound forward to any of them."""

    def __init__(self, pipe: Pipeline, config: RunConfig) -> None:
        self.config, self.dtype = config, denoiser(pipe).dtype
        height, width = config.size or (pipe.default_sample_size * pipe.vae_scale_factor,) * 2
        channels = denoiser(pipe).config.in_channels
        self.shape = (1, channels, height // pipe.vae_scale_factor, width // pipe.vae_scale_factor)
        self.generator, self.next = torch.Generator().manual_seed(config.seed), 0

    def at(self, index: int) -> torch.Generator:
        """A generator that draws next what a run in order would have drawn for this index."""
        if index < self.next:
            self.generator, self.next = torch.Generator().manual_seed(self.config.seed), 0
        while self.next < index:
            torch.randn(self.shape, generator=self.generator, dtype=self.dtype)
            self.next += 1
        return _copy(self.generator)


class _CallCounter:
    """Counts the calls of a network while it is open."""

    def __init__(self, network: torch.nn.Module) -> None:
        self.network, self.count = network, 0

    def __enter__(self) -> _CallCounter:
        self.handle = self.network.register_forward_pre_hook(self._add)
        return self

    def __exit__(self, *_: object) -> None:
        self.handle.remove()

    def _add(self, *_: object) -> None:
        self.count += 1


def _copy(generator: torch.Generator) -> torch.Generator:
    copied = torch.Generator()
    copied.set_state(generator.get_state())
    return copied


def denoiser(pipe: Pipeline) -> Any:
    """The network that a pipeline calls at every step."""
    for name in ("transformer", "unet"):
        if getattr(pipe, name, None) is not None:
            return getattr(pipe, name)
    raise ValueError(f"{type(pipe).__name__} has neither a transformer nor a unet to guide")


_MOST = 8  # answers kept for each encoder; the empty prompt is asked for at every picture
_NAMES = ("text_encoder", "text_encoder_2", "text_encoder_3", "text_encoder_4")


class _TextCache:
    """Within this context the text encoders of a pipeline remember; what they remember stays for the next."""

    def __init__(self, pipe: Any) -> None:
        candidates = (getattr(pipe, name, None) for name in _NAMES)
        self.encoders = [encoder for encoder in candidates if isinstance(encoder, torch.nn.Module)]
        self.known: list[OrderedDict[object, Any]] = [OrderedDict() for _ in self.encoders]

    def __enter__(self) -> _TextCache:
        self.before = [encoder.__dict__.get("forward") for encoder in self.encoders]
        for encoder, known in zip(self.encoders, self.known, strict=True):
            encoder.forward = _cached_forward(encoder.forward, known)
        return self

    def __exit__(self, *_: object) -> None:
        for encoder, before in zip(self.encoders, self.before, strict=True):
            del encoder.forward
            if before is not None:  # not ours, such as an offloading hook
                encoder.forward = before


def _cached_forward(forward: Callable[..., Any], known: OrderedDict[object, Any]) -> Callable[..., Any]:
    def remembered(*args: Any, **options: Any) -> Any:
        key = _key((args, tuple(sorted(options.items()))))
        if key in known:
            known.move_to_end(key)
            return known[key]
        answer = known[key] = forward(*args, **options)
        if len(known) > _MOST:
            known.popitem(last=False)
        return answer

    return remembered


def _key(v: Any) -> object:
    """A hashable key that is equal for equal arguments; arguments of unknown types are never equal."""
    if isinstance(v, torch.Tensor):
        return v.dtype, v.device, tuple(v.shape), tuple(v.flatten().tolist())
    if isinstance(v, (tuple, list)):
        return tuple(map(_key, v))
    return repr(v) if v is None or isinstance(v, (bool, int, float, str, torch.dtype)) else object()
