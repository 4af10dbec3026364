"""Path matching on the benchmark's mixtures: how good its choice is, and what spoils it.

    problem   one of the benchmark's, in its balanced order; the truth is known
    choice    the candidate of `meancap calibrate` whose paths match those of the examples
    regret    SW2 of the choice on noise that no choice saw, over SW2 of CFG tuned on the problem itself
    variant   fewer examples, wrong captions, foreign examples, other steps, other statistics or weights
    fresh     the problems after the first 84, on which the scale of `auto` was chosen

A cell is one problem at one number of evaluations: SW2 of every candidate, and what each variant chose.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from meancap import Calibration, Record, noise, parse, trajectory, uniform
from meancap.rules import Rule
from meancap_lab.bench.cases import KINDS, Case, read_cases
from meancap_lab.bench.families import FIXED, Family
from meancap_lab.bench.predictors import examples
from meancap_lab.bench.ratios import stratified_mean
from meancap_lab.bench.trials import Bench, score_cell
from meancap_lab.report.style import BLUE, PAGE, panels
from meancap_lab.runs.calibrate import CANDIDATES
from meancap_lab.runs.path_matching import Follow, PathStatistics, match_paths, path_statistics
from studies import common
from studies.common import Cells, Row, markdown, option, read_csv

RULES = tuple(str(parse(rule)) for rule in CANDIDATES)
AUTO = "CFG({}) | Cap(1.1, anchor='first')"
FIXED_RULES = {"auto": AUTO.format(2), "auto(3)": AUTO.format(3)} | {
    "no guidance": "CFG(1)", "CFG 2": "CFG(2)", "CFG 5": "CFG(5)",
}  # fmt: skip
# Columns of the statistics (gap, mean, cosine, and |x| beside them) and the power of the gap in the weights.
ALONE = {
    "gap alone": ([0], 1), "length of m_c alone": ([1], 1), "cosine alone": ([2], 1),
    "length of x alone": ([3], 1), "even weights": ([0, 1, 2], 0), "squared weights": ([0, 1, 2], 2),
}  # fmt: skip
SIZES, STRETCH, FIRST = (64, 16), 1.3, 7_000_000
SEEN = 84
MAIN = ("path matching", *FIXED_RULES)


@dataclass(frozen=True)
class Study:
    """How much to run."""

    problems: int = option(252, "problems at 10 evaluations, the fresh ones first")
    others: int = option(42, "problems at other evaluations, the first of the benchmark")
    evaluations: tuple[int, ...] = option((10, 5, 28), "numbers of evaluations, the main one first")
    count: int = option(512, "data with trusted conditions")


QUICK = Study(7, 2, (10, 5), 64)


def walk(bench: Bench, rule: Rule | str, start: Tensor) -> PathStatistics:
    """The three statistics of a run, and |x| as the fourth."""
    record, grid = Record(), uniform(bench.evaluations)
    steps = trajectory(bench.subject.predict, rule, start, grid, record=record)
    states = torch.stack([step.x.double().norm(dim=1) for step in steps], 1)
    found = path_statistics(record)
    return PathStatistics(found.times, torch.cat([found.values, states[..., None]], -1))


def least(real: Tensor, runs: Sequence[Tensor], columns: list[int], power: int) -> int:
    """The run of least mismatch in some columns, with weights gap ** power."""
    data = real[:, 1:]
    weights = data[..., 0].square().mean(0) ** (power / 2)
    off = (torch.stack([run[:, 1:].mean(0) for run in runs]) - data.mean(0))[..., columns]
    z = torch.where(off == 0, 0.0, off / data.std(0)[..., columns])
    return int((z.square().mean(-1) @ weights).nan_to_num(math.inf).argmin())


def problem_cell(study: Study, case: Case, evaluations: int, folder: Path) -> dict[str, Tensor]:
    """SW2 of tuned CFG and of all candidates; choice, mismatch and share of resamples of each variant."""
    bench = Bench(case, evaluations, folder)
    start = noise(range(FIRST, FIRST + study.count), (case.dimension,))
    runs = [walk(bench, rule, start) for rule in RULES]
    found: dict[str, Sequence[float]] = {}

    def match(variant: str, data: Tensor, count: int = study.count) -> PathStatistics:
        real = walk(bench, Follow(data), start)
        cut = [PathStatistics(one.times, one.values[:count, :, :3]) for one in (real, *runs)]
        best = match_paths(cut[0], dict(zip(RULES, cut[1:], strict=True)))
        found[variant] = [RULES.index(best.rule), best.best.mismatch, best.best.chosen]
        return real

    own = examples(case, study.count).float()
    real = match("path matching", own)
    if evaluations == study.evaluations[0]:
        for size in SIZES:
            match(f"{size} examples", own, size)
        match("a fifth of the conditions wrong", examples(case, study.count, 0.2).float())
        match("all conditions wrong", examples(case, study.count, 1.0).float())
        match("foreign examples", own.mean(0) + STRETCH * (own - own.mean(0)))
        values = [one.values for one in runs]
        found |= {name: [least(real.values, values, *how)] for name, how in ALONE.items()}
    tuned = score_cell(bench, (FIXED,), {}, {})["rules"][FIXED.name]["sw2"][0]
    scores = [bench.run(Family(rule, rule), [{}], "score")[0].sw2 for rule in RULES]
    return {"tuned": torch.tensor([tuned]), "scores": torch.tensor(scores)} | {
        f"variant {name}": torch.tensor(row, dtype=torch.float64) for name, row in found.items()
    }


def readings(study: Study, cells: Cells) -> Iterator[Row]:
    """One row for each problem, number of evaluations and variant."""
    cases = read_cases()
    for evaluations in study.evaluations:
        main = evaluations == study.evaluations[0]
        for case in (cases[SEEN:] + cases[:SEEN])[: study.problems] if main else cases[: study.others]:
            work = partial(problem_cell, study, case, evaluations, cells.folder / "networks")
            cell = cells.make(f"{case.name}-{evaluations}", work)
            regret = (cell["scores"] / cell["tuned"]).tolist()
            about = {"problem": case.name, "kind": case.kind, "evaluations": evaluations}
            found = {name: [RULES.index(rule)] for name, rule in FIXED_RULES.items()}
            found |= {name[8:]: row.tolist() for name, row in cell.items() if name.startswith("variant ")}
            for name in MAIN if main and case in cases[:SEEN] else found:
                i, *more = found[name]
                one = {"variant": name, "rule": RULES[int(i)], "regret": regret[int(i)]}
                yield about | one | dict(zip(("mismatch", "chosen"), more, strict=False))


def regrets(rows: Iterable[dict[str, str]], *names: str) -> dict[tuple[str, ...], list[float]]:
    """The regrets by the values of these columns."""
    found: dict[tuple[str, ...], list[float]] = {}
    for row in rows:
        found.setdefault(tuple(row[name] for name in names), []).append(float(row["regret"]))
    return found


def mean_of(values: Iterable[float]) -> str:
    """Geometric mean with its 95 % interval."""
    return str(stratified_mean([[math.log(value) for value in values]]))


def is_fresh(row: dict[str, str]) -> bool:
    """Whether a reading at 10 evaluations has no part in the choice of the scale of `auto`."""
    return row["evaluations"] == "10" and int(row["problem"][1:]) >= SEEN


def regret_sentence(rows: Sequence[dict[str, str]]) -> str:
    """Regret on fresh problems, for the page on `auto` as well."""
    groups = regrets(filter(is_fresh, rows), "variant")
    listed = "; ".join(f"{name} {mean_of(groups[name,])}" for name in MAIN)
    ratios = [a / b for a, b in zip(groups["auto",], groups["no guidance",], strict=True)]
    return (
        f"Regret at 10 evaluations on {len(ratios)} fresh problems: {listed}. "
        f"Problem by problem, auto over no guidance: {mean_of(ratios)}."
    )


def parts(folder: Path) -> dict[str, str]:
    """Tables by variant, by kind of error and of the two networks; and a sentence for the page on auto."""
    rows = read_csv(folder / "readings.csv")
    fresh = regrets(filter(is_fresh, rows), "variant")
    others = regrets([row for row in rows if not is_fresh(row)], "variant", "evaluations")
    names = dict.fromkeys([*MAIN, *(name for (name,) in fresh)])
    table = [[*_line(name, fresh[name,]), mean_of(others.get((name, "10"), []))] for name in names]
    table += [
        [*_line(f"{name}, {n} evaluations", others[name, n]), "–"]
        for n in ("5", "28")
        for name in ("path matching", "no guidance")
    ]
    by_kind = regrets(filter(is_fresh, rows), "kind", "variant")
    shown = ("path matching", "auto", "no guidance", "CFG 5")
    kinds = [[kind, *(mean_of(by_kind[kind, name]) for name in shown)] for kind in KINDS]
    networks = [_network_line(path.stem, Calibration.load(path)) for path in sorted(folder.glob("*.json"))]
    head = ["variant", "regret", "q90", "worst", "regret, first 84"]
    columns = ["calibration", "choice", "mismatch", "best in", "others within the error"]
    return {
        "variants": markdown(head, table),
        "kinds": markdown(["kind of error", *shown], kinds),
        "networks": markdown(columns, networks),
        "regret": regret_sentence(rows),
    }


def _network_line(name: str, found: Calibration) -> list[str]:
    rule, candidates = str(found), found.details["candidates"]
    best = next(one for one in candidates if one["rule"] == rule)
    ties = sum(one["excess"] <= 0 for one in candidates) - 1
    mismatch = "{mismatch:.2f} [{low:.2f}, {high:.2f}]".format(**best)
    return [name, "`" + rule.replace("|", "\\|") + "`", mismatch, f"{best['chosen']:.0%}", str(ties)]


def _line(name: str, values: Sequence[float]) -> list[str]:
    """A variant's regret, its 90 % quantile and the worst."""
    q90 = torch.tensor(values, dtype=torch.float64).quantile(0.9)
    return [name, mean_of(values), f"{q90:.2f}", f"{max(values):.2f}"]


def draw(cells: Cells):
    """Regret against the mismatch of the choice, by variant."""
    figure, axes = panels(1, 3, PAGE, 2.2)
    rows = [row for row in read_csv(cells.folder / "readings.csv") if is_fresh(row)]
    for ax, name in zip(axes.flat, ("path matching", "16 examples", "all conditions wrong"), strict=True):
        own = [row for row in rows if row["variant"] == name]
        points = [[float(row[key]) for row in own] for key in ("mismatch", "regret")]
        ax.plot(*points, "o", color=BLUE, markersize=2.5, alpha=0.7)
        ax.set(xscale="log", yscale="log", xlabel="mismatch", ylabel="regret", title=name)
    return figure


def main(argv: Sequence[str] | None = None) -> None:
    example = "python -m studies.path_matching --out out/path_matching"
    common.run(argv, __doc__, example, (Study(), QUICK), readings, parts, {"mismatch": draw})
