"""The benchmark as a folder that grows cell by cell, safe against a stop at any moment.

    run.json                          the configuration, and all problems and families asked for so far
    cells/PROBLEM/FAMILY.json         what a family was tried at on a problem
    cells/PROBLEM/FAMILY.scored.json  its best setting, and the one carried over from other problems, scored
    readings.csv                      all of them in one table, from which every number is worked out

Give the same folder again to go on, or to add problems and rules; another configuration is refused.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from ...files import write_whole
from ...lab.problems import problem as problem_named
from ...torch_settings import torch_settings
from ..child_processes import end_with_parent, without_interrupts
from ..folder import Ledger
from .config import BenchConfig, role
from .families import Family
from .measure import Reading, score_family, tune
from .setup import Setting


class Task(NamedTuple):
    """One cell of the benchmark: a family on a problem, to be tuned, or at settings that are to be scored."""

    folder: Path
    config: BenchConfig
    problem: str
    family: Family
    settings: dict[str, Setting] | None = None

    @property
    def path(self) -> Path:
        kind = ".json" if self.settings is None else ".scored.json"
        return self.folder / "cells" / self.problem / f"{self.family.slug}{kind}"

    @property
    def identity(self) -> dict[str, Any]:
        return {"family": self.family.as_json(), "settings": self.settings}


def bench(
    folder: str | Path,
    config: BenchConfig,
    problems: Sequence[str],
    families: Sequence[Family],
    processes: int = 2,
) -> Iterator[Task]:
    """Measures what is missing, yielding each cell as it is done; the caller owns the loop."""
    tasks = prepare(folder, config, problems, families)
    with _workers(processes if missing(tasks) or missing(scoring_tasks(tasks)) else 1) as pool:
        yield from _done(missing(tasks), pool)
        yield from _done(missing(scoring_tasks(tasks)), pool)


@contextmanager
def _workers(processes: int) -> Iterator[ProcessPoolExecutor | None]:
    """Processes to measure in, none for one; whoever stops the run does not wait for the cells under way."""
    if processes == 1:
        yield None
        return
    others = set(multiprocessing.active_children())
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), initializer=_helper) as pool:
        try:
            yield pool
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in set(multiprocessing.active_children()) - others:
                worker.terminate()
            raise


def _done(todo: Sequence[Task], pool: ProcessPoolExecutor | None) -> Iterator[Task]:
    if pool is None:
        for task in todo:
            _measure(task)
            yield task
        return
    with without_interrupts():  # the first of these start the processes
        running = {pool.submit(_measure, task): task for task in todo}
    for done in as_completed(running):
        done.result()
        yield running[done]


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
        raise ValueError(f"two rules would share the file {twice}.json; leave one of them out")
    ledger = Ledger(root, "bench")
    with ledger.opened():
        run = ledger.begin({"config": config.as_json()}, problems=[], families=[])
        run["problems"] = [*dict.fromkeys((*run["problems"], *problems))]
        known = {one["name"]: one for one in run["families"]} | {one.name: one.as_json() for one in families}
        ledger.write({**run, "families": [*known.values()]})
    return [Task(root, config, name, family) for name in problems for family in families]


def missing(tasks: Sequence[Task]) -> list[Task]:
    """Those whose file is not there, or belongs to a rule of the same name and another text or setting."""
    return [task for task in tasks if _read(task) is None]


def scoring_tasks(tasks: Sequence[Task]) -> list[Task]:
    """What is to be scored once all is tuned: the best setting of each problem that is not to choose on, and
    on a problem that is held out the setting that was best over those to choose on."""
    sweeps = {(task.problem, task.family.name): found for task in tasks if (found := _read(task)) is not None}
    choose = [name for name in dict.fromkeys(task.problem for task in tasks) if role(name) == "chosen"]
    scoring = []
    for task in tasks:
        name, sweep = task.family.name, sweeps.get((task.problem, task.family.name))
        if sweep is None or task.problem in choose:
            continue
        settings = {"tuned": min(sweep, key=lambda one: one.sw2).setting}
        known = [sweeps[problem, name] for problem in choose if (problem, name) in sweeps]
        if known and role(task.problem) == "held out":
            settings["carried"] = best_setting(known)
        scoring.append(task._replace(settings=settings))
    return scoring


def best_setting(sweeps: Sequence[Sequence[Reading]]) -> Setting:
    """Of the settings that all problems have in common, the one with the least geometric mean of sw2."""
    tried = [[one for one in sweep if one.what == "spread"] for sweep in sweeps]
    errors = [sum(math.log(sweep[i].sw2[0]) for sweep in tried) for i in range(len(tried[0]))]
    return tried[0][errors.index(min(errors))].setting


def _measure(task: Task) -> None:
    problem = problem_named(task.problem)
    with torch_settings(threads=1):  # these tensors are small: more threads cost more than they give
        if task.settings is None:
            found = tune(task.family, problem, task.config)
        else:
            found = score_family(task.family, task.settings, problem, task.config)
    task.path.parent.mkdir(parents=True, exist_ok=True)
    content = {**task.identity, "readings": [asdict(one) for one in found]}
    write_whole(task.path, json.dumps(content, ensure_ascii=False).encode())


def _read(task: Task) -> list[Reading] | None:
    """The readings of a cell, if it is there and belongs to this task."""
    if not task.path.is_file():
        return None
    content = json.loads(task.path.read_text(encoding="utf-8"))
    if {key: content[key] for key in ("family", "settings")} != json.loads(json.dumps(task.identity)):
        return None
    return [
        Reading(**{**one, "sw2": tuple(one["sw2"]), "alignment": tuple(one["alignment"])})
        for one in content["readings"]
    ]


def collected(folder: str | Path) -> list[tuple[str, str, Reading]]:
    """Problem, family and reading of every finished cell of a folder."""
    root = Path(folder)
    run = Ledger(root, "bench").read()
    if run is None:
        raise ValueError(f"{root} holds no benchmark (run.json); run `meancap bench lab --out {root}` first")
    config = BenchConfig.from_json(run["config"])
    families = [Family.from_json(one) for one in run["families"]]
    tasks = [Task(root, config, name, family) for name in run["problems"] for family in families]
    return [
        (task.problem, task.family.name, one)
        for task in (*tasks, *scoring_tasks(tasks))
        for one in _read(task) or ()
    ]


def _helper() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's; Windows does not inherit that
    end_with_parent()
