"""`meancap generate` as a user types it."""

import json
import os
import subprocess
import sys
from contextlib import nullcontext

import numpy as np
import pytest
from killing import contents

from meancap_lab.cli import main
from meancap_lab.models.checkpoint import save_sit
from meancap_lab.models.sit import NetworkPredictor
from meancap_lab.runs.folder import Run
from small_sit import pixels, random_sit

ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "tiny.safetensors"
    return save_sit(path, random_sit(spread=0.4), pixels(), names=tuple("abcdefghij"))


def options(model, out, *more):
    rule = ["--rule", "CFG(4) | Cap(1.1)", "--device", "cpu"]
    return ["generate", "--model", f"sit:{model}", *rule, "--steps", "3", "--out", str(out), *more]


@pytest.mark.slow
def test_torchrun_with_two_processes_makes_the_files_of_one(tmp_path, model, capsys):
    more = ("--per-class", "4", "--batch", "8", "--npz", "--diagnostics")
    assert main(options(model, tmp_path / "one", *more)) == 0
    assert "40 samples, CFG(4) | Cap(1.1)" in capsys.readouterr().out
    launch = ["-m", "torch.distributed.run", "--nproc_per_node", "2", "--standalone", "-m", "meancap"]
    command = [sys.executable, *launch, *options(model, tmp_path / "two", *more)]
    subprocess.run(command, env=ENVIRONMENT, check=True, capture_output=True)
    assert contents(tmp_path / "two") == contents(tmp_path / "one")


def test_a_task_of_slurm_makes_its_share_and_says_what_is_missing(tmp_path, model, monkeypatch, capsys):
    assert main(options(model, tmp_path / "one", "--batch", "8")) == 0
    by_hand = {"RANK": "0", "WORLD_SIZE": "2"}  # no launcher looks after the other processes
    task = {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_LOCALID": "0"}
    for code, variables in ((1, by_hand), (0, task)):
        with monkeypatch.context() as environment:
            for name, value in variables.items():
                environment.setenv(name, value)
            assert main(options(model, tmp_path / "two", "--batch", "8")) == code
        assert "is unfinished: 6 of 13 blocks are missing, none of process 0 of 2" in capsys.readouterr().err
    for name, value in {**task, "SLURM_PROCID": "1"}.items():
        monkeypatch.setenv(name, value)
    assert main(options(model, tmp_path / "two", "--batch", "8")) == 0
    assert "unfinished" not in capsys.readouterr().err
    assert contents(tmp_path / "two") == contents(tmp_path / "one")


def test_classes_by_number_and_name(tmp_path, model):
    assert main(options(model, tmp_path / "r", "--classes", "j,0", "--per-class", "2")) == 0
    assert Run.open(tmp_path / "r").labels == [9, 0, 9, 0]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--classes", "10"), "classes 0 to 9; got 10"),
        (("--classes", "hat"), "has no class 'hat'"),
        (("--rule", "CFG(4) | Hat(1)"), "unknown name 'Hat'"),
        (("--rule", "Cap(0.5)"), "gamma >= 1"),
        (("--rule", "Cap(1.1)"), "no guidance to cap"),
        (("--rule", "Interval(0, 1)"), "has no scale"),
        (("--rule", "CFG(4) | CFG(2)"), "has two scales"),
        (("--rule", "perp_neg(4)"), "give --negative"),
        (("--rule", ""), "--rule needs a rule"),
        (("--steps", "0"), "at least 1"),
        (("--steps", "1000000000"), "--steps must be at least 1 and at most 10000"),
        (("--per-class", "9999999"), "at most 10,000,000 samples; got 99,999,990"),
        (("--per-class", "0"), "--per-class must be at least 1"),
        (("--batch", "-1"), "--batch must be at least 1"),
        (("--seed", "-1"), "--seed must be at least 0"),
        (("--seed", str(2**64)), "--seed must be at least 0 and at most 18446744073709551615"),
        (("--solver", "magic"), "known solvers"),
        (("--model", "sit:/nowhere.pt"), "no file of weights at"),
        (("--model", "magic"), "fashion, cifar[:PATH], scenes[:PATH], sit:PATH or diffusers:PATH"),
        (("--model", "fashion", "--vae", "x"), "--vae goes with sit:PATH; got --model fashion"),
        (("--channels", "2"), "1 channels"),
        (("--prompts", "p.txt"), "--prompts goes with scenes"),
        (("--prompt", "a disc"), "--prompt goes with scenes"),
        (("--model", "scenes"), "the scenes need --prompt"),
        (("--model", "scenes", "--prompt", "a cat"), "unknown word 'cat'"),
        (("--model", "scenes", "--prompt", ""), "--prompt needs a sentence"),
        (("--model", "scenes", "--prompt", "a disc", "--prompts", "p"), "--prompts FILE; got both"),
        (("--guidance-scale", "3"), "--guidance-scale goes with"),
        (("--threads", "0"), "--threads"),
        (("--device", "abacus"), "--device abacus is not on this machine; it has cpu"),
    ],
)
def test_bad_input_is_one_sentence_and_leaves_nothing(tmp_path, model, capsys, more, words):
    assert main(options(model, tmp_path / "r", *more)) == 2
    said = capsys.readouterr().err
    assert words in said and said.startswith("meancap: ") and said.count("\n") == 1
    assert not (tmp_path / "r").exists()


