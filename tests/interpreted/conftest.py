"""The CUDA kernels in Triton's interpreter: test_triton.py runs this folder with TRITON_INTERPRET=1.

Selection is told that the host is such a device, so that `guided_velocity` takes the kernels. Triton is
imported by the fixtures alone, because pytest may read this file where it is not installed.
"""

import pytest

from meancap.rules import fused


class Watched:
    """A kernel that tells when it is launched."""

    def __init__(self, name, kernel, seen):
        self.name, self.kernel, self.seen = name, kernel, seen

    def __getitem__(self, grid):
        self.seen.append(self.name)
        return self.kernel[grid]


@pytest.fixture
def launches(monkeypatch):
    """The kernels, in the order in which they were launched."""
    from meancap.cuda import step

    seen = []
    for name in ("whole_samples", "part_sums", "part_velocities"):
        monkeypatch.setattr(step, name, Watched(name, getattr(step, name), seen))
    return seen


@pytest.fixture(autouse=True)
def _selected(monkeypatch):
    monkeypatch.setattr(fused, "on_cuda", lambda x: True)


@pytest.fixture
def tall(monkeypatch):
    """Few programs with much to do each: the interpreter pays by the program, not by the element."""
    from meancap.cuda import step

    monkeypatch.setattr(step, "LEAST", 2**16)
    monkeypatch.setattr(step, "TILE", 2**14)
