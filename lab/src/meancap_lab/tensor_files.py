"""Files of named tensors: safetensors, or `.pt` by `torch.load(weights_only=True)`, which runs no code.

Beside tensors a `.pt` may hold an `argparse.Namespace`, where SiT's train.py keeps its options, and no other
type.

Folders of published models are local, or in the local Hugging Face cache: nothing is downloaded.
"""

from __future__ import annotations

import pickle
import struct
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from meancap.files import writing

from .extras import need

# What torch.load raises on files that are cut off, of another format or hold more than tensors.
_UNREADABLE = (
    pickle.UnpicklingError, struct.error, RuntimeError, EOFError, ValueError, OSError, LookupError,
    AttributeError, TypeError,
)  # fmt: skip


def read_tensors(path: str | Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The named tensors of a file, and the text that its header carries (safetensors only)."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no file of weights at {path}")
    if path.suffix == ".safetensors":
        return _read_safetensors(path)
    try:
        with torch.serialization.safe_globals([Namespace]):
            loaded = torch.load(path, map_location="cpu", weights_only=True)
    except _UNREADABLE as error:
        reason = str(error).strip().splitlines()[0][:160] if str(error).strip() else type(error).__name__
        raise ValueError(f"{path} is no readable file of plain tensors ({reason})") from None
    for key in ("ema", "model", "state_dict"):  # as training scripts save them
        if isinstance(loaded, dict) and isinstance(loaded.get(key), dict):
            loaded = loaded[key]
            break
    if not isinstance(loaded, dict) or not all(isinstance(v, Tensor) for v in loaded.values()) or not loaded:
        raise ValueError(f"{path} holds no named tensors, bare or under 'ema', 'model' or 'state_dict'")
    return {str(name).removeprefix("module."): value for name, value in loaded.items()}, {}


def write_tensors(path: str | Path, tensors: Mapping[str, Tensor], header: Mapping[str, str]) -> Path:
    """Writes a safetensors file that appears whole or not at all."""
    path = Path(path)
    plain = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    with writing(path) as temporary:
        need("safetensors.torch", "images").save_file(plain, str(temporary), metadata=dict(header))
        temporary.chmod(0o644)  # the library makes files that only their owner may read
    return path


def _read_safetensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    library = need("safetensors", "images")
    try:
        with library.safe_open(str(path), framework="pt") as file:
            names = list(file.keys())
            return {name: file.get_tensor(name) for name in names}, file.metadata() or {}
    except (library.SafetensorError, OSError) as error:
        raise ValueError(f"{path} is no readable safetensors file ({error})") from None


def local_folder(source: str | Path) -> Path:
    """The folder itself, or the cached snapshot of a repository's name."""
    if Path(source).is_dir():
        return Path(source)
    hub = need("huggingface_hub", "diffusers")
    try:
        return Path(hub.snapshot_download(str(source), local_files_only=True))
    except (hub.errors.HFValidationError, hub.errors.LocalEntryNotFoundError):
        raise ValueError(
            f"{source} is neither a folder nor in the local Hugging Face cache; meancap downloads nothing: "
            f"fetch it first with `hf download {source}`, or give a folder"
        ) from None
