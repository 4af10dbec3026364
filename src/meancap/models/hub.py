"""Weights that lie in a folder or in the local Hugging Face cache; nothing is ever downloaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from ..extras import need


def local_folder(source: str | Path) -> Path:
    """The folder itself, or the cached snapshot of a repository's name."""
    if Path(source).is_dir():
        return Path(source)
    hub = need("huggingface_hub", "diffusers")
    try:
        return Path(hub.snapshot_download(str(source), local_files_only=True))
    except (hub.errors.HFValidationError, hub.errors.LocalEntryNotFoundError):
        raise ValueError(
            f"{source} is neither a folder nor in the local Hugging Face cache; nothing is downloaded here: "
            f"fetch it first with `hf download {source}`, or give a folder"
        ) from None


def loaded(kind: Any, source: str | Path, dtype: torch.dtype) -> Any:
    """`kind.from_pretrained` of a local folder, with one sentence where it cannot be read."""
    import diffusers

    version = tuple(int(part) for part in diffusers.__version__.split(".")[:2])
    word = "dtype" if version >= (0, 42) else "torch_dtype"
    folder = local_folder(source)
    try:
        return kind.from_pretrained(str(folder), local_files_only=True, **{word: dtype})
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ValueError(f"{folder} holds no readable {kind.__name__} ({reason})") from None
