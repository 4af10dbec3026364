"""A device without float64 still keeps the bound."""

import pytest
import torch

import meancap.cap
import meancap.tensors
from cases import adversarial
from meancap import CFG, Cap, Prediction, guide


@pytest.mark.parametrize("gamma", [1.0, 1.05, 2.0])
def test_without_float64_the_bound_holds(monkeypatch, gamma):
    for module in (meancap.tensors, meancap.cap):
        monkeypatch.setattr(module, "scalar_dtype", lambda device: torch.float32)
    monkeypatch.setattr(meancap.cap, "import_fast", lambda: None)
    for seed in range(4):
        m_c, gap = adversarial(seed, 40, 4096)
        p = Prediction(m_c, 0.5, m_c, m_c - gap, gap=gap)
        assert p.lengths.base.dtype == torch.float32
        m, _ = guide(CFG(5) | Cap(gamma), p)
        excess = m.double().norm(dim=1) / (gamma * m_c.double().norm(dim=1)) - 1
        assert float(excess.max()) <= 2e-6
