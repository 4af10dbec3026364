"""The study of natural pictures reads scored runs; its differences are paired, its probe is linear."""

import pytest
import torch

from made import made_run
from meancap_lab.metrics.score import mean_estimate
from meancap_lab.runs.scoring import write_scores
from studies.natural import study


@pytest.fixture
def runs(tmp_path):
    """Three runs of 60 pictures that share their noise, with given scores."""
    g = torch.Generator().manual_seed(0)
    images = torch.zeros(60, 4, 4, 3, dtype=torch.uint8)
    common = torch.randn(60, generator=g, dtype=torch.float64)
    for name, rule, less in (
        ("plain", "CFG(2)", 0.0),
        ("capped", "CFG(2) | Cap(1.1)", 0.5),
        ("interval", "CFG(2) | Interval(0.2, 1)", 0.0),
    ):
        made_run(tmp_path / name, images, torch.arange(60) % 10, rule)
        values = [mean_estimate(number, common + k - less) for k, number in enumerate(study.NUMBERS)]
        write_scores(tmp_path / name, study.PROTOCOL, f"{study.PROTOCOL}: test", values, "mark")
    return tmp_path


def test_readings_are_the_scores_and_their_differences_to_fixed_cfg_image_by_image(runs, tmp_path):
    rows = {(r["method"], r["number"]): r for r in study.readings(runs)}
    assert len(rows) == 3 * len(study.NUMBERS) and not any(
        m == "Fixed CFG" and "less CFG" in r for (m, _), r in rows.items()
    )
    for name in ("less CFG", "less CFG from", "less CFG to"):  # the common part of both runs cancels
        assert float(rows["PMC-CFG 1.10", "FID"][name]) == pytest.approx(-0.5)
    assert rows["Interval", "KID"]["scale"] == 2.0 and float(rows["Interval", "KID"]["less CFG"]) == 0
    study.main(["--runs", str(runs), "--out", str(tmp_path / "out")])
    assert (tmp_path / "out" / "figures" / "front.png").stat().st_size > 1000
    tables = study.parts(tmp_path / "out")
    assert tables["numbers"].count("\n") == 4 and "| -0.50 [-0.50, -0.50] |" in tables["differences"]


def test_the_probe_separates_what_a_plane_separates():
    g = torch.Generator().manual_seed(0)
    labels = torch.arange(300) % 3
    features = 5 + 3 * torch.randn(300, 8, generator=g) + 20 * torch.eye(8)[labels]
    probe = study.fit_probe(features, labels, classes=3)
    assert torch.equal((features @ probe["weight"].T + probe["bias"]).argmax(1), labels)
