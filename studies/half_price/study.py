"""Guidance at half the price: which network calls to save.

    calls      conditional and unconditional predictions, counted apart; full guidance costs two in a step
    methods    full guidance with fewer steps, a gap reused for 2, 3 or 4 steps, guidance that stops half-way,
               and CFG gating, which keeps its last gap from there; each alone and with `Cap(1.1)` behind
    mixtures   the first problems of the benchmark in their balanced order; SW2 to the truth, the scale tuned
               for every method and problem on other noise, as the benchmark does it
    networks   the two shipped models at one scale; rms distance of the pictures to those of the same rule
               with full guidance and many steps, from the same noise

A method makes as many steps as its calls allow. A cell is one problem or one network.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import torch
from torch import Tensor

from meancap import noise, parse, sample, uniform
from meancap.prediction import Prediction
from meancap.sampling import Predict, Predictor
from meancap_lab.bench.cases import KINDS, Case, read_cases
from meancap_lab.bench.families import CAPPED, SCALE, Family
from meancap_lab.bench.ratios import Ratio, stratified_mean
from meancap_lab.bench.trials import Bench, score_cell
from meancap_lab.models import fashion
from meancap_lab.models.scenes import scenes
from meancap_lab.report.style import AMBER, BLUE, GREEN, GREY, PAGE, PURPLE, SKY, VERMILION, panels
from studies import common
from studies.common import Cells, Row, option, read_csv

FULL = "full guidance, fewer steps"
METHODS = {
    FULL: "CFG({scale})",
    "a gap for 2 steps": "Reuse(2) | CFG({scale})",
    "a velocity's gap for 2 steps": "Reuse(2, 1, 'velocity') | CFG({scale})",
    "a gap for 3 steps": "Reuse(3) | CFG({scale})",
    "a gap for 4 steps": "Reuse(4) | CFG({scale})",
    "stop half-way": "CFG({scale}) | Interval(0, 0.49)",
    "CFG gating half-way": "cfg_gating({scale}, gate=0.49)",
}
COLOURS = dict(zip(METHODS, (VERMILION, BLUE, AMBER, SKY, PURPLE, GREY, GREEN), strict=True))
CAP = " | Cap(1.1)"
WORDS = {"": "", CAP: ", capped"}
SENTENCES = ("a red disc left of a blue square", "a green triangle above a yellow disc")


@dataclass(frozen=True)
class Study:
    """How much to run."""

    calls: tuple[int, ...] = option((12, 24, 48), "network calls")
    problems: int = option(84, "problems of the benchmark")
    pictures: int = option(16, "pictures of each network; 0 leaves the networks out")
    scale: float = option(3.0, "scale on the networks")
    steps: int = option(64, "steps of the networks' reference")


QUICK = Study((12,), problems=14, pictures=0)


class Counter(Predictor):
    """A model of no gap that counts its calls."""

    calls = 0

    def __call__(self, x: Tensor, t: float) -> Prediction:
        self.calls += 2
        return Prediction.from_mean(x, t, x, x)

    def conditional(self, x: Tensor, t: float) -> Prediction:
        self.calls += 1
        return Prediction.from_mean(x, t, x, x)


@cache
def count_calls(text: str, steps: int) -> int:
    """The network calls of a rule in so many steps, counted in the library's own loop."""
    counter = Counter()
    sample(counter, parse(text), torch.zeros(1, 2), uniform(steps))
    return counter.calls


