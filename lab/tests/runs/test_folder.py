"""A run folder: the same bytes whatever the processes, their order and their number."""

import json
import tracemalloc

import numpy as np
import pytest
import torch
from killing import contents

from meancap import noise, parse, sample, uniform
from meancap_lab.models.checkpoint import save_sit
from meancap_lab.models.classes import open_sit
from meancap_lab.runs.config import RunConfig, RunIdentity, sample_seed, versions
from meancap_lab.runs.folder import Run, RunRefused, Store, write_npz
from meancap_lab.runs.generate import ClassSource, generate, make_run
from meancap_lab.runs.processes import place
from small_sit import pixels, random_sit


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "tiny.safetensors"
    return open_sit(save_sit(path, random_sit(spread=0.4), pixels(), names=tuple("abcdefghij")))


def settings(model, rule="CFG(4) | Cap(1.1)", **changes):
    options = {"per_class": 3, "times": uniform(4), "batch": 7} | changes
    return ClassSource(model).prepare(RunConfig(model.name, rule=str(rule), **options))


def run(folder, prepared, rank=0, world=1):
    return make_run(prepared.store(folder), prepared.make, rank, world)


def finished(folder, prepared):
    assert list(run(folder, prepared)) == list(range(prepared.config.blocks))
    return contents(folder)


@pytest.mark.parametrize("images", ["png", "npz"])
@pytest.mark.parametrize("world", [2, 3, 8])
def test_files_do_not_depend_on_the_number_of_processes(tmp_path, model, images, world):
    prepared = settings(model, images=images, diagnostics=True)
    whole = finished(tmp_path / "one", prepared)
    for rank in reversed(range(world)):
        list(run(tmp_path / "many", prepared, rank=rank, world=world))
    assert contents(tmp_path / "many") == whole
    assert not (tmp_path / "many" / "blocks").exists()


def test_a_run_stopped_anywhere_ends_in_the_same_files(tmp_path, model):
    prepared = settings(model, images="npz", diagnostics=True)
    whole = finished(tmp_path / "one", prepared)
    for stop in range(1, prepared.config.blocks):
        folder = tmp_path / f"stopped{stop}"
        steps = run(folder, prepared)
        for _ in range(stop):
            next(steps)
        steps.close()
        with pytest.raises(ValueError, match="not finished"):
            Run.open(folder)
        (folder / ".part-123-123-samples.npz").write_bytes(b"torn")
        made = list(run(folder, prepared))
        assert made == list(range(stop, prepared.config.blocks))
        assert contents(folder) == whole


def test_a_sample_is_what_its_record_says(tmp_path, model):
    prepared = settings(model, diagnostics=True)
    finished(tmp_path / "r", prepared)
    found = Run.open(tmp_path / "r")
    assert len(found) == 30 and found.rule == "CFG(4) | Cap(1.1)"
    assert [found.labels.count(c) for c in range(10)] == [3] * 10
    assert len(set(found.seeds)) == 30
    x = sample(model.predict(found.labels), parse(found.rule), noise(found.seeds, model.shape), uniform(4))
    expected = model.decode(x).permute(0, 2, 3, 1).numpy()
    assert np.abs(found.images().astype(int) - expected.astype(int)).max() <= 1
    assert found.images().std() > 20
    assert found.finished == {"samples": 30, "evaluations": 120}
    assert found.meter["ratio"].shape == (4, 30)
    assert found.meter["ratio"].max() <= 1.1 * (1 + 1e-6)


def test_png_and_npz_hold_the_same_pixels(tmp_path, model):
    png, npz = settings(model), settings(model, images="npz")
    finished(tmp_path / "png", png)
    finished(tmp_path / "npz", npz)
    a, b = Run.open(tmp_path / "png"), Run.open(tmp_path / "npz")
    assert np.array_equal(a.images(), b.images())
    with np.load(tmp_path / "npz" / "samples.npz") as file:  # as the ADM evaluator reads it
        assert file["arr_0"].dtype == np.uint8 and file["arr_0"].shape == (30, 8, 8, 1)
        assert np.array_equal(file["arr_0"], a.images())
        assert file["arr_1"].tolist() == a.labels


def test_a_longer_run_begins_with_the_shorter_one(tmp_path, model):
    finished(tmp_path / "short", settings(model, per_class=2))
    finished(tmp_path / "long", settings(model, per_class=3))
    short, long = Run.open(tmp_path / "short"), Run.open(tmp_path / "long")
    assert np.array_equal(short.images(), long.images(range(20)))


