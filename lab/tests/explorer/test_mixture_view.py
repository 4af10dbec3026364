"""The numbers the page gets are the library's own, and what it may ask for has bounds."""

import base64
import math
import time

import numpy as np
import pytest
import torch
from browser import ask, until

from meancap import parse, sample, uniform
from meancap.record import Record
from meancap.sampling import rk4
from meancap_lab.explorer import comparison
from meancap_lab.explorer.comparison import COMPILED, PRESETS, fill_sliders
from meancap_lab.explorer.mixture_view import FULL, KL_POINTS, OUTSIDE, ROUTES
from meancap_lab.explorer.requests import Left, Work
from meancap_lab.mixtures.branches import branches
from meancap_lab.mixtures.condition import PAIR, SINGLE, TRIPLE
from meancap_lab.mixtures.gmm_settings import SETTINGS
from meancap_lab.mixtures.measures import displaced, kl_terms, log_volumes
from meancap_lab.mixtures.problems import Model, problem
from meancap_lab.mixtures.sampler import flow

WORK = Work()
about, run, meter, field = (ROUTES[f"mixture/{name}"] for name in ("about", "run", "meter", "field"))


def noise(n, seed=0):
    return torch.randn(n, 2, generator=torch.Generator().manual_seed(seed))


def unpacked(text, box):
    x, y, half = box
    at = np.frombuffer(base64.b64decode(text), np.int16).reshape(-1, 2)
    return torch.from_numpy(at / FULL * half + np.array([x, y])), at


@pytest.mark.parametrize("rule", ["CFG(1)", "CFG(4) | Cap(1.2)", "apg(3)", "CFG(3) | CapDisplacement(1.1)"])
@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("single", Model(SINGLE.condition())),
        ("pair", Model(PAIR.condition())),
        ("triple", Model(TRIPLE.condition())),
        ("under", problem("under-triple").model()),
    ],
)
def test_a_rule_has_the_numbers_of_the_library(name, model, rule):
    found = run({"scene": name, "n": 1500, "seed": 5, "rules": [rule], "quick": True}, WORK)
    entry, condition = found["rules"][0], model.condition
    if entry["engine"] == "library":
        end = sample(model.predict, parse(rule), noise(1500, 5).double(), uniform(50))
    else:
        end = flow(condition, parse(rule), noise(1500, 5), uniform(50), engine=entry["engine"])
    due = branches(condition, end)
    assert entry["numbers"]["tv"] == due.tv and entry["numbers"]["mean_error"] == due.mean_error
    for field in ("occupancy", "variance_ratio", "radial_ratio", "tangential_ratio"):
        assert entry["numbers"][field] == getattr(due, field).tolist()
    share = due.occupancy
    assert entry["numbers"]["occupancy_error"] == (share * (1 - share) / 1500).sqrt().tolist()
    assert found["target"] == condition.conditional.weights.tolist()
    got, at = unpacked(entry["points"], found["box"])
    inside = torch.from_numpy(at[:, 0] != OUTSIDE)
    assert inside.any() and (got - end)[inside].abs().max() <= found["box"][2] / FULL


def test_the_nine_settings_are_those_of_the_reproduction():
    offered = about({}, WORK)["paper"]["settings"]
    assert [(one["members"], one["guidance"], one["rule"]) for one in offered] == [
        (s.members, s.guidance, str(s.rule)) for s in SETTINGS
    ]
    for one, setting in zip(offered, SETTINGS, strict=True):
        assert fill_sliders(one["template"], one["scale"], one["gamma"]) == str(setting.rule)
        request = {"scene": one["scene"], "n": 200, "rules": [one["rule"]], "quick": True}
        (found,) = run(request, WORK)["rules"]
        assert found["paper"]["guidance"] == setting.guidance and found["paper"]["members"] == setting.members


def test_the_papers_row_is_shown_for_its_own_protocol_only():
    for change in ({"steps": 49}, {"solver": "heun"}, {"scene": "overlap"}, {"rules": ["CFG(3.5)"]}):
        request = {"scene": "triple", "rules": ["CFG(3)"], "n": 200, "quick": True, **change}
        assert run(request, WORK)["rules"][0]["paper"] is None


def test_kl_is_that_of_the_benchmarks_formula():
    request = {"scene": "overlap", "n": 1000, "rules": ["CFG(2) | Cap(1.1)"], "solver": "rk4", "steps": 20}
    found = run(request, WORK)["rules"][0]["numbers"]
    condition, first = PRESETS["overlap"].plane.condition(), noise(1000)[:KL_POINTS].double()
    rule = parse("CFG(2) | Cap(1.1)")
    end, moved = (flow(condition, rule, x, uniform(20), rk4) for x in (first, displaced(first)))
    terms = kl_terms(first, end, log_volumes(moved), condition.conditional)
    assert found["kl"] == pytest.approx(float(terms.mean()), rel=1e-6)
    assert found["kl_error"] == pytest.approx(float(terms.std()) / math.sqrt(len(terms)), rel=1e-6)


