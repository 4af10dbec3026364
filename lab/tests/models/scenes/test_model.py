"""The network of the scenes: what a prompt means to it does not depend on how it is said."""

import pytest
import torch

from meancap import CFG, noise, sample, uniform
from meancap.rules import (
    perp_neg,
)
from meancap.sampling import shifted
from meancap_lab.models.data import Pixels
from meancap_lab.models.picture_net import PictureNetConfig
from meancap_lab.models.scenes import codes
from meancap_lab.models.scenes.model import SceneModel, load_scene_net, save_scene_net, scene_net, scenes

SMALL = PictureNetConfig(fine=8, middle=8, width=16, depth=1, heads=2)


@pytest.fixture
def model():
    torch.manual_seed(0)
    network = scene_net(SMALL)
    for p in (
        p for p in network.parameters() if p.requires_grad
    ):  # blocks start as the identity and would hide everything
        torch.nn.init.normal_(p, std=0.2)
    pixels = Pixels(torch.full((3, 1, 1), 0.5), 0.25)
    return SceneModel("small", "", network.eval().requires_grad_(False), pixels)


def state(model, n, seed=0):
    return noise(range(seed, seed + n), model.shape)


def test_two_ways_of_saying_one_scene_are_one_prompt(model):
    x = state(model, 1).repeat(2, 1, 1, 1)
    said = [
        "a red disc left of a blue square, dark background",
        "a blue square right of a red disc, dark background",
    ]
    m = model.predict(said)(x, 0.3).m_c
    assert torch.allclose(m[0], m[1], atol=1e-5)
    other = model.predict(["a blue disc left of a red square, dark background"] * 2)(x, 0.3).m_c
    assert (m - other).abs().max() > 1e-3


def test_an_empty_prompt_is_the_reference_and_a_negative_one_takes_its_place(model):
    x = state(model, 2)
    empty = model.predict(["", ""])(x, 0.4)
    assert torch.equal(empty.m_c, empty.m_u)
    asked = model.predict(["a disc", "a square"], "a red object")(x, 0.4)
    assert torch.allclose(asked.m_u, model.predict(["a red object"] * 2)(x, 0.4).m_c, atol=1e-5)
    each = model.predict(["a disc", "a square"], ["a red object", "dark background"])(x, 0.4)
    assert torch.allclose(each.m_u[0], asked.m_u[0], atol=1e-5) and not torch.allclose(
        each.m_u[1], asked.m_u[1]
    )


def test_a_batch_is_its_samples(model):
    prompts = ["a red disc", "a square above a disc", "light background"] * 13  # more than one piece
    x = state(model, len(prompts))
    together = sample(model.predict(prompts), CFG(3.0), x, shifted(3))
    for i in (0, 20, 38):
        alone = sample(model.predict([prompts[i]]), CFG(3.0), x[i : i + 1], shifted(3))
        assert torch.allclose(together[i], alone[0], atol=1e-4)


def test_a_fresh_network_is_the_best_linear_guess():
    network = scene_net(SMALL)
    x, t = torch.randn(4, 3, 32, 32), torch.tensor([0.1, 0.4, 0.6, 0.9])
    at = t[:, None, None, None]
    expected = (2 * at - 1) / (at**2 + (1 - at) ** 2) * x
    assert torch.allclose(network(x, t, codes(["a disc"] * 4)), expected, atol=1e-6)


def test_a_file_gives_the_network_back(model, tmp_path):
    path = save_scene_net(tmp_path / "m.safetensors", model.network, model.pixels)
    network, pixels = load_scene_net(path)
    x, t, code = state(model, 2), torch.tensor([0.2, 0.7]), codes(["a disc", ""])
    assert torch.allclose(network(x, t, code), model.network(x, t, code), atol=1e-6)
    assert pixels.std == model.pixels.std and torch.equal(pixels.mean, model.pixels.mean)
    assert scenes(path).name == "scenes:m.safetensors"


def test_what_does_not_fit_is_named(model, tmp_path):
    with pytest.raises(ValueError, match="3 prompts and 2 negative"):
        model.predict(["", "", ""], ["", ""])
    with pytest.raises(ValueError, match="1 samples for 2 conditions"):
        model.predict(["", ""])(state(model, 1), 0.5)
    with pytest.raises(ValueError, match="unknown word 'cat'"):
        model.predict(["a red cat"])
    from meancap_lab.tensor_files import write_tensors

    bare = write_tensors(tmp_path / "x.safetensors", {"a": torch.zeros(1)}, {})
    with pytest.raises(ValueError, match="is not a network of the scenes"):
        load_scene_net(bare)


def test_the_scenes_have_the_sentence_to_avoid_in_the_place_of_none_or_beside_it():
    model = scenes()
    x = noise(range(2), model.shape)
    predict = model.predict(["a red disc"] * 2, negative="a dark background")
    both, plain = predict.including(("negative",))(x, 0.3), model.predict(["a red disc"] * 2)(x, 0.3)
    assert torch.equal(both.m_u, plain.m_u) and torch.equal(both.other("negative"), predict(x, 0.3).m_u)
    without = model.predict(["a red disc"] * 2)
    with pytest.raises(ValueError, match="needs the prediction 'negative'"):
        sample(without, perp_neg(4), x, uniform(1))
