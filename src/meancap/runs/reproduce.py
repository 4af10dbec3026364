"""A protocol as a folder of runs that share their noise, and one table over them.

OUT/<setting>/    a run folder for each setting
OUT/table.csv     one row per setting: what was asked, what guidance did, and scores where there are any
OUT/protocol.json the settings and the choices that the paper leaves open
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from io import StringIO
from pathlib import Path
from typing import Any

from ..files import write_whole
from .folder import Run
from .generate import make_run
from .ledger import Ledger, locked
from .prepare import RunRequest, open_model
from .protocols import PINNED_SIGMAS, ImageProtocol, ImageSetting
from .score_runs import score_runs
from .scores import read_scores
from .store import Store


@dataclass(frozen=True)
class BlockProgress:
    """A block of a setting has been made; `total` counts the blocks of all settings."""

    setting: str
    done: int
    total: int


def requests(protocol: ImageProtocol, base: RunRequest) -> list[tuple[ImageSetting, RunRequest]]:
    """Each setting as the options of `meancap generate`; `base` tells model, samples and format."""
    pairs = []
    for s in protocol.settings:
        request = replace(base, rule=str(s.rule), steps=s.evaluations, seed=protocol.seed)
        if protocol.name == "sd35":
            # The chain replaces the pipeline's combination, whose scale only switches guidance on; at scale 1
            # it is off, and the pipeline is left to itself.
            rule = None if s.scale == 1 else request.rule
            request = replace(
                request, rule=rule, guidance_scale=s.scale, sigmas=PINNED_SIGMAS, noise="stream"
            )
        pairs.append((s, request))
    return pairs


def reproduce(
    protocol: ImageProtocol,
    base: RunRequest,
    out: Path,
    *,
    device: str = "cpu",
    rank: int = 0,
    world: int = 1,
) -> Iterator[BlockProgress]:
    """Makes every run of the protocol, yielding after each block; `finish` writes the table."""
    out.mkdir(parents=True, exist_ok=True)
    todo = requests(protocol, base)
    done = 0
    source = open_model(todo[0][1], device)
    for setting, request in todo:
        prepared = source.prepare(request)
        store = Store(out / setting.name, prepared.config, prepared.made_with)
        mine = len(range(rank, prepared.config.blocks, world))
        ready = mine - len(store.missing(range(rank, prepared.config.blocks, world)))
        done += ready
        for _ in make_run(store, prepared.make, rank, world):
            done += 1
            yield BlockProgress(setting.name, done, mine * len(todo))


def finish(protocol: ImageProtocol, out: Path, score_by: str = "") -> bool:
    """Scores the runs if asked to and writes the table, once every run is finished; whether they are.

    Whichever process ends last does it.
    """
    with locked(out):
        if not all(Ledger(out / s.name, "images").finished for s in protocol.settings):
            return False
        if score_by:
            for _ in score_runs([out / s.name for s in protocol.settings], [score_by]):
                pass
        write_protocol(protocol, out, score_by)
        return True


def write_protocol(protocol: ImageProtocol, out: Path, score_by: str = "") -> None:
    """protocol.json and table.csv."""
    about = {
        "protocol": protocol.name,
        "samples": protocol.samples,
        "seed": protocol.seed,
        "choices": [asdict(c) for c in protocol.choices],
        "settings": [{"folder": s.name, "rule": str(s.rule)} for s in protocol.settings],
    }
    write_whole(out / "protocol.json", json.dumps(about, indent=1) + "\n")
    write_whole(out / "table.csv", settings_table(protocol, out, score_by))


def settings_table(protocol: ImageProtocol, out: Path, score_by: str = "") -> str:
    """The settings with their facts, as CSV."""
    rows = [setting_row(s, Run.open(out / s.name), score_by) for s in protocol.settings]
    columns = list(dict.fromkeys(key for r in rows for key in r))
    text = StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def setting_row(setting: ImageSetting, run: Run, score_by: str = "") -> dict[str, Any]:
    """One line of the table, from the run folder alone."""
    cells: dict[str, Any] = {
        "method": setting.method,
        "scale": setting.scale,
        "gamma": "" if setting.gamma is None else setting.gamma,
        "evaluations": run.finished["evaluations"] // max(1, run.finished["samples"]),
        "samples": run.finished["samples"],
    }
    if run.config["diagnostics"] and run.meter:
        meter = run.meter
        cells |= {
            "effective_scale_first": round(float(meter["scale"][0].mean()), 4),
            "effective_scale_last": round(float(meter["scale"][-1].mean()), 4),
            "share_capped": round(float(meter["active"].mean()), 4),
            "largest_ratio": round(float(meter["ratio"].max()), 4),
        }
    return cells | scores_by_name(run.folder, score_by)


def scores_by_name(folder: Path, first: str) -> dict[str, float]:
    """The scores of a run; a number that several protocols have is told apart by its protocol's name."""
    named = [(s.protocol.partition(":")[0], s) for s in read_scores(folder)]
    values: dict[str, float] = {}
    for protocol, s in sorted(named, key=lambda one: (one[0] != first, one[0])):
        name = s.name if s.name not in values else f"{s.name} ({protocol})"
        values[name] = float(f"{s.value:.5g}")
    return values
