"""The benchmark as a folder that grows cell by cell, safe against a stop at any moment.

    run.json                      the configuration, and all problems and families asked for so far
    cells/PROBLEM/FAMILY.npz      one family on one problem; written under another name, then renamed
    results.csv and the tables    made from the cells by tables.py, again after every run

Give the same folder again to go on, or to add problems and rules; another configuration is refused.
"""

from __future__ import annotations

import json
import multiprocessing
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from ...files import write_whole
from ...lab.problems import problem as problem_named
from ...torch_settings import torch_settings
from ..child_processes import end_with_parent
from ..ledger import Ledger
from .config import ALL_PROBLEMS, BenchConfig
from .families import Family
from .measure import Reading, measure_family


class Task(NamedTuple):
    """One cell of the benchmark: a family of rules on a problem."""

    folder: Path
    config: BenchConfig
    problem: str
    family: Family

    @property
    def path(self) -> Path:
        return self.folder / "cells" / self.problem / f"{self.family.slug}.npz"


def bench(
    folder: str | Path,
    config: BenchConfig,
    problems: Sequence[str],
    families: Sequence[Family],
    processes: int = 2,
) -> Iterator[Task]:
    """Measures what is missing, yielding each cell as it is done; the caller owns the loop."""
    todo = missing(prepare(folder, config, problems, families))
    if processes == 1:
        for task in todo:
            _measure(task)
            yield task
        return
    count, fresh = min(processes, max(1, len(todo))), multiprocessing.get_context("spawn")
    others = set(multiprocessing.active_children())
    with ProcessPoolExecutor(count, fresh, initializer=_helper) as pool:
        running = {pool.submit(_measure, task): task for task in todo}
        try:
            for done in as_completed(running):
                done.result()
                yield running[done]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            # Whoever stopped the run should not wait for the cells under way.
            for worker in set(multiprocessing.active_children()) - others:
                worker.terminate()
            raise


def prepare(
    folder: str | Path, config: BenchConfig, problems: Sequence[str], families: Sequence[Family]
) -> list[Task]:
    """Writes or checks run.json; all cells that were asked for, problem by problem."""
    root = Path(folder)
    for name in problems:
        problem_named(name)
    slugs = [one.slug for one in families]
    if len({*slugs}) < len(slugs):
        twice = next(s for s in slugs if slugs.count(s) > 1)
        raise ValueError(f"two rules would share the file {twice}.npz; leave one of them out")
    ledger = Ledger(root, "bench")
    with ledger.opened():
        run = ledger.begin({"config": config.as_json()}, problems=[], families=[])
        run["problems"] = [name for name in ALL_PROBLEMS if name in (*run["problems"], *problems)]
        known = {one["name"]: one for one in run["families"]} | {one.name: asdict(one) for one in families}
        ledger.write({**run, "families": [*known.values()]})
    return [Task(root, config, name, family) for name in problems for family in families]


def missing(tasks: Sequence[Task]) -> list[Task]:
    """Those whose file is not there, or belongs to a rule of the same name and another text."""
    return [task for task in tasks if not _is_done(task)]


def _measure(task: Task) -> None:
    with torch_settings(threads=1):  # these tensors are small: more threads cost more than they give
        readings = measure_family(task.family, problem_named(task.problem), task.config)
    task.path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(task.path, _packed(task.family, readings))


def _packed(family: Family, readings: Sequence[Reading]) -> bytes:
    buffer = BytesIO()
    text = json.dumps(asdict(family))
    np.savez_compressed(
        buffer,
        family=np.array(text),
        variant=np.array([r.variant for r in readings]),
        rule=np.array([r.rule for r in readings]),
        failure=np.array([r.failure for r in readings]),
        scale=np.array([r.scale for r in readings]),
        nfe=np.array([r.nfe for r in readings]),
        lost=np.array([r.lost for r in readings]),
        slice_error=np.array([r.slice_error for r in readings]),
        values=torch.stack([r.values for r in readings]).numpy(),
        replicates=torch.stack([r.replicates for r in readings]).float().numpy(),
    )
    return buffer.getvalue()


def _is_done(task: Task) -> bool:
    if not task.path.is_file():
        return False
    with np.load(task.path, allow_pickle=False) as archive:
        return bool(json.loads(str(archive["family"])) == asdict(task.family))


def _helper() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to answer; it ends this process
    end_with_parent()
