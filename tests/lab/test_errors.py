"""Errors off the ray are as large as they say, and smooth; a network learns both velocities."""

from dataclasses import replace

import pytest
import torch

from meancap.lab.errors import Field, off_ray, predictor, trained, weaker
from meancap.lab.problems import KINDS, drawn, problem


def test_a_field_has_the_length_that_was_asked_for_and_is_smooth():
    field = Field.drawn(4, 0.1, "seed")
    x = torch.randn(20000, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 3
    e = field(x, 0.4)
    assert float(e.square().sum(1).mean().sqrt()) == pytest.approx(0.1, rel=0.2)
    near = field(x + 1e-4, 0.4)
    assert float((near - e).norm(dim=1).max()) < 1e-4
    assert torch.equal(Field.drawn(4, 0.1, "seed")(x, 0.4), e)
    assert not torch.allclose(Field.drawn(4, 0.1, "other")(x, 0.4), e)


def test_an_error_off_the_ray_is_no_multiple_of_the_gap_and_stays_where_the_gap_vanishes():
    case = replace(problem("leak-8"), rough=0.1)
    x = torch.randn(200, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    exact, wrong = case.model().predict(x, 0.5), predictor(case)(x, 0.5)
    off = wrong.m_c - exact.m_c
    along = (off * exact.delta).sum(1) / exact.delta.norm(dim=1) / off.norm(dim=1)
    assert float(along.abs().mean()) < 0.6
    same = off_ray(
        lambda x, t: replace(exact, out_u=exact.m_c, gap=None), *(Field.drawn(8, 0.1, w) for w in "cu")
    )
    assert float(same(x, 0.5).delta.norm(dim=1).min()) > 1e-4
    torch.testing.assert_close(wrong.delta, wrong.m_c - wrong.m_u)


def test_a_network_comes_to_know_both_velocities():
    case = replace(drawn(1009), network=600, leak=0.0)
    x = torch.randn(500, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    m_c, m_u = case.condition().means(x, 0.3)
    p, early = trained(case)(x, 0.3), weaker(case)(x, 0.3)
    for own, first, truth in ((p.m_c, early.m_c, m_c), (p.m_u, early.m_u, m_u)):
        assert (own - truth).norm() < (first - truth).norm()
    assert (p.m_c - m_c).norm() < (p.m_u - m_c).norm()  # it heeds the label


def test_drawn_problems_take_turns_and_are_drawn_by_their_seed_alone():
    assert [drawn(seed).kind for seed in range(5)] == list(KINDS)
    assert drawn(7) == drawn(7) == problem("drawn-7") and drawn(7).layout != drawn(12).layout
    for seed in range(1000, 1040):
        case = drawn(seed)
        assert case.exact().kind == "exact" and case.model().shift > 0
        assert float(case.condition().log_prior.exp()) < 1
