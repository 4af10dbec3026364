"""The README shows one picture, and each of its blocks runs alone; test_docs.py runs all of them in order."""

import re
from pathlib import Path

import pytest

from pages import ROOT, blocks

README = ROOT / "README.md"
TEXT = README.read_text(encoding="utf-8")


def test_the_one_picture_is_there_and_small():
    (name,) = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", TEXT)
    data = Path(ROOT / name).read_bytes()
    assert data.startswith(b"\x89PNG") and len(data) < 200_000


@pytest.mark.parametrize("block", [b for b in blocks(README) if b.kind == "python"], ids=lambda b: b.where)
def test_each_block_runs_by_itself(block, tmp_path, monkeypatch):
    """A reader copies one block, not all those before it."""
    monkeypatch.chdir(tmp_path)
    exec(compile(block.text, block.where, "exec", dont_inherit=True), {"__name__": "page"})
