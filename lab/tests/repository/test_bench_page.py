"""The documents say what the published result says."""

from pathlib import Path

import pytest

from docs.bench_page import PAGES, TABLE, pages, ran
from docs.rules_page import rules_page
from meancap.files import csv_text
from meancap.rules import CFG, register
from meancap_lab.bench.families import families
from meancap_lab.bench.leaderboard import tables
from meancap_lab.bench.ratios import Result

DOCS = Path(__file__).parents[3] / "docs"


@pytest.fixture(scope="module")
def result():
    return Result(DOCS / "benchmark")


def test_every_number_of_the_pages_follows_from_the_result():
    found = pages(DOCS)
    assert set(found) == set(PAGES)
    for name, text in found.items():
        assert (DOCS / name).read_text(encoding="utf-8") == text, f"python -m docs.bench_page docs; {name}"


def test_the_tables_are_those_of_the_result(result):
    for name, table in tables(result).items():
        assert (DOCS / "benchmark" / f"{name}.csv").read_text(encoding="utf-8") == csv_text(table)


def test_the_page_says_what_was_run(result):
    assert len(TABLE) <= 15 and len(set(TABLE)) == len(TABLE)
    assert all(
        f"{len(result.problems(n))} of 252 problems at {n} evaluations" in ran(result) for n in result.runs
    )


def test_the_result_is_compact_and_of_rules_that_there_are(result):
    """A method that joined after the run is not benchmarked yet; the others are."""
    assert (DOCS / "benchmark" / "result.json").stat().st_size < 2_000_000
    assert set(result.groups) <= {one.name for one in families()}


def test_a_method_that_joins_is_on_the_page_and_in_the_next_run(result):
    @register
    def twice(scale):
        """CFG with twice the gap."""
        return CFG(2 * scale - 1)

    page = rules_page(result)
    assert page.count("### twice") == 1 and "In the benchmark: not benchmarked yet." in page
    assert "twice" in {one.name for one in families()}
