"""What a protocol would cost, by arithmetic that is shown, and what is missing to run it here.

work    floating-point operations of one network call: two for each weight that a token meets, and four
        for each pair of tokens and unit of width, in attention
time    work x calls / (peak of the GPU x the share of it that such networks reach)
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import torch

from ..models.hub import local_folder
from ..models.sit import SiTConfig, named
from .protocols import ImageProtocol

SHARE = 0.4  # of the peak; what transformers of this size reach, give or take a third
# Dense peaks from the data sheets, in the precision that each protocol uses.
PEAKS = {
    "tf32": {"A100": 156e12, "H100": 494e12, "RTX 4090": 82.6e12},
    "bfloat16": {"A100": 312e12, "H100": 989e12, "RTX 4090": 165e12},
}


@dataclass(frozen=True)
class Need:
    """Something that a run needs, and whether it is here."""

    what: str
    here: bool
    how: str


def imagenet_needs(checkpoint: Path | None, vae: str) -> list[Need]:
    """What the ImageNet protocol needs."""
    return [
        Need(
            "the checkpoint",
            checkpoint is not None and checkpoint.is_file(),
            "give --checkpoint; SiT-XL-2-256.pt is linked from github.com/willisma/SiT",
        ),
        Need("the autoencoder", _is_local(vae), f"hf download {vae}"),
        _gpu(),
        Need(
            "ADM's reference statistics, for scores",
            False,
            "VIRTUAL_imagenet256_labeled.npz, given to `meancap score --reference`",
        ),
    ]


def sd35_needs(pipeline: str, prompts: Path | None) -> list[Need]:
    """What the SD3.5 protocol needs."""
    given = prompts is not None and prompts.is_file()
    return [
        Need("the pipeline", _is_local(pipeline), f"hf download {pipeline}"),
        Need("the prompts", given, "give --prompts: 5,000 COCO-2017 validation captions, one per line"),
        _gpu(),
    ]


def _gpu() -> Need:
    return Need("a CUDA device", torch.cuda.is_available(), "none is visible; a CPU would take months")


def _is_local(source: str) -> bool:
    try:
        local_folder(source)
    except (ValueError, ImportError):
        return False
    return True


def sit_work(config: SiTConfig) -> float:
    """Operations of one forward pass for one latent."""
    per_token = config.depth * 12 * config.width**2
    per_token += (config.channels + config.out_channels) * config.patch**2 * config.width
    modulation = (6 * config.depth + 2) * config.width**2 + (256 + config.width) * config.width
    attention = 4 * config.depth * config.tokens**2 * config.width
    return 2.0 * (config.tokens * per_token + modulation) + attention


def sd35_work() -> float:
    """SD3.5 Medium at 1024 x 1024: 2.24 G weights, 4,096 picture and 333 text tokens, 24 joint attentions and
    13 more over the picture tokens alone, 1,536 wide."""
    tokens, text, width = 4096, 333, 1536
    # Text has its own half of the weights in each joint block; a token meets about half of all.
    weights = 2.24e9 / 2
    attention = 4 * width * (24 * (tokens + text) ** 2 + 13 * tokens**2)
    return 2.0 * weights * (tokens + text) + attention


def plan_text(protocol: ImageProtocol, needs: list[Need], out: Path, *, picture: int) -> str:
    """The plan as text: settings, arithmetic, what is missing."""
    work = sit_work(named("SiT-XL/2")) if protocol.name == "imagenet" else sd35_work()
    calls = sum(2 * s.evaluations for s in protocol.settings) * protocol.samples
    disk = len(protocol.settings) * protocol.samples * picture * picture * 3
    lines = [f"{protocol.name}: {len(protocol.settings)} runs of {protocol.samples:,} samples", ""]
    for s in protocol.settings:
        lines.append(f"  {s.name:<28} {s.rule}")
    lines += ["", "left open by the paper, and chosen here:"]
    lines += [f"  {c.what}: {c.value} ({c.why})" for c in protocol.choices]
    lines += [
        "",
        f"work: 2 calls x evaluations x samples, over all runs = {calls:.3g} calls",
        f"      one call = {work / 1e9:.1f} GFLOP, together {calls * work:.3g} FLOP, without the decoder",
    ]
    dtype = "tf32" if protocol.name == "imagenet" else "bfloat16"
    for gpu, peak in PEAKS[dtype].items():
        seconds = calls * work / (peak * SHARE)
        per_run = seconds / 3600 / len(protocol.settings)
        lines.append(
            f"      {gpu}, {dtype}: {calls * work:.3g} / ({peak / 1e12:.0f} T x {SHARE}) = "
            f"{seconds / 3600:.0f} h on one, "
            f"{per_run:.2f} h a run; N of them under torchrun take 1/N"
        )
    lines.append("      times are arithmetic, not measured: no GPU run stands behind them")
    free = shutil.disk_usage(_existing(out)).free
    lines += [
        f"disk: {disk / 1e9:.0f} GB of pixels (less as PNG), and one run more while its .npz is made; "
        f"{free / 1e9:.0f} GB are free at {out}",
        "",
        "needed:",
    ]
    lines += [f"  [{'x' if n.here else ' '}] {n.what}" + ("" if n.here else f": {n.how}") for n in needs]
    return "\n".join(lines)


def _existing(path: Path) -> Path:
    path = path.absolute()
    while not path.exists():
        path = path.parent
    return path
