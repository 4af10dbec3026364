"""Every study has its page, readings and command; pages are what the readings say; folders resume."""

import importlib
import re
from dataclasses import replace

import pytest

from pages import ROOT
from studies import common
from studies.feedback import study as feedback
from studies.half_price import study as half_price

STUDIES = sorted(path.parent.name for path in (ROOT / "studies").glob("*/README.md"))
MEASURED = [name for name in STUDIES if name != "training"]
NUMBER = re.compile(r"(?<![\w.,])[−-]?\d+\.\d+(?![\w.])")
MARKED = re.compile(r"<!-- ([a-z ]+) -->\n(.*?)<!-- /\1 -->", re.DOTALL)


def parts(name):
    module = importlib.import_module(f"studies.{name}.study")
    return module.parts(ROOT / "studies" / name)


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_is_a_folder_with_a_page_a_command_and_readings(name):
    folder = ROOT / "studies" / name
    page = (folder / "README.md").read_text(encoding="utf-8")
    assert f"python -m studies.{name}" in page and page.startswith("# ")
    if name in MEASURED:
        assert (folder / "readings.csv").is_file() and "**Verdict.**" in page
    assert all((folder / picture).is_file() for picture in re.findall(r"!\[.*?\]\((.*?)\)", page))
    index = (ROOT / "studies" / "README.md").read_text(encoding="utf-8")
    assert f"[{name}]({name}/README.md)" in index


@pytest.mark.parametrize("name", STUDIES)
def test_a_command_explains_itself_with_an_example(name, capsys):
    with pytest.raises(SystemExit) as stop:
        importlib.import_module(f"studies.{name}.study").main(["--help"])
    text = capsys.readouterr().out
    assert stop.value.code == 0 and f"  python -m studies.{name} " in text.split("example:\n")[1]


@pytest.mark.parametrize("name", MEASURED)
def test_a_page_is_computed_from_its_readings(name):
    page = (ROOT / "studies" / name / "README.md").read_text(encoding="utf-8")
    assert common.with_parts(page, parts(name)) == page


@pytest.mark.parametrize("name", MEASURED)
def test_numbers_between_the_tables_stand_in_them(name):
    """Results in sentences are readings, rounded; what a protocol sets is no result."""
    page = (ROOT / "studies" / name / "README.md").read_text(encoding="utf-8")
    readings = " ".join(path.read_text(encoding="utf-8") for path in (ROOT / "studies" / name).glob("*.csv"))
    known = [float(v) for v in re.findall(r"-?\d+\.\d+", readings + " ".join(parts(name).values()))]
    verdict = re.search(r"\*\*Verdict\.\*\*.*?\n\n", page, re.DOTALL)[0]
    results = verdict + MARKED.sub("", page).split("## Results")[1]
    for text in NUMBER.findall(re.sub(r"`[^`]*`|\]\([^)]*\)", "", results)):
        value = float(text.replace("−", "-"))
        places = len(text.partition(".")[2])
        assert any(round(one, places) == value for one in known), f"{name}: {text}"


def test_a_study_resumes_in_its_folder_and_refuses_another(tmp_path, capsys):
    small = replace(feedback.QUICK, mixtures=(11,), samples=64, steps=4, scales=(1.25, 2.0))
    rows = list(feedback.readings(small, common.Cells(tmp_path, small)))
    assert rows[1]["feedback over CFG"] == pytest.approx(rows[0]["feedback over CFG"])  # one mixture's mean
    made = {path: path.read_bytes() for path in (tmp_path / "cells").iterdir()}
    assert len(made) == 2
    capsys.readouterr()
    assert list(feedback.readings(small, common.Cells(tmp_path, small))) == rows
    assert not capsys.readouterr().err and {path: path.read_bytes() for path in made} == made
    common.Cells(tmp_path, replace(small, seeds=(5,)))
    with pytest.raises(ValueError, match="samples was 64, now 65"):
        common.Cells(tmp_path, replace(small, samples=65))


@pytest.mark.parametrize("calls", half_price.Study().calls)
def test_methods_at_half_the_price_use_all_their_calls(calls):
    for text in half_price.METHODS.values():
        rule = text.format(scale=3)
        assert half_price.count_calls(rule, half_price.steps_for(rule, calls)) == calls


def test_options_come_from_the_fields_of_a_study():
    p = common.command("about", "python -m studies.feedback --out x", feedback.Study())
    args = p.parse_args(["--out", "x", "--quick", "--seeds", "5,6", "--leak", "0.2"])
    study = common.chosen(args, feedback.Study(), feedback.QUICK)
    assert study == replace(feedback.QUICK, seeds=(5, 6), leak=0.2)
    with pytest.raises(ValueError, match="give --out DIR"):
        common.chosen(p.parse_args([]), feedback.Study(), feedback.QUICK)


def test_bad_input_is_one_sentence(monkeypatch):
    monkeypatch.setattr("sys.argv", ["feedback", "--out", "x", "--seeds", "1"])
    with pytest.raises(SystemExit, match=r"^seed 1 tunes CFG; score on other seeds$"):
        common.start(feedback.main)
