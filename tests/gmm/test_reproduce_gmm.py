"""One command gives the paper's mixture table and figures again."""

import ast
import csv
import json
import math
import re
import shutil
import statistics
from pathlib import Path

import pytest
import torch

from meancap import CFG, Cap, parse
from meancap.cli import main
from meancap.gmm import SETTINGS, GMMConfig, experiment, reproduce
from meancap.gmm.experiment import METRICS, count_stages, spread_of, stages
from meancap.gmm.figures import FIGURES
from meancap.gmm.report import write_report
from meancap.gmm.settings import start_noise
from meancap.lab import sampler
from meancap.report import style
from meancap.runs.folder import RunRefused
from meancap.runs.protocols import paper_run, paper_source, paper_table

SMALL = GMMConfig(samples=1000, seed=3, repeats=2)


@pytest.fixture(scope="module", autouse=True)
def short_limits():
    """Continuous time from few points: its own precision is tested by itself."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(experiment, "_SCRAMBLINGS", 2)
        patch.setattr(experiment, "_POINTS", 512)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The default run: 200,000 samples, seed 0."""
    out = tmp_path_factory.mktemp("gmm") / "out"
    assert main(["reproduce", "gmm", "--out", str(out)]) == 0
    return out


@pytest.fixture
def without_figure_data(monkeypatch):
    """For runs of which no figure is drawn."""
    monkeypatch.setattr(experiment, "figure_data", lambda config: ())


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A run of SMALL that nobody stopped."""
    return reproduce(SMALL, tmp_path_factory.mktemp("small") / "out")


def read(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def numbers(cell):
    return [float(v) for v in cell.split("/")]


def test_the_table_has_the_nine_rows_and_the_promised_columns(folder):
    rows = read(folder / "table.csv")
    assert list(rows[0])[:8] == ["members", "guidance", "scale", "gamma", *METRICS]
    assert list(rows[0])[8:16] == [f"{kind}_{metric}" for kind in ("paper", "z") for metric in METRICS]
    assert [(r["members"], r["guidance"], r["scale"], r["gamma"]) for r in rows] == [
        (members, *rest)
        for members in ("{0}", "{0,1}", "{0,1,2}")
        for rest in (("Conditional", "1", ""), ("Fixed CFG", "3", ""), ("PMC-CFG", "3", "1.1"))
    ]
    for row in rows:
        branches = len(row["members"].split(","))
        assert len(numbers(row["occupancy_percent"])) == len(numbers(row["variance_ratio"])) == branches
        assert sum(numbers(row["occupancy_percent"])) == pytest.approx(100, abs=1e-3)


def test_every_number_of_the_paper_is_within_four_standard_deviations_of_ours(folder):
    paper = {(r["members"], r["guidance"]): r for r in paper_table("gmm")}
    seen = 0
    for row in read(folder / "table.csv"):
        for metric in METRICS:
            columns = (row[metric], paper[row["members"], row["guidance"]][metric], row[f"sd_{metric}"])
            for ours, theirs, sd, z in zip(*map(numbers, columns), numbers(row[f"z_{metric}"]), strict=True):
                seen += 1
                assert abs(theirs - ours) <= 4 * sd + 1e-12
                if sd > 0:
                    assert z == pytest.approx((theirs - ours) / (sd * math.sqrt(2)), abs=0.03)
    assert seen == 54


def test_r_50_is_right_to_ten_digits(folder):
    found = json.loads((folder / "run.json").read_text())["finished"]["R_50"]
    assert f"{found:.10f}" == "0.5706506210"
    assert "0.5706506210" in (folder / "report.md").read_text()


def test_run_json_tells_how_to_run_it_again(folder):
    run = json.loads((folder / "run.json").read_text())
    assert run["config"] == {"samples": 200_000, "seed": 0, "repeats": 1}
    assert run["command"] == "meancap reproduce gmm --out DIR --samples 200000 --seed 0 --repeats 1"
    assert run["dtype"] == "float32" and run["steps"] == 50 and "torch" in run["made_with"]
    assert [parse(row["rule"]) for row in run["rows"]] == [CFG(1), CFG(3), CFG(3) | Cap(1.1)] * 3
    assert run["rows"][3]["weights"][:2] == [0.17, 0.08]
    assert any("MAP" in line for line in run["protocol"])


def test_every_figure_is_there_as_png_and_svg_and_comes_from_the_folder_alone(folder, tmp_path):
    names = {path.name for path in (folder / "figures").iterdir()}
    assert names == {f"{name}.{kind}" for name in FIGURES for kind in ("png", "svg")}
    assert {"landscape", "endpoints", "marginals", "overview", "meter", "trajectories"} <= set(FIGURES)
    copy = shutil.copytree(folder, tmp_path / "copy", ignore=shutil.ignore_patterns("figures", "report*"))
    for name in ("overview", "agreement"):
        for path in style.save_figure(FIGURES[name], copy, name):
            assert path.read_bytes() == (folder / "figures" / path.name).read_bytes()


def test_figures_and_report_read_files_and_never_models():
    for name in ("figures.py", "report.py"):
        for node in ast.walk(ast.parse((Path(experiment.__file__).parent / name).read_text())):
            if isinstance(node, ast.ImportFrom):
                allowed = (2, "report"), (2, "report.document"), (2, "files"), (1, "figures")
                assert not node.level or (node.level, node.module) in allowed
                assert not re.search(r"\b(meancap|torch)\b", node.module or "")
            elif isinstance(node, ast.Import):
                assert not any(alias.name.startswith(("torch", "meancap")) for alias in node.names)


def test_the_html_report_needs_no_other_file_and_says_what_euler_did(folder):
    page = (folder / "report.html").read_text()
    assert page.count("<img") == page.count('src="data:image/png;base64,') == len(FIGURES)
    assert "http" not in page and "<script" not in page
    for words in (
        "Which part of the contraction is Euler",
        "CFG(3) | Cap(1.1)",
        "continuous",
        "All 54 numbers",
    ):
        assert words in page


def test_the_continuous_column_is_one_without_guidance_and_keeps_the_order_of_the_rules():
    free, fixed, capped = single = [experiment.expectations(s)[1] for s in SETTINGS[:3]]
    assert [v["guidance"] for v in single] == ["Conditional", "Fixed CFG", "PMC-CFG"]
    assert all(v["metric"] == "variance_ratio" and v["continuous"] > v["euler"] for v in single)
    tolerance = 6 * free["standard_error"] + free["grid_error"] + 0.01
    assert free["continuous"] == pytest.approx(1, abs=tolerance)
    assert free["euler"] == pytest.approx(0.5706506, abs=tolerance)
    assert fixed["continuous"] < capped["continuous"] - 0.3 < free["continuous"] - 0.5


def test_every_seed_row_and_repeat_has_noise_of_its_own():
    config, other = GMMConfig(samples=1000), GMMConfig(samples=1000, seed=4)
    drawn = [start_noise(s, config, repeat) for s in SETTINGS for repeat in (0, 1)]
    drawn.append(start_noise(SETTINGS[0], other))
    assert all(not torch.equal(a, b) for i, a in enumerate(drawn) for b in drawn[:i])
    assert torch.equal(start_noise(SETTINGS[4], config, 1), drawn[9])


def test_numbers_do_not_depend_on_whether_numba_is_there(monkeypatch):
    start = start_noise(SETTINGS[-1], GMMConfig(samples=20_000))
    by_numba = experiment.row_values(SETTINGS[-1], start)
    monkeypatch.setattr(sampler, "find_spec", lambda name: None)
    by_torch = experiment.row_values(SETTINGS[-1], start)
    for metric, values in by_numba.items():
        assert values == pytest.approx(by_torch[metric], abs=1e-3 if "ratio" in metric else 1e-2)
    assert by_numba["occupancy_percent"] == pytest.approx(by_torch["occupancy_percent"], abs=0.011)


def test_a_run_has_the_same_bytes_again_also_when_it_was_stopped(small, without_figure_data, tmp_path):
    running = stages(SMALL, tmp_path / "stopped")
    for _ in range(5):
        next(running)
    running.close()
    rows = tmp_path / "stopped" / "rows.jsonl"
    rows.write_text(rows.read_text()[:-40])  # a line torn in the middle
    found = list(stages(SMALL, tmp_path / "stopped"))
    assert len(found) == count_stages(SMALL)
    for name in ("table.csv", "spread.csv", "rows.jsonl", "run.json", "limits.csv"):
        assert (tmp_path / "stopped" / name).read_bytes() == (small / name).read_bytes()


@pytest.mark.parametrize(
    "line",
    ["3", '{"repeat": 0}', '{"repeat": 0, "setting": "{0} Conditional", "tv": [0.0]}', None],
)
def test_a_damaged_row_is_refused_with_its_file_and_line(small, tmp_path, line):
    shutil.copytree(small, tmp_path, dirs_exist_ok=True)
    rows = tmp_path / "rows.jsonl"
    first, second, *others = rows.read_text().splitlines(keepends=True)
    damaged = f"{line}\n" if line else second.replace('"tv": [', '"tv": ["much", ')
    rows.write_text("".join([first, damaged, *others]))
    with pytest.raises(RunRefused, match=r"rows\.jsonl, line 2 is damaged; remove that line"):
        reproduce(SMALL, tmp_path)


def test_the_report_removes_what_a_killed_one_left_and_names_a_damaged_file(small, tmp_path):
    copy = shutil.copytree(small, tmp_path / "copy")
    (copy / "figures").mkdir()
    left = [copy / ".part-12-12-report.html", copy / "figures" / ".part-12-12-meter.png"]
    for path in left:
        path.write_text("half")
    list(write_report(copy))
    assert not any(path.exists() for path in left)
    data = copy / "data" / "landscape.npz"
    data.write_bytes(data.read_bytes()[:1000])
    with pytest.raises(ValueError, match=r"landscape\.npz is damaged; rerun the command"):
        list(write_report(shutil.copytree(copy, tmp_path / "damaged")))


def test_ten_repeats_or_more_give_means_and_their_own_standard_deviations(without_figure_data, tmp_path):
    config = GMMConfig(samples=2000, repeats=10)
    reproduce(config, tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    values = [row["variance_ratio"][1] for row in rows if row["setting"] == "{0,1} PMC-CFG"]
    row = read(tmp_path / "table.csv")[5]
    assert numbers(row["variance_ratio"])[1] == pytest.approx(statistics.fmean(values), abs=1e-5)
    # The column states the spread of one run of 200,000, a hundred times as many.
    assert numbers(row["sd_variance_ratio"])[1] == pytest.approx(statistics.stdev(values) / 10, abs=1e-6)
    run = json.loads((tmp_path / "run.json").read_text())
    assert run["spread"] == "own repeats"
    assert {r["repeats"] for r in read(tmp_path / "spread.csv")} == {"10"}


def test_a_folder_of_another_run_is_refused_with_the_difference_named(small, tmp_path, capsys):
    shutil.copytree(small, tmp_path, dirs_exist_ok=True)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert main(["reproduce", "gmm", "--out", str(tmp_path), "--samples", "2000", "--seed", "7"]) == 2
    said = capsys.readouterr().err
    assert "samples was 1000, now 2000" in said and "seed was 3, now 7" in said and said.count("\n") == 1
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    (tmp_path / "run.json").write_text('{"format": 1, "config": {}, "made_with": {}, "finished": null}')
    with pytest.raises(RunRefused, match="experiment"):
        reproduce(GMMConfig(samples=1000), tmp_path)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--samples", "10"], "at least 1000 samples"),
        (["--repeats", "0"], "at least one repeat"),
        (["--seed", "-1"], "seed of 0 or more"),
        (["--samples", "many"], "invalid int value"),
        (["--sample-count", "5"], "unrecognized arguments"),
    ],
)
def test_bad_options_are_one_sentence_exit_code_2_and_no_folder(tmp_path, capsys, options, words):
    try:
        code = main(["reproduce", "gmm", "--out", str(tmp_path / "new"), *options])
    except SystemExit as stop:
        code = stop.code
    said = capsys.readouterr().err
    assert code == 2 and words in said and said.count("\n") == 1
    assert not (tmp_path / "new").exists()


def test_a_file_or_a_folder_with_other_things_is_refused(tmp_path, capsys):
    (tmp_path / "file").write_text("mine")
    assert main(["reproduce", "gmm", "--out", str(tmp_path / "file")]) == 2
    assert "is a file" in capsys.readouterr().err
    assert main(["reproduce", "gmm", "--out", str(tmp_path)]) == 2
    assert "no run.json" in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["file"] and (tmp_path / "file").read_text() == "mine"


def test_the_spread_in_the_package_was_made_by_this_command_and_describes_it():
    run, rows = paper_run("gmm_spread"), paper_table("gmm_spread")
    assert run["experiment"] == "gmm" and run["config"]["samples"] == 200_000
    assert {r["repeats"] for r in rows} == {str(run["config"]["repeats"])}
    assert [r["rule"] for r in run["rows"]] == [str(s.rule) for s in SETTINGS]
    setting = SETTINGS[5]
    fresh = experiment.row_values(setting, start_noise(setting, GMMConfig(seed=12345)))
    for row in rows:
        if (row["members"], row["guidance"]) == (setting.members, setting.guidance):
            value = fresh[row["metric"]][int(row["position"])]
            assert abs(value - float(row["mean"])) <= 4.5 * float(row["sd"]) + 1e-12


def test_the_spread_shrinks_as_one_over_the_root_of_the_samples():
    row = {"members": "{0}", "guidance": "g", "metric": "tv", "position": 0, "sd": 0.1, "samples": 50_000}
    assert spread_of([row])["{0}", "g", "tv"] == [pytest.approx(0.05)]


def test_the_paper_s_table_states_its_source_and_its_own_identities():
    assert "Peng" in paper_source("gmm") and "200,000" in paper_source("gmm")
    for row in paper_table("gmm"):
        occupancy, target = numbers(row["occupancy_percent"]), numbers(row["target_percent"])
        assert sum(occupancy) == pytest.approx(100, abs=0.02)
        off = sum(abs(a - b) for a, b in zip(occupancy, target, strict=True)) / 200
        assert float(row["tv"]) == pytest.approx(off, abs=1.2e-4)  # occupancies are printed to 0.01 %
