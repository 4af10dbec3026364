"""The report of the benchmarks, made from records that were made up here."""

import platform
import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3]))
from benchmarks import records, report
from benchmarks.__main__ import main
from benchmarks.records import Curve, Note, Reading, Setting
from benchmarks.timing import in_turns, ratio

ROOT = Path(__file__).parents[3]
ROWS = [
    Setting("gmm", False, 1, 0.5, "a processor", {"python": "3.11", "torch": "2.0"}),
    Note("gmm", "Four <rounds> of `CFG(3) | Cap(1.1)`."),
    Reading("gmm", "numba", "x naive", 121.4, low=120, high=122, goal=100),
    Reading("gmm", "torch", "x naive", 20.5, low=19, high=22, goal=25),
    Reading("gmm", "torch", "NaN", 0, goal=0, at_most=True),
    Curve("gmm", "Cost against steps", "numba", "steps", "ns", (10, 100), (6.9, 4.9)),
    Curve("gmm", "Cost against steps", "torch & more", "steps", "ns", (10, 100), (20, 19)),
]


def test_records_come_back_from_their_file(tmp_path):
    path = records.write(tmp_path / "deep" / "gmm.jsonl", ROWS)
    assert records.read(path) == ROWS
    assert [p.name for p in path.parent.iterdir()] == ["gmm.jsonl"]


def test_the_report_names_every_goal_and_the_missed_ones_first_and_in_bold(tmp_path):
    records.write(tmp_path / "gmm.jsonl", ROWS)
    text, page = (path.read_text() for path in report.write(tmp_path, tmp_path / "report"))
    assert "2 of 3 goals were met, 1 missed." in text
    missed, met = "**20.5 (19–22)**", "121 (120–122)"
    assert text.index(missed) < text.index(met) and f"**{met}**" not in text
    assert "Four &lt;rounds&gt; of <code>CFG(3) | Cap(1.1)</code>" in page
    assert (tmp_path / "report" / "figures" / "gmm-1.svg").is_file() and "figures/gmm-1.svg" in text
    for name in ("python 3.11", "a processor"):
        assert name in text and name in page
    # One file: nothing is fetched from anywhere.
    assert not re.search(r'(src|href)="(?!data:)', page) and "prefers-color-scheme: dark" in page
    assert "A quick run" not in text


def test_a_setting_tells_neither_host_nor_path():
    found = repr(records.setting("gmm", quick=True))
    assert platform.node() not in found and str(ROOT) not in found
    assert "torch" in found


@pytest.mark.parametrize(
    ("value", "goal", "at_most", "met"),
    [(1, 1, False, True), (0.99, 1, False, False), (1, 1, True, True), (1.01, 1, True, False)],
)
def test_a_goal_is_met_at_its_value(value, goal, at_most, met):
    assert Reading("", "", "", value, goal=goal, at_most=at_most).met is met
    assert Reading("", "", "", value).met is None


def test_contenders_take_turns_and_ratios_are_of_one_round():
    seen = []
    found = in_turns({"a": lambda: seen.append("a"), "b": lambda: seen.append("b")}, rounds=2, tries=3)
    assert seen == (["a"] * 4 + ["b"] * 4) * 6 and len(found["a"]) == 2  # three untimed calls, one timed
    assert ratio({"a": [2.0, 9.0, 4.0], "b": [1.0, 3.0, 1.0]}, "a", "b") == {"value": 3, "low": 2, "high": 4}


@pytest.mark.parametrize(
    ("arguments", "words"), [(["hat"], "unknown benchmark hat"), (["--report-only"], "no records in")]
)
def test_bad_input_is_one_sentence(arguments, words, tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        main([*arguments, "--records", str(tmp_path / "none")])
    assert stop.value.code == 2 and words in capsys.readouterr().err
