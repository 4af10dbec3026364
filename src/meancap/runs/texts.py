"""Text encoders with a cache, so that a run encodes the empty prompt once.

A text is known by the tokens that an encoder is given, so any pipeline's way of asking for embeddings works,
and what comes back is what the encoder said, bit for bit.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch

_MOST = 8  # answers kept for each encoder; the empty prompt is asked for at every picture
_NAMES = ("text_encoder", "text_encoder_2", "text_encoder_3", "text_encoder_4")


class RememberedTexts:
    """Within this context the text encoders of a pipeline remember; what they remember stays for the next."""

    def __init__(self, pipe: Any) -> None:
        candidates = (getattr(pipe, name, None) for name in _NAMES)
        self.encoders = [encoder for encoder in candidates if isinstance(encoder, torch.nn.Module)]
        self.known: list[OrderedDict[object, Any]] = [OrderedDict() for _ in self.encoders]

    def __enter__(self) -> RememberedTexts:
        self.before = [encoder.__dict__.get("forward") for encoder in self.encoders]
        for encoder, known in zip(self.encoders, self.known, strict=True):
            encoder.forward = _remembering(encoder.forward, known)
        return self

    def __exit__(self, *_: object) -> None:
        for encoder, before in zip(self.encoders, self.before, strict=True):
            del encoder.forward
            if before is not None:  # not ours, such as an offloading hook
                encoder.forward = before


def _remembering(forward: Callable[..., Any], known: OrderedDict[object, Any]) -> Callable[..., Any]:
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