def test_a_scene_of_ones_own_is_sampled_as_given():
    from meancap_lab.mixtures import Condition, Mixture

    parts = [[0.5, 0.25, 2.0, True], [-1.0, 0.0, 1.0, False], [0.0, -1.0, 1.0, True]]
    request = {"scene": "own", "components": parts, "std": 0.2, "n": 2000, "rules": ["CFG(2)"], "quick": True}
    entry = run(request, WORK)["rules"][0]
    means = torch.tensor([p[:2] for p in parts], dtype=torch.float64)
    condition = Condition(Mixture(means, [2.0, 1.0, 1.0], std=0.2), (0, 2))
    due = branches(
        condition, flow(condition, parse("CFG(2)"), noise(2000), uniform(50), engine=entry["engine"])
    )
    assert entry["numbers"]["occupancy"] == due.occupancy.tolist() and entry["numbers"]["tv"] == due.tv


def test_the_meter_is_the_record_of_the_same_samples():
    request = {"scene": "pair", "n": 1000, "rules": ["CFG(3) | Cap(1.1)"]}
    seen = meter(request, WORK)["rules"][0]
    record, model = Record(), PRESETS["pair"].plane.model()
    end = sample(
        model.predict, parse("CFG(3) | Cap(1.1)"), noise(1000)[:256].double(), uniform(50), record=record
    )
    due = record.stacked()
    assert seen["t"] == due["t"][:, 0].tolist()
    assert seen["middle"] == pytest.approx(due["scale"].quantile(0.5, 1).tolist())
    assert seen["capped"] == pytest.approx(due["active"].double().mean(1).tolist())
    assert seen["largest_ratio"] == pytest.approx(1.1)
    states, at = unpacked(seen["states"], PRESETS["pair"].plane.wide())
    last = states.reshape(len(seen["times"]), seen["paths"], 2)[-1]
    known = torch.from_numpy(at.reshape(len(seen["times"]), seen["paths"], 2)[-1][:, 0] != OUTSIDE)
    assert (last - end[: seen["paths"]])[known].abs().max() < 1e-3


def test_the_field_is_posterior_and_velocity():
    t, plane = 0.4, PRESETS["triple"].plane
    seen = field({"scene": "triple", "rules": ["CFG(1)", "CFG(5) | Cap(1.05)"], "t": t, "index": 1}, WORK)
    n, (x, y, half) = seen["grid"], seen["box"]
    odds = np.frombuffer(base64.b64decode(seen["posterior"]), np.uint8).reshape(n, n)
    place = torch.tensor([[x - half + half / n, y + half - half / n]])  # the upper left cell
    assert odds[0, 0] == round(255 * float(plane.condition().log_posterior(place.double(), t).exp()))
    corner = torch.tensor([[x - half + half / seen["arrows"], y + half - half / seen["arrows"]]]).double()
    v_c, _ = plane.condition().velocities(corner, t)
    assert seen["conditional"][0] == pytest.approx(v_c[0].tolist(), abs=1e-3)
    assert 0 < seen["capped_share"] <= 1
    plain = field({"scene": "triple", "rules": ["CFG(1)"], "t": t}, WORK)
    assert plain["guided"] == plain["conditional"] and plain["capped_share"] == 0


@pytest.mark.parametrize(
    ("text", "due"),
    [
        ("CFG(λ) | Cap(Γ)", "CFG(3) | Cap(1.25)"),
        ("CFG(scale) | Cap(gamma)", "CFG(3) | Cap(1.25)"),
        ("CFG(scale=scale)", "CFG(scale=3)"),
        ("apg(λ, eta=0)", "apg(3, eta=0)"),
        ("Frequencies('scale')", "Frequencies('scale')"),
        ("rescaled(2)", "rescaled(2)"),
    ],
)
def test_sliders_fill_the_templates(text, due):
    assert fill_sliders(text, 3.0, 1.25) == due


def test_every_rule_that_is_offered_runs():
    for rule in about({}, WORK)["rules"]:
        request = {"n": 200, "steps": 8, "rules": [rule["text"]], "quick": True, "scale": 2.0}
        assert "error" not in run(request, WORK)["rules"][0], rule
        assert "error" not in meter(request, WORK)["rules"][0], rule


def test_a_bad_rule_says_why_and_the_others_go_on():
    found = run({"n": 200, "rules": ["CFG(1)", "Cap(0.5)", "fdg(3)", "CGF(2)"], "quick": True}, WORK)["rules"]
    assert found[0]["numbers"] and "gamma >= 1" in found[1]["error"] and "nearest are" in found[3]["error"]
    assert "cannot run on points in the plane" in found[2]["error"]


