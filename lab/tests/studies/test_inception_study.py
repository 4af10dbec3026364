"""The page of the Inception study is computed from its readings, which carry their protocol."""

from types import SimpleNamespace

import pytest
import torch

from meancap_lab.metrics import frechet_distance
from studies.common import Cells, read_csv
from studies.inception import arithmetic, study


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


def test_a_missing_set_is_an_error_before_any_features(tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError, match="get CIFAR-10 with"):
        study.real_sets(tmp_path, tmp_path)
    monkeypatch.setattr(study, "read_cifar10", lambda folder, train: SimpleNamespace(images=torch.zeros(1)))
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


def test_the_arithmetic_of_score_is_equal_to_float32_and_bfloat16_is_not(tmp_path):
    rows = {r["arithmetic"]: r for r in read_csv(study.HERE / "arithmetic.csv")}
    assert list(rows) == list(arithmetic.WAYS)
    moved = {way: abs(float(r["FID less float32's"])) for way, r in rows.items()}
    rate = {way: float(r["images per core-second"]) for way, r in rows.items()}
    equal = [way for way in rows if moved[way] < 1e-5]
    assert max(equal, key=rate.get) == f"{arithmetic.TAKEN}, compiled"  # score --compile
    assert max((way for way in equal if "compiled" not in way), key=rate.get) == arithmetic.TAKEN
    assert all(moved[way] > 0.01 for way in rows if way.startswith("bfloat16"))
    # The rows are computed from cells; here by networks that add a constant.
    sets = {part: torch.randint(0, 256, (192, 3, 4, 4), dtype=torch.uint8) for part in arithmetic.SETS}
    pools = {way: lambda x, k=k: x.mean((2, 3)) + k for k, way in enumerate(arithmetic.WAYS)}
    cells = Cells(tmp_path, arithmetic.Study(192))
    found = list(arithmetic.readings(arithmetic.Study(192), cells, sets, lambda: pools))
    assert all(float(r["FID less float32's"]) == pytest.approx(0, abs=1e-6) for r in found)
    assert [float(r["with a float32 reference"]) for r in found] == pytest.approx(
        [3 * k * k for k in range(5)], rel=0.2
    )
