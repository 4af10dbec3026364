"""The benchmark's first problems with components that stand farther apart in more dimensions.

    python -m docs.bench_apart out/apart      two CPU minutes; writes docs/benchmark/apart.csv

In the benchmark two means lie the same number of widths apart in every dimension. Here that distance grows
with the root of the dimension, as it does for means drawn from a Gaussian, and nothing else changes. The file
has the error of rules at equal alignment; `docs/bench_page.py` states what follows.
"""

from __future__ import annotations

import csv
import io
import math
import sys
from dataclasses import replace
from pathlib import Path

from meancap.files import write_whole
from meancap_lab.bench.cases import FAR, read_cases
from meancap_lab.bench.families import FIXED, MATCHED
from meancap_lab.bench.ratios import NEAR, Ratio, stratified_mean
from meancap_lab.bench.trials import Bench, score_cell

RULES = ("Cap 1.1 (the paper)", "anchored cap, Γ tuned", "calibrated cap, q90")
APART = 84  # problems
_HEAD = ("problem", "kind", "rule", "sw2", "alignment")


def measure(folder: Path, problems: int = APART) -> str:
    """The text of apart.csv; networks are trained on the new data and kept in `folder`."""
    matched = {name: MATCHED[name] for name in (FIXED.name, *RULES)}
    lines: list[tuple[object, ...]] = [_HEAD]
    for case in read_cases()[:problems]:
        far = replace(case, name=f"far-{case.name}", overlap=FAR + case.overlap)
        found = score_cell(Bench(far, 10, folder), [], {}, matched).get("aligned", {})
        lines += [(case.name, case.kind, name, one[1], one[3]) for name, one in found.items()]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    return text.getvalue()


def read_apart(path: Path, rule: str) -> Ratio:
    """SW2 of a rule over that of CFG where both have the truth's alignment; problems count alike."""
    rows = list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
    base = {row["problem"]: row for row in rows if row["rule"] == FIXED.name}
    pairs = [(row, base[row["problem"]]) for row in rows if row["rule"] == rule and row["problem"] in base]
    equal = [(a, b) for a, b in pairs if abs(float(a["alignment"]) - float(b["alignment"])) <= NEAR]
    return stratified_mean([[math.log(float(a["sw2"]) / float(b["sw2"])) for a, b in equal]])


if __name__ == "__main__":
    write_whole(Path("docs/benchmark/apart.csv"), measure(Path(sys.argv[1])))
