"""Studies of guidance by density ratios: equal calls, and the wind package's days."""

import pytest
import torch

from meancap import CFG, sample
from meancap.rules import Threshold
from meancap_lab.models.classes import ClassModel
from meancap_lab.models.sit import NetworkPredictor, SiTConfig
from small_sit import pixels, random_sit
from studies.feedback.study import geometric_mean
from studies.label_noise.study import Study, arms, make_cell

GARMENT = SiTConfig(size=28, channels=1, patch=14, width=8, depth=1, heads=2, classes=10, learn_sigma=False)
LEARNED = CFG(1.2)


@pytest.fixture(scope="module")
def model():
    return ClassModel("tiny", "0", random_sit(GARMENT), pixels(GARMENT).pictures)


def test_no_arm_asks_the_network_more_often_than_the_others_may(model, monkeypatch):
    asked, real = [], NetworkPredictor.velocities

    def counted(self, x, t, times):
        asked.append(times * len(x))
        return real(self, x, t, times)

    monkeypatch.setattr(NetworkPredictor, "velocities", counted)
    study = Study(samples=20, calls=20)
    for arm in arms(0.3, LEARNED, study.calls):
        asked.clear()
        make_cell(model, arm, arm.candidates[0], study, seed=0)
        assert 0.7 * study.calls < sum(asked) / study.samples <= study.calls, arm.name


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

    from studies.wind.study import wind_model

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
    # A rounding error is multiplied by the scale and divided by the first step's alpha, about 0.00025.
    rounding = 5 * torch.finfo(torch.float32).eps / (alpha / wind.bound)
    assert torch.allclose(ours, torch.from_numpy(days), atol=rounding)
