"""Modular pipelines round the tiny models: only their denoising blocks, fed with random embeddings."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import diffusers
import torch
from tiny_pipelines import CASES, draw, pipeline

SIZES = ("height", "width", "num_frames")
# Blocks, the classic pipeline whose tiny model they share, and the channels that the blocks take for granted.
MODULAR: dict[str, tuple[str, dict[str, int]]] = {
    "StableDiffusion3AutoBlocks": ("StableDiffusion3Pipeline", {}),
    "WanBlocks": ("WanPipeline", {"in_channels": 16, "out_channels": 16}),
    "ZImageAutoBlocks": ("ZImagePipeline", {}),
    "LTXAutoBlocks": ("LTXPipeline", {}),
    "QwenImageAutoBlocks": ("QwenImagePipeline", {}),
    "Flux2KleinBaseAutoBlocks": ("Flux2KleinPipeline", {}),
    "HunyuanVideo15AutoBlocks": ("HunyuanVideo15Pipeline", {"in_channels": 65, "out_channels": 32}),
    "Krea2AutoBlocks": ("Krea2Pipeline", {}),
    "ErnieImageAutoBlocks": ("ErnieImagePipeline", {}),
}


def modular(name: str, dtype: torch.dtype = torch.float32, first: tuple[str, Any] | None = None) -> Any:
    """The denoising blocks as a pipeline, with a block of one's own before them."""
    classic, channels = MODULAR[name]
    blocks = getattr(diffusers, name)()
    for block in [b for b in blocks.sub_blocks if b != "denoise"]:
        blocks.sub_blocks.pop(block)
    if first is not None:
        blocks.sub_blocks.insert(*first, 0)
    pipe = blocks.init_pipeline()
    case = CASES[classic]
    CASES[classic] = replace(case, config=case.config | channels)
    try:
        parts = pipeline(classic, dtype).components
    finally:
        CASES[classic] = case
    wanted = {spec.name for spec in blocks.expected_components}
    pipe.update_components(
        **{k: v for k, v in parts.items() if k in wanted and k != "guider" and v is not None}
    )
    return pipe


def run(name: str, pipe: Any, guider: Any, **changes: Any) -> torch.Tensor:
    case = CASES[MODULAR[name][0]]
    if guider is not None:
        pipe.update_components(guider=guider)
    drawn = torch.Generator().manual_seed(1000)
    inputs = {k: draw(v, drawn, pipe.transformer.dtype) for k, v in case.inputs.items()}
    sizes = {k: v for k, v in case.call.items() if k in SIZES}
    with torch.no_grad():
        return pipe(
            **(inputs | sizes | {"num_inference_steps": 3} | changes),
            generator=torch.Generator().manual_seed(0),
            output="latents",
        )
