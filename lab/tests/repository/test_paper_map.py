"""The map of the paper names functions and tests that exist, and every label once."""

import importlib
import re
from collections import Counter

import pytest

from pages import ROOT

ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in (ROOT / "docs" / "paper-map.md").read_text(encoding="utf-8").splitlines()
    if line.startswith("| ") and not line.startswith("| statement")
]
TESTS = [path for folder in ("tests", "lab/tests") for path in (ROOT / folder).rglob("test_*.py")]


def resolve(name):
    """The object of a dotted name; names that begin with a module of the laboratory are taken from there."""
    parts = (name if name.startswith("meancap.") else f"meancap_lab.{name}").split(".")
    for count in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:count]))
        except ImportError:
            continue
        for part in parts[count:]:
            found = getattr(found, part)
        return found
    raise ImportError(name)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_every_function_and_test_of_a_statement_exists(row):
    _, section, _, functions, tests = row
    assert re.fullmatch(r"([1-6A-F](\.\d)?(, )?)+", section)
    assert all(callable(resolve(name)) for name in re.findall(r"`([^`]+)`", functions)) and "`" in functions
    named = [one.split("::") for one in re.findall(r"`([^`]+)`", tests)]
    assert named
    for file, test in named:
        written = "".join(path.read_text(encoding="utf-8") for path in TESTS if path.name == file)
        assert f"def {test}(" in written, f"{file} has no {test}"


def test_every_label_of_the_paper_stands_once():
    """91 labels of statements, equations, tables and figures are in the paper's source."""
    labels = [label for row in ROWS for label in row[2].split() if label != "–"]
    assert len(labels) == 91 and max(Counter(labels).values()) == 1
