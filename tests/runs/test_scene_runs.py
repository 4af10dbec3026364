"""Runs of the scenes: training goes on exactly, captions are as the recipe says, and the table adds up."""

import json
from dataclasses import replace

import pytest
import torch

from meancap import CFG, Cap
from meancap.cli import main
from meancap.runs.folder import Run
from meancap.runs.loop import read_log
from meancap.runs.protocols import ImageSetting
from meancap.runs.scene_runs import complete_and_partial, with_negatives
from meancap.runs.scenes_pilots import ScenePilots
from meancap.runs.scenes_readings import chosen as reading_of
from meancap.runs.scenes_readings import read_readings
from meancap.runs.scenes_study import (
    Cell,
    SceneStudy,
    cells,
    make_scene_cell,
    settings,
)
from meancap.runs.scenes_table import grouped, scene_rows, write_table
from meancap.runs.train_detector import DetectorConfig, examine, train_detector
from meancap.runs.train_scenes import SceneTrainConfig, SceneTraining, scene_pixels
from meancap.scenes import codes, draw, parse_prompt
from meancap.scenes.model import SceneNetConfig, scenes

SMALL = SceneNetConfig(fine=4, middle=8, width=16, depth=1, heads=2)
CONFIG = SceneTrainConfig(320, model=SMALL, batch=16, warmup=5, ema=0.9)
PILOTS = ScenePilots(
    {"2": 10.0, "4": 5.0, "7": 5.0, "15": 2.5}, 4.0, {"scenes": 4.0, "wrong": 4.0},
    {"scenes": str(Cap(1.2)), "wrong": str(Cap(1.3))},
)  # fmt: skip


def test_a_stopped_training_goes_on_exactly(tmp_path):
    whole = SceneTraining(tmp_path / "whole", CONFIG)
    list(whole.rows(every=5))
    first = SceneTraining(tmp_path / "two", CONFIG)
    rows = first.rows(every=5)
    next(rows), next(rows)
    first.save()
    rows.close()
    second = SceneTraining(tmp_path / "two", CONFIG)
    assert second.step == 10
    list(second.rows(every=5))
    for (name, a), b in zip(whole.ema.state_dict().items(), second.ema.state_dict().values(), strict=True):
        assert torch.equal(a, b), name
    assert [r.loss for r in read_log(tmp_path / "whole")] == [r.loss for r in read_log(tmp_path / "two")]
    assert read_log(tmp_path / "two")[-1].loss < read_log(tmp_path / "two")[0].loss


def test_training_goes_on_from_a_file_and_names_it(tmp_path):
    begun = SceneTraining(tmp_path / "a", CONFIG)
    file = begun.export(tmp_path / "a.safetensors", torch.float32)
    more = SceneTraining(tmp_path / "b", replace(CONFIG, wrong=0.2, start="abc"), file)
    state = more.model.state_dict()
    assert all(torch.equal(v, state[name]) for name, v in begun.ema.state_dict().items())
    assert json.loads((tmp_path / "b" / "train.json").read_text())["start"] == "abc"
    assert not more.model.get_parameter("pos_embed").requires_grad
    more.one_step()


def test_captions_say_what_the_recipe_says(tmp_path):
    n = 20_000
    g = torch.Generator().manual_seed(0)
    truth = draw(n, g).codes()
    training = SceneTraining(tmp_path / "t", replace(CONFIG, dropout=0.1, partial=0.25, wrong=0.2))
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


