"""A run of the tests ends with a line that tells what was skipped and why."""

from types import SimpleNamespace

from conftest import pytest_terminal_summary


def test_skipped_tests_are_counted_by_reason():
    absent, other = ("a.py", 3, "Skipped: could not import 'comfy'"), ("b.py", 9, "Skipped: no GPU")
    skipped = [SimpleNamespace(longrepr=where) for where in (absent, other, absent)]
    lines = []
    pytest_terminal_summary(SimpleNamespace(stats={"skipped": skipped}, write_line=lines.append))
    assert lines == ["skipped 3: 2 x could not import 'comfy'; 1 x no GPU"]
    pytest_terminal_summary(SimpleNamespace(stats={}, write_line=lines.append))
    assert len(lines) == 1
