"""Strict and repeatable: one thread, fixed seeds, examples that do not depend on the clock."""

import pytest
import torch
from hypothesis import settings

from meancap.rules.methods import registry

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
    registry.catalogue()  # rules of installed packages stay
    for name in ("_METHODS", "_BUILDS"):
        monkeypatch.setattr(registry, name, dict(getattr(registry, name)))
