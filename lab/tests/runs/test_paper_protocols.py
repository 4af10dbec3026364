"""The paper's image experiments as settings, their cost, and a rehearsal of each from end to end."""

import csv
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from meancap import parse
from meancap_lab.cli import main, parser
from meancap_lab.metrics.inception import Inception
from meancap_lab.models.sit import SiT, named
from meancap_lab.report.pictures import mean_lengths
from meancap_lab.runs import paper_protocols as protocols
from meancap_lab.runs.config import RunConfig
from meancap_lab.runs.folder import Run
from meancap_lab.runs.paper_protocols import plan_text, sit_work
from meancap_lab.runs.reproduce import setting_configs


@pytest.mark.parametrize(
    ("p", "samples", "seed"), [(protocols.imagenet(), 50_000, 0), (protocols.sd35(), 5000, 42)]
)
def test_a_protocol_has_the_rows_of_the_papers_table(p, samples, seed):
    names, paper = {"Fixed CFG": "CFG", "PMC-CFG": "PMC"}, []
    for row in protocols.paper_table(p.name):
        method, count = names.get(row["method"], row["method"]), int(row.get("evaluations") or 10)
        paper.append((method, float(row["scale"]), float(row["gamma"] or 0), count))
    ours = {(s.method, s.scale, s.gamma or 0, s.evaluations): str(s.rule) for s in p.settings}
    assert sorted(ours) == sorted(paper) and (p.samples, p.seed) == (samples, seed)
    cap = "Cap" if p.name == "imagenet" else "CapDisplacement"
    assert all(rule.endswith(f" {cap}({gamma:g})") for (*_, gamma, _), rule in ours.items() if gamma)


def test_the_figures_of_sd35_have_the_settings_of_the_authors_script():
    """sd35_cfg_gap.py of ppposition/pmc @ b27a9640: seed 43, 20 steps, scale 5, gamma 1.15, 8 pictures."""
    p, lines = protocols.sd35_figure("categories"), protocols.figure_prompts("categories")
    assert len(lines) == p.samples == 32 and lines[0] == lines[7] != lines[8]
    assert lines[0] == "A dog is shown sitting on rocks by the beach, photorealistic"
    (sign,) = set(protocols.figure_prompts("text"))
    assert sign == "A cat holding a sign that says hello world, photorealistic"
    assert [str(s.rule) for s in p.settings] == ["CFG(1)", "CFG(5)", "CFG(5) | CapDisplacement(1.15)"]
    asked = setting_configs(p, RunConfig("diffusers:x"))
    assert list(asked) == [s.name for s in p.settings] == p.matched
    assert all((r.noise, r.seed, len(r.sigmas)) == ("stream", 43, 20) for r in asked.values())
    # At scale 1 the pipeline would make one prediction only, and diagnostics read both.
    assert [(r.guidance_scale, r.diagnostics) for r in asked.values()] == [(2, True), (5, False), (5, True)]


def test_the_mechanism_figure_of_imagenet_has_the_settings_of_the_authors_script():
    """analyze_cfg_gap.py: class 300, seed 20, 32 samples, 50 updates; the sheet is of all classes."""
    p = protocols.imagenet()
    runs = setting_configs(p, RunConfig("sit:x", per_class=50))
    plain, *mechanism = [runs[name] for name in p.figure_runs]
    assert (plain.per_class, plain.seed, plain.classes, plain.rule) == (1, 0, (), "CFG(1)")
    assert {(r.classes, r.per_class, r.seed, r.steps) for r in mechanism} == {(("300",), 32, 20, 50)}
    assert p.matched[1:] == ["cfg-scale-2.5-n50", "pmc-1.10-scale-2.5-n50"] and set(p.matched) < set(runs)


@pytest.mark.parametrize(("option", "cfg", "pmc"), [("4", None, None), ("3", 3, 3), ("paper", 3, None)])
def test_channels_guide_every_method_alike_or_as_the_authors_code_does(option, cfg, pmc):
    p = protocols.imagenet(channels=option)
    found = {s.method: setting_configs(p, RunConfig("sit:x"))[s.name].channels for s in p.settings}
    assert found == {"CFG": cfg, "C2FG": cfg, "PMC": pmc, "APG": pmc}
    with pytest.raises(ValueError, match="one of 4, 3, paper"):
        protocols.imagenet(channels="2")


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_a_figure_of_sd35_rehearses(tmp_path, capsys):
    assert main(["reproduce", "sd35", "--figure", "text", "--tiny", "--out", str(tmp_path)]) == 0
    assert "Conditional" in capsys.readouterr().out
    plain, capped = (Run.open(tmp_path / s.name) for s in protocols.sd35_figure("text").mechanism)
    assert len(plain) == 8 and plain.meter["gap"].min() > 0 and not list(tmp_path.glob("figures/*n20"))
    mechanism = list(csv.DictReader((tmp_path / "mechanism.csv").read_text().splitlines()))
    assert float(mechanism[0]["m_u"]) == pytest.approx(mean_lengths(plain.meter)[1][0].mean(), rel=1e-5)
    assert float(mechanism[3]["effective_scale"]) == pytest.approx(capped.meter["scale"][3].mean(), rel=1e-5)


