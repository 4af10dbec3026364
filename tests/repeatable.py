"""Strict and repeatable: one thread, fixed seeds, examples that do not depend on the clock."""

from collections import Counter

import pytest
import torch
from hypothesis import settings

from meancap.rules import methods

settings.register_profile("meancap", deadline=None, derandomize=True, max_examples=60)
settings.load_profile("meancap")


@pytest.fixture(autouse=True)
def _repeatable():
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def _catalogue_as_it_was(monkeypatch):
    """What a test or a page's code registers is gone after it."""
    methods.catalogue()  # rules of installed packages stay
    monkeypatch.setattr(methods, "_METHODS", dict(methods._METHODS))


def pytest_terminal_summary(terminalreporter):
    """One line that tells what was skipped and why."""
    reasons = Counter(
        one.longrepr[2] if isinstance(one.longrepr, tuple) else str(one.longrepr)
        for one in terminalreporter.stats.get("skipped", [])
    )
    if reasons:
        words = (f"{n} x {reason.removeprefix('Skipped: ')}" for reason, n in reasons.most_common())
        terminalreporter.write_line(f"skipped {reasons.total()}: {'; '.join(words)}")
