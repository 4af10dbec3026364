"""Pictures of the shipped model name its classes; columns are equal; matplotlib is asked for by name."""

import re
import sys

import pytest

from meancap.cli import main
from meancap.report.pictures import class_panels, gallery, sheet
from meancap.runs.config import RunConfig
from meancap.runs.folder import Run
from meancap.runs.prepare import generate


@pytest.fixture(scope="module")
def garments(tmp_path_factory):
    folder = tmp_path_factory.mktemp("garments") / "run"
    assert list(generate(folder, RunConfig("fashion", rule="CFG(2)", per_class=1, steps=2, batch=10))) == [0]
    return Run.open(folder)


def test_classes_have_their_names_in_every_picture(garments):
    assert "T-shirt" in gallery([garments]) and "class 0" not in gallery([garments])
    assert class_panels([garments], 1).axes[0].get_yticklabels()[9].get_text() == "ankle boot"
    assert sheet([garments], [0]).axes[0].get_ylabel() == "T-shirt\nseed 0"


def test_no_column_of_the_gallery_is_wider_than_another(garments):
    """Width 100 % made a picture as wide as its column, and a column as wide as the rule above it."""
    (rule,) = re.findall(r"img \{(.*?)\}", gallery([garments]), re.S)
    assert "width: clamp(48px, calc((100vw - 8rem) / 1), 112px)" in rule and "%" not in rule


@pytest.mark.parametrize("command", [["pictures", "nowhere", "--out"], ["demo", "--out"]])
def test_without_matplotlib_the_extra_is_named(command, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main([*command, str(tmp_path / "out")]) == 2
    assert (
        'needs matplotlib, which is not installed: pip install "meancap[report]"' in capsys.readouterr().err
    )
