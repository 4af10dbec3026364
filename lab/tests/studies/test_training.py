"""Training: a stopped run goes on as if it had not been stopped, and learns what there is to learn."""

import json
from dataclasses import replace

import pytest
import torch

from meancap import CFG, noise, sample, uniform
from meancap.files import sha256_of
from meancap_lab.models.classes import cifar, open_sit
from meancap_lab.models.data import Pictures
from meancap_lab.models.picture_net import PictureNetConfig
from meancap_lab.models.scenes import draw, load_scene_net
from meancap_lab.models.sit import SiTConfig
from studies.label_noise.study import share_of
from studies.training import study
from studies.training.flow import (
    RECIPES,
    CifarTraining,
    GarmentTraining,
    SceneTraining,
    noisy_labels,
    orthogonal,
    scene_pixels,
)
from studies.training.scorers import examine, fit_detector

MODEL = SiTConfig(size=8, channels=1, patch=4, width=16, depth=1, heads=2, classes=2, learn_sigma=False)
CONFIG = replace(RECIPES["fashion"], images=640, model=MODEL, batch=16, warmup=5, ema=0.9)
SCENE_NET = PictureNetConfig(fine=4, middle=8, width=16, depth=1, heads=2)
SCENES = replace(RECIPES["scenes"], images=320, model=SCENE_NET, batch=16, warmup=5, ema=0.9)
CIFAR = replace(SCENES, precision="bfloat16")


@pytest.fixture(scope="module")
def pictures():
    """Two classes: bright above, or bright below."""
    g = torch.Generator().manual_seed(0)
    images = torch.randint(0, 60, (200, 1, 8, 8), dtype=torch.uint8, generator=g)
    labels = torch.arange(200) % 2
    images[labels == 0, :, :4] += 180
    images[labels == 1, :, 4:] += 180
    return Pictures(images, labels, ("above", "below"))


def colours(pictures):
    images = torch.nn.functional.interpolate(pictures.images.float(), 32).byte().repeat(1, 3, 1, 1)
    return replace(pictures, images=images)


