"""Checkpoints as they are released, as training scripts nest them, and as this package writes them."""

import pickle
from argparse import Namespace
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from meancap.files import sha256_of
from meancap_lab.models.checkpoint import _config_of, load_sit, save_sit
from meancap_lab.models.classes import open_sit
from meancap_lab.models.sit import SiTConfig
from meancap_lab.tensor_files import read_tensors
from small_sit import SHAPE, pixels, random_sit

# A published width, so that the shapes tell the number of heads.
RELEASED = SiTConfig(size=8, channels=4, patch=2, width=384, depth=2, heads=6, classes=5)


@pytest.fixture(scope="module")
def released():
    return random_sit(RELEASED, spread=0.05)


@pytest.mark.parametrize(
    "nest",
    [
        lambda s: s,
        lambda s: {"model": {name: value + 1 for name, value in s.items()}, "ema": s, "args": 1},
        lambda s: {"model": s},
        lambda s: {"ema": s, "args": Namespace(model="SiT-XL/2", lr=1e-4)},  # as SiT's train.py saves it
    ],
)
def test_a_pt_file_loads_bare_and_nested_and_prefers_the_average(tmp_path, released, nest):
    torch.save(nest(released.state_dict()), tmp_path / "sit.pt")
    model, found, names = load_sit(tmp_path / "sit.pt")
    assert model.config == RELEASED and found is None and names == ()
    for name, value in released.state_dict().items():
        assert torch.equal(model.state_dict()[name], value), name


def test_safetensors_without_a_header_loads_as_a_released_file(tmp_path, released):
    from safetensors.torch import save_file

    save_file(
        {name: value.contiguous() for name, value in released.state_dict().items()},
        tmp_path / "x.safetensors",
    )
    assert load_sit(tmp_path / "x.safetensors")[0].config == RELEASED


def test_what_is_saved_comes_back(tmp_path):
    model, map_ = random_sit(), pixels()
    path = save_sit(tmp_path / "m.safetensors", model, map_, names=("a", "b"))
    back, found, names = load_sit(path)
    assert back.config == SHAPE and names == ("a", "b")
    assert torch.equal(found.mean, map_.mean) and found.std == map_.std
    for name, value in model.state_dict().items():
        assert torch.equal(back.state_dict()[name], value), name
    half = save_sit(tmp_path / "h.safetensors", model, map_, dtype=torch.float16)
    assert half.stat().st_size < path.stat().st_size
    assert load_sit(half)[0].pos_embed.dtype == torch.float32
    assert sha256_of(path) != sha256_of(half)


class Evil:
    def __reduce__(self):
        return (print, ("this ran",))


def test_a_file_with_code_in_it_is_not_run(tmp_path, capsys):
    (tmp_path / "evil.pt").write_bytes(pickle.dumps({"ema": Evil()}, protocol=2))
    torch.save({"x": Evil()}, tmp_path / "evil2.pt")
    torch.save({"ema": {"w": torch.zeros(1)}, "args": Namespace(seed=Evil())}, tmp_path / "evil3.pt")
    torch.save({"ema": {"w": torch.zeros(1)}, "args": SimpleNamespace(seed=1)}, tmp_path / "other.pt")
    for name in ("evil.pt", "evil2.pt", "evil3.pt", "other.pt"):  # a Namespace, and no other type
        with pytest.raises(ValueError, match="no readable file of plain tensors"):
            read_tensors(tmp_path / name)
    assert "this ran" not in capsys.readouterr().out


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 torn", b"plain text"])
def test_an_unreadable_file_is_named_in_one_sentence(tmp_path, content):
    (tmp_path / "broken.pt").write_bytes(content)
    with pytest.raises(ValueError, match="no readable file of plain tensors") as error:
        load_sit(tmp_path / "broken.pt")
    assert "broken.pt" in str(error.value) and "\n" not in str(error.value)
    (tmp_path / "broken.safetensors").write_bytes(content)
    with pytest.raises(ValueError, match="no readable safetensors"):
        load_sit(tmp_path / "broken.safetensors")


def test_a_checkpoint_that_does_not_fit_names_the_tensor(tmp_path, released):
    state = released.state_dict()
    for wrong, words in (
        ({k: v for k, v in state.items() if k != "blocks.1.mlp.fc1.bias"}, "lacks blocks.1.mlp.fc1.bias"),
        (state | {"teeth": torch.zeros(1)}, "unknown tensor teeth"),
        (state | {"x_embedder.proj.bias": torch.zeros(3)}, r"x_embedder\.proj\.bias has shape \(3,\)"),
        ({"weights": torch.zeros(3)}, "is not a SiT checkpoint"),
    ):
        torch.save(wrong, tmp_path / "wrong.pt")
        with pytest.raises(ValueError, match=words):
            load_sit(tmp_path / "wrong.pt")
    with pytest.raises(ValueError, match="number of heads"):
        _config_of(random_sit(replace(RELEASED, width=320, heads=5)).state_dict())
    with pytest.raises(FileNotFoundError, match="no file of weights"):
        load_sit(tmp_path / "absent.pt")


def test_a_latent_model_asks_for_its_autoencoder(tmp_path, released):
    torch.save(released.state_dict(), tmp_path / "sit.pt")
    with pytest.raises(ValueError, match="--vae"):
        open_sit(tmp_path / "sit.pt")


def test_a_pixel_map_of_another_shape_and_a_needless_autoencoder_are_refused(tmp_path):
    map_ = replace(pixels(), mean=pixels().mean[None])
    path = save_sit(tmp_path / "m.safetensors", random_sit(), map_)
    with pytest.raises(
        ValueError, match=r"pixels\.mean has shape \(1, 1, 8, 8\); this network needs \(1, 8, 8\)"
    ):
        load_sit(path)
    with pytest.raises(ValueError, match="makes pixels, which need no autoencoder; leave --vae out"):
        open_sit(save_sit(path, random_sit(), pixels()), decode=lambda z: z)
