"""The command from start to end: it resumes, refuses other rules, writes tables, figures and one page."""

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from meancap_lab.bench import result
from meancap_lab.bench.leaderboard import page_text
from meancap_lab.bench.ratios import Result
from meancap_lab.bench.result import Plan, run_bench, write_result
from meancap_lab.cli import main

RULES = ["CFG 5", "Cap 1.1 (the paper)", "learned λ(t), 64 examples"]
SMALL = Plan(problems=6, tuning=2, evaluations=(10,), rules=tuple(RULES))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("bench")
    done = list(run_bench(root, SMALL, processes=1))
    assert len(done) == 8
    return root


def test_a_stopped_run_goes_on_and_ends_the_same(folder, tmp_path):
    for cell in run_bench(tmp_path, SMALL, processes=1):
        if cell.part == "main":
            break  # stopped in the middle
    torn = (tmp_path / SMALL.cells()[-1].path).parent / ".part"
    torn.write_text("torn")
    assert len(list(run_bench(tmp_path, SMALL, processes=1))) == 5
    torn.unlink()
    again, whole = (
        {path.relative_to(root): path.read_bytes() for path in root.rglob("*") if path.is_file()}
        for root in (tmp_path, folder)
    )
    assert again == whole
    assert list(run_bench(tmp_path, SMALL, processes=1)) == []


def test_every_problem_comes_first_then_a_third_of_them_with_more_rules_and_evaluations():
    cells = Plan(problems=21, tuning=7).cells()
    parts = Counter((cell.part, cell.evaluations) for cell in cells)
    third = dict.fromkeys([("others", 10), ("main", 28), ("main", 50)], 7)
    assert list(parts.items()) == [(("tuning", 10), 7), (("main", 10), 21), *third.items()]
    assert set(cells) < set(Plan(problems=21, part=14, tuning=7).cells()), "a run can be extended"


def test_more_problems_may_follow_but_no_other_rules(folder):
    with pytest.raises(ValueError, match="belongs to another run: rules"):
        next(run_bench(folder, Plan(problems=6, tuning=2, rules=("CFG 5",))))


def test_a_result_has_a_column_for_each_rule_and_problem(folder):
    content = json.loads((folder / "result.json").read_text())
    run = content["runs"]["10"]
    assert run["problems"] == [f"p00{i}" for i in range(6)]
    assert set(run["rules"]) == {*RULES, "no guidance", "CFG, tuned", "perfect model"}
    assert all(len(column) == 6 for rule in run["rules"].values() for column in rule.values())
    assert set(content["carried"]) == {"CFG, tuned", "Cap 1.1 (the paper)"}


def test_cells_from_before_a_method_joined_have_no_numbers_of_it(folder, tmp_path):
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    for i, path in enumerate(sorted(tmp_path.glob("cells/*/*.json"))):
        cell = json.loads(path.read_text())
        part = "tried" if "tried" in cell else "rules"
        cell[part].pop("Cap 1.1 (the paper)", None)
        if i % 2:
            cell[part].pop("CFG 5", None)
        path.write_text(json.dumps(cell))
    content = json.loads(write_result(tmp_path).read_text())
    assert set(content["carried"]) == {"CFG, tuned"}
    columns = content["runs"]["10"]["rules"]
    assert "Cap 1.1 (the paper)" not in columns and columns["CFG 5"]["all sw2"].count(None) == 3
    assert Result(tmp_path).row(10, "Cap 1.1 (the paper)").regret.n == 0


def test_the_command_runs_and_shows_the_table(folder, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(result, "QUICK", SMALL)
    out = str(tmp_path / "mine")
    chosen = ["--rules", *RULES[:1], "--rule", "CFG(3) | Cap(1.2)"]
    assert (
        main(["bench", "run", "--quick", "--problems", "3", "--out", out, "--processes", "1", *chosen]) == 0
    )
    said = capsys.readouterr()
    assert "CFG(3) | Cap(1.2)" in said.out
    assert "3 problems at 10 evaluations" in said.out
    names = {path.name for path in (tmp_path / "mine").iterdir()}
    assert {"result.json", "rules.csv", "kinds.csv", "figures", "leaderboard.html"} <= names
    assert {p.name for p in (tmp_path / "mine" / "figures").glob("*.png")} == {"regret.png", "aligned.png"}
    assert main(["bench", "table", "--out", out]) == 0 and "CFG 5" in capsys.readouterr().out
    rows = list(csv.DictReader((tmp_path / "mine" / "rules.csv").read_text(encoding="utf-8").splitlines()))
    assert {row["rule"] for row in rows} >= {"CFG 5", "CFG(3) | Cap(1.2)"} and rows[0]["evaluations"] == "10"


def test_a_rule_cannot_become_markup(folder):
    one = Result(folder)
    run = one.runs[10]["rules"]
    run["</script><b>"] = run["CFG 5"]
    assert "</script><b>" not in page_text(one)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["run"], "give --out"),
        (["run", "--out", "x", "--processes", "0"], "--processes needs"),
        (["run", "--out", "x", "--problems", "0"], "--problems needs a number from 1 to 252"),
        (["run", "--out", "x", "--part", "300"], "--part needs a number from 1 to 252"),
        (["run", "--out", "x", "--rules", "nobody"], "unknown rule"),
        (["table", "--out", "nothing"], "is not a result of"),
    ],
)
def test_what_cannot_be_run_is_one_sentence(options, said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["bench", *options]) == 2
    assert said in capsys.readouterr().err


def test_an_empty_folder_has_no_result(tmp_path):
    with pytest.raises(ValueError, match="holds no benchmark"):
        write_result(tmp_path)


def test_the_list_names_every_rule(capsys):
    assert main(["bench", "run", "--list"]) == 0
    assert "learned λ(t), 512 examples" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").exists(), reason="not run: the system does not list its processes")
@pytest.mark.parametrize("to_all", [True, False], ids=["the terminal", "the parent alone"])
def test_an_interrupted_benchmark_ends_with_its_processes(tmp_path, to_all):
    command = [sys.executable, "-m", "meancap", "bench", "run", "--out", str(tmp_path / "bench")]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "start_new_session": True}
    with subprocess.Popen(command, **pipes) as first:
        try:
            while first.poll() is None and not any(tmp_path.glob("bench/cells/*/*.json")):
                time.sleep(0.05)
            started = time.monotonic()
            os.killpg(first.pid, signal.SIGINT) if to_all else first.send_signal(signal.SIGINT)
            said, _ = first.communicate(timeout=120)  # the pipe ends with the last process that holds it
            waited = time.monotonic() - started
        finally:
            with suppress(ProcessLookupError):
                os.killpg(first.pid, signal.SIGKILL)
    assert first.returncode == 130 and b"what was finished is kept" in said and b"Traceback" not in said
    assert waited < 8, "the cells under way were waited for"
