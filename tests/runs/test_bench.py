"""The benchmark: paired, resumable, and fair; calibration; the page and the documents made from it."""

import csv
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tools.bench_page import page

from meancap import CFG, Cap, Prediction, parse, trajectory, uniform
from meancap.cli import main
from meancap.lab.measures import MEASURES
from meancap.lab.problems import problem
from meancap.report.bench_findings import findings
from meancap.report.leaderboard import leaderboard
from meancap.rules import catalogue
from meancap.runs.bench import BenchConfig, bench, families, family_of
from meancap.runs.bench.cells import estimate, read_cells
from meancap.runs.bench.config import QUICK, noise, resamples
from meancap.runs.bench.families import FIXED, PAPER, TRUTH, UNGUIDED, chosen, pilot
from meancap.runs.bench.measure import averages, measure_rule
from meancap.runs.bench.table_files import read_csv, write_tables
from meancap.runs.bench.tables import _crossing
from meancap.runs.calibrate import LEVELS, calibrate, calibrated, load_calibration

SMALL = BenchConfig(
    scales=(2.0, 3.0),
    extra=(),
    blocks=4,
    points=32,
    slices=4,
    resamples=20,
    kl_points=4,
    matched=(3.0,),
    steps=12,
)
BASIC = (UNGUIDED, TRUTH, FIXED, PAPER)
DOCS = Path(__file__).parents[2] / "docs"


def run(folder, families=BASIC, problems=("under-triple",), config=SMALL):
    return list(bench(folder, config, problems, families, processes=1))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bench")
    torch.set_num_threads(1)
    run(folder, problems=("under-triple", "overlap-single"))
    write_tables(folder)
    return folder


def test_a_second_run_measures_only_what_is_missing_and_gets_the_same(tmp_path):
    assert len(run(tmp_path)) == 4
    path = tmp_path / "cells" / "under-triple" / "pmc.npz"
    with np.load(path) as found:
        before = found["values"], found["replicates"]
    path.unlink()
    assert [task.family.name for task in run(tmp_path)] == ["pmc"]
    with np.load(path) as found:
        assert np.array_equal(before[0], found["values"], equal_nan=True)
        assert np.array_equal(before[1], found["replicates"], equal_nan=True)
    assert run(tmp_path) == []


def test_a_folder_takes_more_rules_but_no_other_settings(tmp_path):
    run(tmp_path, BASIC[:1])
    assert len(run(tmp_path, BASIC[:2])) == 1
    assert [one.name for one in read_cells(tmp_path).families] == ["unguided", "perfect model"]
    with pytest.raises(ValueError, match="another run: seed was 0, now 1"):
        run(tmp_path, config=replace(SMALL, seed=1))


def test_a_file_is_no_folder_of_a_benchmark(tmp_path):
    (tmp_path / "taken").touch()
    with pytest.raises(ValueError, match="taken is a file; a run needs a folder"):
        run(tmp_path / "taken")


def test_a_rule_of_the_same_name_and_another_text_is_measured_again(tmp_path):
    run(tmp_path, BASIC[:1])
    assert len(run(tmp_path, (replace(UNGUIDED, call="CFG(1.5)"),))) == 1


def test_two_processes_measure_what_one_does(tmp_path):
    run(tmp_path / "one", BASIC[:2])
    list(bench(tmp_path / "two", SMALL, ("under-triple",), BASIC[:2], processes=2))
    for name in ("unguided", "perfect-model"):
        a, b = (
            np.load(tmp_path / k / "cells" / "under-triple" / f"{name}.npz")["values"] for k in ("one", "two")
        )
        assert np.array_equal(a, b, equal_nan=True)


def test_fixed_cfg_at_the_known_optimum_is_a_perfect_model(finished):
    cells = read_cells(finished)
    best = cells.at("under-triple", "cfg", 2.0)
    truth = cells.at("under-triple", "perfect model", 1.0)
    np.testing.assert_allclose(best.values, truth.values, rtol=1e-6)
    assert best.of("sw2").minus(truth.of("sw2"), SMALL.blocks).verdict == "even"


