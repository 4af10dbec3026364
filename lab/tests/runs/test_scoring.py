"""From folders to scores.jsonl: order, resumption, caching, pairing."""

import json
import os
from threading import Thread

import pytest
import torch

from made import made_run
from meancap_lab.cli import main
from meancap_lab.metrics import Estimate, difference, frechet_distance, protocol
from meancap_lab.metrics.classifiers import fashion_classifier
from meancap_lab.metrics.extractor import Extractor, beside
from meancap_lab.metrics.images import PictureFolder, open_images, open_npz
from meancap_lab.runs import scoring as kept_features
from meancap_lab.runs.folder import folder_lock
from meancap_lab.runs.scoring import (
    FeatureCache,
    find_reference,
    open_target,
    read_estimates,
    read_scores,
    reference_images,
    score_runs,
    score_target,
    scored_by,
    shipped_fashion,
    write_scores,
)


def blurred(images):
    x = images.permute(0, 3, 1, 2).float()
    x = torch.nn.functional.avg_pool2d(x, 5, stride=1, padding=2)
    return x.permute(0, 2, 3, 1).round().byte()


def noisy(images):
    g = torch.Generator().manual_seed(0)
    return (images.float() + 60 * torch.randn(images.shape, generator=g)).clamp(0, 255).byte()


def numbers(folder, name="fashion"):
    return {s.name: s.value for s in read_scores(folder) if s.protocol.startswith(name)}


@pytest.fixture
def runs(tmp_path, garments):
    images, labels = garments
    changed = {"clean": images, "blurred": blurred(images), "noisy": noisy(images)}
    return {name: made_run(tmp_path / name, x, labels) for name, x in changed.items()}


def test_worse_images_score_worse_and_every_score_carries_its_protocol(runs, tmp_path, garments, capsys):
    pictures = made_run(tmp_path / "png", *garments, kind="png")
    assert main(["score", *map(str, runs.values()), str(pictures), "--protocol", "fashion"]) == 0
    found = {name: numbers(path) for name, path in runs.items()}
    assert numbers(pictures) == found["clean"]
    assert found["clean"]["FD-fashion"] * 5 < found["blurred"]["FD-fashion"]
    assert found["blurred"]["FD-fashion"] < found["noisy"]["FD-fashion"]
    assert found["clean"]["precision"] > 0.75 > found["noisy"]["precision"]
    pool = fashion_classifier()(garments[0])["pool"]
    expected = frechet_distance(pool, shipped_fashion().features["pool"])
    assert found["clean"]["FD-fashion"] == pytest.approx(expected, rel=1e-5)
    out = capsys.readouterr().out
    assert "FD-fashion" in out and "Fashion-MNIST test (10,000 images" in out and "±" in out
    for line in (json.loads(line) for line in (runs["clean"] / "scores.jsonl").read_text().splitlines()):
        assert tuple(line) == ("name", "value", "interval", "n", "protocol", "images") and line["n"] == 600
        assert line["protocol"].startswith("fashion: Fashion-MNIST classifier (sha256 ")
        assert line["interval"][0] <= line["value"] <= line["interval"][1]


def test_a_stopped_extraction_goes_on_and_ends_the_same(runs, tmp_path, garments, monkeypatch):
    monkeypatch.setattr(kept_features, "BLOCK", 200)
    images = open_target(runs["clean"]).images
    extractor = fashion_classifier()
    small = Extractor(extractor.identity, extractor.run, batch=100)
    kept = FeatureCache.of(tmp_path / "features", "fashion", small, images)
    steps = kept.fill(images, small)
    for _ in range(5):
        next(steps)  # 500 images read, two blocks of 200 written
    steps.close()
    assert len(kept.missing()) == 1  # of three
    assert sum(kept.fill(images, small)) == 600 - 400
    assert not list(kept.folder.glob(".*"))
    torch.testing.assert_close(kept.load()["pool"], extractor(garments[0])["pool"], rtol=1e-4, atol=1e-5)


def test_nothing_is_done_twice_unless_it_is_forced(runs):
    p, extractor = protocol("fashion"), fashion_classifier()
    target = open_target(runs["clean"])
    assert sum(s.done for s in score_target(target, p, extractor, shipped_fashion())) == 600
    assert list(score_target(target, p, extractor, shipped_fashion())) == []
    again = list(score_target(target, p, extractor, shipped_fashion(), force=True))
    assert sum(s.done for s in again) == 600  # features anew too


def drawn(seed):
    g = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (40, 28, 28, 1), generator=g, dtype=torch.uint8), torch.arange(40) % 10


@pytest.fixture
def small_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(kept_features, "BLOCK", 10)
    return [made_run(tmp_path / str(seed), *drawn(seed)) for seed in range(3)]


