"""From a result to tables: every number is a ratio to CFG tuned on the same problem, with its interval.

    ratio     error of a rule over that of CFG tuned on each problem, on the same noise, as a logarithm; kinds
              of error count alike, problems of a kind too; the interval is Student's over problems
    tuned     both tuned on each problem, on other noise
    regret    one setting for all problems: a recipe without knobs, or what was best on other problems
    aligned   both at the alignment of the truth, on the problems where the rule and CFG reach it
    verdict   better or worse if the interval leaves 1 out, even if it lies within 10 % of 1, else undecided

An interval needs ten problems.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

from .cases import KINDS, read_cases
from .families import FIXED

FEWEST, EVEN, LEVEL = 10, 1.1, 0.95
NEAR = 0.005  # alignments that differ by more are not equal
Logs = dict[str, float]  # by problem


class Ratio(NamedTuple):
    """A geometric mean with its interval and the number of problems; nan if there is none."""

    value: float
    low: float
    high: float
    n: int

    @property
    def verdict(self) -> str:
        """The verdict of the interval: better, worse, even, undecided or too few problems."""
        if self.n < FEWEST:
            return "too few"
        if self.high < 1:
            return "better"
        if self.low > 1:
            return "worse"
        return "even" if self.low >= 1 / EVEN and self.high <= EVEN else "undecided"

    def __str__(self) -> str:
        if not self.n:
            return "–"
        return f"{self.value:.2f}" + ("" if self.n < FEWEST else f" [{self.low:.2f}, {self.high:.2f}]")


NOTHING = Ratio(math.nan, math.nan, math.nan, 0)


@dataclass(frozen=True)
class Row:
    """One rule at one number of evaluations."""

    rule: str
    group: str
    tuned: Ratio
    tuned_end: Ratio
    regret: Ratio
    regret_q90: float
    regret_worst: float
    regret_end: Ratio
    aligned: Ratio
    reached: int  # problems on which the rule reaches the truth's alignment,
    wanted: int  # of those where guidance has a way to go
    alignment: float  # mean of p(A | x) at the one setting for all
    setting: str


class Result:
    """A result.json, read once."""

    def __init__(self, path: str | Path) -> None:
        path = Path(path) / "result.json" if Path(path).is_dir() else Path(path)
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            self.runs: dict[int, dict[str, Any]] = {int(n): run for n, run in content["runs"].items()}
            self.groups: dict[str, str] = content["groups"]
            self.carried: dict[str, dict[str, float]] = content["carried"]
            self.cpu_minutes: dict[str, float] = content.get("cpu_minutes", {})  # by part and evaluations
        except (OSError, ValueError, KeyError) as error:
            raise ValueError(
                f"{path} is not a result of `meancap bench run` ({error!r}); run it first"
            ) from None
        self.cases = {case.name: case for case in read_cases()}

    def problems(self, evaluations: int) -> list[str]:
        """Names of the problems that were run."""
        return list(self.runs[evaluations]["problems"])

    def logs(self, evaluations: int, rule: str, column: str) -> Logs:
        """Log of a rule's column over CFG tuned by the same score, on each problem that has both."""
        run, score = self.runs[evaluations], column.split()[1]
        own, other = run["rules"][rule].get(column, ()), run["rules"][FIXED.name][f"{score} {score}"]
        pairs = zip(run["problems"], own, other, strict=False)
        return {name: math.log(a / b) for name, a, b in pairs if a is not None}

    def aligned_logs(self, evaluations: int, rule: str) -> Logs:
        """The same at equal alignment, where both reach it."""
        run = self.runs[evaluations]
        if rule not in run["aligned"]:
            return {}
        own, other = run["aligned"][rule], run["aligned"][FIXED.name]
        return {
            name: math.log(own["sw2"][i] / other["sw2"][i])
            for i, name in enumerate(run["problems"])
            if own["sw2"][i] is not None
            and other["sw2"][i] is not None
            and abs(own["alignment"][i] - other["alignment"][i]) <= NEAR
        }

    def row(self, evaluations: int, rule: str) -> Row:
        """Everything about a rule at one number of evaluations."""
        run = self.runs[evaluations]
        known, matched = rule in run["rules"], run["aligned"].get(rule)
        columns: Mapping[str, Any] = run["rules"].get(rule, {})
        tuned = self.logs(evaluations, rule, "sw2 sw2") if known else {}
        regret = self.logs(evaluations, rule, "all sw2") if known else {}
        aligned = self.aligned_logs(evaluations, rule)
        ratios = torch.tensor(list(regret.values()), dtype=torch.float64).exp()
        seen = [v for v in columns.get("all alignment", ()) if v is not None]
        setting = self.carried.get(rule, {})
        return Row(
            rule,
            self.groups.get(rule, "cap" if "cap" in rule else "rival"),
            self.mean(tuned),
            self.mean(self.logs(evaluations, rule, "end end") if known else {}),
            self.mean(regret),
            float(ratios.quantile(0.9)) if regret else math.nan,
            float(ratios.max()) if regret else math.nan,
            self.mean(self.logs(evaluations, rule, "all end") if known else {}),
            self.mean(aligned),
            sum(v is not None for v in matched["sw2"]) if matched else 0,
            len(run["wanted"]) if matched else 0,
            sum(seen) / len(seen) if seen else math.nan,
            ", ".join(f"{name} {value:g}" for name, value in setting.items()),
        )

    def rows(self, evaluations: int) -> list[Row]:
        """All rules, by their regret, then by their error when tuned."""
        run = self.runs[evaluations]
        names = dict.fromkeys((*run["rules"], *run["aligned"]))
        rows = [self.row(evaluations, name) for name in names]
        return sorted(rows, key=lambda one: (not one.regret.n, one.regret.value, one.tuned.value))

    def mean(self, logs: Logs) -> Ratio:
        """The geometric mean with equal weights of the kinds that have problems."""
        kinds: dict[str, list[float]] = {}
        for name, value in logs.items():
            kinds.setdefault(self.cases[name].kind, []).append(value)
        return stratified_mean(list(kinds.values()))

    def by_kind(self, logs: Logs) -> dict[str, Ratio]:
        """The ratio for each kind of error."""
        return {
            kind: stratified_mean([[v for n, v in logs.items() if self.cases[n].kind == kind]])
            for kind in KINDS
        }


