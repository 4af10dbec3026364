"""Notebooks run as they are from a clone, and hold what they print."""

import json
import re
import subprocess
import sys
import tomllib

import pytest

from pages import ROOT

NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))


def cells(path, kind):
    book = json.loads(path.read_text(encoding="utf-8"))
    return [cell for cell in book["cells"] if cell["cell_type"] == kind]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_first_cell_installs_a_missing_package_from_the_clone(path):
    first = "".join(cells(path, "code")[0]["source"])
    assert 'find_spec("meancap_lab") is None' in first
    installed = re.findall(r'"([./]+(?:lab)?)(?:\[([\w,]*)\])?"', first.split('"-q", ')[1])
    assert [(path.parent / folder).resolve() for folder, _ in installed] == [ROOT, ROOT / "lab"]
    for folder, extras in installed:
        declared = tomllib.loads((path.parent / folder / "pyproject.toml").read_text(encoding="utf-8"))
        assert set(filter(None, extras.split(","))) <= set(declared["project"]["optional-dependencies"])


@pytest.mark.slow
@pytest.mark.parametrize("name", [path.stem for path in NOTEBOOKS])
def test_a_run_prints_what_the_notebook_holds(name):
    """In a process of its own, as a reader would run it."""
    for package in ("nbclient", "ipykernel"):
        pytest.importorskip(package)
    command = [sys.executable, str(ROOT / "tools" / "notebooks.py"), "--check", name]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
