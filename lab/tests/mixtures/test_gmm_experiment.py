"""One command gives the paper's mixture table and figures again."""

import ast
import csv
import json
import math
import shutil
import statistics
from importlib import resources
from pathlib import Path

import pytest
import torch

from meancap import CFG, Cap, parse
from meancap_lab.cli import main
from meancap_lab.mixtures import gmm_experiment as experiment
from meancap_lab.mixtures import sampler
from meancap_lab.mixtures.gmm_experiment import (
    METRICS,
    count_stages,
    reproduce,
    row_values,
    spread_of,
    stages,
)
from meancap_lab.mixtures.gmm_figures import FIGURES, cell_numbers, read_table
from meancap_lab.mixtures.gmm_report import write_report
from meancap_lab.mixtures.gmm_settings import SETTINGS, GMMConfig, start_noise
from meancap_lab.report import style
from meancap_lab.runs.folder import RunRefused
from meancap_lab.runs.paper_protocols import paper_source, paper_table

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


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A run of SMALL that nobody stopped."""
    return reproduce(SMALL, tmp_path_factory.mktemp("small") / "out")


@pytest.fixture
def without_figure_data(monkeypatch):
    """For runs of which no figure is drawn."""
    monkeypatch.setattr(experiment, "figure_data", lambda config: ())


def test_the_table_has_the_nine_rows_and_the_promised_columns(folder):
    with (folder / "table.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0])[:8] == ["members", "guidance", "scale", "gamma", *METRICS]
    assert list(rows[0])[8:16] == [f"{kind}_{metric}" for kind in ("paper", "z") for metric in METRICS]
    paper = [(r["members"], r["guidance"]) for r in paper_table("gmm")]
    assert [(r["members"], r["guidance"]) for r in rows] == paper and len(paper) == 9
    for row in rows:
        occupancy, ratios = cell_numbers(row["occupancy_percent"]), cell_numbers(row["variance_ratio"])
        assert len(occupancy) == len(ratios) == len(row["members"].split(","))
        assert sum(occupancy) == pytest.approx(100, abs=1e-3)


def test_every_number_of_the_paper_is_within_four_standard_deviations_of_ours(folder):
    paper, seen = {(r["members"], r["guidance"]): r for r in paper_table("gmm")}, 0
    for key, row in read_table(folder).items():
        for metric in METRICS:
            cells = (row[metric], paper[key][metric], row[f"sd_{metric}"], row[f"z_{metric}"])
            for ours, theirs, sd, z in zip(*map(cell_numbers, cells), strict=True):
                seen += 1
                assert abs(theirs - ours) <= 4 * sd + 1e-12
                if sd > 0:
                    assert z == pytest.approx((theirs - ours) / (sd * math.sqrt(2)), abs=0.03)
    assert seen == 54


def test_run_json_tells_how_to_run_it_again_and_r_50_to_ten_digits(folder):
    run = json.loads((folder / "run.json").read_text())
    assert run["config"] == {"samples": 200_000, "seed": 0, "repeats": 1}
    assert run["command"] == "meancap reproduce gmm --out DIR --samples 200000 --seed 0 --repeats 1"
    assert run["dtype"] == "float32" and run["steps"] == 50 and "torch" in run["made_with"]
    assert [parse(row["rule"]) for row in run["rows"]] == [CFG(1), CFG(3), CFG(3) | Cap(1.1)] * 3
    assert run["rows"][3]["weights"][:2] == [0.17, 0.08]
    assert any("MAP" in line for line in run["protocol"])
    assert f"{run['finished']['R_50']:.10f}" == "0.5706506210"
    assert "0.5706506210" in (folder / "report.md").read_text()


def test_every_figure_is_there_as_png_and_svg_and_comes_from_the_folder_alone(folder, tmp_path):
    names = {path.name for path in (folder / "figures").iterdir()}
    assert names == {f"{name}.{kind}" for name in FIGURES for kind in ("png", "svg")}
    assert {"landscape", "endpoints", "marginals", "overview", "meter", "trajectories"} <= set(FIGURES)
    copy = shutil.copytree(folder, tmp_path / "copy", ignore=shutil.ignore_patterns("figures", "report*"))
    for name in ("overview", "contraction"):
        for path in style.save_figure(FIGURES[name], copy, name):
            assert path.read_bytes() == (folder / "figures" / path.name).read_bytes()


def test_figures_and_report_read_files_and_never_models():
    allowed = {(2, "report"), (2, "report.document"), (2, "runs.folder"), (1, "gmm_figures")}
    for name in ("gmm_figures.py", "gmm_report.py"):
        for node in ast.walk(ast.parse((Path(experiment.__file__).parent / name).read_text())):
            if isinstance(node, ast.ImportFrom) and node.level:
                assert (node.level, node.module) in allowed
            elif isinstance(node, (ast.Import, ast.ImportFrom)):
                sources = [getattr(node, "module", None) or "", *(alias.name for alias in node.names)]
                models = [source for source in sources if source.startswith(("torch", "meancap"))]
                assert set(models) <= {"meancap.files"}


def test_the_html_report_needs_no_other_file_and_says_what_euler_did(folder):
    page = (folder / "report.html").read_text()
    assert page.count("<img") == page.count('src="data:image/png;base64,') == len(FIGURES)
    assert "http" not in page and "<script" not in page
    for words in ("contraction is Euler", "CFG(3) | Cap(1.1)", "continuous", "All 54 numbers"):
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
    by_numba = row_values(SETTINGS[-1], start)
    monkeypatch.setattr(sampler, "import_fast", lambda: None)
    by_library = row_values(SETTINGS[-1], start)
    for metric, values in by_numba.items():
        assert values == pytest.approx(by_library[metric], abs=1e-3 if "ratio" in metric else 1e-2)
    assert by_numba["occupancy_percent"] == pytest.approx(by_library["occupancy_percent"], abs=0.011)


def test_a_run_has_the_same_bytes_again_also_when_it_was_stopped(small, without_figure_data, tmp_path):
    running = stages(SMALL, tmp_path / "stopped")
    for _ in range(5):
        next(running)
    running.close()
    assert len(list(stages(SMALL, tmp_path / "stopped"))) == count_stages(SMALL)
    for name in ("table.csv", "spread.csv", "rows.jsonl", "run.json", "limits.csv"):
        assert (tmp_path / "stopped" / name).read_bytes() == (small / name).read_bytes()


@pytest.mark.parametrize("damage", ["3", '{"repeat": 0, "tv": [0.0]}', '"tv": ["a", ', '"tv": [1, '])
def test_a_damaged_row_is_refused_with_its_file_and_line(small, tmp_path, damage):
    shutil.copytree(small, tmp_path, dirs_exist_ok=True)
    rows = tmp_path / "rows.jsonl"
    first, second, *others = rows.read_text().splitlines()
    line = second.replace('"tv": [', damage) if damage.startswith('"') else damage
    rows.write_text("\n".join([first, line, *others]))
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
    with pytest.raises(ValueError, match=r"landscape\.npz is damaged .*rerun the command"):
        list(write_report(shutil.copytree(copy, tmp_path / "damaged")))


def test_ten_repeats_or_more_give_means_and_their_own_standard_deviations(without_figure_data, tmp_path):
    reproduce(GMMConfig(samples=2000, repeats=10), tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    values = [row["variance_ratio"][1] for row in rows if row["setting"] == "{0,1} PMC-CFG"]
    row = read_table(tmp_path)["{0,1}", "PMC-CFG"]
    assert cell_numbers(row["variance_ratio"])[1] == pytest.approx(statistics.fmean(values), abs=1e-5)
    # The column has the spread of one run of 200,000, a hundred times as many.
    sd = statistics.stdev(values) / 10
    assert cell_numbers(row["sd_variance_ratio"])[1] == pytest.approx(sd, abs=1e-6)
    assert json.loads((tmp_path / "run.json").read_text())["spread"] == "own repeats"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--samples", "10"], "at least 1000 samples"),
        (["--repeats", "0"], "at least one repeat"),
        (["--seed", "-1"], "seed of 0 or more"),
    ],
)
def test_bad_options_are_one_sentence_exit_code_2_and_no_folder(tmp_path, capsys, options, words):
    assert main(["reproduce", "gmm", "--out", str(tmp_path / "new"), *options]) == 2
    said = capsys.readouterr().err
    assert words in said and said.count("\n") == 1
    assert not (tmp_path / "new").exists()


def test_the_spread_in_the_package_was_made_by_this_command_and_describes_it():
    shipped = resources.files("meancap_lab") / "paper_tables" / "gmm_spread.json"
    run, rows = json.loads(shipped.read_text(encoding="utf-8")), paper_table("gmm_spread")
    assert run["experiment"] == "gmm" and run["config"]["samples"] == 200_000
    assert {r["repeats"] for r in rows} == {str(run["config"]["repeats"])}
    assert [r["rule"] for r in run["rows"]] == [str(s.rule) for s in SETTINGS]
    setting = SETTINGS[5]
    fresh = row_values(setting, start_noise(setting, GMMConfig(seed=12345)))
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
        occupancy, target = cell_numbers(row["occupancy_percent"]), cell_numbers(row["target_percent"])
        assert sum(occupancy) == pytest.approx(100, abs=0.02)
        off = sum(abs(a - b) for a, b in zip(occupancy, target, strict=True)) / 200
        assert float(row["tv"]) == pytest.approx(off, abs=1.2e-4)  # occupancies are printed to 0.01 %
