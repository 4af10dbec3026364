"""Optional packages come through one function, whose error says what to install."""

import re
import sys
import tomllib
from pathlib import Path

import pytest

from meancap.extras import need

ROOT = Path(__file__).parents[1]


def test_a_missing_package_is_named_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.delitem(sys.modules, "PIL.Image", raising=False)
    command = r'pip install "\.\[plot\]" in your clone of meancap$'
    with pytest.raises(ModuleNotFoundError, match=rf"^this needs Pillow, .* {command}"):
        need("PIL.Image", "plot")


def test_a_package_that_fails_to_import_gives_its_reason(tmp_path, monkeypatch):
    (tmp_path / "too_old.py").write_text("raise ImportError('too_old needs NumPy 1')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ImportError, match=r"too_old, which cannot be imported \(too_old needs NumPy 1\)"):
        need("too_old", "fast")


def test_every_extra_that_the_package_names_is_declared():
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    source = "".join(path.read_text() for path in (ROOT / "src" / "meancap").rglob("*.py"))
    named = set(re.findall(r'need\("[\w.]+", "(\w+)"\)', source))
    assert named and named <= set(declared), named - set(declared)