@pytest.mark.parametrize("kind", ["garments", "scenes", "cifar"])
def test_a_stopped_run_goes_on_exactly(tmp_path, pictures, kind):
    def training(folder):
        if kind == "scenes":
            return SceneTraining(tmp_path / folder, SCENES)
        if kind == "cifar":
            return CifarTraining(tmp_path / folder, CIFAR, colours(pictures))
        return GarmentTraining(tmp_path / folder, replace(CONFIG, images=320), pictures)

    whole, first = training("whole"), training("two")
    list(whole.rows(every=5))
    rows = first.rows(every=5)
    next(rows), next(rows)
    rows.close()
    first.one_step()  # work after the last save is lost
    second = training("two")
    assert second.step == 10 and [r["step"] for r in second.log] == [5, 10]
    list(second.rows(every=5))
    for (name, a), b in zip(whole.ema.state_dict().items(), second.ema.state_dict().values(), strict=True):
        assert torch.equal(a, b), name
    losses = [[r["loss"] for r in one.log] for one in (whole, second)]
    lines = (tmp_path / "two" / "log.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == second.log
    assert losses[0] == losses[1] and len(losses[0]) == 4 and losses[0][-1] < losses[0][0]


def test_another_recipe_is_refused_but_a_longer_run_is_not(tmp_path, pictures):
    training = GarmentTraining(tmp_path / "t", CONFIG, pictures)
    next(training.rows(every=1))
    with pytest.raises(ValueError, match=r"rate was 0.01, now 0.02"):
        GarmentTraining(tmp_path / "t", replace(CONFIG, rate=0.02), pictures)
    assert GarmentTraining(tmp_path / "t", replace(CONFIG, images=1280), pictures).recipe.steps == 80


def test_the_rate_warms_up_stays_and_cools_to_zero():
    config = replace(CONFIG, images=1600, warmup=10, cooling=0.5)
    rates = [config.rate_at(k) for k in range(config.steps)]
    assert rates[0] == pytest.approx(0.001) and rates[9] == rates[49] == 0.01
    assert rates[75] == pytest.approx(0.005) and 0 < rates[-1] < 0.0003


def test_updates_of_matrices_have_equal_singular_values():
    for shape in ((16, 48), (48, 16), (24, 24)):
        g = torch.randn(shape, generator=torch.Generator().manual_seed(1))
        s = torch.linalg.svdvals(orthogonal(g))
        assert s.min() > 0.5 and s.max() < 1.3
        u, _, v = torch.linalg.svd(g, full_matrices=False)
        assert (orthogonal(g) * (u @ v)).sum() / s.norm() / min(shape) ** 0.5 > 0.97


def test_the_trained_model_makes_the_class_it_is_asked_for(tmp_path, pictures):
    training = GarmentTraining(tmp_path / "t", replace(CONFIG, images=8000), pictures)
    rows = list(training.rows(every=50))
    assert rows[-1]["loss"] < 0.5 * rows[0]["loss"]
    model = open_sit(training.export(tmp_path / "m.safetensors"))
    x = sample(model.predict([0, 1] * 10), CFG(1), noise(range(20), model.shape), uniform(20))
    made = model.decode(x).float()
    above, below = made[:, 0, :4].mean((1, 2)), made[:, 0, 4:].mean((1, 2))
    assert bool((above > below)[0::2].all()) and bool((above < below)[1::2].all())


def test_a_network_of_classes_learns_in_bfloat16_and_is_the_model_that_the_package_opens(tmp_path, pictures):
    training = CifarTraining(tmp_path / "t", replace(CIFAR, images=6400, batch=32), colours(pictures))
    rows = list(training.rows(every=25))
    assert rows[-1]["loss"] < 0.5 * rows[0]["loss"] and rows[-1]["minutes_left"] == 0
    assert all(p.dtype == torch.float32 for p in training.model.parameters())
    model = cifar(training.export(tmp_path / "m.safetensors"))
    assert model.names == ("above", "below") and model.shape == (3, 32, 32)
    predict, start = model.predict([0, 1] * 5), noise(range(10), model.shape)
    made = model.decode(sample(predict, CFG(1), start, uniform(10))).float()
    above, below = made[:, :, :16].mean((1, 2, 3)), made[:, :, 16:].mean((1, 2, 3))
    assert bool((above > below)[0::2].all()) and bool((above < below)[1::2].all())
    with pytest.raises(ValueError, match="is not a PictureNet of classes"):
        cifar(SceneTraining(tmp_path / "s", SCENES).export(tmp_path / "s.safetensors"))
    more = CifarTraining(tmp_path / "u", CIFAR, colours(pictures), tmp_path / "m.safetensors")
    assert torch.equal(more.model.stem.weight, training.ema.stem.weight.half().float())


def test_pictures_are_mirrored_in_half_of_the_cases_with_their_mean(tmp_path, pictures):
    left = colours(pictures)
    left.images[:, :, :, :16] = 0
    training = CifarTraining(tmp_path / "t", replace(CIFAR, batch=400), left)
    assert torch.equal(training.pixels.mean, training.pixels.mean.flip(2))
    data, label = training.examples(torch.Generator().manual_seed(0))
    mirrored = (data[..., 16:].mean((1, 2, 3)) < data[..., :16].mean((1, 2, 3))).double().mean()
    assert abs(mirrored - 0.5) < 5 * 0.5 / 20 and abs((label == 2).double().mean() - 0.1) < 5 * 0.3 / 20


def test_wrong_labels_have_their_share_name_another_class_and_come_from_the_seed():
    labels = torch.arange(40_000) % 10
    noisy = noisy_labels(labels, 10, 0.3, seed=1)
    changed = noisy != labels
    assert float(changed.double().mean()) == pytest.approx(0.3, abs=0.01)
    assert torch.bincount((noisy - labels)[changed] % 10, minlength=10)[1:].min() > 1100  # of 1,333 each
    assert torch.equal(noisy, noisy_labels(labels, 10, 0.3, seed=1))
    assert not torch.equal(noisy, noisy_labels(labels, 10, 0.3, seed=2))
    assert torch.equal(noisy_labels(labels, 10, 0.0, seed=1), labels)


def test_training_starts_from_a_file_which_tells_its_wrong_labels(tmp_path, pictures):
    garments = GarmentTraining(tmp_path / "a", replace(CONFIG, wrong=0.25), pictures)
    scenes = SceneTraining(tmp_path / "b", SCENES)
    files = [one.export(tmp_path / f"{name}.safetensors") for one, name in ((garments, "a"), (scenes, "b"))]
    assert share_of(files[0]) == 0.25
    more = SceneTraining(tmp_path / "d", SCENES, files[1])
    for first, second, path in (
        (garments, GarmentTraining(tmp_path / "c", CONFIG, pictures, files[0]), files[0]),
        (scenes, more, files[1]),
    ):
        for name, value in first.ema.state_dict().items():
            stored = value if name == "pos_embed" else value.half().float()
            assert torch.equal(stored, second.model.state_dict()[name]), name
        assert json.loads((second.folder / "train.json").read_text())["start"] == sha256_of(path)
    assert not more.model.get_parameter("pos_embed").requires_grad
    more.one_step()


def test_captions_say_what_the_recipe_says(tmp_path):
    n = 20_000
    g = torch.Generator().manual_seed(0)
    truth = draw(n, g).codes()
    training = SceneTraining(tmp_path / "t", replace(SCENES, wrong=0.2))
    said = training.caption(truth, g)
    unsaid = (said < 0).all(1).double().mean()
    # Nothing is said by dropout, or by six open words of a partial caption.
    assert abs(unsaid - (0.1 + 0.9 * 0.25 / 64)) < 5 * (0.1 * 0.9 / n) ** 0.5
    complete = (said >= 0).all(1)
    wrong = (said != truth)[complete].any(1).double().mean()
    same = 1 / (3 * 6 * 3 * 6 * 4 * 2)  # a wrong caption may happen to be right
    assert abs(wrong - 0.2 * (1 - same)) < 5 * (0.2 * 0.8 / complete.sum()) ** 0.5


def test_the_origin_is_the_mean_of_the_law():
    pixels = scene_pixels(2000)
    assert ((pixels.mean - 0.5).abs() < 0.05).all() and 0.2 < pixels.std < 0.3


def test_a_detector_learns_and_is_examined():
    network, losses = fit_detector(steps=30, batch=32)
    assert sum(losses[-5:]) < sum(losses[:5])
    found = examine(network, 50)
    assert set(found) == {"clean", "spoilt", "burnt x1.5", "burnt x2", "burnt x3"}
    assert all(0 <= v <= 1 for shares in found.values() for v in shares.values())


def test_the_command_trains_and_writes_what_the_package_reads(tmp_path, pictures, monkeypatch):
    images = torch.nn.functional.interpolate(pictures.images.float(), 28).byte()
    tiny = Pictures(images, pictures.labels, tuple("0123456789"))
    monkeypatch.setattr(study, "read_fashion", lambda _: tiny)
    short = ["--images", "8", "--batch", "4", "--threads", "1"]
    study.main(["fashion", "--folder", "x", "--out", str(tmp_path / "fashion"), *short])
    assert open_sit(tmp_path / "fashion" / "model.safetensors").classes == 10
    study.main(["scenes", "--out", str(tmp_path / "scenes"), *short])
    assert load_scene_net(tmp_path / "scenes" / "model.safetensors")[0].config == PictureNetConfig()