def test_samples_that_run_away_have_no_numbers():
    request = {"scene": "overlap", "n": 200, "rules": ["Gain(1e300)"], "quick": True}
    entry = run(request, WORK)["rules"][0]
    assert entry["lost"] > 0.5 and entry["numbers"] is None


OWN = {"scene": "own", "components": [[0, 0, 1, True], [1, 1, 1, False]]}


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        ({"n": 10**9}, "whole number from 100 to 200,000; got 1000000000"),
        ({"n": 10**4000}, "n must be a whole number"),
        ({"n": 0.5}, "n must be a whole number"),
        ({"steps": 100_000}, "steps must be a whole number from 1 to 500"),
        ({"scale": 1e308}, "scale must be a number from 0 to 30"),
        ({"scale": math.nan}, "scale must be a number"),
        ({"solver": "dopri5"}, "solver must be one of euler, heun"),
        ({"scene": "../../etc"}, "scene must be one of"),
        ({"rules": ["CFG(1)"] * 5}, "rules must be a list of 1 to 4 entries"),
        ({"rules": "CFG(1)"}, "rules must be a list"),
        ({"rules": [3]}, "rule must be a text"),
        ({"rules": ["CFG(1)|" * 200 + "CFG(1)"]}, "rule must be a text of at most 600 characters"),
        ({"sclae": 3}, "unknown field 'sclae'"),
        ({**OWN, "components": [[0, 0, 1, True]]}, "components must be a list of 2 to 12 entries"),
        ({**OWN, "components": [[0, 0, 1, True]] * 2}, "outside the condition"),
        ({**OWN, "components": [[0, 0, 0, True], [1, 1, 1, False]]}, "needs a component with weight"),
        ({**OWN, "components": [[0, 0, -1, True], [1, 1, 1, False]]}, "component 0: weight must be a number"),
        ({**OWN, "components": [[0, 99, 1, True], [1, 1, 1, False]]}, "component 0: y must be a number"),
        ({**OWN, "components": [[0, 0, 1], [1, 1, 1, False]]}, "component 0 must be a list"),
        ({**OWN, "std": 0}, "std must be a number from 0.01"),
        ({**OWN, "eta": 1}, "eta must be a number from 0 to 0.9"),
        ({"n": 200_000, "steps": 500, "rules": ["apg(3)"], "solver": "rk4"}, "choose fewer samples or steps"),
    ],
)
def test_what_is_out_of_bounds_is_refused_in_a_sentence(request_, words):
    with pytest.raises(
        ValueError, match=words.replace("(", r"\(").replace(")", r"\)").replace("|", r"\|")
    ) as caught:
        run({"n": 200, "quick": False, **request_}, WORK)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 300


def test_text_is_checked_by_the_librarys_parser(server):
    from meancap.rules.grammar import ParseError

    assert ask(server, "mixture/check", {"text": "pmc(λ, Γ)", "scale": 2, "gamma": 1.5}) == (
        200,
        {"rule": "CFG(2) | Cap(1.5)"},
    )
    for text in ("CFG(", "CFG(3) | Cpa(1.1)", "Linear(1, 2)", "__import__('os')"):
        with pytest.raises(ParseError) as caught:
            parse(text)
        status, found = ask(server, "mixture/check", {"text": text})
        assert (status, found) == (200, {"error": str(caught.value)}) and len(found["error"]) < 250
    assert "type a rule" in ask(server, "mixture/check", {"text": "  "})[1]["error"]


def test_work_stops_when_nobody_waits():
    left = Work(lambda: False)
    for route in (run, meter):
        with pytest.raises(Left):
            route({"n": 20_000, "rules": ["apg(3)"]}, left)


def test_moving_a_slider_is_answered_within_half_a_second_and_slow_rules_with_fewer_samples(server):
    rule, plane = parse("CFG(1)"), PRESETS["triple"].plane
    if comparison.choose_engine(plane, rule, comparison.read_settings({})) == "library":
        until(lambda: not COMPILED.busy, 600)
    request = {"scene": "triple", "n": 20_000, "rules": ["CFG(1)", "CFG(λ)", "CFG(λ) | Cap(Γ)"]}
    took = []
    for scale in (2.0, 2.5, 3.0, 3.5, 4.0):
        began = time.process_time()  # of this process, the server in it: other work does not count
        status, found = ask(server, "mixture/run", {**request, "scale": scale, "quick": True})
        took.append(time.process_time() - began)
        assert status == 200 and all(entry["n"] == 20_000 for entry in found["rules"])
    assert min(took) < 0.5, took
    slow = {"n": 5000, "rules": ["apg(λ)"]}
    assert run({**slow, "quick": True}, WORK)["rules"][0]["n"] == 2000
    assert run(slow, WORK)["rules"][0]["n"] == 5000
