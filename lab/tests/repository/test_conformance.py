"""The vectors are what the reference computes, our own code passes them, each trap catches its mistake."""

import ast
import json
import math
import sys

import pytest
import torch

from conformance import reference
from meancap.rules import catalogue
from meancap_lab import conformance
from meancap_lab.cli import main
from meancap_lab.conformance import check_function, check_program, read_cases

CASES = read_cases(reference.FILE)
VECTORS = json.loads(reference.FILE.read_text())


def failures(outcomes):
    return {o.trap for o in outcomes if o.verdict == "fail"}


def inputs(case):
    return VECTORS["inputs"][case["input"]] if "input" in case else case


@pytest.mark.parametrize("case", VECTORS["cases"], ids=lambda case: case["name"])
def test_the_expected_values_are_those_of_the_reference(case):
    cap = "method" not in case  # the tolerances of the methods take longer: the slow test has them
    found = reference.expected(case, inputs(case), tolerances=cap)
    assert found == {key: case[key] for key in found} and found.keys() >= {"velocity"}


@pytest.mark.slow
def test_the_file_is_what_the_reference_writes():
    filled = [case | reference.expected(case, inputs(case)) for case in VECTORS["cases"]]
    assert reference.as_text(VECTORS | {"cases": filled}) == reference.FILE.read_text()


