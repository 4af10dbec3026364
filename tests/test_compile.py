"""A user who compiles a pipeline gets the rule inside the graph."""

import pytest
import torch

from meancap import CFG, Cap, CapDisplacement, Clip, Interval, Linear, Rescale, apg, guided_velocity


@pytest.mark.parametrize(
    "rule",
    [
        CFG(7) | Cap(1.1),
        CFG(Linear(1, 7)) | Interval(0.1, 0.9) | Clip(3) | CapDisplacement(1.2),
        CFG(7) | Cap(1.1, anchor=0.1, per="channel", smooth=0.5, floor=1.0),
        apg(7),
        CFG(4) | Rescale(),
    ],
    ids=str,
)
@pytest.mark.parametrize("per_sample", [False, True])
def test_rules_trace_without_a_graph_break(rule, per_sample):
    g = torch.Generator().manual_seed(0)
    x, v_c, v_u = (torch.randn(2, 4, 16, 16, generator=g) for _ in range(3))
    t = torch.tensor([0.3, 0.6]) if per_sample else 0.3
    step = torch.compile(lambda *a: guided_velocity(rule, *a)[0], fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(
        step(x, t, v_c, v_u), guided_velocity(rule, x, t, v_c, v_u)[0], rtol=1e-5, atol=1e-5
    )
    torch.compiler.reset()
