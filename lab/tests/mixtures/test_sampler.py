"""The compiled loop is the library's own flow: same rules, same numbers up to rounding."""

import subprocess
import sys
import textwrap

import pytest
import torch

from meancap import CFG, Cap, CapDisplacement, Clip, Interval, Linear, apg, heun, sample, uniform
from meancap_lab.mixtures import Condition, Mixture, sampler
from meancap_lab.mixtures.condition import PAIR, TRIPLE
from meancap_lab.mixtures.sampler import engine_for, flow

PLAIN = [
    CFG(1),
    CFG(3),
    CFG(0.3),
    CFG(-1),
    CFG(3) | Cap(1.1),
    CFG(9) | Cap(1.0),
    CFG(-4) | Cap(1.1),
    CFG(3) | CapDisplacement(1.1),
    CFG(3) | Cap(1.3) | CapDisplacement(1.2) | Cap(1.1),
    CFG(3) | Interval(0.2, 0.7) | Cap(1.05),
    CFG(3) | Cap(1.05) | Interval(0.2, 0.7),
    CFG(Linear(1, 5)) | Cap(Linear(1.0, 1.3)),
]
OTHER = [
    CFG(3) | Clip(0.5),
    apg(3.0),
    CFG(3) | Cap(1.1) | Clip(0.5),
    CFG(3) | Cap(1.1, anchor=0.1),
    CFG(3) | Cap(1.1, smooth=0.3),
    CFG(3) | Cap(1.1, floor=1.0),
]
TIMES = uniform(20)

pytest.importorskip("numba")


