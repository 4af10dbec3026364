"""A run of the tests ends with a line that tells what was skipped and why."""

import runpy
from pathlib import Path
from types import SimpleNamespace

SUMMARY = runpy.run_path(str(Path(__file__).with_name("conftest.py")))["pytest_terminal_summary"]


def test_skipped_tests_are_counted_by_reason():
    absent, other = ("a.py", 3, "Skipped: could not import 'comfy'"), ("b.py", 9, "Skipped: no GPU")
    skipped = [SimpleNamespace(longrepr=where) for where in (absent, other, absent)]
    lines = []
    SUMMARY(SimpleNamespace(stats={"skipped": skipped}, write_line=lines.append))
    assert lines == ["skipped 3: 2 x could not import 'comfy'; 1 x no GPU"]
    SUMMARY(SimpleNamespace(stats={}, write_line=lines.append))
    assert len(lines) == 1
