"""A labelled image model, ready to be guided: network, labels and the way from its data to pictures.

data      what the network moves: centred pixels, or the latents of an autoencoder
pictures  (count, channels, height, width) uint8
predict   (x, t) -> Prediction, for one class per sample; two networks' answers for each evaluation
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from meancap.files import sha256_of

from ..extras import need
from .checkpoint import load_pretrained, load_sit
from .data import FASHION
from .picture_net import PictureNet, load_class_net
from .sit import FlowModel, NetworkPredictor, SiT

_Decode = Callable[[Tensor], Tensor]

_WEIGHTS = Path(__file__).parent / "weights"
SHIPPED = _WEIGHTS / "fashion.safetensors"


@dataclass(frozen=True, eq=False)
class ClassModel(FlowModel):
    """A class-conditional flow model. `channels` guides only that many leading channels; None guides all."""

    network: SiT | PictureNet
    decode: _Decode
    names: tuple[str, ...] = ()
    channels: int | None = None

    def __post_init__(self) -> None:
        if self.channels is not None and not 1 <= self.channels <= self.network.config.channels:
            raise ValueError(
                f"{self.name} has {self.network.config.channels} channels; guide 1 to that many, "
                f"or None for all; got {self.channels}"
            )

    @property
    def classes(self) -> int:
        return self.network.classes

    def label(self, text: str) -> int:
        """The class that a number or a name stands for."""
        lowered = [name.lower() for name in self.names]
        if text.strip().lower() in lowered:
            return lowered.index(text.strip().lower())
        try:
            index = int(text)
        except ValueError:
            known = f"one of {', '.join(self.names)}" if self.names else "a number"
            raise ValueError(f"{self.name} has no class {text!r}; give {known}") from None
        if not 0 <= index < self.classes:
            raise ValueError(f"{self.name} has classes 0 to {self.classes - 1}; got {index}")
        return index

    def predict(self, labels: Sequence[int] | Tensor, *, negative: int | None = None) -> NetworkPredictor:
        """The predictor for one label per sample.

        `negative` is a class to avoid: the reference of guidance, or beside it for rules that look at both.
        """
        y = torch.as_tensor(labels, dtype=torch.long, device=self.device)
        if y.dim() != 1 or bool(((y < 0) | (y >= self.classes)).any()):
            raise ValueError(f"{self.name} needs labels from 0 to {self.classes - 1}; got {y.tolist()}")
        avoided = None if negative is None else torch.full_like(y, self.label(str(negative)))
        return NetworkPredictor(self.network, y, self.classes, avoided, self.channels)


def fashion(path: str | Path | None = None) -> ClassModel:
    """The small Fashion-MNIST model that comes with the package (see its model card)."""
    return open_sit(SHIPPED if path is None else path, name="fashion")


def cifar(path: str | Path | None = None) -> ClassModel:
    """The model of natural pictures, 32 x 32, that comes with the package (see its model card)."""
    path = _WEIGHTS / "cifar.safetensors" if path is None else Path(path)
    network, pixels, names = load_class_net(path)
    return ClassModel("cifar", sha256_of(path), network, pixels.pictures, names)


def open_sit(path: str | Path, *, name: str = "", decode: _Decode | None = None) -> ClassModel:
    """A SiT from a file; a latent model needs `decode`, a pixel model brings its own."""
    path = Path(path)
    network, pixels, names = load_sit(path)
    if decode is not None and pixels is not None:
        raise ValueError(f"{path.name} makes pixels, which need no autoencoder; leave --vae out")
    if pixels is not None:
        decode = pixels.pictures
    if decode is None:
        raise ValueError(
            f"{path.name} makes latents of {network.config.channels} channels; name the autoencoder that "
            "turns them into pictures (--vae, for example stabilityai/sd-vae-ft-mse)"
        )
    if not names and name == "fashion":
        names = FASHION
    return ClassModel(name or f"sit:{path.name}", sha256_of(path), network, decode, names)


def decoder(source: str | Path, *, device: torch.device | str = "cpu") -> _Decode:
    """From latents to pictures through diffusers' AutoencoderKL in float32, four at a time.

    `source` is a folder or a name in the local Hugging Face cache. latents = factor * encode(pictures), with
    0.18215 in Stable Diffusion's first autoencoders, which SiT uses.
    """
    vae = load_pretrained(need("diffusers", "diffusers").AutoencoderKL, source, torch.float32)
    vae = vae.to(device).eval().requires_grad_(False)
    factor = float(vae.config.scaling_factor)

    @torch.no_grad()
    def decode(latents: Tensor) -> Tensor:
        z = latents.to(device, torch.float32) / factor
        return torch.cat([_to_bytes(vae.decode(part).sample) for part in torch.split(z, 4)])

    return decode


def _to_bytes(pictures: Tensor) -> Tensor:
    """[-1, 1] to uint8 as the SiT and ADM samplers do: 127.5 v + 128, cut off, not rounded."""
    return (127.5 * pictures.float() + 128).clamp(0, 255).to(torch.uint8)