def test_an_unreadable_checkpoint_keeps_what_was_done(tmp_path, model, capsys):
    assert main(options(model, tmp_path / "r")) == 0
    before = contents(tmp_path / "r")
    (tmp_path / "torn.safetensors").write_bytes(model.read_bytes()[:500])
    assert main(options(tmp_path / "torn.safetensors", tmp_path / "r")) == 2
    assert "no readable safetensors" in capsys.readouterr().err
    assert main(options(model, tmp_path / "r", "--seed", "1")) == 2
    assert "seed was 0, now 1" in capsys.readouterr().err
    assert contents(tmp_path / "r") == before


def test_samples_that_are_not_finite_are_counted_and_the_exit_code_says_so(tmp_path, capsys):
    path = save_sit(tmp_path / "nan.safetensors", random_sit(spread=float("nan")), pixels())
    for _ in range(2):  # the second time the run is finished
        with nullcontext() if (tmp_path / "r").exists() else pytest.warns(UserWarning, match="ended as NaN"):
            assert main(options(path, tmp_path / "r", "--per-class", "1", "--rule", "CFG(1)")) == 1
        assert "10 of 10 samples in" in capsys.readouterr().err
    assert json.loads((tmp_path / "r" / "run.json").read_text())["finished"]["not_finite"] == 10


def test_garments_import_neither_scenes_nor_metrics(tmp_path):
    few = ["--classes", "0", "--per-class", "1", "--batch", "1", "--steps", "1", "--out", str(tmp_path / "r")]
    code = (
        "import sys; from meancap_lab.cli import main\n"
        f"code = main(['generate', '--model', 'fashion', *{few}])\n"
        "print(code, [m for m in sys.modules if 'lab.models.scenes' in m or 'lab.metrics' in m])"
    )
    done = subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "0 []"


def test_a_full_disk_keeps_the_blocks_and_the_same_command_finishes(tmp_path, model):
    resource = pytest.importorskip("resource")
    more = ("--npz", "--per-class", "9", "--batch", "30")  # blocks of 2 kB, together 6 kB
    command = [sys.executable, "-m", "meancap", *options(model, tmp_path / "r", *more)]

    def small_files():
        resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))

    found = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, preexec_fn=small_files)
    assert found.returncode == 1 and "3 of 3 blocks are kept" in found.stderr.splitlines()[-1]
    assert not (tmp_path / "r" / "samples.npz").exists()
    assert main(options(model, tmp_path / "r", *more)) == 0
    assert main(options(model, tmp_path / "whole", *more)) == 0
    assert contents(tmp_path / "r") == contents(tmp_path / "whole")