def test_the_reference_imports_nothing_of_ours():
    tree = ast.parse((reference.FILE.parent / "reference.py").read_text())
    modules = {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    modules |= {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    assert modules == {"__future__", "itertools", "json", "math", "mpmath", "pathlib"}


def test_every_stateless_method_has_a_case():
    # The first two are the cases of the cap; the mean of the third is a quadrature, exact to 3e-6 only.
    other = {"pmc", "pmc_displacement", "dg_cfg"}
    pure = {e.name for e in catalogue() if e.kind == "rule" and e.state.startswith("none")}
    covered = {case["method"] for case in VECTORS["cases"] if "method" in case}
    missing = pure - other - covered
    assert not missing, f"add a case for {missing}: CONTRIBUTING.md, 'Add a published method', tells how"


def test_the_library_passes_every_case():
    outcomes = list(check_function("conformance.ours:library", CASES))
    assert {o.verdict for o in outcomes} == {"pass"}, [o for o in outcomes if o.verdict != "pass"]
    assert max(o.excess for o in outcomes if o.excess is not None and o.trap != "half") <= 2.0**-23


@pytest.mark.parametrize("arrays", ["numpy", "torch"])
def test_the_file_for_other_arrays_passes_every_case_of_the_cap(arrays):
    outcomes = list(check_function("conformance.ours:arrays", CASES, arrays))
    assert not failures(outcomes) and sum(o.verdict == "pass" for o in outcomes) >= 34


def implementation(wrong):
    """CFG and the cap on velocities, right or with one mistake."""

    def guided(x, t, v_c, v_u, scale, gamma, form, convention):
        kind = torch.bfloat16 if wrong == "half" else torch.float64
        given = v_c.dtype
        x, v_c, v_u = (v.to(kind if wrong != "range" else torch.float32) for v in (x, v_c, v_u))
        if convention == "noise at 1" and wrong != "noise at 1":
            x, t, v_c, v_u = x, 1 - t, -v_c, -v_u
        if wrong == "near 1":
            gamma = float(torch.tensor(gamma, dtype=torch.bfloat16))
        m = v_c if wrong == "outward" else x + (t if wrong == "time" else 1 - t) * v_c
        gap = (1 - t) * (v_c - v_u)
        axes = {"batch": tuple(range(m.dim())), "axes": (-1,)}.get(wrong, tuple(range(1, m.dim())))
        a, b, q = ((v * w).sum(axes, keepdim=True) for v, w in ((gap, gap), (m, gap), (m, m)))
        b = b.abs() if wrong == "inward" else b
        root = ((b * b + (gamma - 1) * (gamma + 1) * a * q).sqrt() - b) / a
        if wrong == "orthogonal":
            root = (gamma - 1) * (gamma + 1) * q / (2 * b)
        if form == "displacement" and wrong != "displacement":
            root = (gamma - 1) * (q / a).sqrt()
        if wrong == "zero mean":
            root = root * (q / q)
        nothing = a <= 1e-8 if wrong == "zero gap" else torch.zeros_like(a, dtype=torch.bool)
        nominal = (a == 0) | (gamma == math.inf and wrong != "infinity") | (gamma == 1 and wrong == "gamma 1")
        beta = torch.where(nominal, scale - 1.0, root.clamp(max=scale - 1.0)).masked_fill(nothing, 0.0)
        beta = beta.nan_to_num() if wrong == "nan" else beta * (1 - 1e-6 if wrong == "fits" else 1)
        v = v_c + beta * (v_c - v_u)
        v = v.nan_to_num() if wrong == "nan" else v
        return (-v if convention == "noise at 1" and wrong != "noise at 1" else v).to(given)

    return guided


TRAPS = [trap for trap in VECTORS["traps"] if trap != "method"]


@pytest.mark.parametrize("wrong", ["", *TRAPS])
def test_each_trap_catches_its_mistake_and_no_right_implementation(wrong, monkeypatch):
    monkeypatch.setattr(conformance, "right", implementation(wrong), raising=False)
    found = failures(check_function("meancap_lab.conformance:right", CASES))
    assert wrong in found if wrong else found == set()


def test_a_host_with_noise_at_1_is_given_every_case_in_its_convention(monkeypatch):
    right = implementation("")

    def host(x, sigma, v_c, v_u, scale, gamma, form):
        return right(x, sigma, v_c, v_u, scale, gamma, form, "noise at 1")

    monkeypatch.setattr(conformance, "host", host, raising=False)
    outcomes = list(check_function("meancap_lab.conformance:host", CASES))
    assert not failures(outcomes) and sum(o.verdict == "pass" for o in outcomes) == 1 + sum(
        "method" not in case for case in CASES
    )


PROGRAM = """
import json, sys
for line in sys.stdin:
    case = json.loads(line)
    plain = case.get("options", case)
    if case.get("gamma", "inf") != "inf" or case.get("method", "CFG") != "CFG":
        print(json.dumps({"not run": "plain CFG"}))
    else:
        pairs = zip(case["v_c"], case["v_u"])
        print(json.dumps({"velocity": [[u + SCALE * (c - u) for c, u in zip(*p)] for p in pairs]}))
"""


@pytest.mark.parametrize(("scale", "verdict"), [("plain['scale']", "pass"), ("5", "fail")])
def test_a_program_answers_line_by_line(scale, verdict, tmp_path, capsys):
    (tmp_path / "program.py").write_text(PROGRAM.replace("SCALE", scale))
    command, out = f"{sys.executable} {tmp_path / 'program.py'}", tmp_path / "out.json"
    outcomes = [o for o in check_program(command, CASES) if o.verdict != "not run"]
    assert len(outcomes) == 3 and {o.verdict for o in outcomes} == {verdict}
    given = [
        "--command",
        command,
        "--vectors",
        str(reference.FILE),
        "--json",
        str(out),
        "--label",
        "mine 1.0",
    ]
    assert main(["conformance", "check", *given]) == (verdict == "fail")
    table = capsys.readouterr().out
    assert f"3 {verdict}" in table and ("inf * 0, or" in table) == (verdict == "fail")
    assert main(["conformance", "report", str(out)]) == 0
    assert "| mine 1.0 |" in capsys.readouterr().out


def test_a_function_or_program_that_cannot_be_asked_is_one_sentence(tmp_path, capsys):
    for given in (["no_colon"], [], ["a:b", "--command", "c"], ["--command", f"{sys.executable} -c pass"]):
        assert main(["conformance", "check", *given, "--vectors", str(reference.FILE)]) == 2
        assert capsys.readouterr().err.count("\n") == 1