@pytest.mark.parametrize("bad", [{"images": 0}, {"wrong": 1.5}, {"time_spread": 0.0}, {"seed": -1}])
def test_a_recipe_that_cannot_be_is_named(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        replace(CONFIG, **bad)


def test_a_detector_learns_and_is_examined():
    steps = list(train_detector(DetectorConfig(steps=30, batch=32)))
    losses, network = [loss for _, loss, _ in steps], steps[-1][2]
    assert sum(losses[-5:]) < sum(losses[:5])
    found = examine(network, 50)
    assert set(found) == {"clean", "spoilt", "burnt x1.5", "burnt x2", "burnt x3"}
    assert all(0 <= v <= 1 for shares in found.values() for v in shares.values())


def test_half_of_the_prompts_are_complete_and_negatives_name_a_colour():
    prompts = complete_and_partial(40, seed=3)
    table = codes(prompts)
    assert (table[:20] >= 0).all() and 0.3 < (table[20:] < 0).double().mean() < 0.7
    asked, against = with_negatives(10, seed=3)
    assert all(
        parse_prompt(p).first.colour is None and parse_prompt(n).first.colour
        for p, n in zip(asked, against, strict=True)
    )


def test_rules_share_noise_and_scales_and_only_caps_go_beyond():
    study = SceneStudy(seeds=2)
    found = cells(study, PILOTS, ["scenes", "wrong"])
    assert len({cell.folder for cell in found}) == len(found)
    assert {c.setting.method for c in found if c.setting.scale == 50} == {
        "Cap",
        "Displacement",
        "Anchored",
        "Calibrated",
    }
    assert {str(c.setting.rule) for c in found if c.part == "wrong" and c.setting.method == "Calibrated"} == {
        f"CFG({scale}) | Cap(1.3)" for scale in (2, 4, 15, 50)
    }
    starts = {c.setting.scale: c.setting.rule for c in found if c.setting.method == "Feedback"}
    assert starts[4.0].pi == 0.25 and starts[4.0].temperature == 4 and set(starts) == {2, 4, 7, 15}
    assert len(settings(study, PILOTS, "negative")) == 1 + 2 * 6
    with pytest.raises(ValueError, match="scales above 1"):
        SceneStudy(scales=(1.0,))


def test_the_table_adds_up(tmp_path):
    study = SceneStudy(prompts=8, seeds=1, steps=4, batch=8)
    model = scenes()
    chosen = [
        Cell(0, part, ImageSetting(method, scale, rule, 4))
        for part in ("scenes", "negative")
        for method, scale, rule in (("CFG", 4.0, CFG(4)), ("Capped", 4.0, CFG(4) | Cap(1.1)))
    ]
    for cell in chosen:
        make_scene_cell(study, cell, model, tmp_path)
    groups = grouped([*chosen, Cell(0, "scenes", ImageSetting("CFG", 9.0, CFG(9), 4))], tmp_path)
    assert len(groups) == 4  # what was not made is left out
    made = list(scene_rows(groups, tmp_path))
    rows = [row.line for row in made]
    assert [r["method"] for r in rows] == ["Truth", "CFG", "Capped"] * 2
    truth, fixed, capped = rows[:3]
    assert truth["right all"] == 1 and truth["drawn"] == 1
    assert fixed["lost"] == fixed["gained"] == 0
    assert capped["right all"] == pytest.approx(fixed["right all"] - capped["lost"] + capped["gained"])
    assert capped["scale used"] <= fixed["scale used"] == 4
    assert "violated" in rows[4] and "violated" not in fixed
    assert 0 < capped["tv error"] < capped["tv"]
    seen = read_readings(write_table([r for row in made for r in row.readings], tmp_path / "readings.csv"))
    own = reading_of(seen, "scenes", "Capped", 4.0)
    assert own.right["all"].double().mean() == pytest.approx(capped["right all"])
    assert own.numbers["saturation"].mean() == pytest.approx(capped["saturation"], abs=1e-3)
    assert reading_of(seen, "negative", "CFG", 4.0).violated.double().mean() == rows[4]["violated"]
    lines = write_table(rows, tmp_path / "table.csv").read_text().splitlines()
    assert len(lines) == 7


def test_the_command_makes_a_run_of_a_sentence(tmp_path, capsys):
    out = tmp_path / "run"
    said = ["--prompt", "a red disc left of a blue square", "--negative", "dark background"]
    options = ["generate", "--model", "scenes", *said, "--rule", "CFG(4) | Cap(1.1)", "--steps", "4"]
    assert main([*options, "--per-class", "3", "--batch", "3", "--out", str(out)]) == 0
    found = Run.open(out)
    assert found.images().shape == (3, 32, 32, 3) and set(found.prompts) == {said[1]}
    assert all(r["negative"] == "dark background" for r in found.records)
    assert main(["generate", "--model", "scenes", "--prompt", "a cat", "--out", str(tmp_path / "x")]) == 2
    assert "know no 'cat'" in capsys.readouterr().err
    assert main(["generate", "--model", "scenes", "--out", str(tmp_path / "x")]) == 2
    assert "--prompt" in capsys.readouterr().err
    assert main(["generate", "--model", "fashion", "--prompt", "a disc", "--out", str(tmp_path / "x")]) == 2
