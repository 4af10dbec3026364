"""The FID Inception behind three resizers, hence three extractors that must not be mixed.

adm          TF1 bilinear to 299, as in the graph that ADM's evaluator runs
clean        Clean-FID: Pillow bicubic in floats
direct       the paper's SD3.5 protocol: 8-bit resize straight to 299 x 299
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from ..locate import INCEPTION, fingerprint
from ..resize import clean_bicubic, direct_8bit, tf1_bilinear, three_channels
from .base import Extractor, Features, filled, load_state
from .inception_net import Inception

SIZE = 299
RESIZERS = {
    "adm": (tf1_bilinear, "TF1 bilinear to 299"),
    "clean": (clean_bicubic, "Clean-FID bicubic to 299"),
    "direct": (direct_8bit, "8-bit bilinear to 299"),
}


def inception(kind: str, weights: str | Path | None = None) -> Extractor:
    """The network with the published weights found by `locate`; `kind` is adm, clean or direct."""
    resize, description = RESIZERS[kind]
    path = INCEPTION.find(weights)
    network = load_inception(path)
    mark = fingerprint(path)
    known = "" if mark.startswith(INCEPTION.sha256) else "; NOT the published file"

    def run(images: Tensor, prompts: Sequence[str]) -> Features:
        features: Features = network((resize(three_channels(images), SIZE) - 128) / 128)
        return features

    return Extractor(f"Inception 2015-12-05 (sha256 {mark}{known}), {description}", run, batch=16)


def load_inception(path: Path) -> Inception:
    """The network with the tensors of a file."""
    return filled(Inception(), load_state(path), path, "the FID Inception network")
