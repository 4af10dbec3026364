"""Reading and writing weights: released files, training checkpoints, and the ones this package writes.

    bare     tensors by their names, as in the released SiT-XL-2-256.pt
    nested   the same under "ema" (preferred) or "model", as training scripts save them
    ours     safetensors with the configuration and the pixel map in the header

Models of diffusers lie in a folder or in the local Hugging Face cache; nothing is ever downloaded.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..tensor_files import local_folder, read_tensors, write_tensors
from .data import Pixels
from .sit import SiT, SiTConfig, position_embedding

_HEADS = {384: 6, 768: 12, 1024: 16, 1152: 16}  # width -> heads, in the published sizes


def save_sit(
    path: str | Path, model: SiT, pixels: Pixels | None = None, *,
    names: tuple[str, ...] = (), dtype: torch.dtype | None = None, header: Mapping[str, str] | None = None,
) -> Path:  # fmt: skip
    """One file with everything that `load_sit` needs; `dtype` stores the weights in less space.

    `header` is text to keep beside it, such as how the weights were trained; `read_tensors` gives it back.
    """
    more = {"config": json.dumps(asdict(model.config)), "names": json.dumps(list(names))}
    return save_network(path, model, pixels, {**(header or {}), **more}, dtype)


def save_network(
    path: str | Path,
    model: nn.Module,
    pixels: Pixels | None,
    header: dict[str, str],
    dtype: torch.dtype | None,
) -> Path:
    """The weights of a network and its pixel map, with a header."""
    tensors = {name: value.to(dtype or value.dtype) for name, value in model.state_dict().items()}
    del tensors["pos_embed"]  # a fixed function of the shape
    if pixels is not None:
        tensors["pixels.mean"] = pixels.mean
        header = {**header, "pixels.std": repr(pixels.std)}
    return write_tensors(path, tensors, header)


def load_sit(path: str | Path) -> tuple[SiT, Pixels | None, tuple[str, ...]]:
    """The model in float32, the pixel map of a model that makes pixels, and the class names if known."""
    tensors, header = read_tensors(path)
    config = SiTConfig(**json.loads(header["config"])) if "config" in header else _config_of(tensors, path)
    pixels = pop_pixels(tensors, header, config, path) if "pixels.mean" in tensors else None
    with torch.device("meta"):
        model = SiT(config)
    if "pos_embed" not in tensors:
        tensors["pos_embed"] = position_embedding(config.width, config.size // config.patch)[None]
    load_weights(model, tensors, path)
    return model, pixels, tuple(json.loads(header.get("names", "[]")))


def _config_of(tensors: Mapping[str, Tensor], path: str | Path = "the checkpoint") -> SiTConfig:
    """The configuration that a state dict of the published sizes shows by its shapes."""
    missing = [k for k in ("x_embedder.proj.weight", "pos_embed", "y_embedder.embedding_table.weight",
                           "final_layer.linear.weight") if k not in tensors]  # fmt: skip
    if missing:
        raise ValueError(f"{path} is not a SiT checkpoint: it has no tensor named {missing[0]}")
    width, channels, patch, _ = tensors["x_embedder.proj.weight"].shape
    side = round(tensors["pos_embed"].shape[1] ** 0.5)
    if width not in _HEADS:
        raise ValueError(
            f"{path} has width {width}, which no published SiT has, so its number of heads is unknown; "
            "save it with meancap_lab.models.save_sit, which records the configuration"
        )
    depth = 1 + max(int(name.split(".")[1]) for name in tensors if name.startswith("blocks."))
    outputs = tensors["final_layer.linear.weight"].shape[0] // patch**2
    classes = tensors["y_embedder.embedding_table.weight"].shape[0] - 1
    return SiTConfig(
        size=side * patch, channels=channels, patch=patch, width=width, depth=depth,
        heads=_HEADS[width], classes=classes, learn_sigma=outputs == 2 * channels,
    )  # fmt: skip


def load_weights(model: nn.Module, tensors: Mapping[str, Tensor], path: str | Path) -> None:
    """Fills a network on the meta device in float32, for inference; raises an error for other tensors."""
    wanted = {name: value.shape for name, value in model.state_dict().items()}
    lost, extra = sorted(wanted.keys() - tensors.keys()), sorted(tensors.keys() - wanted.keys())
    if lost or extra:
        what = f"lacks {lost[0]}" if lost else f"has the unknown tensor {extra[0]}"
        raise ValueError(f"{path} does not fit the {type(model).__name__} that it describes: it {what}")
    for name, shape in wanted.items():
        if tensors[name].shape != shape:
            raise ValueError(
                f"{path}: {name} has shape {tuple(tensors[name].shape)}; this network needs {tuple(shape)}"
            )
    model.load_state_dict({name: value.float() for name, value in tensors.items()}, assign=True)
    model.requires_grad_(False).eval()


def pop_pixels(
    tensors: dict[str, Tensor], header: Mapping[str, str], config: Any, path: str | Path
) -> Pixels:
    """The pixel map of a network with this configuration, taken out of its file's tensors."""
    mean, shape = tensors.pop("pixels.mean").float(), (config.channels, config.size, config.size)
    if mean.dim() != 3 or any(n not in (1, most) for n, most in zip(mean.shape, shape, strict=True)):
        raise ValueError(f"{path}: pixels.mean has shape {tuple(mean.shape)}; this network needs {shape}")
    return Pixels(mean, float(header["pixels.std"]))


def load_pretrained(kind: Any, source: str | Path, dtype: torch.dtype) -> Any:
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