def test_the_ancestral_sampler_is_part_of_a_run_and_belongs_to_samples(tmp_path, model, capsys):
    more = ("--classes", "0", "--sampler", "ancestral", "--npz")
    assert main(options(model, tmp_path / "six", *more, "--per-class", "6", "--batch", "3")) == 0
    assert main(options(model, tmp_path / "two", *more, "--per-class", "2", "--batch", "3")) == 0
    assert main(options(model, tmp_path / "ode", "--classes", "0", "--per-class", "2", "--npz")) == 0
    six, two, ode = (np.load(tmp_path / name / "samples.npz")["arr_0"] for name in ("six", "two", "ode"))
    assert (six[:2] == two).all() and not (two == ode).all()
    stated = [json.loads((tmp_path / name / "run.json").read_text()) for name in ("two", "ode")]
    assert stated[0]["config"]["eta"] == 1 and "eta" not in stated[1]["config"]
    assert main(options(model, tmp_path / "none", "--eta", "0.5")) == 2
    assert "--eta 0.5 goes with --sampler ancestral" in capsys.readouterr().err
    assert main(options(model, tmp_path / "none", "--sampler", "ancestral", "--solver", "heun")) == 2
    assert "Euler solver only" in capsys.readouterr().err


def test_a_network_in_bfloat16_is_recorded_and_guided_in_float32(tmp_path, model):
    for dtype in ("float32", "bfloat16"):
        more = ("--dtype", dtype, "--per-class", "1", "--npz", "--diagnostics")
        assert main(options(model, tmp_path / dtype, *more)) == 0
    whole, half = (Run.open(tmp_path / dtype) for dtype in ("float32", "bfloat16"))
    assert [run.config["dtype"] for run in (whole, half)] == ["float32", "bfloat16"]
    assert half.meter["ratio"].max() <= 1.1 * (1 + 1e-6)  # bfloat16 would round by 4e-3
    apart = np.abs(whole.images().astype(int) - half.images())
    assert apart.max() > 0 and apart.mean() < 4


def test_a_class_to_avoid_is_the_reference_or_beside_it_and_part_of_the_run(tmp_path, model, capsys):
    def made(name, rule, *more):
        few = ("--classes", "a", "--per-class", "2", "--npz", "--rule", rule)
        return main(options(model, tmp_path / name, *few, *more))

    assert made("plain", "CFG(3)") == 0
    assert made("reference", "CFG(3)", "--negative", "c") == 0
    assert made("beside", "perp_neg(3)", "--negative", "c") == 0
    runs = [tmp_path / name for name in ("plain", "reference", "beside")]
    configs = [json.loads((run / "run.json").read_text())["config"] for run in runs]
    assert [config.get("negative") for config in configs] == [None, 2, 2] and "negative" not in configs[0]
    pictures = [np.load(run / "samples.npz")["arr_0"] for run in runs]
    assert not any((a == b).all() for a, b in ((pictures[i], pictures[i - 1]) for i in range(3)))
    assert made("none", "perp_neg(3)") == 2 and not (tmp_path / "none").exists()
    assert "give --negative" in capsys.readouterr().err
    assert made("none", "CFG(4) | AwayFrom('weak', 2)", "--negative", "c") == 2
    assert "'weak', which no shipped model makes" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["sit", "fashion", "scenes"])
def test_steps_outside_an_interval_cost_one_network_pass(tmp_path, model, monkeypatch, name):
    passes, checked = [], NetworkPredictor._checked

    def counted(self, x, t, count):
        passes.append((t, count))
        return checked(self, x, t, count)

    monkeypatch.setattr(NetworkPredictor, "_checked", counted)
    what = ["--prompt", "a red circle"] if name == "scenes" else ["--classes", "1", "--per-class", "1"]
    rule = ["--rule", "CFG(3) | Interval(0.19, 0.79)", "--steps", "10", "--device", "cpu", "--batch", "1"]
    place = f"sit:{model}" if name == "sit" else name
    assert main(["generate", "--model", place, *rule, *what, "--out", str(tmp_path / "run")]) == 0
    assert len(passes) % 10 == 0 and {count for _, count in passes} == {1, 2}
    assert all(count == 1 + (0.19 <= t <= 0.79) for t, count in passes)
