"""The page of the Inception study is computed from its readings, which carry their protocol."""

import pytest
import torch

pytest.importorskip("PIL")
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


def test_blocks_are_kept_and_read_in_order(tmp_path):
    torch.manual_seed(0)
    sets = {name: torch.randn(200, 2048) for pair in study.PAIRS for name in pair}
    cells = Cells(tmp_path, study.Study())
    for name, pool in sets.items():
        for start in (0, 100):
            cells.make(study.block_name(name, start), lambda p=pool[start : start + 100]: {"pool": p})
    assert all(torch.equal(study.features(cells, name), pool) for name, pool in sets.items())
    rows = study.readings(cells, "x")
    assert [(r["images"], r["n"]) for r in rows] == [(a, 200) for a, _ in study.PAIRS]
