"""The paper's printed steps, and where they are the cap."""

import math

import pytest
import torch

from cases import adversarial
from meancap import CFG, Cap, Prediction
from meancap.rules import displace
from meancap_lab.mixtures.literal_cap import LiteralCap


def printed_steps(m, d, scale, gamma, tiny):
    """The numbered steps of the paper's appendix for one sample, in Python's numbers."""
    if math.sqrt(sum((u + (scale - 1) * v) ** 2 for u, v in zip(m, d, strict=True))) <= gamma * math.hypot(
        *m
    ):
        return scale - 1
    a, b, q = (sum(u * v for u, v in zip(*pair, strict=True)) for pair in ((d, d), (m, d), (m, m)))
    if a <= tiny:
        return 0.0
    root = math.sqrt(max(0.0, b * b + (gamma**2 - 1) * a * q))
    if b < 0:
        return min(scale - 1, (root - b) / a)
    return min(scale - 1, (gamma**2 - 1) * q / (b + root)) if b + root > 0 else 0.0


@pytest.mark.parametrize("gamma", [1.05, 2.0])
def test_the_literal_cap_is_the_papers_numbered_steps(gamma):
    m, gap = (v.double() for v in adversarial(3, 200, 5))
    p = Prediction.from_mean(m, 0.4, m, m - gap)
    found = displace(CFG(7) | LiteralCap(gamma, 1e-4), p)[0].coefficient
    lists = zip(p.m_c.tolist(), p.delta.tolist(), strict=True)
    wanted = torch.tensor([printed_steps(a, b, 7, gamma, 1e-4) for a, b in lists], dtype=torch.float64)
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-12)
    assert (wanted == 0).any() and (wanted == 6).any()


def test_the_literal_cap_is_the_cap_where_its_epsilon_does_not_act():
    m, gap = (v.double() for v in adversarial(1, 500, 12))
    p = Prediction.from_mean(m, 0.4, m, m - gap)
    ours, printed = (displace(CFG(7) | cap, p)[0].coefficient for cap in (Cap(1.1), LiteralCap(1.1, 0.0)))
    torch.testing.assert_close(ours, printed, rtol=1e-11, atol=1e-11)
    tiny = Prediction.from_mean(m, 0.4, 1e-9 * m, 1e-9 * (m - gap))
    assert (displace(CFG(7) | LiteralCap(1.1), tiny)[0].coefficient == 0).any()
