"""Folders for the Hub: a model that loads from its folder, a card with metadata, a Space that runs."""

import importlib.util
import json
import re
import runpy
import sys

import numpy as np
import pytest
import torch

from meancap_lab.models import fashion
from meancap_lab.models.picture_net import PictureNetConfig
from meancap_lab.models.scenes import scenes
from meancap_lab.models.sit import SiTConfig
from pages import ROOT

yaml = pytest.importorskip("yaml")
sys.path.insert(0, str(ROOT / "tools"))
import huggingface as hub_folders  # noqa: E402

SPACE = ROOT / "integrations" / "huggingface" / "space"


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    out = tmp_path_factory.mktemp("hub")
    assert hub_folders.main([str(out)]) == 0
    return out


@pytest.fixture(scope="module")
def app():
    pytest.importorskip("matplotlib")
    spec = importlib.util.spec_from_file_location("space_app", SPACE / "app.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("name", "shipped", "kind", "config"),
    [("fashion", fashion, "sit", SiTConfig), ("scenes", scenes, "scene_net", PictureNetConfig)],
)
def test_a_model_loads_from_its_folder_and_is_the_one_in_the_box(folders, name, shipped, kind, config):
    there, here = shipped(folders / f"meancap-{name}" / "model.safetensors"), shipped()
    assert there.sha256 == here.sha256
    stated = json.loads((folders / f"meancap-{name}" / "config.json").read_text(encoding="utf-8"))
    assert stated.pop("model_type") == kind and stated.pop("names", []) == list(getattr(here, "names", []))
    assert config(**stated) == here.network.config


@pytest.mark.parametrize(
    ("name", "task", "tag"),
    [("fashion", "unconditional-image-generation", "sit"), ("scenes", "text-to-image", "synthetic")],
)
def test_the_card_has_metadata_that_the_hub_can_read_and_code_that_runs(folders, tmp_path, name, task, tag):
    hub = pytest.importorskip("huggingface_hub")
    card = hub.ModelCard.load(folders / f"meancap-{name}" / "README.md")
    assert card.data.license == "mit" and card.data.library_name == "meancap"
    assert card.data.pipeline_tag == task and tag in card.data.tags
    assert "](../" not in card.text and "![" not in card.text
    code = card.text.split("## Use")[1].split("```")[1].removeprefix("python\n")
    file = str(folders / f"meancap-{name}" / "model.safetensors")
    local = re.sub(r"hf_hub_download\([^)]*\)", repr(file), code)
    program = tmp_path / "use.py"
    program.write_text(re.sub(r"\((16|20)\)\)$", "(2))", local, flags=re.MULTILINE))  # two steps
    assert runpy.run_path(str(program))["images"].dtype == torch.uint8


def test_the_space_says_how_it_is_started(folders):
    head = (folders / "space" / "README.md").read_text(encoding="utf-8").split("---")[1]
    found = yaml.safe_load(head)
    assert found["sdk"] == "gradio" and (folders / "space" / found["app_file"]).exists()
    assert len(found["short_description"]) <= 60


def test_the_space_draws_garments_with_the_library(app):
    image, said = app.garments(8, 1.1, 0, steps=4)
    assert image.shape == (84, 280) and image.dtype == np.uint8
    assert said.startswith("requested scale 8.0") and "largest ratio 1.100" in said
    again, _ = app.garments(8, 1.1, 0, steps=4)
    np.testing.assert_array_equal(image, again)


def test_the_space_draws_sentences_with_the_library(app):
    image, said = app.pictures("a red disc left of a blue square", "", 8, 1.05, 0, steps=2)
    assert image.shape == (96, 128, 3) and image.dtype == np.uint8 and said.startswith("requested scale 8.0")


def test_the_space_draws_the_mixture(app):
    figure = app.points(next(iter(app.SCENE_NAMES)), 3, 1.1, count=20)
    assert [axes.get_title() for axes in figure.axes] == ["CFG(1)", "CFG(3)", "CFG(3) | Cap(1.1)"]
