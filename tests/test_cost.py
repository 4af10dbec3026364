"""What a guidance step may cost, in counters that do not depend on the machine's load."""

import sys
from pathlib import Path

import pytest
import torch

from meancap import CFG, Cap, Record, guided_velocity

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.timing import kernels, peak_bytes

RULE = CFG(5) | Cap(1.1)


def step(*shape):
    g = torch.Generator().manual_seed(0)
    x, v_c, other = (torch.randn(shape, generator=g) for _ in range(3))
    v_u = v_c + 0.5 * other
    return lambda: guided_velocity(RULE, x, 0.3, v_c, v_u, record=Record()), x.nbytes


@pytest.mark.parametrize(
    ("shape", "most"),
    [((1, 16, 128, 128), 8), ((1, 4096, 64), 8), ((1, 16, 21, 60, 104), 8), ((8, 16, 128, 128), 9)],
)
def test_a_step_on_a_large_latent_dispatches_few_kernels(shape, most):
    run, _ = step(*shape)
    assert len(kernels(run)) <= most, kernels(run)


@pytest.mark.parametrize("shape", [(1, 16, 128, 128), (8, 16, 128, 128)])
def test_a_step_holds_at_most_three_tensors_more(shape):
    run, size = step(*shape)
    assert peak_bytes(run) <= 3.05 * size  # three tensors, and the partial sums of their blocks
