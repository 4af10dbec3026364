"""An audit changes no bit of a host, and finds the scale and the formula that the host was written with."""

import json

import pytest
import torch
from test_substitute import drawn, host, largest_ratio, speech, spoken

from meancap.adapters.audit import audit

WAYS = {"chatterbox": 0, "cosyvoice": 0, "voxcpm": 1}


@pytest.mark.parametrize("how", WAYS)
def test_a_loop_is_read_from_its_states(how):
    network, x, mu = spoken()
    native = speech(network, x, mu, 2.0, how)
    with audit(network, gamma=1.1, noise_at=WAYS[how]) as found:
        assert all(map(torch.equal, speech(network, x, mu, 2.0, how), native))
    report = found.report()
    assert report["steps"] == 5 and "forward" not in network.__dict__, "of the last step no end is seen"
    assert report["largest_ratio"] == pytest.approx(
        largest_ratio(network, native[:-1], mu, WAYS[how]), rel=1e-4
    )
    assert 0 < report["share_of_samples_above_gamma"] <= 1
    assert report["steps_with_two_predictions_at_scale_1"] == 0
    if how == "voxcpm":
        assert report["formula"].startswith("another than u + s (c - u) in ")
    else:
        assert report["formula"] == "u + s (c - u)" and report["scale"] == pytest.approx([3.0, 3.0], rel=1e-3)


@pytest.mark.parametrize("calls", ["together", "apart"])
@pytest.mark.parametrize("scale", [1.0, 4.0])
def test_two_passes_at_scale_1_are_counted(scale, calls):
    network, x, label = drawn()
    with audit(network, calls=calls, order="uc") as found:
        host(network, x, label, scale, 0, calls, "uc")
    wasted = 4 if scale == 1 else 0
    assert found.report()["steps_with_two_predictions_at_scale_1"] == wasted
    assert found.report()["scale"] == pytest.approx([scale, scale])
    assert ("at scale 1 made two predictions" in found.summary()) is (scale == 1)


def test_the_share_above_gamma_counts_samples(tmp_path):
    network, x, label = drawn()
    with audit(network) as found:
        host(network, x, label, 6.0, 0, "together", "cu")
    largest = found.stacked()["ratio"].amax(0)
    found.gamma = float(largest.sort().values[:2].mean())
    assert found.report()["share_of_samples_above_gamma"] == pytest.approx(2 / 3)
    stored = json.loads(found.save(tmp_path / "audit.json").read_text())
    assert stored["audit"] == found.report() and len(stored["rows"]) == 4 * 3
    pytest.importorskip("matplotlib")
    found.plot(tmp_path / "audit.png")
    assert (tmp_path / "audit.png").stat().st_size > 1000


def test_what_was_not_guided_is_said():
    network, x, label = drawn()
    with audit(network) as found:
        network(x, torch.tensor(0.1, dtype=torch.float64), label)
    assert found.report()["steps"] == 0 and found.summary().startswith("nothing was guided: no call")
