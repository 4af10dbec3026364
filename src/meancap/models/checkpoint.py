"""Reading and writing SiT weights: released files, training checkpoints, and the ones this package writes.

    bare     tensors by their names, as in the released SiT-XL-2-256.pt
    nested   the same under "ema" (preferred) or "model", as training scripts save them
    ours     safetensors with the configuration and the pixel map in the header

A `.pt` file is read by `torch.load(weights_only=True)`, which runs no code from the file.
"""

from __future__ import annotations

import hashlib
import json
import pickle
import struct
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor

from ..extras import need
from ..files import writing
from .data import Pixels
from .sit import SiT, SiTConfig

# What torch.load raises on files that are cut off, of another format or hold more than tensors.
_UNREADABLE = (
    pickle.UnpicklingError, struct.error, RuntimeError, EOFError, ValueError, OSError, LookupError,
    AttributeError, TypeError,
)  # fmt: skip
_HEADS = {384: 6, 768: 12, 1024: 16, 1152: 16}  # width -> heads, in the published sizes


def read_tensors(path: str | Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The named tensors of a file, and the text that its header carries (safetensors only)."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no checkpoint at {path}")
    if path.suffix == ".safetensors":
        return _read_safetensors(path)
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except _UNREADABLE as error:
        reason = str(error).strip().splitlines()[0][:160] if str(error).strip() else type(error).__name__
        raise ValueError(f"{path} is no readable checkpoint of plain tensors ({reason})") from None
    return _bare(loaded, path), {}


def write_tensors(path: str | Path, tensors: Mapping[str, Tensor], header: Mapping[str, str]) -> Path:
    """A safetensors file that appears whole or not at all."""
    path = Path(path)
    plain = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    with writing(path) as temporary:
        need("safetensors.torch", "images").save_file(plain, str(temporary), metadata=dict(header))
        temporary.chmod(0o644)  # the library makes files that only their owner may read
    return path


def save_sit(
    path: str | Path, model: SiT, pixels: Pixels | None = None, *,
    names: tuple[str, ...] = (), dtype: torch.dtype | None = None, header: Mapping[str, str] | None = None,
) -> Path:  # fmt: skip
    """One file with everything that `load_sit` needs; `dtype` stores the weights in less space.

    `header` is text to keep beside it, such as how the weights were trained; `read_tensors` gives it back.
    """
    tensors = {name: value.to(dtype or value.dtype) for name, value in model.state_dict().items()}
    del tensors["pos_embed"]  # a fixed function of the shape
    header = dict(header or {})
    header |= {"config": json.dumps(asdict(model.config)), "names": json.dumps(list(names))}
    if pixels is not None:
        tensors["pixels.mean"] = pixels.mean
        header["pixels.std"] = repr(pixels.std)
    return write_tensors(path, tensors, header)


def load_sit(path: str | Path) -> tuple[SiT, Pixels | None, tuple[str, ...]]:
    """The model in float32, the pixel map of a model that makes pixels, and the class names if known."""
    tensors, header = read_tensors(path)
    config = SiTConfig(**json.loads(header["config"])) if "config" in header else config_of(tensors, path)
    pixels = None
    if "pixels.mean" in tensors:
        pixels = Pixels(tensors.pop("pixels.mean").float(), float(header["pixels.std"]))
    with torch.device("meta"):
        model = SiT(config)
    if "pos_embed" not in tensors:
        from .sit import position_embedding

        tensors["pos_embed"] = position_embedding(config.width, config.size // config.patch)[None]
    _need_same_names(tensors, model, path)
    model.load_state_dict({name: value.float() for name, value in tensors.items()}, assign=True)
    model.requires_grad_(False).eval()
    return model, pixels, tuple(json.loads(header.get("names", "[]")))


def config_of(tensors: Mapping[str, Tensor], path: str | Path = "the checkpoint") -> SiTConfig:
    """The configuration that a state dict of the published sizes shows by its shapes."""
    missing = [k for k in ("x_embedder.proj.weight", "pos_embed", "y_embedder.embedding_table.weight",
                           "final_layer.linear.weight") if k not in tensors]  # fmt: skip
    if missing:
        raise ValueError(f"{path} holds no SiT: it has no tensor named {missing[0]}")
    width, channels, patch, _ = tensors["x_embedder.proj.weight"].shape
    side = round(tensors["pos_embed"].shape[1] ** 0.5)
    if width not in _HEADS:
        raise ValueError(
            f"{path} has width {width}, which no published SiT has, and its shapes do not tell the number of "
            "heads; save it with meancap.models.save_sit, which records the configuration"
        )
    depth = 1 + max(int(name.split(".")[1]) for name in tensors if name.startswith("blocks."))
    outputs = tensors["final_layer.linear.weight"].shape[0] // patch**2
    classes = tensors["y_embedder.embedding_table.weight"].shape[0] - 1
    return SiTConfig(
        size=side * patch, channels=channels, patch=patch, width=width, depth=depth,
        heads=_HEADS[width], classes=classes, learn_sigma=outputs == 2 * channels,
    )  # fmt: skip


def digest(path: str | Path) -> str:
    """SHA-256 of a file, read in pieces."""
    sha = hashlib.sha256()
    with Path(path).open("rb") as file:
        while piece := file.read(1 << 22):
            sha.update(piece)
    return sha.hexdigest()


def _bare(loaded: object, path: Path) -> dict[str, Tensor]:
    for key in ("ema", "model", "state_dict"):
        if isinstance(loaded, dict) and isinstance(loaded.get(key), dict):
            loaded = loaded[key]
            break
    if not isinstance(loaded, dict) or not all(isinstance(v, Tensor) for v in loaded.values()) or not loaded:
        raise ValueError(f"{path} holds no named tensors, bare or under 'ema', 'model' or 'state_dict'")
    return {str(name).removeprefix("module."): value for name, value in loaded.items()}


def _need_same_names(tensors: Mapping[str, Tensor], model: SiT, path: str | Path) -> None:
    wanted = {name: value.shape for name, value in model.state_dict().items()}
    lost, extra = sorted(wanted.keys() - tensors.keys()), sorted(tensors.keys() - wanted.keys())
    if lost or extra:
        what = f"lacks {lost[0]}" if lost else f"has the unknown tensor {extra[0]}"
        raise ValueError(f"{path} does not fit the SiT that its shapes show: it {what}")
    for name, shape in wanted.items():
        if tensors[name].shape != shape:
            raise ValueError(
                f"{path}: {name} has shape {tuple(tensors[name].shape)}; this SiT needs {tuple(shape)}"
            )


def _read_safetensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    library = need("safetensors.torch", "images")
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), framework="pt") as file:
            header = file.metadata() or {}
        return _bare(library.load_file(str(path)), path), header
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path} is no readable safetensors file ({error})") from None