def test_processes_share_the_blocks_and_the_last_to_end_measures(small_runs, monkeypatch):
    steps = [score_runs(small_runs, ["fashion", "hsv"], rank=rank, world=4) for rank in range(4)]
    done = [sum(s.done for s in step) for step in steps[:3]]
    assert min(done) > 0 and not any(scored_by(path) for path in small_runs)
    done.append(sum(s.done for s in steps[3]))
    assert sum(done) == 2 * 3 * 40 and all(scored_by(path) == {"fashion", "hsv"} for path in small_runs)
    shared = [numbers(path) for path in small_runs]
    assert [list(score_runs(small_runs, ["fashion"], rank=rank, world=4)) for rank in range(4)] == [[]] * 4
    monkeypatch.setattr(kept_features, "BLOCK", 1000)
    list(score_runs(small_runs, ["fashion"], force=True, batch=7))
    for alone, together in zip(map(numbers, small_runs), shared, strict=True):
        assert alone == pytest.approx(together, rel=1e-3)
    with pytest.raises(ValueError, match="--force deletes features"):
        list(score_runs(small_runs, ["fashion"], force=True, world=2))


def test_ranks_of_a_launcher_score_together_and_name_what_is_left(small_runs, monkeypatch, capsys):
    command = ["score", *map(str, small_runs), "--threads", "1", "--protocol"]
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        assert main([*command, "hsv", "--device", "cpu"]) == 1 - int(rank)  # 1: others must go on
        shown = capsys.readouterr()
        assert ("have no score, none of process 0 of 2" in shown.err) == (rank == "0")
    assert "saturation" in shown.out
    assert main([*command, "hsv", "--device", "tpu"]) == 2 == main([*command, "hsv", "--batch", "0"])
    assert main([*command, "adm-imagenet256", "--plan"]) == 0
    assert "120 passes of 11.5 GFLOP = 1.38e+12 FLOP" in capsys.readouterr().out


class Moved(torch.nn.Linear):
    """Writes down the devices that it is asked to go to."""

    def to(self, device):
        self.place = device
        return self


def test_an_extractor_takes_its_network_to_a_device_and_its_batches_along():
    network = Moved(4, 2)
    extractor = Extractor(
        "x", lambda images, _: {"y": network(beside(network, images.float().flatten(1)))}, network=network
    )
    moved = extractor.on("cuda:1", 7)
    assert (network.place, moved.batch, extractor.on("cpu").batch) == ("cuda:1", 7, 50)
    assert moved(torch.zeros(3, 2, 2, 1, dtype=torch.uint8))["y"].shape == (3, 2)
    assert beside(torch.nn.Linear(1, 1, device="meta"), torch.zeros(2)).is_meta


def test_images_of_the_same_size_and_time_are_known_by_their_content(tmp_path):
    one, other = (made_run(tmp_path / str(seed), *drawn(seed)) for seed in (0, 1))
    assert main(["score", str(one), str(other), "--protocol", "fashion"]) == 0
    path, stamp = one / "samples.npz", (one / "samples.npz").stat()
    path.write_bytes((other / "samples.npz").read_bytes())
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert path.stat().st_size == stamp.st_size and numbers(one) != numbers(other)
    assert main(["score", str(one), "--protocol", "fashion"]) == 0
    assert numbers(one) == numbers(other)
    assert len(list((one / "features").iterdir())) == 1  # the old features are gone


def test_damaged_features_are_named_and_force_makes_them_again(tmp_path, capsys):
    run = made_run(tmp_path / "run", *drawn(0))
    command = ["score", str(run), "--protocol", "fashion"]
    assert main(command) == 0
    before = numbers(run)
    (block,) = (run / "features").glob("*/00000.safetensors")
    content = bytearray(block.read_bytes())
    content[-5] ^= 0x40
    block.write_bytes(content)
    (run / "scores.jsonl").unlink()
    assert main(command) == 2
    assert f"{block} is damaged; score again with --force" in capsys.readouterr().err
    assert main([*command, "--force"]) == 0 and numbers(run) == before


def test_runs_that_share_seeds_pair(runs):
    main(["score", str(runs["clean"]), str(runs["noisy"]), "--protocol", "fashion"])
    a, b = read_estimates(runs["noisy"], "fashion"), read_estimates(runs["clean"], "fashion")
    worse = difference(a["alignment"], b["alignment"])
    assert worse.value < 0 and worse.interval()[1] < 0
    brighter = difference(a["brightness"], b["brightness"])
    assert brighter.error < 0.3 * difference(a["brightness"], b["brightness"], paired=False).error


def test_a_compressed_npz_has_the_pictures_of_a_mapped_one(tmp_path):
    numpy = pytest.importorskip("numpy")
    pictures = numpy.random.default_rng(0).integers(0, 256, (7, 5, 4, 3), dtype=numpy.uint8)
    numpy.savez(tmp_path / "stored.npz", arr_0=pictures, arr_1=numpy.arange(7))
    numpy.savez_compressed(tmp_path / "packed.npz", arr_0=pictures)
    for start, count in ((0, 2), (5, 4), (2, 1)):
        for name in ("stored", "packed"):
            (found,) = open_npz(tmp_path / f"{name}.npz").read(start, count)
            assert numpy.array_equal(found.numpy(), pictures[start : start + count])


