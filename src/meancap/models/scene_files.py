"""Reading and writing the network of the scenes: safetensors with the configuration in the header."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import torch

from .checkpoint import read_tensors, write_tensors
from .data import Pixels
from .scene_net import SceneNet, SceneNetConfig
from .sit import position_embedding


def save_scene_net(
    path: str | Path, model: SceneNet, pixels: Pixels, *, dtype: torch.dtype | None = None
) -> Path:
    """One file with everything that `load_scene_net` needs; `dtype` stores the weights in less space."""
    tensors = {name: value.to(dtype or value.dtype) for name, value in model.state_dict().items()}
    del tensors["pos_embed"]  # a fixed function of the shape
    tensors["pixels.mean"] = pixels.mean
    header = {"scene_net": json.dumps(asdict(model.config)), "pixels.std": repr(pixels.std)}
    return write_tensors(path, tensors, header)


def load_scene_net(path: str | Path) -> tuple[SceneNet, Pixels]:
    """The network in float32, and its way to pictures."""
    tensors, header = read_tensors(path)
    if "scene_net" not in header or "pixels.mean" not in tensors:
        raise ValueError(
            f"{path} holds no network of the scenes; python -m studies.training scenes makes one"
        )
    config = SceneNetConfig(**json.loads(header["scene_net"]))
    pixels = Pixels(tensors.pop("pixels.mean").float(), float(header["pixels.std"]))
    with torch.device("meta"):
        model = SceneNet(config)
    tensors["pos_embed"] = position_embedding(config.width, config.size // 4)[None]
    wanted = model.state_dict()
    bad = sorted(wanted.keys() ^ tensors.keys()) or [
        k for k, v in wanted.items() if v.shape != tensors[k].shape
    ]
    if bad:
        raise ValueError(f"{path} does not fit the configuration in its header: {bad[0]} differs")
    model.load_state_dict({name: value.float() for name, value in tensors.items()}, assign=True)
    return model.to(memory_format=torch.channels_last).requires_grad_(False).eval(), pixels  # type: ignore[call-overload]
