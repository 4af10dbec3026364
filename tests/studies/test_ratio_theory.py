"""Studies of guidance by density ratios: equal calls, ratios of their own, and the wind package's days."""

from dataclasses import replace

import pytest
import torch

from meancap import CFG, ancestral, noise, sample, uniform
from meancap.models.classes import ClassModel
from meancap.models.sit import Predictor, SiTConfig
from meancap.rules import Threshold, density_feedback
from meancap.runs.calibrate import LearnedScale
from small_sit import pixels, random_sit
from studies.feedback.study import geometric_mean
from studies.label_noise.study import Renoised, Rivals, Study, arms, make_cell

GARMENT = SiTConfig(size=28, channels=1, patch=14, width=8, depth=1, heads=2, classes=10, learn_sigma=False)
LEARNED = LearnedScale((0.5,), (1.2,), (1.1,), (1.3,), 32)


@pytest.fixture(scope="module")
def model():
    return ClassModel("tiny", "0", random_sit(GARMENT), pixels(GARMENT).pictures)


def test_no_arm_asks_the_network_more_often_than_the_others_may(model, monkeypatch):
    asked, real = [], Predictor.velocities

    def counted(self, x, t, times):
        asked.append(times * len(x))
        return real(self, x, t, times)

    monkeypatch.setattr(Predictor, "velocities", counted)
    study = Study(samples=20, calls=20)
    for arm in arms(0.3, LEARNED, study.calls):
        asked.clear()
        make_cell(model, arm, arm.candidates[0], study, seed=0)
        assert 0.7 * study.calls < sum(asked) / study.samples <= study.calls, arm.name


def test_a_fresh_ratio_belongs_to_its_sample(model):
    rule, seeds, labels = density_feedback(0.6), [3, 4, 5], [1, 2, 3]

    def made(rows):
        predict = Renoised(model.predict([labels[i] for i in rows]), rule, [seeds[i] for i in rows])
        x = noise([seeds[i] for i in rows], model.shape)
        sample(predict, rule, x, uniform(4))
        return predict.log_ratio

    together = made([0, 1, 2])
    assert together.unique().numel() == 3
    assert torch.allclose(together, torch.cat([made([i]) for i in range(3)]), rtol=1e-3, atol=1e-5)


def test_rivals_share_one_ratio_and_a_network_that_ignores_its_class_has_none(model):
    blind = random_sit(GARMENT)
    blind.y_embedder.embedding_table.weight[:] = blind.y_embedder.embedding_table.weight[0]
    seeds = range(10)
    for network in (model.network, blind):
        rivals = Rivals(replace(model, network=network), list(range(10)), until=0.6)
        sample(rivals, density_feedback(0.6), noise(seeds, model.shape), uniform(4), ancestral(seeds))
        total = (rivals.evidence.log_softmax(1) + torch.tensor(10.0).log()).exp().mean(1)
        assert torch.allclose(total, torch.ones_like(total))
        assert bool((rivals.evidence.std(1) > 1e-3).all()) == (network is not blind)


def test_equal_ratios_have_that_mean_and_no_interval():
    cfg = torch.rand(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) + 0.5
    value, low, high = geometric_mean(torch.stack([0.5 * cfg, cfg], 1))
    assert (value, low, high) == pytest.approx((0.5, 0.5, 0.5))


@pytest.mark.slow
@pytest.mark.parametrize(
    "scale, rule", [(40.0, CFG(40) | Threshold(0.99)), (5.0, CFG(5) | Threshold(1.0, most=1))]
)
def test_the_wind_package_makes_the_same_days_by_its_own_sampler(scale, rule):
    pytest.importorskip("enerdatasynth", reason="pip install enerdatasynth")
    from enerdatasynth.resources.wind.data.transforms import wind_regime_slice
    from enerdatasynth.resources.wind.diffusion.samplers import sample as theirs

    from studies.wind.model import wind_model

    wind = wind_model("1ch")
    own, predict, times = wind.generator, wind.predict(["low", "mid", "high"]), wind.times(5)
    regime = wind_regime_slice(own.config.condition_on, wind_regime_encoding=own.config.wind_regime_encoding)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        x = torch.randn(3, *wind.shape)
        torch.manual_seed(0)
        days = theirs(
            own.model, own.schedule, predict.z.numpy(), *wind.shape, own._clip_min, own._clip_max, steps=5,
            guidance_scale=scale, guidance_slice=regime, dynamic_threshold=scale == 40,
        )  # fmt: skip
    _, alpha, sigma = wind.coefficients(times[0])
    ours = sample(predict, rule, x / (alpha + sigma), times) * wind.bound
    assert torch.allclose(ours, torch.from_numpy(days), atol=1e-3)
