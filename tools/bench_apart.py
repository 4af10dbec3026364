"""The benchmark's first problems with components that stand farther apart in more dimensions.

    python tools/bench_apart.py out/apart      two CPU minutes; writes docs/benchmark/apart.csv

In the benchmark two means lie the same number of widths apart in every dimension. Here that distance grows
with the root of the dimension, as it does for means drawn from a Gaussian, and nothing else changes. The file has the
error of rules at equal alignment; `tools/bench_page.py` states what follows.
"""

from __future__ import annotations

import csv
import io
import math
import sys
from dataclasses import replace
from pathlib import Path

from meancap.bench.cases import FAR, KINDS, read_cases
from meancap.bench.families import FIXED, MATCHED
from meancap.bench.ratios import NEAR, Ratio, stratified_mean
from meancap.bench.trials import Bench, score_cell
from meancap.files import write_whole

RULES = ("Cap 1.1 (the paper)", "anchored cap, Γ tuned", "calibrated cap, q90")
_HEAD = ("problem", "kind", "rule", "sw2", "alignment")


def measure(folder: Path, problems: int = 84) -> str:
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
    """SW2 of a rule over that of CFG where both have the truth's alignment; kinds count alike."""
    rows = list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
    base = {row["problem"]: row for row in rows if row["rule"] == FIXED.name}
    kinds: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for row in rows:
        other = base.get(row["problem"])
        if row["rule"] == rule and other:
            if abs(float(row["alignment"]) - float(other["alignment"])) <= NEAR:
                kinds[row["kind"]].append(math.log(float(row["sw2"]) / float(other["sw2"])))
    return stratified_mean(kinds.values())


if __name__ == "__main__":
    write_whole(Path("docs/benchmark/apart.csv"), measure(Path(sys.argv[1])))