def test_a_folder_of_pictures_and_an_npz_can_be_scored_too(tmp_path, garments, runs):
    pictures = made_run(tmp_path / "png", garments[0][:60], garments[1][:60], kind="png") / "samples"
    npz = made_run(tmp_path / "npz", garments[0][:60], garments[1][:60]) / "samples.npz"
    assert main(["score", str(pictures), str(npz), "--protocol", "fashion"]) == 0
    assert "alignment" not in numbers(pictures)  # a plain folder tells no labels
    beside = npz.with_name("samples.npz.scores")
    assert numbers(beside)["FD-fashion"] == numbers(pictures)["FD-fashion"]
    assert "alignment" in numbers(beside)  # arr_1 does


def test_pictures_are_read_in_the_order_of_their_names_and_may_differ_in_size(tmp_path):
    image = pytest.importorskip("PIL.Image")
    for name, size in (("b", 4), ("a", 4), ("c", 6)):
        image.new("RGB", (size, size), (ord(name), 0, 0)).save(tmp_path / f"{name}.png")
    (tmp_path / "notes.txt").write_text("not a picture")
    found = open_images(tmp_path)
    assert isinstance(found, PictureFolder) and [p.stem for p in found.paths] == ["a", "b", "c"]
    stacks = found.read(0, 3)
    assert [tuple(s.shape) for s in stacks] == [(2, 4, 4, 3), (1, 6, 6, 3)]
    assert stacks[0][0, 0, 0, 0] == ord("a")


def test_another_reference_of_the_same_name_and_size_is_another_score(runs, tmp_path, garments, monkeypatch):
    monkeypatch.setenv("MEANCAP_CACHE", str(tmp_path / "cache"))
    found = []
    for place, images in (("here", garments[0][:80]), ("there", noisy(garments[0][:80]))):
        reference = made_run(tmp_path / place / "real", images, None)
        command = ["score", str(runs["clean"]), "--protocol", "fashion", "--reference", str(reference)]
        assert main(command) == 0
        found.append(numbers(runs["clean"])["FD-fashion"])
        pools = [fashion_classifier()(x)["pool"] for x in (garments[0], images)]
        assert found[-1] == pytest.approx(frechet_distance(*pools), rel=1e-4)
    assert found[0] < 0.5 * found[1]


def test_two_processes_that_score_one_run_wait_for_each_other(tmp_path):
    def write(name):
        write_scores(tmp_path, name, f"{name}: x", [Estimate("s", 1.0, 1)], "mark")

    with folder_lock(tmp_path):
        other = Thread(target=write, args=("hsv",))
        other.start()
        other.join(0.2)
        assert other.is_alive() and not (tmp_path / "scores.jsonl").exists()
    other.join()
    write("fashion")
    assert [s.protocol for s in read_scores(tmp_path)] == ["hsv: x", "fashion: x"]


def test_an_adm_reference_gives_statistics_and_images(tmp_path):
    numpy = pytest.importorskip("numpy")
    rng = numpy.random.default_rng(0)
    arr_0 = rng.integers(0, 256, (12, 16, 16, 3), dtype=numpy.uint8)
    stats = {
        "mu": rng.random(2048),
        "sigma": numpy.eye(2048),
        "mu_s": rng.random(2023),
        "sigma_s": numpy.eye(2023),
    }
    numpy.savez(tmp_path / "ref.npz", arr_0=arr_0, **stats)
    fake = Extractor("fake", lambda images, prompts: {"pool": images.float().flatten(1)[:, :700]})
    finding, done = find_reference(protocol("adm-imagenet256"), fake, str(tmp_path / "ref.npz")), 0
    with pytest.raises(StopIteration) as end:
        while True:
            done += next(finding).done
    reference = end.value.value
    assert done == 12 and reference is not None and reference.name == "ref.npz"
    assert torch.equal(reference.gaussian("pool").mean, torch.from_numpy(stats["mu"]))
    assert torch.equal(reference.gaussian("spatial").covariance, torch.eye(2023, dtype=torch.float64))
    assert reference.features["pool"].shape == (12, 700)
    numpy.savez(tmp_path / "bad.npz", arr_0=arr_0, mu=stats["mu"])
    with pytest.raises(ValueError, match="no sigma, mu_s, sigma_s"):
        list(find_reference(protocol("adm-imagenet256"), fake, str(tmp_path / "bad.npz")))


def test_the_shipped_reference_is_the_test_set_seen_by_the_shipped_classifier(garments):
    pool = fashion_classifier()(garments[0][:200])["pool"]
    torch.testing.assert_close(shipped_fashion().features["pool"][:200], pool, rtol=2e-3, atol=1e-3)
    assert len(reference_images("fashion-mnist:test")) == 10000


def test_the_order_of_the_images_does_not_matter(tmp_path, garments, runs):
    images, labels = garments
    order = torch.randperm(len(images))
    shuffled = made_run(tmp_path / "shuffled", images[order], labels[order])
    main(["score", str(runs["clean"]), str(shuffled), "--protocol", "fashion"])
    assert numbers(shuffled) == pytest.approx(numbers(runs["clean"]), rel=1e-4)