def steps_for(text: str, calls: int) -> int:
    """The most steps that a rule can make within so many calls."""
    return max(n for n in range(calls // 2, calls + 1) if count_calls(text, n) <= calls)


def mixture_error(case: Case, folder: Path, text: str, cap: str, steps: int) -> float:
    """SW2 of a method, tuned on other noise."""
    family = Family(text + cap, text + cap, (CAPPED if cap else SCALE,))
    return score_cell(Bench(case, steps, folder), [family], {}, {})["rules"][family.name]["sw2"][0]


@cache
def network(study: Study, name: str) -> tuple[Predict, Tensor, dict[str, Tensor]]:
    """A network for its pictures, their noise, and the results of full guidance with many steps by cap."""
    model = fashion() if name == "garments" else scenes()
    wanted = [i % 10 if name == "garments" else SENTENCES[i % len(SENTENCES)] for i in range(study.pictures)]
    predict, x = model.predict(wanted), noise(range(study.pictures), model.shape)
    rule = f"CFG({study.scale:g})"
    return predict, x, {cap: sample(predict, rule + cap, x, uniform(study.steps)) for cap in WORDS}


def network_error(study: Study, name: str, text: str, cap: str, steps: int) -> float:
    """The distance of a method from full guidance with many steps."""
    predict, x, targets = network(study, name)
    end = sample(predict, text.format(scale=f"{study.scale:g}") + cap, x, uniform(steps))
    return float((end - targets[cap]).square().mean().sqrt())


def make_cell(study: Study, error: Callable[[str, str, int], float]) -> dict[str, Tensor]:
    """The error of every method: one number for each number of calls."""
    found: dict[str, list[float]] = {}
    for calls in study.calls:
        for name, text in METHODS.items():
            steps = steps_for(text.format(scale=2), calls)
            for cap, words in WORDS.items():
                found.setdefault(name + words, []).append(error(text, cap, steps))
    return {name: torch.tensor(values) for name, values in found.items()}


def readings(study: Study, cells: Cells) -> Iterator[Row]:
    """One row for each problem or network and number of calls, with a column for each method."""
    folder = cells.folder / "networks"
    todo = [(c.name, c.kind, partial(mixture_error, c, folder)) for c in read_cases()[: study.problems]]
    for name in ("garments", "scenes") if study.pictures else ():
        todo.append((name, "shipped", partial(network_error, study, name)))
    for of, kind, error in todo:
        cell = cells.make(of, partial(make_cell, study, error))
        for i, calls in enumerate(study.calls):
            yield {"of": of, "kind": kind, "calls": calls} | {name: float(v[i]) for name, v in cell.items()}


def ratio(rows: Sequence[dict[str, str]], calls: str, name: str, base_calls: str) -> Ratio:
    """SW2 of a method over that of full guidance with `base_calls`; kinds of error count alike."""
    base = {row["of"]: float(row[FULL]) for row in rows if row["calls"] == base_calls}
    own = [(row["kind"], float(row[name]) / base[row["of"]]) for row in rows if row["calls"] == calls]
    return stratified_mean([math.log(v) for kind, v in own if kind == one] for one in KINDS)


def parts(folder: Path) -> dict[str, str]:
    """The table: mixtures at each number of calls, then the networks in the middle of them."""
    rows = read_csv(folder / "readings.csv")
    calls = list(dict.fromkeys(row["calls"] for row in rows))
    shipped = [row for row in rows if row["kind"] == "shipped" and row["calls"] == calls[1]]
    table = []
    for name in [name + words for words in WORDS.values() for name in METHODS]:
        full = FULL + (WORDS[CAP] if name.endswith(WORDS[CAP]) else "")
        pictures = [f"{float(row[name]) / float(row[full]):.2f}" for row in shipped]
        table.append([name, *(str(ratio(rows, n, name, n)) for n in calls), *pictures])
    head = ["error over that of full guidance", *(f"{n} calls" for n in calls)]
    return {"readings": common.markdown([*head, *(f"{row['of']}, {calls[1]}" for row in shipped)], table)}


def draw_calls(cells: Cells):
    """Error against network calls, over that of full guidance with the most calls."""
    rows = read_csv(cells.folder / "readings.csv")
    calls = list(dict.fromkeys(row["calls"] for row in rows))
    figure, axes = panels(1, 2, PAGE, 2.5, sharey=True)
    for place, words in zip(axes[0], WORDS.values(), strict=True):
        for name, colour in COLOURS.items():
            values = [ratio(rows, n, name + words, calls[-1]).value for n in calls]
            place.plot([int(n) for n in calls], values, "o-", ms=3, color=colour, label=name)
        place.set(xlabel="network calls", title=f"CFG{words}")
        place.set_xticks([int(n) for n in calls], calls)
    axes[0, 0].set_ylabel(f"SW2 over full guidance with {calls[-1]} calls")
    axes[0, 0].legend(fontsize=6)
    return figure


def main(argv: Sequence[str] | None = None) -> None:
    example = "python -m studies.half_price --out out/half"
    common.run(argv, __doc__, example, (Study(), QUICK), readings, parts, {"calls": draw_calls})
