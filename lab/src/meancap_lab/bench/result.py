"""The benchmark as a folder that grows cell by cell, safe against a stop at any moment, and its one JSON.

    cells/PART-N/CASE.json   what the families of a part gave on a problem at N evaluations
    networks/                the trained networks of kind 'network', a few seconds each
    result.json              all finished cells with the settings carried over: every number follows from it

    tuning   all families on the problems of tuning.csv: one setting for all problems is chosen on them
    main     the families that matter most: every problem at the smallest number of evaluations, then the
             first third of the problems at the others
    others   the rest of the catalogue, on the same third at the smallest number of evaluations

Problems are taken in their balanced order, so that whatever has finished is a fair subset. Rerun the command
to resume it, or with more problems to extend it; a folder keeps to the rules that it began with. Cells that
were measured before a method joined the catalogue have no numbers of it.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from meancap.files import write_whole

from ..runs.folder import Ledger
from ..runs.processes import end_with_parent, without_interrupts
from ..torch_settings import torch_settings
from .cases import Case, read_cases
from .families import MATCHED, Family, Setting, choose_families, spread
from .trials import Bench, score_cell, tune_cell

FORMAT = 1
EVALUATIONS = (10, 28, 50)


@dataclass(frozen=True)
class Plan:
    """What is run: how many problems of each file at which numbers of evaluations, and which rules."""

    problems: int = 252
    part: int | None = None  # problems at more evaluations and for the rest of the catalogue; None: a third
    tuning: int = 28
    evaluations: tuple[int, ...] = EVALUATIONS
    rules: tuple[str, ...] | None = None  # names of families, all of which are then main; None: all there are
    own: tuple[str, ...] = ()  # rules of the user, as text

    def as_json(self) -> dict[str, Any]:
        """What a folder keeps to; problems and numbers of evaluations may be added."""
        rules = None if self.rules is None else list(self.rules)
        return {"tuning": self.tuning, "rules": rules, "own": list(self.own)}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Plan:
        rules = content["rules"]
        return cls(tuning=content["tuning"], rules=rules and tuple(rules), own=tuple(content["own"]))

    def families(self, part: str) -> tuple[Family, ...]:
        """The families of a part."""
        every = choose_families(self.rules, self.own)
        if self.rules is not None:
            return () if part == "others" else every
        return every if part == "tuning" else tuple(one for one in every if one.main == (part == "main"))

    def matched(self, part: str) -> dict[str, tuple[Family, ...]]:
        """What is compared at equal alignment; of chosen rules those that are chosen."""
        if part != "main":
            return {}
        every = {one.name: one for one in self.families(part)}
        known = {name: some for name, some in MATCHED.items() if self.rules is None or name in every}
        return known | {name: (one,) for name, one in every.items() if one.group == "yours" and one.knobs}

    def cells(self) -> list[Cell]:
        """Every cell in the order in which they are run."""
        few, *more = self.evaluations
        problems = read_cases()[: self.problems]
        part = problems[: self.problems // 3 if self.part is None else self.part]
        order = [Cell("tuning", few, case) for case in read_cases("tuning")[: self.tuning]]
        order += [Cell("main", few, case) for case in problems]
        order += [Cell("others", few, case) for case in part if self.rules is None]
        return order + [Cell("main", n, case) for case in part for n in more]


QUICK = Plan(problems=21, tuning=7, evaluations=(10,))


class Cell(NamedTuple):
    """The families of a part on one problem at one number of evaluations."""

    part: str
    evaluations: int
    case: Case

    @property
    def path(self) -> Path:
        return Path("cells") / f"{self.part}-{self.evaluations}" / f"{self.case.name}.json"


def run_bench(folder: str | Path, plan: Plan, processes: int = 2) -> Iterator[Cell]:
    """Measures what is missing, yields each cell as it is done, and writes result.json at the end."""
    root = Path(folder)
    ledger = Ledger(root, "bench")
    with ledger.opened():
        ledger.begin({"config": plan.as_json()})
    todo = [cell for cell in plan.cells() if not (root / cell.path).is_file()]
    yield from _run([(root, cell, plan, {}) for cell in todo if cell.part == "tuning"], processes)
    carried = _choose_settings(root, plan)
    yield from _run([(root, cell, plan, carried) for cell in todo if cell.part != "tuning"], processes)
    write_result(root)


Job = tuple[Path, Cell, Plan, dict[str, Setting]]


def _run(jobs: Sequence[Job], processes: int) -> Iterator[Cell]:
    if processes == 1 or len(jobs) < 2:
        for job in jobs:
            _measure_cell(*job)
            yield job[1]
        return
    spawn, others = multiprocessing.get_context("spawn"), set(multiprocessing.active_children())
    with ProcessPoolExecutor(processes, spawn, initializer=_begin_worker) as pool:
        try:
            with without_interrupts():  # the first of these start the processes
                running = {pool.submit(_measure_cell, *job): job[1] for job in jobs}
            for done in as_completed(running):
                done.result()
                yield running[done]
        except BaseException:  # whoever stops the run does not wait for the cells under way
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in set(multiprocessing.active_children()) - others:
                worker.terminate()
            raise


def _begin_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's; Windows does not inherit that
    end_with_parent()


def _measure_cell(root: Path, cell: Cell, plan: Plan, carried: dict[str, Setting]) -> None:
    """Measures one cell and writes its file."""
    with torch_settings(threads=1):  # these tensors are small: more threads cost more than they give
        bench = Bench(cell.case, cell.evaluations, root / "networks")
        families = plan.families(cell.part)
        if cell.part == "tuning":
            found = tune_cell(bench, families)
        else:
            found = score_cell(bench, families, carried, plan.matched(cell.part))
    path = root / cell.path
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"case": cell.case.name, "evaluations": cell.evaluations, **found}
    write_whole(path, json.dumps(content, ensure_ascii=False))


def _choose_settings(root: Path, plan: Plan) -> dict[str, Setting]:
    """The setting of each family with the least mean log sw2 on the tuning problems, at few evaluations."""
    paths = [root / cell.path for cell in plan.cells() if cell.part == "tuning"]
    tried = [_read(path)["tried"] for path in paths]
    chosen = {}
    for family in plan.families("tuning"):
        rows = [one[family.name] for one in tried if family.name in one]
        if rows:
            errors = [sum(math.log(row[i]) for row in rows) for i in range(len(rows[0]))]
            chosen[family.name] = family.setting(spread(len(family.knobs))[errors.index(min(errors))])
    return chosen


def write_result(root: str | Path) -> Path:
    """result.json from all cells that are there: columns of numbers, one for each problem."""
    root = Path(root)
    begun = Ledger(root, "bench").read()
    if begun is None:
        raise ValueError(f"{root} holds no benchmark; run `meancap bench run --out {root}` first")
    plan = Plan.from_json(begun["config"])
    order = [case.name for case in read_cases()]
    runs = {}
    for n in sorted(int(path.name[5:]) for path in (root / "cells").glob("main-*")):
        main, others = ({path.stem: _read(path) for path in root.glob(f"cells/{part}-{n}/*.json")}
                        for part in ("main", "others"))  # fmt: skip
        runs[n] = _columns([name for name in order if name in main], main, others)
    groups = {one.name: one.group for one in choose_families(plan.rules, plan.own)}
    head = {"format": FORMAT, **begun["config"], "groups": groups, "carried": _choose_settings(root, plan)}
    lines = ",\n".join(f"{_json(str(n))}:{_lines(run)}" for n, run in runs.items())
    return write_whole(root / "result.json", f'{_json(head)[:-1]},\n"runs":{{\n{lines}\n}}}}\n')


def _read(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


def _columns(names: Sequence[str], main: dict[str, Any], others: dict[str, Any]) -> dict[str, Any]:
    """Lists with one value for each problem; None if a rule was not run or did not reach the target."""
    rules = {}
    for cells in (main, others):
        for rule in dict.fromkeys(rule for cell in cells.values() for rule in cell["rules"]):
            rows = [cells[name]["rules"].get(rule, {}) if name in cells else {} for name in names]
            rules[rule] = {
                f"{what} {score}": [row[what][i] if what in row else None for row in rows]
                for what, i, score in _KEPT
                if any(what in row for row in rows)
            }
    found = [main[name].get("aligned", {}) for name in names]
    aligned = {
        rule: {
            key: [one[rule][i] if rule in one else None for one in found] for i, key in enumerate(_ALIGNED)
        }
        for rule in dict.fromkeys(rule for name in names for rule in main[name].get("asked", ()))
    }
    truth = {key: [main[name]["truth"][i] for name in names] for i, key in enumerate(_ALIGNED[1:])}
    wanted = [
        name for name in names if "asked" in main[name]
    ]  # where the truth is better aligned than no guidance
    return {"problems": list(names), "wanted": wanted, "truth": truth, "rules": rules, "aligned": aligned}


_ALIGNED = ("scale", "sw2", "end", "alignment")
# 'tuned' settings were chosen by the score that is kept of them, 'all' is the one for all problems.
_KEPT = (("sw2", 0, "sw2"), ("sw2", 2, "alignment"), ("end", 1, "end"),
         ("all", 0, "sw2"), ("all", 1, "end"), ("all", 2, "alignment"))  # fmt: skip


def _lines(run: dict[str, Any]) -> str:
    """JSON with one line for each rule, so that two results can be compared by a diff."""
    parts = []
    for key, value in run.items():
        if key in ("rules", "aligned"):
            lines = [f"{_json(name)}:{_json(one)}" for name, one in value.items()]
            parts.append(f"{_json(key)}:{{\n" + ",\n".join(lines) + "}")
        else:
            parts.append(f"{_json(key)}:{_json(value)}")
    return "{" + ",\n".join(parts) + "}\n"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
