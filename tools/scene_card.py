"""Writes docs/model-card-scenes.md and its loss curve from training folders, the detector and the study.

    python tools/scene_card.py TRAINING WRONG DETECTOR_JSON STUDY CURVE

TRAINING and WRONG are folders of `meancap train scenes`, STUDY that of `meancap reproduce scenes`, CURVE
a table of what checkpoints could do, its cells parted by bars.
"""

from __future__ import annotations

import argparse
import csv
import json
from pathlib import Path

from matplotlib.figure import Figure

from meancap.files import sha256_of
from meancap.report.style import BLUE, COLUMN, look
from meancap.runs.loop import LogLine, read_log
from meancap.scenes.model import SHIPPED, WRONG, load_scene_net

ROOT = Path(__file__).parents[1]
SCORES = ("right all", "drawn", "right and drawn", "iou", "saturation", "clipped", "tv")
OPEN = ("background", "radius", "saturation", "value", "hue")


def curve(rows: list[LogLine]) -> Figure:
    figure = Figure(figsize=(COLUMN, 2.0), layout="constrained")
    axes = figure.subplots()
    axes.plot([r.images / 1000 for r in rows], [r.loss for r in rows], color=BLUE, linewidth=1)
    axes.set_xlabel("pictures seen (thousands)")
    axes.set_ylabel("loss")
    axes.set_ylim(min(r.loss for r in rows) - 0.02, 0.6)
    return figure


def losses(rows: list[LogLine]) -> str:
    """About ten lines of the log, each a mean over the log lines since the one before."""
    step = max(1, len(rows) // 10)
    lines = ["| step | pictures | loss | rate | minutes |", "|---|---|---|---|---|"]
    for i in range(step - 1, len(rows), step):
        mean = sum(r.loss for r in rows[i - step + 1 : i + 1]) / step
        r = rows[i]
        lines.append(f"| {r.step:,} | {r.images:,} | {mean:.4f} | {r.rate:.4f} | {r.seconds / 60:.0f} |")
    return "\n".join(lines)


def scores(table: list[dict[str, str]]) -> str:
    """Renders, the unguided model and fixed guidance, as the study measured them."""
    lines = ["| | λ | " + " | ".join(SCORES) + " |", "|---" * (2 + len(SCORES)) + "|"]
    for r in table:
        if r["part"] == "scenes" and r["method"] in ("Truth", "Conditional", "CFG"):
            name = {"Truth": "renders", "Conditional": "model", "CFG": "model"}[r["method"]]
            lines.append(
                f"| {name} | {r['scale'] or '–'} | " + " | ".join(f"{float(r[k]):.3f}" for k in SCORES) + " |"
            )
    return "\n".join(lines)


def spreads(table: list[dict[str, str]]) -> str:
    lines = ["| | " + " | ".join(OPEN) + " |", "|---" * (1 + len(OPEN)) + "|"]
    for method, name in (("Truth", "renders"), ("Conditional", "model, λ = 1")):
        r = next(r for r in table if r["part"] == "scenes" and r["method"] == method)
        lines.append(f"| {name} | " + " | ".join(f"{float(r[f'spread {k}']):.3f}" for k in OPEN) + " |")
    return "\n".join(lines)


def examined(record: dict[str, dict[str, dict[str, float]]]) -> str:
    kinds = record["examination"]
    names = list(next(iter(kinds.values())))
    lines = ["| renders | " + " | ".join(names) + " |", "|---" * (1 + len(names)) + "|"]
    lines += [f"| {kind} | " + " | ".join(f"{v[n]:.4f}" for n in names) + " |" for kind, v in kinds.items()]
    return "\n".join(lines)


def progress(path: Path) -> str:
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="|"))
    lines = ["| " + " | ".join(rows[0]) + " |", "|---" * len(rows[0]) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(r.values()) + " |" for r in rows)])


def main() -> None:
    as_written = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=as_written)
    for name in ("training", "wrong", "detector", "study", "curve"):
        parser.add_argument(name, type=Path)
    args = parser.parse_args()
    rows, wrong = read_log(args.training), read_log(args.wrong)
    network, _ = load_scene_net(SHIPPED)
    with (args.study / "table.csv").open(encoding="utf-8", newline="") as file:
        table = list(csv.DictReader(file))
    detector = json.loads(args.detector.read_text(encoding="utf-8"))
    text = (ROOT / "tools" / "scene_card.md").read_text(encoding="utf-8").format(
        size=f"{SHIPPED.stat().st_size / 1e6:.2f}", sha=sha256_of(SHIPPED), wrong_sha=sha256_of(WRONG),
        config=network.config, parameters=f"{sum(p.numel() for p in network.parameters()):,}",
        recipe=json.loads((args.training / "train.json").read_text()), steps=f"{rows[-1].step:,}",
        pictures=f"{rows[-1].images:,}", minutes=f"{rows[-1].seconds / 60:.0f}",
        wrong_recipe=json.loads((args.wrong / "train.json").read_text()),
        wrong_pictures=f"{wrong[-1].images:,}", wrong_minutes=f"{wrong[-1].seconds / 60:.0f}",
        losses=losses(rows), scores=scores(table), spreads=spreads(table), examined=examined(detector),
        progress=progress(args.curve), detector_steps=detector["recipe"]["steps"],
    )  # fmt: skip
    (ROOT / "docs" / "model-card-scenes.md").write_text(text, encoding="utf-8")
    with look():
        curve(rows).savefig(ROOT / "docs" / "scenes-loss.png", dpi=220, metadata={"Software": None})


if __name__ == "__main__":
    main()
