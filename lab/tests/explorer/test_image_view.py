"""The image view's answers: what `meancap generate` and the library would give, and bounded."""

import base64
import shlex

import pytest
import torch

from meancap import CFG, Cap, Record, sample, uniform
from meancap.rules.calibration import Calibration, GapCurve
from meancap.sampling import noise, shifted
from meancap_lab.cli import main
from meancap_lab.explorer import image_view as studio
from meancap_lab.explorer.image_view import ROUTES, Want
from meancap_lab.explorer.requests import Left, Work
from meancap_lab.metrics import class_probability
from meancap_lab.metrics.classifiers import fashion_classifier
from meancap_lab.models import fashion
from meancap_lab.runs.folder import Run
from pages import ROOT
from tools import fashion_gaps

ASK = {"classes": ["7", "9"], "seeds": "0-4", "steps": 4, "scale": 6, "gamma": 1.1,
       "rules": ["CFG(λ)", "CFG(λ) | Cap(Γ)"]}  # fmt: skip
about, check, prompt, run = (ROUTES[f"images/{name}"] for name in ("about", "check", "prompt", "run"))


def pixels(text):
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8).reshape(-1, 28, 28)


def last(picture):
    return pixels(picture["frames"])[-1]


def run_of(command, folder):
    """The run that a command of the view makes."""
    words = shlex.split(command)
    words[words.index("RUN")] = str(folder / "run")
    assert main(words[1:]) == 0
    return Run.open(folder / "run")


@pytest.fixture(scope="module")
def answer():
    return run(ASK, Work())


def test_pictures_are_the_bytes_of_the_run_that_the_view_names(answer, tmp_path):
    entry = answer["rules"][1]
    folder = run_of(entry["command"], tmp_path)
    for i, picture in enumerate(entry["pictures"]):
        assert folder.records[i]["seed"] == answer["images"][i]["seed"]
        assert folder.labels[i] == answer["images"][i]["label"]
        assert torch.equal(last(picture), torch.tensor(folder.images([i])[0, :, :, 0]))


def test_a_picture_depends_on_its_class_and_seed_alone(answer):
    """Asked for alone, in other company, or by a painter that remembers nothing."""
    want = Want(9, 3)
    rule = CFG(6) | Cap(1.1)
    for company in ([want], [Want(2, 100 + i) for i in range(5)] + [want]):
        found = {}
        for _ in studio.Painter().paint(rule, 4, company, found):
            pass
        assert torch.equal(found[want].frames[-1, ..., 0], last(answer["rules"][1]["pictures"][3]))


def test_meter_and_verdict_are_the_library_s(answer):
    model, record = fashion(), Record()
    labels, seeds = [7, 9, 7, 9, 7], range(5)
    x = sample(model.predict(labels), CFG(6) | Cap(1.1), noise(seeds, model.shape), uniform(4), record=record)
    meter, entry = record.stacked(), answer["rules"][1]
    logits = fashion_classifier()(model.decode(x).permute(0, 2, 3, 1))["logits"]
    sure = class_probability(logits, torch.tensor(labels))
    for i, picture in enumerate(entry["pictures"]):
        for name in ("scale", "asked", "ratio", "gap", "cosine"):
            assert picture["meter"][name] == pytest.approx(meter[name][:, i].tolist(), rel=1e-4)
        assert picture["meter"]["active"] == meter["active"][:, i].int().tolist()
        assert picture["numbers"]["ratio"] == pytest.approx(float(meter["ratio"][:, i].max()), rel=1e-6)
        assert picture["sure"] == pytest.approx(float(sure[i]), rel=1e-5)
    numbers = entry["numbers"]
    assert numbers["capped"] == pytest.approx(float(meter["active"].double().mean()))
    assert numbers["first"] == pytest.approx(float(meter["scale"][0].mean()), rel=1e-5)
    assert numbers["ratio"] <= 1.1 * (1 + 1e-6) < answer["rules"][0]["numbers"]["ratio"]


def test_progress_goes_up_and_shows_pictures_in_the_making():
    told = []

    class Told(Work):
        def tell(self, share, said="", partial=None):
            if partial:
                told.append((share, [sum(p is not None for p in entry) for entry in partial["frames"]]))

    run({**ASK, "seeds": "900-909", "steps": 3}, Told())
    shares = [share for share, _ in told]
    assert shares == sorted(shares) and shares[-1] == 1
    assert told[0][1] == [8, 0] and told[-1][1] == [10, 10]
    assert [8, 8] in [shown for _, shown in told], "every rule's first block comes before anybody's second"


def test_a_reader_who_leaves_stops_the_work():
    class Leaves(Work):
        def tell(self, share, said="", partial=None):
            if share > 0.3:
                raise Left

    with pytest.raises(Left):
        run({**ASK, "seeds": "700-707"}, Leaves())


