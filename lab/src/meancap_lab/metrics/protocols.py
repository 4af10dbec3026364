"""Named protocols: which network, which resize, which reference, which numbers.

A Frechet distance is not a number without these four, so every score carries them. The paper's two image
tables use five of them; `efficientnet-lite0` and `fashion` run anywhere and have names of their own for
their distances (FD, KD), because they compare with nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path

import torch
from torch import Tensor

from meancap.files import sha256_of

from ..tensor_files import read_tensors
from .classifiers import WEIGHTS, efficientnet_lite0, fashion_classifier
from .distances import Gaussian, frechet_estimate, gaussian, kernel_estimate
from .extractor import Extractor, Features
from .images import npz_array
from .manifold import ball_radii, insiders, manifold_estimates, recall_estimate
from .per_image import (
    brightness,
    class_hits,
    class_probability,
    clipped,
    cosine,
    diversity_estimate,
    inception_score_estimate,
    saturation,
)
from .score import Estimate, mean_estimate


@dataclass(frozen=True, eq=False)
class Reference:
    """The real images of a protocol: their features, or statistics taken by someone else, or both.

    `identity` changes with the files, where the name alone does not tell which images they are.
    """

    name: str
    features: Features = field(default_factory=dict)
    gaussians: dict[str, Gaussian] = field(default_factory=dict)
    radii: dict[int, Tensor] = field(default_factory=dict)
    identity: str = ""

    def gaussian(self, name: str) -> Gaussian:
        if name not in self.gaussians:
            self.gaussians[name] = gaussian(self.features[name])
        return self.gaussians[name]

    def balls(self) -> dict[int, Tensor]:
        """The radii of the real images' balls; taken once, however many runs are scored."""
        if not self.radii:
            self.radii.update(ball_radii(self.features["pool"]))
        return self.radii


@dataclass(frozen=True, eq=False)
class Generated:
    """The images to score: features by name, and the requested class of each (None for prompts)."""

    features: Features
    labels: Tensor | None = None


_Load = Callable[[str | Path | None], Extractor]


@dataclass(frozen=True)
class Protocol:
    """A way to get from images to numbers.

    `numbers` has the direction of each: -1 where less is better, +1 where more is, 0 for diagnostics.
    `reference` names the real images that it needs, "" if none.
    """

    name: str
    about: str
    numbers: Mapping[str, int]
    reference: str
    load: _Load
    measure: Callable[[Generated, Reference | None], list[Estimate]]


def direction(number: str) -> int:
    """-1 if less of this number is better, +1 if more is, 0 for diagnostics."""
    for p in PROTOCOLS.values():
        if number in p.numbers:
            return p.numbers[number]
    known = ", ".join(dict.fromkeys(name for p in PROTOCOLS.values() for name in p.numbers))
    raise ValueError(f"unknown metric {number!r}; known metrics: {known}")


def _later(module: str, function: str, *given: str) -> _Load:
    """Loads a network by a function of a module that is imported only then."""

    def load(weights: str | Path | None) -> Extractor:
        extractor: Extractor = getattr(import_module(f".{module}", __package__), function)(*given, weights)
        return extractor

    return load


def _adm(g: Generated, r: Reference | None) -> list[Estimate]:
    assert r is not None
    pool = g.features["pool"]
    estimates = [
        frechet_estimate("FID", pool, r.gaussian("pool")),
        frechet_estimate("sFID", g.features["spatial"], r.gaussian("spatial")),
    ]
    if "logits" in g.features:  # a converted network has no last layer
        estimates.append(inception_score_estimate("IS", g.features["logits"]))
    if "pool" not in r.features:  # statistics alone have no images to measure coverage of
        return estimates
    real = r.features["pool"]
    precision = mean_estimate("precision", insiders(pool, real))
    return [*estimates, precision, recall_estimate(real, pool)]


