"""Tables from synthetic results: intervals cover, verdicts decide, a regression finds its coefficients."""

import json
import math
import random

import pytest
import torch

from docs.bench_page import least_squares, regress
from meancap_lab.bench.cases import KINDS, read_cases
from meancap_lab.bench.families import FIXED
from meancap_lab.bench.ratios import Ratio, Result, stratified_mean, student

CASES = read_cases()


def write(folder, error, n=84, aligned=None, evaluations=10):
    """A result in which a rule has `error(case)` times the error of tuned CFG."""
    cases = CASES[:n]
    draw = random.Random(0)
    base = [math.exp(draw.gauss(-2, 0.5)) for _ in cases]
    own = [b * error(case) for b, case in zip(base, cases, strict=True)]
    columns = ("sw2 sw2", "end end", "all sw2", "all end")
    run = {
        "problems": [case.name for case in cases],
        "wanted": [case.name for case in cases[: n // 2]],
        "truth": {},
        "rules": {FIXED.name: dict.fromkeys(columns, base), "mine": dict.fromkeys(columns, own)},
        "aligned": aligned(cases) if aligned else {},
    }
    content = {"groups": {FIXED.name: "reference", "mine": "yours"}, "carried": {"mine": {"scale": 2.0}}}
    (folder / "result.json").write_text(json.dumps({**content, "runs": {evaluations: run}}))
    return Result(folder)


@pytest.mark.parametrize(("freedom", "known"), [(1, 12.706), (9, 2.2622), (30, 2.0423), (200, 1.9719)])
def test_students_quantile(freedom, known):
    assert student(freedom) == pytest.approx(known, rel=1e-4)


@pytest.mark.parametrize("sizes", [(12,), (4, 4, 4, 4), (12,) * 7, (3, 3, 3, 9), (1, 12, 5)])
def test_intervals_cover_the_mean_of_equally_weighted_strata(sizes):
    """Strata differ in their means and spreads; 2,000 experiments have a standard error of 0.5 %."""
    draw = random.Random(1)
    spreads, centres = (0.3, 0.8, 0.5, 0.2, 0.6, 0.4, 0.7), (0.2, -0.5, 0.0, 0.4, 0.1, -0.2, 0.3)
    if min(sizes) == 1:
        spreads = (0.5,) * 7  # one spread for all is assumed where a stratum cannot show its own
    truth, hits = sum(centres[: len(sizes)]) / len(sizes), 0
    for _ in range(2000):
        strata = [[draw.gauss(centres[i], spreads[i]) for _ in range(n)] for i, n in enumerate(sizes)]
        found = stratified_mean(strata)
        hits += found.low <= math.exp(truth) <= found.high
    assert 0.925 <= hits / 2000 <= 0.985


def test_equal_weights_of_kinds_whatever_their_numbers():
    assert stratified_mean([[0.0] * 30, [1.0] * 10]).value == pytest.approx(math.exp(0.5))


def test_no_interval_from_fewer_than_ten_problems():
    few, enough = (
        stratified_mean([[0.1 * i for i in range(9)]]),
        stratified_mean([[0.1 * i for i in range(10)]]),
    )
    assert math.isnan(few.low) and few.verdict == "too few" and "[" not in str(few)
    assert enough.low < enough.value < enough.high and "[" in str(enough)


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(0.8, 0.95, "better"), (1.01, 1.3, "worse"), (0.95, 1.05, "even"), (0.71, 1.59, "undecided"),
     (0.97, 1.2, "undecided")],
)  # fmt: skip
def test_a_verdict_needs_an_interval_that_decides(low, high, verdict):
    assert Ratio(math.sqrt(low * high), low, high, 40).verdict == verdict


def test_a_row_has_ratios_quantiles_and_the_worst_problem(tmp_path):
    result = write(tmp_path, lambda case: 3.0 if case.name == "p005" else 0.8)
    row = result.row(10, "mine")
    assert row.tuned.value == pytest.approx(math.exp((83 * math.log(0.8) + math.log(3)) / 84))
    assert row.regret_worst == pytest.approx(3) and row.regret_q90 == pytest.approx(0.8)
    assert row.tuned.verdict == "better" and row.setting == "scale 2" and row.group == "yours"
    assert result.row(10, FIXED.name).tuned[:3] == (1, 1, 1)
    assert [one.rule for one in result.rows(10)] == ["mine", FIXED.name]


def test_strata_are_told_apart(tmp_path):
    result = write(tmp_path, lambda case: 0.5 if case.kind == "leak" else 2.0)
    kinds = result.by_kind(result.logs(10, "mine", "all sw2"))
    assert list(kinds) == list(KINDS) and kinds["leak"].value == pytest.approx(0.5) and kinds["leak"].n == 12
    assert kinds["exact"].value == pytest.approx(2)


def test_equal_alignment_counts_who_reaches_it_and_drops_what_is_not_equal(tmp_path):
    def aligned(cases):
        half = [1.0 if i % 2 else None for i in range(len(cases))]
        far = [0.9 if i % 4 == 1 else 0.95 for i in range(len(cases))]
        cfg = {"scale": half, "sw2": [1.0] * len(cases), "end": half, "alignment": [0.95] * len(cases)}
        mine = {"scale": half, "sw2": [v and 0.7 for v in half], "end": half, "alignment": far}
        return {FIXED.name: cfg, "mine": mine}

    row = write(tmp_path, lambda case: 1.0, aligned=aligned).row(10, "mine")
    assert (row.reached, row.wanted, row.aligned.n) == (42, 42, 21) and row.aligned.value == pytest.approx(
        0.7
    )


def test_the_regression_says_where_a_rule_wins(tmp_path):
    draw = random.Random(2)

    def error(case):
        kind = 0.6 if case.kind == "leak" else 1.2
        return (
            kind
            * 1.1 ** math.log2(case.dimension / 8)
            * 0.9 ** (case.leak / 0.1)
            * math.exp(draw.gauss(0, 0.05))
        )

    result = write(tmp_path, error, n=252)
    found = regress(result, result.logs(10, "mine", "all sw2"))
    expected = {
        "leak": 0.6,
        "exact": 1.2,
        "twice the dimension": 1.1,
        "a tenth more leak": 0.9,
        "off the origin": 1.0,
    }
    for name, value in expected.items():
        assert found[name].low <= value <= found[name].high, name
        assert found[name].high / found[name].low < 1.15


def test_intervals_of_a_regression_cover():
    draw, hits = torch.Generator().manual_seed(0), 0
    table = torch.cat([torch.ones(40, 1), torch.randn(40, 1, generator=draw)], 1).double()
    for _ in range(1000):
        spread = (
            0.2 + table[:, 1].abs()
        )  # the error grows with the variable: plain formulas would be too narrow
        y = 0.3 * table[:, 1] + spread * torch.randn(40, generator=draw).double()
        slope = least_squares(table, y.tolist())[1]
        hits += slope.low <= math.exp(0.3) <= slope.high
    assert 0.91 <= hits / 1000 <= 0.985


def test_another_file_is_no_result(tmp_path):
    (tmp_path / "result.json").write_text("{}")
    with pytest.raises(ValueError, match="not a result of `meancap bench run`"):
        Result(tmp_path)
