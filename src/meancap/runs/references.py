"""The real images that a protocol measures against.

    fashion-mnist[:test|:train]   the data set, found by $MEANCAP_FASHION_MNIST or where Debian installs it
    *.npz                         for adm-imagenet256 its statistics and arr_0; else the images in arr_0
    a folder                      of pictures, or another run

Features of reference images are kept in the user's cache folder.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from ..metrics.extractors import Extractor
from ..metrics.extractors.fashion import WEIGHTS
from ..metrics.gaussian import Gaussian
from ..metrics.images import Images, PicturesInMemory, Unreadable
from ..metrics.protocols import Protocol, Reference, adm_reference
from ..models.data import fashion
from .features import FeatureCache, cache_root
from .scoring import ScoreProgress, open_target

FASHION_VARIABLE = "MEANCAP_FASHION_MNIST"
FASHION_DEBIAN = "/usr/share/datasets/fashion-mnist"


@dataclass
class ReferenceSearch:
    """Iterate over it to get a reference ready; `reference` stays None where the protocol needs none."""

    protocol: Protocol
    extractor: Extractor
    source: str | None
    reference: Reference | None = field(default=None, init=False)

    def __iter__(self) -> Iterator[ScoreProgress]:
        if not self.protocol.reference:
            if self.source is not None:
                raise ValueError(f"{self.protocol.name} measures against nothing; leave --reference out")
            return
        if self.source is None:
            if self.protocol.name == "fashion":
                self.reference = shipped_fashion()
                return
            raise ValueError(f"{self.protocol.name} needs --reference: {self.protocol.reference}")
        images = reference_images(self.source)
        kept = FeatureCache.of(cache_root() / "features", self.protocol.name, self.extractor, images)
        for done in kept.fill(images, self.extractor):
            yield ScoreProgress("reference", done, len(images))
        features = kept.load()
        if self.protocol.name == "adm-imagenet256" and self.source.endswith(".npz"):
            self.reference = adm_reference(Path(self.source), features, images.identity())
        else:
            name = f"{images.name} ({len(images):,} images)"
            identity = (
                "" if isinstance(images, PicturesInMemory) else images.identity()
            )  # a data set's name says it all
            self.reference = Reference(name, features, identity=identity)


def reference_images(source: str) -> Images:
    """The images a name or a path stands for."""
    name, _, part = source.partition(":")
    if name == "fashion-mnist" and part in ("", "test", "train"):
        pictures = fashion(fashion_folder(), train=part == "train")
        images = pictures.images.permute(0, 2, 3, 1).contiguous()
        return PicturesInMemory(images, f"Fashion-MNIST {part or 'test'}")
    if not Path(source).exists():
        raise Unreadable(
            f"there is no {source}; a reference is a folder of pictures, an .npz, or fashion-mnist"
        )
    return open_target(source).images


def fashion_folder() -> Path:
    """Where the Fashion-MNIST files are looked for."""
    return Path(os.environ.get(FASHION_VARIABLE) or FASHION_DEBIAN)


@cache
def shipped_fashion() -> Reference:
    """Features of the 10,000 held-out test images, which the classifier never saw, in half precision."""
    from safetensors.torch import load_file

    tensors = load_file(WEIGHTS / "fashion_reference.safetensors")
    pool = tensors["pool"].float()
    spatial = Gaussian(tensors["spatial_mean"], tensors["spatial_covariance"], len(pool))
    name = f"Fashion-MNIST test ({len(pool):,} images, shipped features)"
    return Reference(name, {"pool": pool}, {"spatial": spatial})