def test_rules_share_their_noise_and_blocks_differ():
    start = noise(2, SMALL)
    assert torch.equal(start, noise(2, SMALL))
    assert start.shape == (128, 2)
    blocks = start.reshape(4, 32, 2)
    assert not torch.allclose(blocks[0], blocks[1])
    # Sobol points halve every axis exactly, block by block.
    assert ((blocks < 0).sum(1) == 16).all()
    assert (resamples(SMALL).sum(1) == SMALL.blocks).all()


def test_a_users_chain_is_swept_like_the_same_rule_of_ours(tmp_path):
    mine = family_of("CFG(7) | Cap(1.1)")
    assert mine.scales(SMALL) == (*SMALL.scales, 7)
    run(tmp_path, (*BASIC, mine))
    cells = read_cells(tmp_path)
    for scale in SMALL.scales:
        ours, theirs = (cells.at("under-triple", name, scale) for name in ("pmc", mine.name))
        assert np.array_equal(ours.values, theirs.values)
    assert family_of("CFG(Linear(1, 3))").swept is False


def test_every_rule_of_the_catalogue_for_vectors_is_a_family():
    names = {one.name for one in families(QUICK)}
    for entry in catalogue():
        if entry.kind == "rule" and entry.axes == 2 and entry.name != "CFG":
            assert entry.name in names, entry.name
    for family in families(QUICK):
        if not family.calibration:
            for scale in family.scales(QUICK):
                family.rule(scale, problem("single"), QUICK)


def test_only_adaptive_rules_have_an_average_to_meet():
    here = problem("triple")
    assert averages(CFG(3), here, SMALL) == []
    assert averages(parse("CFG(Linear(1, 3))"), here, SMALL) == []
    found = dict(averages(CFG(3) | Cap(1.1), here, SMALL))
    assert list(found) == ["open loop", "open loop push", "fixed mean", "fixed push"]
    mean = found["fixed mean"].scale
    assert 1 < found["fixed push"].scale < mean < 3  # most samples are released where the gap is small
    # An open loop is no longer adaptive.
    assert averages(found["open loop"], here, SMALL) == []


def test_guidance_that_never_acts_costs_no_unconditional_evaluations():
    here = problem("triple")
    assert measure_rule(CFG(1), here, SMALL).nfe == SMALL.steps
    half = measure_rule(parse("CFG(3) | Interval(0.5, 1)"), here, SMALL).nfe
    assert SMALL.steps < half <= SMALL.steps + SMALL.steps // 2


def test_samples_that_run_away_are_counted_and_not_measured():
    found = measure_rule(CFG(1e9), problem("triple"), SMALL)
    assert found.lost > 0
    assert found.values.isnan().all()


def test_an_interval_is_as_wide_as_the_standard_error_says():
    rng = np.random.default_rng(0)
    blocks = rng.normal(3, 1, 400)
    taken = blocks[rng.integers(0, 400, (2000, 400))].mean(1)
    found = estimate(blocks.mean(), taken, 400)
    half = (found.high - found.low) / 2
    assert abs(half / (1.96 * blocks.std(ddof=1) / 20) - 1) < 0.1
    assert found.low < found.value < found.high


def test_a_difference_from_oneself_is_even_and_from_another_is_not(finished):
    cells = read_cells(finished)
    cfg, pmc = (cells.at("overlap-single", name, 3.0).of("sw2") for name in ("cfg", "pmc"))
    assert cfg.minus(cfg, 4)[:3] == (0.0, 0.0, 0.0)
    assert cfg.minus(cfg, 4).verdict == "even"
    assert pmc.minus(cfg, 4).verdict == "better"
    assert cfg.minus(pmc, 4).verdict == "worse"


def test_crossing_is_linear_between_scales_and_nan_beyond():
    alignment, error = np.array([0.5, 0.7, 0.9]), np.array([1.0, 2.0, 4.0])
    assert _crossing(alignment, error, 0.6) == pytest.approx(1.5)
    assert _crossing(alignment, error, 0.5) == 1.0
    assert math.isnan(_crossing(alignment, error, 0.95))


