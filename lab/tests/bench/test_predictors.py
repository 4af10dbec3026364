"""What each kind of model says, against the laboratory's formulas where there are any."""

import math
from dataclasses import replace

import pytest
import torch

from meancap import CFG, sample, uniform
from meancap_lab.bench import predictors
from meancap_lab.bench.cases import KINDS, read_cases, starts, truth
from meancap_lab.bench.predictors import Law, alignment, examples, perfect, predictor, weaker
from meancap_lab.mixtures.problems import Model

CASES = {kind: [one for one in read_cases() if one.kind == kind][:6] for kind in KINDS}


@pytest.mark.parametrize(
    "case", [one for kind in KINDS[:4] for one in CASES[kind][:3]], ids=lambda case: case.name
)
@pytest.mark.parametrize("t", [0.0, 0.4, 0.95])
def test_the_short_way_gives_the_laboratorys_means(case, t):
    x = starts(case.dimension, "tune")[:32]
    own, known = predictor(case)(x, t), Model(truth(case), case.eta, case.leak).predict(x, t)
    torch.testing.assert_close(own.m_c, known.m_c, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(own.delta, known.delta, rtol=1e-7, atol=1e-12)
    short = predictor(case)(x.float(), t)
    torch.testing.assert_close(short.m_c.double(), known.m_c, rtol=1e-4, atol=1e-4)


def test_a_trained_network_is_kept_in_the_same_bytes(tmp_path, monkeypatch):
    """A file that torch writes by itself holds the temporary name that it was written under."""
    case = CASES["network"][0]
    net = predictors._VelocityNet(case.dimension).state_dict()
    monkeypatch.setattr(predictors, "_train", lambda _: [net, net])
    for name in ("a", "b"):
        weaker(case, tmp_path / name)
        monkeypatch.setattr("os.getpid", lambda: 12345)
    first, second = (next((tmp_path / name).iterdir()).read_bytes() for name in ("a", "b"))
    assert first == second


def test_a_smeared_model_is_exact_for_wider_data():
    case = CASES["smeared"][0]
    x = starts(case.dimension, "tune")[:16]
    law = truth(case).mixture
    wide = [
        type(law)(law.means, law.weights, cov=law.cov * (1 + s) ** 2) for s in (case.smear, 2 * case.smear)
    ]
    p = predictor(case)(x, 0.6)
    torch.testing.assert_close(p.m_c, wide[0].given(range(case.members)).posterior_mean(x, 0.6))
    torch.testing.assert_close(p.m_u, wide[1].posterior_mean(x, 0.6))


def test_a_rough_error_has_its_size_in_both_velocities():
    case = CASES["rough"][3]
    x = starts(case.dimension, "tune")
    p, exact = predictor(case)(x, 0.5), predictor(replace(case, rough=0.0))(x, 0.5)
    for own, known in ((p.m_c, exact.m_c), (p.m_u, exact.m_u)):
        rms = float(((own - known) / 0.5).square().mean().sqrt())
        assert abs(rms / case.rough - 1) < 0.5, "a sum of 24 waves is not exactly as large"


@pytest.mark.slow
def test_a_network_learns_its_data_and_is_kept(tmp_path):
    case = CASES["network"][0]
    model = predictor(case, tmp_path)
    x = starts(case.dimension, "tune")
    exact = perfect(case)
    for t in (0.3, 0.7):
        error = (model(x, t).m_c - exact(x, t).m_c).square().mean()
        assert error < 0.2 * (exact(x, t).m_c - truth(case).mixture.mean).square().mean()
        early = (weaker(case, tmp_path)(x, t).m_c - exact(x, t).m_c).square().mean()
        assert error < early
    again = predictor(replace(case), tmp_path)
    assert (tmp_path / f"{case.name}.pt").is_file() and torch.equal(again(x, 0.5).m_c, model(x, 0.5).m_c)


@pytest.mark.parametrize("kind", KINDS[1:6])
def test_a_weaker_model_is_farther_from_the_truth(kind):
    case = CASES[kind][1]
    x = sample(perfect(case), CFG(1), starts(case.dimension, "tune"), uniform(10))
    x = torch.lerp(starts(case.dimension, "score"), x, 0.4)  # states of the data, where errors count
    exact = perfect(case)(x, 0.4).m_c
    own, weak = ((model(x, 0.4).m_c - exact).norm() for model in (predictor(case), weaker(case)))
    assert own < weak


def test_examples_hold_the_leak():
    case = next(one for one in CASES["leak"] if one.overlap == "separate")
    inside = Law(case).sides(examples(case, 4000, 0.2), 1.0)[2][:, 0] > 0
    assert abs(1 - float(inside.double().mean()) - 0.2) < 0.05
    clean = examples(case, 4000)
    torch.testing.assert_close(
        clean.mean(0), truth(case).conditional.mean, rtol=0, atol=5 * 2 / math.sqrt(4000)
    )


def test_alignment_is_that_of_the_condition():
    case = CASES["both"][2]
    x = truth(case).mixture.sample(300, torch.Generator().manual_seed(0))
    expected = truth(case).log_posterior(x, 1.0).exp().mean()
    torch.testing.assert_close(alignment(case, x), expected, rtol=1e-9, atol=1e-12)