def test_rules_share_their_noise_and_seeds_do_not(model):
    a, b = settings(model), settings(model, seed=1)
    seeds = [{sample_seed(p.config.seed, i) for i in range(p.config.count)} for p in (a, b)]
    assert not seeds[0] & seeds[1]
    assert len({sample_seed(3, i) for i in range(50_000)}) == 50_000


def test_noise_of_the_device_is_named_in_the_run_and_depends_on_no_batch(tmp_path, model):
    runs = []
    for batch in (3, 8):
        prepared = settings(model, noise="device", batch=batch)
        list(make_run(prepared.store(tmp_path / str(batch)), prepared.make))
        runs.append(Run.open(tmp_path / str(batch)))
    assert runs[0].config["noise"] == "device" and np.array_equal(runs[0].images(), runs[1].images())
    with pytest.raises(ValueError, match="--noise stream goes with diffusers:PATH"):
        settings(model, noise="stream")


def test_no_two_samples_of_any_runs_share_their_noise():
    """Up to 2^64 seeds and ten million samples; the first million of the first 4,294 seeds are as ever."""
    seeds = [0, 1, 2, 4_294, 4_295, 8_590, 2**32 - 1, 2**32, 2**32 + 1, 2**63, 2**64 - 1]
    indices = [*range(7), 12_289, 49_999, 999_999, *range(1_000_000, 1_000_009), 2**23, 9_999_999]
    pairs = [(seed, i) for seed in seeds for i in indices]
    assert len({sample_seed(*pair) for pair in pairs}) == len(pairs)
    starts = noise([sample_seed(*pair) for pair in pairs], (8,))
    assert len({tuple(row.tolist()) for row in starts}) == len(pairs)
    assert sample_seed(4_294, 49) == 4_294 * 1_000_003 + 49
    for pair in ((2**64, 0), (-1, 0), (0, -1)):
        with pytest.raises(ValueError, match="0 to 2\\^64 - 1"):
            sample_seed(*pair)


def test_another_configuration_is_refused_and_named(tmp_path, model):
    before = finished(tmp_path / "r", settings(model))
    for changes, words in (
        ({"per_class": 4}, "count was 30, now 40"),
        ({"times": uniform(5)}, "times was"),
        ({"batch": 8}, "batch was 7, now 8"),
        ({"images": "npz"}, 'images was "png", now "npz"'),
        ({"threads": 2}, "threads was 1, now 2"),
        ({"rule": "CFG(4) | Cap(1.05)"}, r"rule was .*Cap\(1.1\).*, now .*Cap\(1.05\)"),
    ):
        with pytest.raises(RunRefused, match=words):
            list(run(tmp_path / "r", settings(model, **changes)))
    with pytest.raises(RunRefused, match="torch was"):
        Store(tmp_path / "r", settings(model).config, versions() | {"torch": "1.0"})
    assert contents(tmp_path / "r") == before


def test_a_damaged_meter_is_named(tmp_path, model):
    finished(tmp_path / "r", settings(model, diagnostics=True))
    path = tmp_path / "r" / "diagnostics.npz"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    for damage in (bytes(content), bytes(content[:100]), b""):
        path.write_bytes(damage)
        with pytest.raises(ValueError, match=r"diagnostics\.npz is damaged"):
            len(Run.open(tmp_path / "r").meter)


def test_a_finished_run_is_not_made_again(tmp_path, model):
    prepared = settings(model)
    finished(tmp_path / "r", prepared)
    stamps = {p: p.stat().st_mtime_ns for p in (tmp_path / "r").rglob("*")}
    (tmp_path / "r" / "blocks").mkdir()  # as a kill during the last tidying leaves it
    assert list(run(tmp_path / "r", prepared)) == []
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "r").rglob("*") if p.is_file()} == {
        p: s for p, s in stamps.items() if p.is_file()
    }
    assert not (tmp_path / "r" / "blocks").exists()


@pytest.mark.parametrize("images", ["png", "npz"])
def test_a_finished_run_without_all_of_its_pictures_is_refused(tmp_path, model, images):
    prepared = settings(model, images=images)
    finished(tmp_path / "r", prepared)
    path = tmp_path / "r" / ("samples.npz" if images == "npz" else "samples/000011.png")
    for damage in (lambda: path.write_bytes(path.read_bytes()[:-7]), path.unlink):
        damage()
        with pytest.raises(RunRefused, match=rf"{path.name} is missing or cut; delete .*r and rerun"):
            list(run(tmp_path / "r", prepared))


