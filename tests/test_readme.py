"""The README shows in twelve lines and one picture what this is; test_docs.py runs its code."""

import re
from pathlib import Path

import pytest

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


@pytest.mark.parametrize("block", [b for b in blocks(README) if b.kind == "python"], ids=lambda b: b.where)
def test_each_block_runs_by_itself(block, tmp_path, monkeypatch):
    """A reader copies one block, not all those before it."""
    monkeypatch.chdir(tmp_path)
    exec(compile(block.text, block.where, "exec", dont_inherit=True), {"__name__": "page"})