def stratified_mean(strata: Iterable[Sequence[float]]) -> Ratio:
    """exp of the mean of the strata's means of logarithms; Welch and Satterthwaite's interval."""
    groups = [one for one in strata if one]
    n = sum(map(len, groups))
    if not n:
        return NOTHING
    means = [math.fsum(one) / len(one) for one in groups]
    mean = math.fsum(means) / len(groups)
    if n < FEWEST:
        return Ratio(math.exp(mean), math.nan, math.nan, n)
    if min(map(len, groups)) < 2:  # too few in a stratum to know its spread: one spread for all
        deviations = [v - m for one, m in zip(groups, means, strict=True) for v in one]
        freedom = n - len(groups)
        if freedom < 1:
            return stratified_mean([[v for one in groups for v in one]])
        pooled = math.fsum(v * v for v in deviations) / freedom
        parts = [pooled / len(one) for one in groups]
        half = student(freedom) * math.sqrt(math.fsum(parts)) / len(groups)
    else:
        parts = [
            math.fsum((v - m) ** 2 for v in one) / (len(one) - 1) / len(one)
            for one, m in zip(groups, means, strict=True)
        ]
        total = math.fsum(parts)
        squares = math.fsum(v * v / (len(one) - 1) for v, one in zip(parts, groups, strict=True))
        half = student(int(total**2 / squares)) * math.sqrt(total) / len(groups) if total else 0.0
    return Ratio(math.exp(mean), math.exp(mean - half), math.exp(mean + half), n)


@lru_cache
def student(freedom: int) -> float:
    """The t with P(|T| <= t) = LEVEL, by bisection on Simpson's rule in the angle atan(T / sqrt(freedom))."""

    def inside(t: float) -> float:
        # With T = sqrt(f) tan(a) the density is proportional to cos(a)^(f - 1).
        return _simpson(freedom, math.atan(t / math.sqrt(freedom))) / _simpson(freedom, math.pi / 2)

    low, high = 0.0, 1000.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if inside(middle) < LEVEL else (low, middle)
    return (low + high) / 2


def _simpson(freedom: int, end: float) -> float:
    parts = 400
    values = [max(math.cos(end * i / parts), 0.0) ** (freedom - 1) for i in range(parts + 1)]
    return end / parts / 3 * (values[0] + values[-1] + 4 * sum(values[1::2]) + 2 * sum(values[2:-1:2]))
