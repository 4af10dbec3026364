"""The page of the Inception study is computed from its readings, which carry their protocol."""

import pytest
import torch

pytest.importorskip("PIL")
from PIL import Image

from meancap_lab.metrics import frechet_distance
from studies.common import Cells, read_csv
from studies.inception import study


def test_every_reading_carries_its_protocol():
    rows = read_csv(study.HERE / "readings.csv")
    assert {(r["images"], r["reference"]) for r in rows} <= set(study.PAIRS) and rows
    for r in rows:
        assert "sha256 23865a69" in r["protocol"] and "NOT the published" not in r["protocol"]
        assert r["dtype"] == "float32" and r["versions"].startswith("torch ")
        assert r["rule"] == study.RULES.get(r["images"], "") and bool(r["seed"]) == bool(r["rule"])
    cifar = [r for r in rows if r["images"] == "CIFAR-10 train"]
    fids = [float(r["FID"]) for r in cifar]
    assert fids == sorted(fids, reverse=True)  # the bias shrinks as n grows
    assert abs(float(cifar[-1]["1000 KID"])) < 3 * float(cifar[-1]["standard error"])


def test_a_missing_set_is_an_error_before_any_features(tmp_path):
    with pytest.raises(FileNotFoundError, match="no CIFAR-10 in"):
        study.real_sets(tmp_path, tmp_path)
    for name in ("data_batch_1", "test_batch"):
        Image.new("RGB", (1024, 2)).save(tmp_path / f"{name}.png")
    with pytest.raises(FileNotFoundError, match="get Fashion-MNIST"):
        study.real_sets(tmp_path, tmp_path)


def test_blocks_are_kept_and_read_in_order(tmp_path):
    torch.manual_seed(0)
    sets = {name: torch.randn(200, 2048) for pair in study.PAIRS for name in pair}
    cells, small = Cells(tmp_path, study.QUICK), study.Study(200, 100)
    rows = list(study.readings(small, cells, lambda name, i: {"pool": sets[name][i : i + 100]}, "x"))
    a, b = study.PAIRS[0]
    assert [(r["images"], r["n"]) for r in rows] == [(a, 200), *((a, 100) for a, _ in study.PAIRS[1:])]
    assert float(rows[0]["FID"]) == pytest.approx(frechet_distance(sets[a], sets[b]), abs=1e-3)
    assert list(study.readings(small, cells, lambda name, i: {}, "x")) == rows  # from the cells
