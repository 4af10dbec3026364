"""From latents to pictures, through diffusers' AutoencoderKL.

latents = 0.18215 * encode(pictures), the factor of Stable Diffusion's first autoencoders, which SiT uses.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from ..extras import need
from .hub import loaded


def decoder(
    source: str | Path,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    chunk: int = 4,
) -> Callable[[Tensor], Tensor]:
    """Decodes `chunk` latents at a time; `source` is a folder or a name in the local Hugging Face cache."""
    vae = loaded(need("diffusers", "diffusers").AutoencoderKL, source, dtype)
    vae = vae.to(device).eval().requires_grad_(False)
    factor = float(vae.config.scaling_factor)

    @torch.no_grad()
    def decode(latents: Tensor) -> Tensor:
        z = latents.to(device, dtype) / factor
        parts = [z[i : i + chunk] for i in range(0, len(z), chunk)]
        return torch.cat([to_bytes(vae.decode(part).sample) for part in parts])

    return decode


def to_bytes(pictures: Tensor) -> Tensor:
    """[-1, 1] to uint8 as the SiT and ADM samplers do: 127.5 v + 128, cut off, not rounded."""
    return (127.5 * pictures.float() + 128).clamp(0, 255).to(torch.uint8)
