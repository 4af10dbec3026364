"""On an accelerator nothing waits for a value, and a device without float64 still keeps the bound."""

import pytest
import torch

import meancap.cap
import meancap.tensors
from cases import adversarial
from meancap import (
    CFG,
    Cap,
    CapDisplacement,
    Clip,
    Interval,
    Linear,
    Prediction,
    Record,
    Rescale,
    apg,
    guide,
    guided_velocity,
)

RULES = [
    CFG(7) | Cap(1.1),
    CFG(Linear(1, 7)) | Interval(0.1, 0.9) | Clip(3) | CapDisplacement(1.2, floor=0.5),
    CFG(7) | Cap(1.1, anchor=[0.1, 0.2, 0.3, 0.4], per="channel", smooth=0.5),
    apg(7) | Cap(1.05, anchor="first"),
    CFG(4) | Rescale(),
]


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("t", [0.3, torch.tensor([0.3, 0.6], device="meta")], ids=["one time", "times"])
def test_nothing_waits_for_a_value(rule, t):
    # A meta tensor has no values: .item(), .tolist() and bool() all raise.
    x, v_c, v_u = (torch.empty(2, 4, 16, 16, device="meta") for _ in range(3))
    v, state = guided_velocity(rule, x, t, v_c, v_u, record=Record())
    v, _ = guided_velocity(rule, x, t, v_c, v_u, state)
    assert v.shape == x.shape and v.device.type == "meta"


@pytest.mark.parametrize("gamma", [1.0, 1.05, 2.0])
def test_without_float64_the_bound_holds(monkeypatch, gamma):
    for module in (meancap.tensors, meancap.cap):
        monkeypatch.setattr(module, "scalar_dtype", lambda device: torch.float32)
    monkeypatch.setattr(meancap.cap, "import_fast", lambda: None)
    for seed in range(4):
        m_c, gap = adversarial(seed, 40, 4096)
        p = Prediction(m_c, 0.5, m_c, m_c - gap, gap=gap)
        assert p.lengths.m.dtype == torch.float32
        m, _ = guide(CFG(5) | Cap(gamma), p)
        excess = m.double().norm(dim=1) / (gamma * m_c.double().norm(dim=1)) - 1
        assert float(excess.max()) <= 2e-6
