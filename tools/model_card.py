"""Writes docs/model-card-fashion.md and its loss curve from a training folder and scored runs.

    python tools/model_card.py TRAINING RUN [RUN ...]

TRAINING is the folder of `meancap train`; each RUN has been scored with `meancap score --protocol fashion`.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from matplotlib.figure import Figure

from meancap.files import sha256_of
from meancap.models.checkpoint import load_sit
from meancap.models.classes import SHIPPED
from meancap.report.style import BLUE, COLUMN, look
from meancap.runs.folder import Run
from meancap.runs.scoring import read_scores
from meancap.runs.train import LogLine, read_log

DOCS = Path(__file__).parents[1] / "docs"
SHOWN = ("FD-fashion", "precision", "recall", "accuracy", "diversity", "brightness")


def curve(rows: list[LogLine]) -> Figure:
    figure = Figure(figsize=(COLUMN, 2.0), layout="constrained")
    axes = figure.subplots()
    axes.plot([r.images / 1000 for r in rows], [r.loss for r in rows], color=BLUE, linewidth=1)
    axes.set_xlabel("images seen (thousands)")
    axes.set_ylabel("loss")
    axes.set_ylim(min(r.loss for r in rows) - 0.02, min(1.0, max(r.loss for r in rows)))
    return figure


def losses(rows: list[LogLine]) -> str:
    """About ten lines of the log, each a mean over the log lines since the one before."""
    step = max(1, len(rows) // 10)
    lines = ["| step | images | loss | rate | minutes |", "|---|---|---|---|---|"]
    for i in range(step - 1, len(rows), step):
        mean = sum(r.loss for r in rows[i - step + 1 : i + 1]) / step
        r = rows[i]
        lines.append(f"| {r.step:,} | {r.images:,} | {mean:.4f} | {r.rate:.4f} | {r.seconds / 60:.0f} |")
    return "\n".join(lines)


def scores(runs: list[Run]) -> str:
    lines = ["| rule | samples | " + " | ".join(SHOWN) + " |", "|---" * (2 + len(SHOWN)) + "|"]
    protocol = ""
    for run in runs:
        found = {s.name: s for s in read_scores(run.folder) if s.protocol.startswith("fashion:")}
        protocol = next(iter(found.values())).protocol if found else protocol
        cells = [_value(found[name].value, found[name].interval) if name in found else "–" for name in SHOWN]
        rule = run.rule.replace("|", "\\|")  # a bar would end the cell
        lines.append(f"| `{rule}` | {len(run):,} | " + " | ".join(cells) + " |")
    steps = len(runs[0].config["times"]) - 1
    return "\n".join(lines) + f"\n\nProtocol: {protocol}. {steps} Euler evaluations."


def _value(value: float, interval: tuple[float, float] | None) -> str:
    text = f"{value:.3f}"
    return text if interval is None else f"{text} [{interval[0]:.3f}, {interval[1]:.3f}]"


def main() -> None:
    as_written = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=as_written)
    parser.add_argument("training", type=Path)
    parser.add_argument("runs", nargs="+", type=Path)
    args = parser.parse_args()
    rows, recipe = read_log(args.training), json.loads((args.training / "train.json").read_text())
    with look():
        curve(rows).savefig(DOCS / "fashion-loss.png", metadata={"Software": None})
    network, _, _ = load_sit(SHIPPED)
    template = (Path(__file__).parent / "model_card.md").read_text(encoding="utf-8")
    card = template.format(
        sha=sha256_of(SHIPPED), size=f"{SHIPPED.stat().st_size / 1e6:.2f}",
        parameters=f"{sum(p.numel() for p in network.parameters()):,}", config=network.config,
        steps=f"{rows[-1].step:,}", images=f"{rows[-1].images:,}", epochs=f"{rows[-1].images / 60000:.1f}",
        minutes=f"{rows[-1].seconds / 60:.0f}", batch=recipe["batch"], rate=recipe["rate"],
        dropout=recipe["dropout"], ema=recipe["ema"], seed=recipe["seed"], warmup=recipe["warmup"],
         losses=losses(rows),
        scores=scores([Run.open(run) for run in args.runs]),
    )  # fmt: skip
    (DOCS / "model-card-fashion.md").write_text(card, encoding="utf-8")


if __name__ == "__main__":
    main()