def _cifar(g: Generated, r: Reference | None) -> list[Estimate]:
    assert r is not None
    pool, real = g.features["pool"], r.features["pool"]
    estimates = [
        frechet_estimate("FID", pool, r.gaussian("pool")),
        frechet_estimate("sFID", g.features["spatial"], r.gaussian("spatial")),
        kernel_estimate("KID", real, pool),
        mean_estimate("precision", insiders(pool, real)),
        recall_estimate(real, pool),
    ]
    if g.labels is not None:
        logits = g.features["logits"]
        estimates.append(mean_estimate("alignment", class_probability(logits, g.labels)))
        estimates.append(mean_estimate("accuracy", class_hits(logits, g.labels)))
    return [*estimates, *_diversity(g), *(mean_estimate(n, g.features[n]) for n in _COLOURS)]


def _coco_fid(g: Generated, r: Reference | None) -> list[Estimate]:
    assert r is not None
    return [frechet_estimate("FID", g.features["pool"], r.gaussian("pool"))]


def _coco_recall(g: Generated, r: Reference | None) -> list[Estimate]:
    assert r is not None
    return [recall_estimate(r.features["pool"], g.features["pool"], name="Recall@3")]


def _clip(g: Generated, r: Reference | None) -> list[Estimate]:
    return [mean_estimate("CLIP", cosine(g.features["image"], g.features["text"]))]


def _means(g: Generated, r: Reference | None) -> list[Estimate]:
    return [mean_estimate(name, value) for name, value in g.features.items()]


def _efficientnet(g: Generated, r: Reference | None) -> list[Estimate]:
    assert r is not None
    pool, real = g.features["pool"], r.features["pool"]
    estimates = [
        frechet_estimate("FD-EffLite0", pool, r.gaussian("pool")),
        kernel_estimate("KD-EffLite0", real, pool),
        *manifold_estimates(real, pool, r.balls()),
    ]
    return [*estimates, *_diversity(g)]


def _fashion(g: Generated, r: Reference | None) -> list[Estimate]:
    assert r is not None
    pool, logits = g.features["pool"], g.features["logits"]
    estimates = [
        frechet_estimate("FD-fashion", pool, r.gaussian("pool")),
        frechet_estimate("sFD-fashion", g.features["spatial"], r.gaussian("spatial")),
        inception_score_estimate("IS", logits),
        *manifold_estimates(r.features["pool"], pool, r.balls()),
    ]
    if g.labels is not None:
        estimates.append(mean_estimate("alignment", class_probability(logits, g.labels)))
        estimates.append(mean_estimate("accuracy", class_hits(logits, g.labels)))
    return [*estimates, *_diversity(g), *(mean_estimate(n, g.features[n]) for n in _LIGHT)]


def _diversity(g: Generated) -> list[Estimate]:
    if g.labels is None or int(g.labels.bincount()[g.labels].min()) < 2:
        return []
    return [diversity_estimate("diversity", g.features["pool"], g.labels)]


def _colours_of(images: Tensor) -> Features:
    measured = {"saturation": saturation, "brightness": brightness, "clipped": clipped}
    return {name: measure(images)[:, None] for name, measure in measured.items()}


def _colours(weights: str | Path | None) -> Extractor:
    return Extractor("HSV of the 8-bit image as Pillow has it", lambda images, prompts: _colours_of(images))


def _inception_with_probe(weights: str | Path | None) -> Extractor:
    """ADM's Inception, a linear probe of CIFAR-10's classes on its pool features, and colours."""
    network = _later("inception", "inception", "adm")(weights)
    probe, _ = read_tensors(CIFAR_PROBE)

    def run(images: Tensor, prompts: Sequence[str]) -> Features:
        features = network.run(images, prompts)
        logits = features["pool"] @ probe["weight"].T + probe["bias"]
        return {**features, "logits": logits, **_colours_of(images)}

    identity = f"{network.identity}; probe (sha256 {sha256_of(CIFAR_PROBE)[:16]})"
    return Extractor(identity, run, batch=network.batch)


