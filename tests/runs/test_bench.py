"""The benchmark: equal budgets, held-out scores, resumable; its intervals; the pages made from it."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from meancap import CFG, Cap, Prediction, parse, sample, trajectory, uniform
from meancap.cli import main
from meancap.lab.measures import Ruler
from meancap.lab.problems import problem
from meancap.report.leaderboard import leaderboard, write_report
from meancap.rules import catalogue
from meancap.runs.bench import BenchConfig, bench, families, family_of
from meancap.runs.bench.config import TUNING, drawn_problems, noise, role
from meancap.runs.bench.families import FIXED, OPTIMUM, PAPER, PERFECT, UNGUIDED, chosen
from meancap.runs.bench.intervals import coverage, geometric, student
from meancap.runs.bench.knobs import Knob, around, spread
from meancap.runs.bench.readings import read_readings, write_readings
from meancap.runs.bench.run import best_setting, prepare, scoring_tasks
from meancap.runs.bench.setup import ends, merged, pilot, together
from meancap.runs.bench.tables import logs, ratio, selected, summary, tables
from meancap.runs.calibrate import LEVELS, calibrate, calibrated, load_calibration
from tools.bench_page import pages

SMALL = BenchConfig(points=32, blocks=2, named_blocks=3, slices=4, spread=3, refined=4, steps=8)
WIDE = replace(SMALL, points=128, steps=12)
BASIC = (UNGUIDED, PERFECT, OPTIMUM, FIXED, PAPER)
PROBLEMS = ("drawn-0", "drawn-1000", "drawn-1001", "leak-8")
DOCS = Path(__file__).parents[2] / "docs"


def run(folder, families=BASIC, problems=PROBLEMS, config=SMALL, processes=1):
    return list(bench(folder, config, problems, families, processes))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bench")
    run(folder)
    write_readings(folder)
    return folder


def test_a_second_run_measures_only_what_is_missing_and_gets_the_same(tmp_path):
    assert len(run(tmp_path, BASIC[1:4], ("drawn-1001",))) == 6  # each is tuned, then scored
    path = tmp_path / "cells" / "drawn-1001" / "fixed-CFG.scored.json"
    before = path.read_bytes()
    path.unlink()
    assert [task.path.name for task in run(tmp_path, BASIC[1:4], ("drawn-1001",))] == [path.name]
    assert path.read_bytes() == before
    assert run(tmp_path, BASIC[1:4], ("drawn-1001",)) == []


def test_a_folder_takes_more_rules_but_no_other_settings(tmp_path):
    run(tmp_path, BASIC[:1], ("drawn-1000",))
    assert len(run(tmp_path, BASIC[:2], ("drawn-1000",))) == 2
    with pytest.raises(ValueError, match="another run: seed was 0, now 1"):
        run(tmp_path, config=replace(SMALL, seed=1))
    (tmp_path / "taken").touch()
    with pytest.raises(ValueError, match="taken is a file; a run needs a folder"):
        run(tmp_path / "taken")


def test_a_rule_of_the_same_name_and_another_text_is_measured_again(tmp_path):
    run(tmp_path, BASIC[:1], ("drawn-0",))
    assert len(run(tmp_path, (replace(UNGUIDED, call="CFG(1.5)"),), ("drawn-0",))) == 1


@pytest.mark.slow
def test_two_processes_measure_what_one_does(tmp_path):
    for name, processes in (("one", 1), ("two", 2)):
        run(tmp_path / name, BASIC[1:3], ("drawn-1001",), processes=processes)
    cells = [sorted((tmp_path / name).glob("cells/*/*.json")) for name in ("one", "two")]
    assert len(cells[0]) == 4
    assert [path.read_bytes() for path in cells[0]] == [path.read_bytes() for path in cells[1]]


def test_every_rule_is_tried_at_as_many_settings(finished):
    readings = read_readings(finished)
    for name in (FIXED.name, PAPER.name):
        counts = {what: len(readings.of("leak-8", name, what)) for what in ("spread", "refined")}
        assert counts == {"spread": SMALL.spread, "refined": SMALL.refined}
    assert {len(spread(8, 1)), len(spread(8, 2)), len(spread(8, 3))} == {8}


def test_settings_fill_their_range_and_stay_within_it():
    knob = Knob("scale", 1.02, 1000, origin=1)
    assert (knob.at(0), knob.at(1)) == pytest.approx((1.02, 1000))
    assert knob.place(knob.at(0.3)) == pytest.approx(0.3)
    for dimensions in (1, 2, 3):
        points = spread(8, dimensions)
        for axis in range(dimensions):
            filled = sorted(p[axis] for p in points)
            assert max(b - a for a, b in zip([0, *filled], [*filled, 1], strict=True)) < 0.4
        assert all(0 <= u <= 1 for p in around(points[0], 8) for u in p)


def test_what_is_tuned_is_scored_on_other_noise(finished):
    blocks = [noise(2, SMALL, block) for block in (TUNING, 0, 1)]
    assert not torch.equal(blocks[0], blocks[1]) and not torch.equal(blocks[1], blocks[2])
    # Sobol points halve every axis exactly, block by block.
    assert all(((block < 0).sum(0) == 16).all() for block in blocks)
    tuned = read_readings(finished).of("leak-8", FIXED.name, "tuned")[0]
    assert len(tuned.sw2) == SMALL.named_blocks


def test_the_setting_carried_over_is_chosen_on_other_problems_alone(finished):
    readings = read_readings(finished)
    assert [role(name) for name in drawn_problems(1, 1)] == ["chosen", "held out"]
    carried = readings.of("drawn-1000", FIXED.name, "carried")[0].setting
    assert carried == best_setting([readings.of("drawn-0", FIXED.name, "spread")])
    assert not readings.of("leak-8", FIXED.name, "carried") and not readings.of(
        "drawn-0", FIXED.name, "tuned"
    )
    tasks = prepare(finished, SMALL, PROBLEMS, BASIC)
    assert {task.problem for task in scoring_tasks(tasks)} == {"drawn-1000", "drawn-1001", "leak-8"}


def test_the_known_optimum_is_a_perfect_model_where_errors_lie_on_the_ray(finished):
    readings = read_readings(finished)
    for name in ("drawn-1000", "drawn-1001", "leak-8"):
        own, truth = (readings.of(name, one.name, "tuned")[0].sw2 for one in (OPTIMUM, PERFECT))
        assert own == pytest.approx(truth, rel=1e-3)


def test_rules_together_end_where_they_end_alone():
    model, x = problem("leak-8").model(), noise(8, SMALL, 0)
    for texts in (("CFG(2)", "CFG(5)"), ("CFG(2) | Cap(1.1)", "CFG(9) | Cap(1.3)"), ("apg(2)", "smc(3)")):
        rules = [parse(text) for text in texts]
        assert (merged(rules, 32) is None) == (texts[0] == "apg(2)")
        both = together(model.predict, rules, x, uniform(8))
        for rule, end in zip(rules, both, strict=True):
            torch.testing.assert_close(end, sample(model.predict, rule, x, uniform(8)), rtol=1e-9, atol=1e-9)


def test_equal_alignment_is_equal_up_to_a_sample(finished):
    readings = read_readings(finished)
    for name in ("drawn-1000", "drawn-1001", "leak-8"):
        found = [r for one in (FIXED, PAPER) for r in readings.of(name, one.name, "aligned")]
        for reading in found:
            a, b = (readings.of(name, one.name, "tuned")[0].alignment for one in (UNGUIDED, PERFECT))
            target = (0.1 * sum(a) + 0.9 * sum(b)) / len(a)
            blocks = reading.alignment
            assert abs(sum(blocks) / len(blocks) - target) < 2 / (len(blocks) * SMALL.points)
    assert family_of("CFG(2) | Cap(100)").scaled and not family_of("CFG(Linear(1, 3))").scaled


def test_every_rule_of_the_catalogue_for_vectors_is_a_family():
    names = {one.name for one in families()}
    listed = [one for one in catalogue(forms=True) if one.kind == "rule" and one.axes == 2 and not one.needs]
    known = {str(one.rule(3.0)) for one in listed if one.name in names}
    with_more_knobs = {"CFG", "pmc", "pmc_displacement", "limited_interval"}
    for entry in listed:
        assert entry.name in names | with_more_knobs or str(entry.rule(3.0)) in known, entry.name
    sides = {one.side for one in families()}
    assert {"autoguidance", "manifold", "policy", "rectified", "recfg", "feedback"} <= sides


def test_every_family_runs_on_a_network_and_off_the_ray():
    x = noise(3, SMALL, 0)
    case = replace(problem("drawn-1009"), network=20)
    for family in families():
        end = ends(family, case, SMALL, [family.setting((0.4,) * len(family.knobs))], x, "euler")
        assert end.shape == (1, *x.shape) and bool(end.isfinite().all()), family.name


def test_an_interval_holds_what_it_should_at_the_floor():
    assert [student(n) for n in (1, 3, 19)] == pytest.approx([12.7062, 3.1824, 2.0930], abs=1e-3)
    ruler = Ruler(problem("triple").condition(), 64, 4)
    share = coverage(ruler, 4, 1000)
    assert abs(share - 0.95) < 4 * math.sqrt(0.95 * 0.05 / 1000)


def test_a_geometric_mean_says_better_only_where_its_interval_does():
    assert geometric([math.log(2)] * 3)[:3] == pytest.approx((2, 2, 2))
    assert geometric([math.log(0.5), math.log(0.6), math.log(0.55)]).verdict == "better"
    assert geometric([math.log(0.5), math.log(2.2)]).verdict == "even"
    assert geometric([0.001, 0.0011]).verdict == "even"  # below two per cent
    assert str(geometric([])) == "–"


def test_tables_come_from_the_readings_alone(finished, tmp_path):
    for name in ("run.json", "readings.csv"):
        (tmp_path / name).write_bytes((finished / name).read_bytes())
    readings = read_readings(tmp_path)
    found = {row["family"]: row for row in summary(readings)}
    own, truth = (
        [readings.of(p, name, "tuned")[0].sw2 for p in ("drawn-1000", "drawn-1001")]
        for name in (FIXED.name, PERFECT.name)
    )
    by_hand = [
        sum(math.log(a / b) for a, b in zip(x, y, strict=True)) / len(x)
        for x, y in zip(own, truth, strict=True)
    ]
    assert found[FIXED.name]["tuned euler"].value == pytest.approx(math.exp(sum(by_hand) / 2))
    assert found[PERFECT.name]["tuned euler"].value == 1
    assert ratio(logs(readings, FIXED.name, "tuned"), logs(readings, FIXED.name, "tuned")).value == 1
    assert selected(readings, "tuned")[1][0][0] == PAPER.name  # the only rule that is no reference
    assert {"summary", "kinds", "named", "aligned", "effective"} == set(tables(readings))


def test_the_page_holds_every_table_and_escapes_what_users_write(finished, tmp_path):
    for name in ("run.json", "readings.csv"):
        text = (finished / name).read_text(encoding="utf-8")
        (tmp_path / name).write_text(text.replace("the paper", "</script><b>"), encoding="utf-8")
    text = leaderboard(tmp_path)
    data = text.split('id="data">')[1].split("</script>")[0]
    assert len(json.loads(data)["summary"]["rows"]) == len(BASIC)
    assert "http" not in text.split("<body>")[0]  # nothing is fetched
    assert "</script><b>" not in text
    write_report(tmp_path)
    written = {path.name for path in tmp_path.iterdir()}
    assert {"leaderboard.html", "figures", "summary.csv", "aligned.csv"} <= written


def test_the_documented_pages_are_those_that_their_readings_give():
    for name, text in pages(DOCS).items():
        assert (DOCS / name).read_text(encoding="utf-8") == text, name


def test_a_calibration_reads_back_as_the_rule_it_was(tmp_path):
    found = pilot(problem("off-centre-8"), WIDE)
    path = found.save(tmp_path / "c.json")
    for level in LEVELS:
        cap = calibrated(path, 1.05, level)
        assert cap == found.cap(1.05, level)
        assert parse(str(CFG(5) | cap)) == CFG(5) | cap
    assert path.stat().st_size < 20_000
    assert [p.name for p in tmp_path.iterdir()] == ["c.json"]


def test_the_anchor_is_the_mean_of_the_data_and_radii_are_quantiles():
    here = problem("off-centre-8")
    model, start = here.model(), noise(8, WIDE, 0)
    found = calibrate([(model.predict, start[:50]), (model.predict, start[50:])], uniform(12))
    centre = model.condition.mixture.mean
    torch.testing.assert_close(found.anchor.on(start, "anchor")[0], centre[0], rtol=1e-5, atol=0)
    for step in trajectory(model.predict, CFG(1), start, uniform(12)):
        lengths = (step.prediction.m_c - centre).norm(dim=1)
        place = found.times.index(step.t)
        if step.t > 0:  # at 0 all means are one
            assert abs(float((lengths <= found.radii["q90"][place]).double().mean()) - 0.9) < 1.5 / 128
        assert found.radii["rms"][place] == pytest.approx(float(lengths.square().mean().sqrt()), rel=1e-4)


def test_an_anchor_of_pictures_is_per_element_or_per_channel():
    shape = (2, 3, 3)
    first = torch.arange(18.0).reshape(shape)

    def predict(x, t):
        m_u = (first + 0 * x).to(x)
        return Prediction(x, t, m_u + 1, m_u)

    x = torch.randn(16, *shape)
    whole, channel = (calibrate([(predict, x)], uniform(2), per=per) for per in ("element", "channel"))
    assert torch.equal(whole.anchor.on(x, "anchor").float(), first)
    assert torch.equal(channel.anchor.on(x, "anchor").flatten().float(), torch.tensor([4.0, 13.0]))
    assert whole.radii["rms"] == pytest.approx((18**0.5,) * 2, rel=1e-5)
    assert parse(str(whole.cap())) == whole.cap()


def test_a_calibrated_cap_keeps_its_radius_or_the_models_own():
    here = problem("under-8")
    cap = pilot(here, WIDE).cap(level="q90")
    start = noise(8, replace(WIDE, seed=5), 0)
    acted = False
    for step in trajectory(here.model().predict, CFG(9) | cap, start, WIDE.times):
        centre = cap.anchor.on(start, "anchor")
        own = (step.prediction.m_c - centre).norm(dim=1)
        guided = (step.m - centre).norm(dim=1)
        assert (guided <= own.clamp_min(cap.floor(step.t)) * (1 + 1e-12)).all()
        acted |= bool((guided > own * 1.05).any())
    assert acted  # the floor lets guidance go where gamma = 1 alone would not


@pytest.mark.parametrize("content", ["", "[]", '{"format": 2}', '{"format": 1, "radii": {}}'])
def test_what_is_no_calibration_is_refused(tmp_path, content):
    path = tmp_path / "c.json"
    path.write_text(content)
    with pytest.raises(ValueError, match="meancap calibrate"):
        load_calibration(path)


def test_the_command_writes_everything_and_resumes(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("meancap.runs.bench.config.QUICK", SMALL)
    command = ["bench", "lab", "--out", str(tmp_path / "b"), "--quick", "--rules", "interval"]
    command += ["--problems", "drawn-0", "drawn-1000", "--processes", "1"]
    assert main([*command, "--rule", "CFG(3) | Cap(1.2)"]) == 0
    assert "12 cells" in capsys.readouterr().out
    written = {path.name for path in (tmp_path / "b").iterdir()}
    assert {"leaderboard.html", "figures", "readings.csv", "summary.csv"} <= written
    stamp = (tmp_path / "b" / "cells" / "drawn-1000" / "interval.scored.json").stat().st_mtime_ns
    assert main(command) == 0
    assert (tmp_path / "b" / "cells" / "drawn-1000" / "interval.scored.json").stat().st_mtime_ns == stamp


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--out", "x", "--rules", "nonsense"], "nonsense"),
        (["--out", "x", "--problems", "nowhere"], "nowhere"),
        (["--out", "x", "--rule", "CFG(3"], "cannot read"),
        (["--out", "x", "--rule", "crg(3)"], "cannot run on the mixtures"),
        (["--out", "x", "--rule", "hiwave(3)"], "cannot run on the mixtures"),
        ([], "--out DIR"),
    ],
)
def test_bad_input_is_one_sentence_and_nothing_is_written(options, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["bench", "lab", "--quick", *options]) == 2
    assert said in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_calibrate_writes_a_file_that_cap_reads(tmp_path, capsys):
    path = tmp_path / "c.json"
    assert (
        main(["calibrate", "--model", "lab:triple", "--samples", "64", "--steps", "8", "--out", str(path)])
        == 0
    )
    assert isinstance(calibrated(path), Cap)
    assert main(["calibrate", "--model", "lab:nowhere", "--out", str(path)]) == 2
    assert main(["calibrate", "--model", "lab:triple", "--samples", "4", "--out", str(path)]) == 2
    assert "at least 16" in capsys.readouterr().err


def test_names_choose_rules_and_references_are_always_there():
    kept = [one.name for one in chosen(["apg"])]
    assert kept == [*(one.name for one in BASIC[:4]), "apg"]