def test_steps_inside_a_block_are_told(tmp_path):
    told = []
    few = RunConfig("fashion", rule="CFG(2)", per_class=2, steps=3, batch=10, device="cpu")
    assert list(generate(tmp_path / "r", few, tick=lambda *steps: told.append(steps))) == [0, 1]
    assert told == [(done, 6) for done in (0, 1, 2, 3, 3, 4, 5, 6)]


def test_the_identity_of_a_run_keeps_its_names_and_their_order(model):
    """A folder that was begun by another version of the package goes on under these names."""
    names = list(settings(model, sampler="ancestral", negative="c").config.as_json())
    assert " ".join(names) == (
        "model model_sha256 rule times count classes solver seed batch dtype channels decoder noise images "
        "diagnostics device threads prompts_sha256 guidance_scale size sigmas eta negative"
    )
    assert list(settings(model).config.as_json()) == names[:-2]


def test_run_json_tells_everything_that_decides_the_bytes(tmp_path, model):
    prepared = settings(model, solver="heun")
    finished(tmp_path / "r", prepared)
    found = json.loads((tmp_path / "r" / "run.json").read_text())
    c = found["config"]
    assert c["model_sha256"] == model.sha256 and len(model.sha256) == 64
    assert c["times"] == list(uniform(4)) and c["solver"] == "heun" and c["dtype"] == "float32"
    assert c["channels"] is None and found["made_with"]["torch"] == torch.__version__
    assert found["finished"]["evaluations"] == 30 * 7  # Heun: two a step, one in the last


STEP = {"SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "16", "SLURM_NTASKS": "16", "SLURM_LOCALID": "1"}
BATCH = {"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_LOCALID": "0"}  # an sbatch script, without srun


@pytest.mark.parametrize(
    ("variables", "answer"),
    [
        ({}, (0, 1, 0)),
        (STEP, (5, 16, 1)),
        ({**STEP, "RANK": "3", "WORLD_SIZE": "8"}, (3, 8, 0)),  # torchrun inside a SLURM job
        ({**BATCH, "RANK": "3", "WORLD_SIZE": "8"}, (3, 8, 0)),
        ({**BATCH, "SLURM_NTASKS": "1"}, (0, 1, 0)),
        (BATCH, "one process in a SLURM job of 4 tasks; start it as `srun"),
        ({"WORLD_SIZE": "4"}, "WORLD_SIZE=4 needs RANK"),
        ({"RANK": "3", "WORLD_SIZE": "2"}, "RANK=3"),
        ({"RANK": "3"}, "RANK=3"),
        ({"RANK": "one", "WORLD_SIZE": "2"}, "whole number"),
    ],
)
def test_the_place_among_processes_comes_from_the_environment(monkeypatch, variables, answer):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", *STEP):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    if isinstance(answer, tuple):
        assert place() == answer
        return
    with pytest.raises(ValueError, match=answer):
        place()


def test_putting_an_npz_together_holds_one_block_at_a_time(tmp_path):
    config = RunIdentity("made", "0", "CFG(1)", (0.0, 1.0), 64, (0,), batch=1, images="npz")
    store = Store(tmp_path / "r", config, versions())
    for i in range(64):
        picture = np.full((1, 512, 512, 3), i, np.uint8)
        store.save(i, picture, [{"index": i, "seed": i, "label": 0, "evaluations": 1}])
    tracemalloc.start()
    assert store.finish()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    block = 512 * 512 * 3
    assert peak < 4 * block, f"{peak / block:.1f} blocks of 64 stood in memory"
    found = Run.open(tmp_path / "r")
    assert found.images([63]).mean() == 63 and (tmp_path / "r" / "samples.npz").stat().st_size > 64 * block


def test_pieces_that_do_not_fill_an_array_are_noticed(tmp_path):
    with (tmp_path / "x.npz").open("wb") as file, pytest.raises(ValueError, match="bytes off"):
        write_npz(file, {"arr_0": (np.dtype(np.uint8), (4,), [b"abc"])}, {})


def test_a_run_leaves_the_threads_and_the_precision_of_torch_as_they_were(tmp_path, model):
    torch.set_num_threads(2)
    before = torch.backends.cuda.matmul.allow_tf32
    finished(tmp_path / "r", settings(model, dtype="tf32", threads=1))
    assert torch.get_num_threads() == 2 and torch.backends.cuda.matmul.allow_tf32 == before
