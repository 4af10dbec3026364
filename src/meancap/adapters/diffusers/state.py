"""Whether the state that a pipeline steps is the one that its denoiser was shown.

    shown    the denoiser's first input: the state, perhaps repeated for both predictions, in another dtype,
             scaled by the scheduler, or with a picture, a mask or reference tokens put beside it
    stepped  the state that `scheduler.step` receives

A posterior mean belongs to the state that the network saw. Wan 2.2 image-to-video (expand_timesteps) shows a
clean first frame and steps a noisy one: there m = x - sigma v is not a posterior mean of the model.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import torch
from torch import Tensor

from .layouts import tensor

# What may differ of |shown|: rounding, well below a frame or a mask that was put in place.
_FULL, _HALF = 1e-3, 2e-2
_NAMES = ("hidden_states", "x", "sample", "latent_model_input")


def shown_state(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """What a denoiser was given as its state; None where that is no tensor and no list of like tensors."""
    given = next((kwargs[name] for name in _NAMES if name in kwargs), args[0] if args else None)
    if isinstance(given, list):  # Z-Image Omni: pictures to look at, and then the state, for each sample
        given = [one[-1] if isinstance(one, list) else one for one in given]
    if isinstance(given, (tuple, list)) and len({getattr(one, "shape", None) for one in given}) > 1:
        return None
    return tensor(given) if isinstance(given, (Tensor, tuple, list)) else None


def same_state(shown: Tensor | None, stepped: Tensor) -> bool | None:
    """Whether `stepped` is in what was shown, up to a factor per sample; None if the shapes do not tell."""
    if shown is None or shown.dim() != stepped.dim() or shown.shape[0] % stepped.shape[0]:
        return None
    if any(a < b for a, b in zip(shown.shape, stepped.shape, strict=True)):
        return None
    bits = min(torch.finfo(v.dtype).bits for v in (shown, stepped))
    rows = shown[: stepped.shape[0]].detach().cpu().double()
    x = stepped.detach().cpu().double().flatten(1)
    distance = min(_apart(rows[place].flatten(1), x) for place in _places(shown, stepped))
    return distance <= (_HALF if bits < 32 else _FULL)


def _places(shown: Tensor, stepped: Tensor) -> list[tuple[slice, ...]]:
    """The first and the last part of every axis that is longer in what was shown."""
    choices = [[slice(None)]]
    for longer, size in zip(shown.shape[1:], stepped.shape[1:], strict=True):
        choices.append([slice(None)] if longer == size else [slice(0, size), slice(longer - size, None)])
    return list(product(*choices))


def _apart(shown: Tensor, x: Tensor) -> float:
    """|shown - f x| / |shown| with the best factor f, the worst of the samples."""
    square = (x * x).sum(1, keepdim=True)
    factor = (shown * x).sum(1, keepdim=True) / torch.where(square == 0, torch.ones_like(square), square)
    whole = torch.linalg.vector_norm(shown, dim=1)
    left = torch.linalg.vector_norm(shown - factor * x, dim=1)
    return float((left / torch.where(whole == 0, torch.ones_like(whole), whole)).max())
