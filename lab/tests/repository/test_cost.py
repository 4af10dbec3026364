"""What things may cost, in counters that do not depend on the machine's load (see benchmarks/counters.py)."""

import sys
from pathlib import Path

import pytest
import torch

from meancap import apg

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.counters import STEPS, collect, recorded, step
from benchmarks.step import without_numba
from benchmarks.timing import counted, kernels, peak_bytes


def test_no_counter_has_grown():
    """After a change that is worth a higher count: `python -m benchmarks --counters` writes the new ones."""
    before, now = recorded(), dict(collect())
    grown = {name: (before.get(name), value) for name, value in now.items() if value > before.get(name, -1)}
    assert not grown, f"recorded, counted now: {grown}"
    assert before.keys() == now.keys()


@pytest.mark.parametrize("name", STEPS)
def test_what_is_recorded_is_within_the_goals(name):
    """A step holds its result and nothing else; without numba, three tensors more in float32."""
    found = recorded()
    assert found[f"step: memory, {name}"] <= 1.01
    assert found[f"device: kernels, {name}"] < 45
    if name.startswith("float32"):
        assert found[f"reference: memory, {name}"] <= 3.05


def test_the_counters_see_what_a_call_does():
    a, b = torch.ones(8, 100), torch.ones(8, 100)
    names, moved = counted(lambda: torch.add(a, b).mul_(2).view(-1))
    assert names == ["add", "mul"] and moved == (3 + 2) * a.nbytes
    assert counted(lambda: torch.add(a, b, out=a))[1] == 3 * a.nbytes
    assert counted(lambda: a + b[:1].expand(8, 100))[1] == 3 * a.nbytes  # the storage behind the view
    assert counted(lambda: a.copy_(b))[1] == 2 * a.nbytes
    assert peak_bytes(lambda: (a + b) * (a - b)) == 3 * a.nbytes
    shape, dtype = STEPS["float32 1x16x128x128"]
    costly = without_numba(step(shape, dtype, apg(4)))
    assert len(kernels(costly)) > recorded()["reference: kernels, float32 1x16x128x128"]