def test_what_was_made_is_not_made_again(answer, monkeypatch):
    def never(*_):
        raise AssertionError("a block was made again")

    monkeypatch.setattr(studio.Painter, "_block", never)
    found = run({**ASK, "classes": ["7"], "seeds": "4,0"}, Work())
    assert found["images"] == [{"seed": 4, "label": 7}, {"seed": 0, "label": 7}]
    assert found["rules"][0]["command"] is None, "seeds in this order are no run's"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"seeds": "0-999999999"}, "at most 64 images"),
        ({"seeds": "0-63", "steps": 100}, "64 images × 2 rules × 100 evaluations are more"),
        ({"seeds": "five"}, "seeds are whole numbers"),
        ({"seeds": "7-3"}, "seeds are whole numbers"),
        ({"seeds": "4294967296"}, "below 4,294,967,296"),
        ({"seeds": "1, 1"}, "1 is listed twice"),
        ({"classes": ["10"]}, "classes are numbers from 0 to 9"),
        ({"classes": []}, "classes must be a list of 1 to 10 entries"),
        ({"colour": "red"}, "unknown field 'colour'"),
    ],
)
def test_bad_input_is_one_sentence(change, said):
    with pytest.raises((ValueError, TypeError), match=said):
        run({**ASK, **change}, Work())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Cup(1.1)", "unknown name 'Cup'"),
        ("CFG(λ) | Cap(0.5)", "gamma >= 1"),
        ("CFG(4) | Cap(1.1, anchor=[1, 2, 3])", "anchor has shape"),
        ("", "type a rule"),
    ],
)
def test_a_wrong_rule_says_so_and_the_others_are_made(text, said):
    found = run({**ASK, "rules": [text, "CFG(λ)"]}, Work())["rules"]
    assert said in found[0]["error"] and "pictures" not in found[0]
    assert len(found[1]["pictures"]) == 5


def test_a_rule_that_fails_on_its_way_says_so_and_one_that_runs_away_is_marked():
    late = "Phases(1, CFG(2), CFG(2) | Cap(1.1, anchor=[1, 2, 3]), together=False)"  # wrong from step 2 on
    found = run({**ASK, "rules": [late, "Gain(1e30)", "CFG(λ)"]}, Work())["rules"]
    assert "cannot go on" in found[0]["error"]
    assert [picture["finite"] for picture in found[1]["pictures"]] == [False] * 5
    assert all(picture["finite"] for picture in found[2]["pictures"])


SENTENCE = {**ASK, "model": "scenes", "prompt": "a red disc above a blue square", "seeds": "0-2"}


def test_a_scene_s_pictures_are_the_bytes_of_the_run_that_the_view_names(tmp_path):
    request = {**SENTENCE, "negative": "dark background", "rules": ["CFG(λ) | Cap(Γ)"]}
    found = run(request, Work())
    folder = run_of(found["rules"][0]["command"], tmp_path)
    for i, picture in enumerate(found["rules"][0]["pictures"]):
        frames = torch.frombuffer(bytearray(base64.b64decode(picture["frames"])), dtype=torch.uint8)
        assert torch.equal(frames.reshape(-1, 32, 32, 3)[-1], torch.tensor(folder.images([i])[0]))
        assert picture["sees"].count(" a ") >= 1 and picture["sure"] is None
        assert folder.prompts[i] == SENTENCE["prompt"] and folder.records[i]["negative"] == "dark background"
    assert found["times"] == list(shifted(4)[:-1]) and found["channels"] == 3


def test_a_sentence_that_the_scenes_do_not_know_is_answered_by_theirs():
    said = "unknown word 'dog'"
    assert said in prompt({"prompt": "a red dog"}, Work())["error"]
    assert prompt({"prompt": "red circle"}, Work()) == {"reads": "a red disc"}
    for field in ("prompt", "negative"):
        with pytest.raises(ValueError, match=said):
            run({**SENTENCE, field: "a red dog"}, Work())


def test_the_squared_gap_is_compared_with_that_of_real_examples_of_the_same_classes(answer):
    times, squares = studio._garment_gaps()
    real = GapCurve(times, tuple(squares[[7, 9, 7, 9, 7]].mean(0).sqrt().tolist()))
    for entry in answer["rules"]:
        gaps = torch.tensor([picture["meter"]["gap"] for picture in entry["pictures"]]).double()
        rms = gaps.square().mean(0).sqrt().tolist()
        found = [real.ratio(t, gap) for t, gap in zip(answer["times"], rms, strict=True)]
        assert entry["gap"]["ratios"] == pytest.approx(found, rel=1e-4)
        said = entry["gap"]["sentence"]
        assert said.startswith(real.compare(answer["times"], rms)) and said.endswith("with 5 pictures)")
    none = run({**ASK, "seeds": "0", "steps": 20, "rules": ["CFG(1)"]}, Work())["rules"][0]["gap"]
    assert none["ratios"][-1] is None and "±" not in none["sentence"]  # no example at t = 0.95; one picture


def test_real_scenes_follow_the_law_of_the_sentence():
    """A sentence that fixes nothing has no gap; the law's own scenes have the ratio 1 to sampling error."""
    ask = {"model": "scenes", "seeds": "0-1", "steps": 2, "scale": 3, "gamma": 1.1, "rules": ["CFG(λ)"]}
    empty = run({**ask, "prompt": ""}, Work())["rules"][0]["gap"]
    assert empty == {"ratios": [0, 0], "sentence": "no gap to compare with that of real examples"}
    words = "a red disc left of a blue square"
    one, two = (studio._scene_gaps(words, "", first).mean(1) for first in (0, 100))
    assert float((one / two).log().abs().max()) < 1
    assert float((one / studio._scene_gaps("a disc", "", 0).mean(1)).min()) > 2


def test_the_gaps_of_garments_agree_with_a_calibration_on_other_pictures():
    times, squares = studio._garment_gaps()
    match = Calibration.load(ROOT / "studies" / "path_matching" / "fashion-320.json")
    assert squares.shape == (10, len(times)) and len(times) == len(fashion_gaps.TIMES) - 1
    for t, square in zip(times, squares.mean(0), strict=True):
        assert match.gaps.ratio(t, float(square.sqrt())) == pytest.approx(1, rel=0.15)