@pytest.mark.parametrize(
    "p",
    [protocols.imagenet(), protocols.sd35(), protocols.sd35_figure("text"), protocols.fashion_protocol()],
    ids=lambda p: p.name,
)
def test_names_are_distinct_and_rules_parse(p):
    assert len({s.name for s in p.settings}) == len(p.settings)
    for s in p.settings:
        assert parse(str(s.rule)) == s.rule
        assert not set(s.name) & set("/\\ |()")


def test_the_work_of_a_call_is_counted_as_torch_counts_it():
    """Against torch's own counter on a small model, and the published 118.6 G multiply-adds of SiT-XL/2."""
    from torch.utils.flop_counter import FlopCounterMode

    config = named("SiT-S/2", size=16)
    with torch.device("meta"):
        model = SiT(config)
        inputs = torch.randn(1, 4, 16, 16), torch.rand(1), torch.zeros(1, dtype=torch.long)
    with (
        FlopCounterMode(display=False) as counter,
        torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH),
    ):
        model(*inputs)
    assert sit_work(config) == pytest.approx(counter.get_total_flops(), rel=0.02)
    assert sit_work(named("SiT-XL/2")) == pytest.approx(2 * 118.64e9, rel=0.01)


def test_the_plan_shows_its_arithmetic_and_what_is_missing(tmp_path, capsys):
    assert main(["reproduce", "imagenet", "--plan", "--out", str(tmp_path / "o")]) == 0
    said = capsys.readouterr().out
    assert "1.05e+08 calls" in said  # 2 x (20 + 50) x 15 settings x 50,000
    assert "A100, tf32: 2.49e+19 / (156 T x 0.4) = 111 h" in said
    assert "[ ] the checkpoint: give --checkpoint" in said and "[ ] the autoencoder: hf download" in said
    assert "adm-imagenet256: 1,510,000 passes of 11.5 GFLOP" in said and "1.0 GB in memory" in said
    assert "not measured" in said and "no Inception score" in said
    assert "figures/conditional-scale-1-n50 (1,000 samples)" in said and "0.1% of the table's" in said
    assert "COCO 2014" not in said and "pmc analyze_cfg_gap.py" in said
    for line in said.partition("commands to copy")[2].splitlines():
        _, program, command = line.partition("meancap ")
        if line.startswith("    ") and "-m meancap" not in program:
            parser().parse_args(command.split())
    assert "torchrun --nnodes 2" in said and "srun --nodes 2" in said and "meancap report" in said
    assert not (tmp_path / "o").exists()
    for more in ((), ("--checkpoint", "nowhere.pt", "--vae", "nowhere")):
        assert main(["reproduce", "imagenet", *more, "--out", str(tmp_path / "o")]) == 2
        assert ("nowhere" if more else "--checkpoint") in capsys.readouterr().err
        assert not (tmp_path / "o").exists()
    assert "COCO 2014, 30,000 prompts" in plan_text(protocols.sd35(), [], Path(), 1024, "bfloat16")


def test_the_commands_of_a_plan_repeat_the_options_and_its_choices_follow_them(tmp_path, capsys):
    options = ["--channels", "paper", "--dtype", "bfloat16", "--per-class", "5", "--vae", "a b"]
    assert main(["reproduce", "imagenet", "--plan", *options, "--out", str(tmp_path / "o")]) == 0
    said = capsys.readouterr().out
    (alone,) = [line for line in said.splitlines() if line.startswith("    meancap reproduce")]
    args = parser().parse_args(shlex.split(alone)[1:])
    assert (args.channels, args.dtype, args.per_class, args.vae) == ("paper", "bfloat16", 5, "a b")
    assert (
        "guided channels: the first 3 of 4 for CFG and C2FG, all 4 for PMC" in said
        and "precision: bfloat16 (" in said
    )
    assert "autoencoder: a b (" in said and "A100, bfloat16: " in said
    assert main(["reproduce", "sd35", "--plan", "--figure", "text", "--size", "512", "--out", "o"]) == 0
    assert "    meancap reproduce sd35 --figure text --size 512 --out o\n" in capsys.readouterr().out
    for kind in ("imagenet", "sd35"):  # no --out is needed, and a rehearsal has a plan too
        assert main(["reproduce", kind, "--plan", "--tiny"]) == 0
        assert f"meancap reproduce {kind} --tiny --out out/{kind}" in capsys.readouterr().out