def test_tables_hold_one_row_for_each_setting(finished):
    found = {path.stem: read_csv(path) for path in finished.glob("*.csv")}
    assert len(found["equal_scale"]) == 2 * 2 * 2  # problems, scales, and fixed CFG beside the cap
    assert {row["variant"] for row in found["results"]} == {
        "rule",
        "open loop",
        "open loop push",
        "fixed mean",
        "fixed push",
    }
    assert [row["problem"] for row in found["open_loop"]] == ["overlap-single", "under-triple"]
    for row in found["results"]:
        assert all(f"{name}_low" in row for name in MEASURES)
    parquet = pytest.importorskip("pyarrow.parquet")
    for name, table in found.items():
        if table:
            assert parquet.read_table(finished / f"{name}.parquet").num_rows == len(table)


def test_the_page_holds_every_table_and_escapes_what_users_write(finished, tmp_path):
    text = leaderboard(finished)
    data = text.split('id="data">')[1].split("</script>")[0]
    assert len(json.loads(data)["equal_scale"]["rows"]) == 8
    assert "http" not in text.split("<body>")[0]  # nothing is fetched
    evil = tmp_path / "evil"
    evil.mkdir()
    for path in [*finished.glob("*.csv"), finished / "run.json"]:
        (evil / path.name).write_text(
            path.read_text().replace("anchored", "a").replace("CFG(2)", "</script><b>")
        )
    assert "</script><b>" not in leaderboard(evil)


def test_findings_are_read_off_the_tables(finished, tmp_path):
    for path in [*finished.glob("*.csv"), finished / "run.json"]:
        (tmp_path / path.name).write_bytes(path.read_bytes())
    before = [one for one in findings(tmp_path) if "Equal nominal scale, exact" in one.text]
    assert before[0].verdict == "wins"
    rows = read_csv(tmp_path / "equal_scale.csv")
    for row in rows:  # were the cap worse, the page would say so
        row["sw2"] = 1.0 / row["sw2"]
        word = row["sw2_vs_cfg_verdict"]
        row["sw2_vs_cfg_verdict"] = {"better": "worse", "worse": "better"}.get(word, word)
    with (tmp_path / "equal_scale.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    after = [one for one in findings(tmp_path) if "Equal nominal scale, exact" in one.text]
    assert after[0].verdict == "loses"


def test_the_documented_page_is_the_one_its_tables_give():
    assert (DOCS / "benchmark.md").read_text(encoding="utf-8") == page(DOCS / "benchmark")


def test_a_calibration_reads_back_as_the_rule_it_was(tmp_path):
    found = pilot(problem("off-centre-8"), SMALL)
    path = found.save(tmp_path / "c.json")
    for level in LEVELS:
        cap = calibrated(path, 1.05, level)
        assert cap == found.cap(1.05, level)
        assert parse(str(CFG(5) | cap)) == CFG(5) | cap
    assert path.stat().st_size < 20_000
    assert [p.name for p in tmp_path.iterdir()] == ["c.json"]


def test_the_anchor_is_the_mean_of_the_data_and_radii_are_quantiles():
    here = problem("off-centre-8")
    model, start = here.model(), noise(8, SMALL)
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
    cap = pilot(here, SMALL).cap(level="q90")
    start = noise(8, replace(SMALL, seed=5))
    acted = False
    for step in trajectory(here.model().predict, CFG(9) | cap, start, SMALL.times):
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


def test_the_command_writes_everything_and_resumes(tmp_path, capsys):
    command = [
        "bench",
        "lab",
        "--out",
        str(tmp_path / "b"),
        "--quick",
        "--rules",
        "pmc",
        "--problems",
        "single",
    ]
    assert main([*command, "--processes", "1", "--rule", "CFG(3) | Cap(1.2)"]) == 0
    assert "5 cells" in capsys.readouterr().out
    written = {path.name for path in (tmp_path / "b").iterdir()}
    assert {"leaderboard.html", "figures", "results.csv", "results.parquet", "equal_alignment.csv"} <= written
    stamp = (tmp_path / "b" / "cells" / "single" / "pmc.npz").stat().st_mtime_ns
    assert main([*command, "--processes", "1"]) == 0
    assert (tmp_path / "b" / "cells" / "single" / "pmc.npz").stat().st_mtime_ns == stamp


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--out", "x", "--rules", "nonsense"], "nonsense"),
        (["--out", "x", "--problems", "nowhere"], "nowhere"),
        (["--out", "x", "--rule", "CFG(3"], "cannot read"),
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
    kept = [one.name for one in chosen(QUICK, ["apg"])]
    assert kept == ["unguided", "perfect model", "cfg", "apg"]
