"""The README shows in twelve lines and one picture what this is; test_docs.py runs its code."""

import re
from pathlib import Path

import pytest

from meancap.rules import catalogue
from pages import ROOT, blocks

README = ROOT / "README.md"
TEXT = README.read_text(encoding="utf-8")


def test_the_first_code_is_twelve_lines_at_most():
    first = next(block for block in blocks(README) if block.kind == "python")
    assert len(first.text.split("\n")) <= 12


def test_the_first_screen_has_the_picture_before_the_code():
    picture, code = TEXT.index("!["), TEXT.index("```python")
    assert picture < code
    assert TEXT[:picture].count("\n") <= 12


def test_the_one_picture_is_there_and_small():
    (name,) = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", TEXT)
    data = Path(ROOT / name).read_bytes()
    assert data.startswith(b"\x89PNG") and len(data) < 200_000


def test_the_code_is_followed_by_what_it_prints():
    kinds = [block.kind for block in blocks(README)]
    assert kinds[:2] == ["python", "text"]
    assert len(blocks(README)[1].text.split("\n")) == 2


def test_the_two_commands_are_there():
    shell = next(block for block in blocks(README) if block.kind == "sh")
    assert [row.split()[:2] for row in shell.text.split("\n")] == [["make", "demo"], ["make", "test"]]


def test_as_many_methods_are_promised_as_there_are():
    assert f"[{len(catalogue())} methods]" in TEXT


@pytest.mark.parametrize("block", [b for b in blocks(README) if b.kind == "python"], ids=lambda b: b.where)
def test_each_block_runs_by_itself(block, tmp_path, monkeypatch):
    """A reader copies one block, not all those before it."""
    monkeypatch.chdir(tmp_path)
    exec(compile(block.text, block.where, "exec", dont_inherit=True), {"__name__": "page"})


def test_the_first_code_comes_after_what_it_needs():
    before = TEXT[: TEXT.index("```python")]
    assert 'pip install ".[images]"' in before


def test_the_paper_can_be_found_and_cited():
    assert "Non-Autonomous Potentials, Overshoot" in TEXT and "@misc{peng2026guidance" in TEXT
    assert "https://github.com/ppposition/pmc" in TEXT and "eprint = {2609.24287}" in TEXT


def test_the_words_of_the_first_screen_are_explained_there():
    first = TEXT[: TEXT.index("```python")]
    assert "estimate of the clean image" in first and "Γ = 1.1 allows 10 %" in first
