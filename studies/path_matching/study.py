"""Path matching on the benchmark's mixtures: how good its choice is, and what spoils it.

    problem   one of the benchmark's, in its balanced order; the truth is known
    choice    the candidate of `meancap calibrate` whose paths match those of the examples
    regret    SW2 of the choice on noise that no choice saw, over SW2 of CFG tuned on the problem itself
    variant   fewer examples, wrong captions, foreign examples, other steps, other statistics or weights

A cell is one problem at one number of evaluations: SW2 of every candidate, and what each variant chose.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

import torch
from torch import Tensor

from meancap import Record, noise, parse, trajectory, uniform
from meancap.bench.cases import KINDS, Case, read_cases
from meancap.bench.families import FIXED, Family
from meancap.bench.predictors import examples
from meancap.bench.trials import Bench, score_cell
from meancap.report.style import BLUE, PAGE, panels
from meancap.rules import Rule
from meancap.rules.path_matching import Follow, PathStatistics, load_path_match, match_paths, path_statistics
from meancap.runs.calibrate import CANDIDATES
from studies import common
from studies.common import Cells, Row, interval, markdown, option, read_csv

HERE = Path(__file__).parent
RULES = tuple(str(parse(rule)) for rule in CANDIDATES)
AUTO = "CFG({}) | Cap(1.1, anchor='first')"
FIXED_RULES = {"auto": AUTO.format(2), "auto(3)": AUTO.format(3)} | {
    "no guidance": "CFG(1)", "CFG 2": "CFG(2)", "CFG 5": "CFG(5)",
}  # fmt: skip
# Columns of the statistics (gap, mean, cosine, and |x| beside them) and the power of the gap in the weights.
ALONE = {
    "gap alone": ([0], 1), "length of m_c alone": ([1], 1), "cosine alone": ([2], 1),
    "length of x alone": ([3], 1), "with the length of x": ([0, 1, 2, 3], 1),
    "even weights": ([0, 1, 2], 0), "squared weights": ([0, 1, 2], 2),
}  # fmt: skip
SIZES, STRETCH, FIRST = (256, 64, 16), 1.3, 7_000_000


@dataclass(frozen=True)
class Study:
    """How much to run."""

    problems: int = option(84, "problems at 10 evaluations, the first of the benchmark")
    others: int = option(42, "problems at other evaluations")
    evaluations: tuple[int, ...] = option((10, 5, 28), "numbers of evaluations, the main one first")
    count: int = option(512, "data with trusted conditions")


QUICK = Study(7, 2, (10, 5), 64)


def walk(bench: Bench, rule: Rule | str, start: Tensor) -> PathStatistics:
    """The three statistics of a run, and |x| as the fourth."""
    record, grid = Record(), uniform(bench.evaluations)
    steps = trajectory(bench.model, rule, start, grid, record=record)
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
    for evaluations in study.evaluations:
        main = evaluations == study.evaluations[0]
        for case in read_cases()[: study.problems if main else study.others]:
            work = partial(problem_cell, study, case, evaluations, cells.folder / "networks")
            cell = cells.make(f"{case.name}-{evaluations}", work)
            regret = (cell["scores"] / cell["tuned"]).tolist()
            about = {"problem": case.name, "kind": case.kind, "evaluations": evaluations}
            found = {name: [RULES.index(rule)] for name, rule in FIXED_RULES.items()}
            found["best candidate"] = [regret.index(min(regret))]
            found |= {name[8:]: row.tolist() for name, row in cell.items() if name.startswith("variant ")}
            for name, (i, *more) in found.items():
                one = {"variant": name, "rule": RULES[int(i)], "regret": regret[int(i)]}
                yield about | one | dict(zip(("mismatch", "chosen"), more, strict=False))


_UNSHOWN = ("best candidate", "with the length of x", "even weights", "squared weights", "256 examples")


def summary(rows: Sequence[dict[str, str]]) -> dict[str, str]:
    """Geometric mean of the regret with its 95 % interval over problems, its 90 % quantile and worst."""
    logs = torch.tensor([float(row["regret"]) for row in rows], dtype=torch.float64).log()
    half = 1.96 * float(logs.std()) / math.sqrt(len(logs))
    ends = (("", 0.0), (" from", -half), (" to", half))
    cell = {f"regret{end}": f"{math.exp(float(logs.mean()) + off):.4f}" for end, off in ends}
    own = [float(row["mismatch"]) for row in rows if row["mismatch"]]
    high, worst = (f"{math.exp(float(v)):.2f}" for v in (logs.quantile(0.9), logs.max()))
    middle = f"{median(own):.2f}" if own else ""
    return {**cell, "q90": high, "worst": worst, "n": str(len(rows)), "mismatch": middle}


def grouped(rows: Sequence[dict[str, str]], *names: str) -> dict[tuple[str, ...], list[dict[str, str]]]:
    """The rows by the values of these columns."""
    found: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for row in rows:
        found.setdefault(tuple(row[name] for name in names), []).append(row)
    return found


def parts(folder: Path) -> dict[str, str]:
    """Tables by variant, by kind of error and of the two networks; and a sentence for the page on auto."""
    rows = read_csv(folder / "readings.csv")
    groups, table = grouped(rows, "evaluations", "variant"), []
    for (evaluations, variant), own in groups.items():
        if variant in _UNSHOWN or (evaluations != "10" and variant not in ("path matching", "no guidance")):
            continue  # readings.csv has them
        s = summary(own)
        table.append(
            [variant, evaluations, s["n"], interval(s, "regret"), s["q90"], s["worst"], s["mismatch"]]
        )
    by_kind = grouped([r for r in rows if r["evaluations"] == "10"], "kind", "variant")
    kinds = [
        [kind, *(interval(summary(by_kind[kind, v]), "regret") for v in ("path matching", *FIXED_RULES))]
        for kind in KINDS
    ]
    networks = [
        [match.model, str(match.examples), "`" + one.rule.replace("|", "\\|") + "`"]
        + [f"{v:.2f}" for v in (one.mismatch, one.low, one.high, one.chosen)]
        for match in map(load_path_match, sorted(folder.glob("*.json")))
        for one in sorted(match.candidates, key=lambda one: one.mismatch)[:2]
    ]
    said = [(v, interval(summary(groups["10", v]), "regret")) for v in ("path matching", *FIXED_RULES)]
    head = ["variant", "evaluations", "problems", "regret", "q90", "worst", "median mismatch"]
    return {
        "variants": markdown(head, table),
        "kinds": markdown(["kind of error", "path matching", *FIXED_RULES], kinds),
        "networks": markdown(["model", "examples", "rule", "mismatch", "from", "to", "best in"], networks),
        "regret": "Regret at 10 evaluations: " + "; ".join(f"{name} {value}" for name, value in said) + ".",
    }


def draw(rows: Sequence[dict[str, str]]):
    """Regret against the mismatch of the choice, by variant."""
    figure, axes = panels(1, 3, PAGE, 2.2)
    groups = grouped(rows, "evaluations", "variant")
    for ax, name in zip(axes.flat, ("path matching", "16 examples", "all conditions wrong"), strict=True):
        points = [[float(row[key]) for row in groups["10", name]] for key in ("mismatch", "regret")]
        ax.plot(*points, "o", color=BLUE, markersize=2.5, alpha=0.7)
        ax.set(xscale="log", yscale="log", xlabel="mismatch", ylabel="regret", title=name)
    return figure


def main(arguments: Sequence[str] | None = None) -> None:
    example = "python -m studies.path_matching --out out/path_matching"
    args = common.command(__doc__.partition("\n")[0], example, Study()).parse_args(arguments)
    if args.page:
        common.write_page(HERE, parts(HERE))
        return
    study = common.chosen(args, Study(), QUICK)
    cells = Cells(args.out, study)
    path = common.write_csv(args.out / "readings.csv", readings(study, cells))
    common.write_figures(args.out, {"mismatch": lambda: draw(read_csv(path))})