def noise(n=500, d=2, dtype=torch.float64):
    return torch.randn(n, d, dtype=dtype, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("rule", PLAIN, ids=str)
def test_the_loop_is_the_float64_library_up_to_rounding(rule):
    condition, x = PAIR.condition(), noise()
    found = flow(condition, rule, x.float(), TIMES, engine="numba")
    apart = (found - sample(condition.predict, rule, x, TIMES)).abs().amax(1)
    # The margin of a float32 cap is four units; the float64 library gives up none of them.
    assert float(apart.median()) < 4 * torch.finfo(torch.float32).eps
    assert float(apart.quantile(0.99)) < 2e-5  # what is left parts at the border between two branches


@pytest.mark.parametrize("rule", OTHER, ids=str)
def test_every_other_rule_takes_the_library_s_own_loop(rule):
    condition, x = TRIPLE.condition(), noise(100, dtype=torch.float32)
    assert engine_for(condition, rule, x, TIMES) == "library"
    assert torch.equal(flow(condition, rule, x, TIMES), sample(condition.predict, rule, x, TIMES))
    with pytest.raises(ValueError, match="cannot run"):
        flow(condition, rule, x, TIMES, engine="numba")


def test_other_dimensions_precisions_and_solvers_take_the_library_s_own_loop():
    condition, rule, x = TRIPLE.condition(), CFG(4) | Cap(1.2), noise(100, dtype=torch.float32)
    assert engine_for(condition, rule, x, TIMES) == "numba"
    assert engine_for(condition, rule, x.double(), TIMES) == "library"
    assert engine_for(condition, rule, x, TIMES, heun) == "library"
    unequal = Condition(Mixture(torch.eye(2), std=torch.tensor([0.1, 0.2])), (0,))
    assert engine_for(unequal, rule, x, TIMES) == "library"
    generator = torch.Generator().manual_seed(3)
    means = torch.randn(5, 3, dtype=torch.float64, generator=generator)
    weights = torch.tensor([0.2, 0.0, 0.3, 0.3, 0.2])  # a component that is never drawn
    condition, x = Condition(Mixture(means, weights, std=0.2), (0, 4)), noise(200, 3)
    assert torch.equal(flow(condition, rule, x, TIMES, heun), sample(condition.predict, rule, x, TIMES, heun))


def test_a_component_that_is_never_drawn_changes_nothing():
    means = torch.tensor([[1.0, 0.0], [3.0, 3.0], [-1.0, 0.5], [0.0, -1.0]], dtype=torch.float64)
    condition = Condition(Mixture(means, torch.tensor([0.3, 0.0, 0.4, 0.3]), std=0.2), (0, 3))
    x, rule = noise(300), CFG(4) | Cap(1.2)
    found = flow(condition, rule, x.float(), TIMES, engine="numba").double()
    torch.testing.assert_close(found, sample(condition.predict, rule, x, TIMES), rtol=0, atol=1e-4)


def test_flow_is_right_where_the_posterior_of_the_condition_underflows():
    condition, rule = TRIPLE.condition(), CFG(3) | Cap(1.1)
    x = torch.tensor([[0.0, -1.0], [-0.7, -0.8], [-1.0, 0.0], [0.0, -3.0], [-5.0, -4.0]], dtype=torch.float64)
    times = (0.95, 0.98, 1.0)
    assert float(condition.log_posterior(x, 0.95).max()) < -104  # exp of it is 0 in float32
    found = flow(condition, rule, x.float(), times, engine="numba")
    torch.testing.assert_close(
        found.double(), sample(condition.predict, rule, x, times), rtol=1e-5, atol=1e-5
    )


def test_flow_is_finite_where_there_is_no_gap_and_no_mean():
    condition = Condition(TRIPLE.mixture(), (0, 4))
    x = torch.tensor([[0.0, 0.0], [0.0, 1e-30], [0.3, 0.1]])
    for rule in (CFG(3), CFG(3) | Cap(1.1), CFG(3) | CapDisplacement(1.1)):
        found = flow(condition, rule, x, TIMES, engine="numba")
        assert found.isfinite().all()
        expected = sample(condition.predict, rule, x[2:].double(), TIMES)
        torch.testing.assert_close(found[2:].double(), expected, rtol=0, atol=1e-5)


def test_samples_out_of_range_are_right_and_do_not_touch_their_neighbours():
    condition, rule, x = TRIPLE.condition(), CFG(3) | Cap(1.1), noise(300, dtype=torch.float32)
    wild = x.clone()
    wild[7], wild[11], wild[13] = torch.tensor([1e20, 0]), torch.tensor([torch.nan, 0]), 40.0
    found, usual = (flow(condition, rule, v, TIMES, engine="numba") for v in (wild, x))
    rest = [i for i in range(300) if i not in (7, 11, 13)]
    assert torch.equal(found[rest], usual[rest])
    assert found[11].isnan().any() and found[[7, 13]].isfinite().all()
    expected = sample(condition.predict, rule, wild[13:14].double(), TIMES)
    torch.testing.assert_close(found[13:14].double(), expected, rtol=0, atol=1e-5)


def test_neither_number_nor_order_nor_threads_change_a_bit():
    condition, rule, x = TRIPLE.condition(), CFG(3) | Cap(1.1), noise(9001, dtype=torch.float32)
    expected = flow(condition, rule, x, TIMES, engine="numba")
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    assert torch.equal(flow(condition, rule, x[order], TIMES, engine="numba"), expected[order])
    assert torch.equal(flow(condition, rule, x[:17], TIMES, engine="numba"), expected[:17])
    torch.set_num_threads(2)
    assert torch.equal(flow(condition, rule, x, TIMES, engine="numba"), expected)
    assert torch.get_num_threads() == 2


def test_the_cap_holds_on_what_comes_out():
    """A grid that ends at 1 ends on the last guided mean, at most gamma times as long as m_c."""
    condition, x = TRIPLE.condition(), noise(2000, dtype=torch.float32)
    before = flow(condition, CFG(9) | Cap(1.1), x, TIMES[:-1], engine="numba")
    end = flow(condition, CFG(9) | Cap(1.1), before, TIMES[-2:], engine="numba")
    m_c = condition.predict(before.double(), TIMES[-2]).m_c
    assert float((end.double().norm(dim=1) / m_c.norm(dim=1)).max()) <= 1.1 * (1 + 4 * 2**-23)


def test_the_last_step_ends_on_the_mean_itself_however_far_the_state_is():
    """A mixture much smaller than the noise: the end keeps the digits of the mean, not those of the state."""
    whole = TRIPLE.mixture()
    condition, x = Condition(Mixture(1e-4 * whole.means, std=1e-5), (0, 1)), noise(500)
    for times in (uniform(1), uniform(4)):
        for rule in (CFG(3), CFG(9) | Cap(1.1)):
            found = flow(condition, rule, x.float(), times, engine="numba").double()
            expected = sample(condition.predict, rule, x.float().double(), times)
            apart = (found - expected).norm(dim=1) / expected.norm(dim=1)
            assert float(apart.max()) < 2e-6


def test_without_numba_the_library_s_loop_runs_and_the_error_names_the_extra(monkeypatch):
    condition, x = TRIPLE.condition(), noise(10, dtype=torch.float32)
    monkeypatch.setattr(sampler, "import_fast", lambda: None)
    assert engine_for(condition, CFG(3), x, TIMES) == "library"
    with pytest.raises(ModuleNotFoundError, match=r'pip install "\.\[fast\]"'):
        flow(condition, CFG(3), x, TIMES, engine="numba")


def test_bad_input_is_refused_in_one_sentence():
    condition, x = TRIPLE.condition(), noise(10)
    for change, words in (({"x": x[:, :1]}, "takes x"), ({"engine": "fast"}, "engines are")):
        arguments = {"x": x, "engine": None} | change
        with pytest.raises(ValueError, match=words):
            flow(condition, CFG(3), arguments.pop("x"), TIMES, **arguments)
    with pytest.raises(ValueError, match="gamma >= 1 at every time"):
        flow(condition, CFG(3) | Cap(Linear(1.1, 0.5)), x, TIMES)
    assert flow(condition, CFG(3), x[:0], TIMES).shape == (0, 2)


def test_memory_is_that_of_one_chunk():
    """A million samples: 8 MB in, 8 MB out; what else grows is one number per sample."""
    code = """
        import resource, torch
        from meancap import CFG, Cap, uniform
        from meancap_lab.mixtures.sampler import flow
        from meancap_lab.mixtures.condition import TRIPLE
        held = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        torch.set_num_threads(1)
        condition, x = TRIPLE.condition(), torch.randn(1_000_000, 2)
        for engine in ("library", "numba"):
            flow(condition, CFG(3) | Cap(1.1), x[:100_000], uniform(2), engine=engine)
        before = held()
        for engine in ("library", "numba"):
            flow(condition, CFG(3) | Cap(1.1), x, uniform(2), engine=engine)
        print(held() - before)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True
    )
    assert float(done.stdout) < 50
