"""Notebooks run as they are from a clone, and hold what they print."""

import json
import subprocess
import sys

import pytest

from pages import ROOT

NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))


def cells(path, kind):
    book = json.loads(path.read_text(encoding="utf-8"))
    return [cell for cell in book["cells"] if cell["cell_type"] == kind]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_first_cell_installs_a_missing_package_from_the_clone(path):
    first = "".join(cells(path, "code")[0]["source"])
    assert 'find_spec("meancap") is None' in first
    clone, _, extras_text = first.split('"-q", "')[1].partition("[")
    assert (path.parent / clone).resolve() == ROOT.resolve()
    asked = extras_text.split("]")[0].split(",")
    tomllib = pytest.importorskip("tomllib")
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert set(asked) <= set(extras["optional-dependencies"])


@pytest.mark.slow
@pytest.mark.parametrize("name", [path.stem for path in NOTEBOOKS])
def test_a_run_prints_what_the_notebook_holds(name):
    """In a process of its own, as a reader would run it."""
    for package in ("nbclient", "ipykernel"):
        pytest.importorskip(package)
    command = [sys.executable, str(ROOT / "tools" / "notebooks.py"), "--check", name]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