def rehearsed(kind, out, capsys):
    pytest.importorskip("diffusers")
    assert main(["reproduce", kind, "--tiny", "--device", "cpu", "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "method," not in said and "report.md" in said and "saturation" in (out / "report.md").read_text()
    return list(csv.DictReader((out / "table.csv").read_text().splitlines()))


@pytest.mark.filterwarnings("default")  # the hosts warn about their own future
def test_imagenet_rehearses_from_a_released_format_to_the_table(tmp_path, capsys):
    rows = rehearsed("imagenet", tmp_path, capsys)
    assert [int(r["evaluations"]) for r in rows] == [20] * 15 + [50] * 15
    for r in rows:
        if r["method"] == "PMC":
            assert float(r["largest_ratio"]) <= float(r["gamma"]) + 1e-4 and float(r["share_capped"]) > 0
        if r["method"] == "CFG":
            assert float(r["effective_scale_first"]) == float(r["effective_scale_last"]) == float(r["scale"])
    runs = [Run.open(tmp_path / name) for name in ("cfg-scale-2-n50", "pmc-1.05-scale-2-n50")]
    assert runs[0].seeds == runs[1].seeds and runs[0].labels == [0, 207, 387, 980]
    assert runs[0].images().shape == (4, 16, 16, 3)
    assert runs[0].config["channels"] is None and len(runs[0].config["decoder"]) == 64
    mechanism = list(csv.DictReader((tmp_path / "mechanism.csv").read_text().splitlines()))
    assert len(mechanism) == 50 and float(mechanism[0]["gap"]) > 0
    assert all(1 <= float(row["effective_scale"]) <= 2.5 + 1e-4 for row in mechanism)
    assert max(float(row["chi"]) for row in mechanism) <= 1.1 + 1e-4
    assert Run.open(tmp_path / "figures/class-300/pmc-1.10-scale-2.5-n50").labels == [300] * 4
    plain = Run.open(tmp_path / "figures" / "conditional-scale-1-n50")
    assert (
        plain.rule == "CFG(1)" and plain.seeds == runs[0].seeds and len(rows) == 30
    )  # not a row of the table
    assert all((tmp_path / f"{name}.png").is_file() for name in ("mechanism", "qualitative"))
    stamps = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("samples.npz")}
    rehearsed("imagenet", tmp_path, capsys)
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("samples.npz")} == stamps


@pytest.mark.filterwarnings("default")
def test_sd35_rehearses_from_prompts_to_the_table(tmp_path, capsys):
    rows = rehearsed("sd35", tmp_path, capsys)
    assert len(rows) == 16 and {r["samples"] for r in rows} == {"2"}
    capped = [float(r["effective_scale_first"]) for r in rows if r["method"] == "PMC"]
    assert (
        max(capped) < 3 and len({round(v, 3) for v in capped}) == 1
    )  # where the cap acts, lambda does not matter
    run = Run.open(tmp_path / "pmc-1.15-scale-7-n10")
    assert run.config["dtype"] == "bfloat16" and run.config["noise"] == "stream" and run.config["seed"] == 42
    assert [r["index"] for r in run.records] == [0, 2]
    assert 1 - run.config["times"][1] == pytest.approx(0.960129321, abs=1e-6)
    about = json.loads((tmp_path / "protocol.json").read_text())
    stated = json.loads((run.folder / "run.json").read_text())["left_open"]
    assert stated == about["choices"] and all(c["value"] and c["why"] for c in stated)
    assert {"sigmas", "noise", "APG", "C2FG progress"} <= {c["what"] for c in stated}


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_two_machines_rehearse_imagenet_from_samples_to_the_report(tmp_path):
    """Two torchrun agents on one folder; random Inception weights, so the numbers mean nothing."""
    pytest.importorskip("diffusers")
    source = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    out = tmp_path / "out"
    agent = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc_per_node", "1"]
    agent += ["--rdzv_backend", "c10d", "--rdzv_endpoint", "127.0.0.1:29517", "-m", "meancap"]
    command = [*agent, "reproduce", "imagenet", "--tiny", "--device", "cpu", "--out", str(out)]
    agents = [subprocess.Popen(command, env=source, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    ended = [agent.communicate(timeout=1200)[1] for agent in agents]
    assert [agent.returncode for agent in agents] == [0, 0], ended
    torch.manual_seed(0)
    torch.save(Inception().state_dict(), tmp_path / "inception.pth")
    pixels = np.random.default_rng(0).integers(0, 256, (8, 16, 16, 3), dtype=np.uint8)
    size = {"mu": 2048, "sigma": (2048, 2048), "mu_s": 2023, "sigma_s": (2023, 2023)}
    statistics = {name: np.eye(2048)[: shape[0], : shape[1]] if "sigma" in name else np.zeros(shape)
                  for name, shape in size.items()}  # fmt: skip
    np.savez(tmp_path / "reference.npz", arr_0=pixels, **statistics)
    runs = [str(out / name) for name in ("cfg-scale-2.5-n50", "pmc-1.10-scale-2.5-n50")]
    score = ["score", *runs, "--protocol", "adm-imagenet256", "--reference", str(tmp_path / "reference.npz")]
    assert main([*score, "--weights", str(tmp_path / "inception.pth")]) == 0
    assert main(["report", str(out)]) == 0
    page = (out / "report.md").read_text()
    assert "Beside the paper" in page and "FID↓ paper" in page
    rows = [line for line in page.splitlines() if line.startswith("| PMC-CFG | 2.5 | 1.10 | 50 |")]
    assert rows and "—" not in rows[0]