CIFAR_PROBE = WEIGHTS / "cifar_probe.safetensors"
_COVER = {"precision": 1, "recall": 1, "density": 1, "coverage": 1}
_CLASSES = {"alignment": 1, "accuracy": 1, "diversity": 1}
_LIGHT = {"brightness": 0, "clipped": 0}
_COLOURS = {"saturation": 0, **_LIGHT}
PROTOCOLS: dict[str, Protocol] = {
    p.name: p
    for p in (
        Protocol(
            "adm-imagenet256",
            "the paper's ImageNet table: ADM's evaluator, 50,000 samples",
            {"FID": -1, "sFID": -1, "IS": 1, "precision": 1, "recall": 1},
            "VIRTUAL_imagenet256_labeled.npz",
            _later("inception", "inception", "adm"),
            _adm,
        ),
        Protocol(
            "adm-cifar10",
            "the same network on CIFAR-10, with a linear probe of its ten classes",
            {"FID": -1, "sFID": -1, "KID": -1, "precision": 1, "recall": 1, **_CLASSES, **_COLOURS},
            "cifar-10: the 10,000 test pictures; or a folder or .npz of others",
            _inception_with_probe,
            _cifar,
        ),
        Protocol(
            "coco-torchmetrics",
            "the paper's SD3.5 FID: 8-bit images straight to 299 x 299, TorchMetrics' formula",
            {"FID": -1},
            "a folder with the 5,000 images of COCO 2017 val",
            _later("inception", "inception", "direct"),
            _coco_fid,
        ),
        Protocol(
            "coco-cleanfid-recall",
            "the paper's SD3.5 Recall@3: Clean-FID features, 5,000 real and 5,000 generated images",
            {"Recall@3": 1},
            "a folder with the 5,000 images of COCO 2017 val",
            _later("inception", "inception", "clean"),
            _coco_recall,
        ),
        Protocol(
            "clip-b32",
            "raw cosine of CLIP ViT-B/32 between image and prompt",
            {"CLIP": 1},
            "",
            _later("image_text", "clip_b32"),
            _clip,
        ),
        Protocol(
            "imagereward-1.0",
            "ImageReward-v1.0",
            {"ImageReward": 1},
            "",
            _later("image_text", "image_reward"),
            _means,
        ),
        Protocol("hsv", "saturation, brightness and clipping of the pixels", _COLOURS, "", _colours, _means),
        Protocol(
            "efficientnet-lite0",
            "ImageNet features of EfficientNet-Lite0; runs anywhere",
            {"FD-EffLite0": -1, "KD-EffLite0": -1, **_COVER, "diversity": 1},
            "real images of the same kind: a folder, an .npz, or fashion-mnist",
            efficientnet_lite0,
            _efficientnet,
        ),
        Protocol(
            "fashion",
            "the shipped Fashion-MNIST classifier; for the shipped model",
            {"FD-fashion": -1, "sFD-fashion": -1, "IS": 1, **_COVER, **_CLASSES, **_LIGHT},
            "shipped: features of the 10,000 Fashion-MNIST test images",
            fashion_classifier,
            _fashion,
        ),
    )
}


def protocol(name: str) -> Protocol:
    """The protocol of this name."""
    if name not in PROTOCOLS:
        raise ValueError(f"unknown protocol {name!r}; known protocols: {', '.join(PROTOCOLS)}")
    return PROTOCOLS[name]


def adm_reference(path: Path, features: Features | None = None, identity: str = "") -> Reference:
    """mu, sigma, mu_s and sigma_s of an ADM reference file; features of its arr_0 are taken elsewhere."""
    arrays = {key: npz_array(path, key) for key in ("mu", "sigma", "mu_s", "sigma_s")}
    if any(value is None for value in arrays.values()):
        missing = ", ".join(key for key, value in arrays.items() if value is None)
        raise ValueError(f"{path} is not an ADM reference file: it has no {missing}")
    pool = Gaussian(torch.as_tensor(arrays["mu"]), torch.as_tensor(arrays["sigma"]))
    spatial = Gaussian(torch.as_tensor(arrays["mu_s"]), torch.as_tensor(arrays["sigma_s"]))
    return Reference(path.name, dict(features or {}), {"pool": pool, "spatial": spatial}, identity=identity)
