"""Rules that run together end where each ends alone, and every procedure runs."""

import math

import pytest
import torch

from meancap import parse, sample, uniform
from meancap_lab.bench.cases import read_cases, starts
from meancap_lab.bench.families import families
from meancap_lab.bench.predictors import examples, predictor
from meancap_lab.bench.procedures import Subject, learn_rule, sample_together
from meancap_lab.bench.trials import Bench
from meancap_lab.runs.calibrate import learn_scale

LEAK = next(one for one in read_cases() if one.kind == "leak" and one.dimension == 4)


@pytest.mark.parametrize(
    "texts",
    [
        ["CFG(2)", "CFG(5)"],
        ["CFG(2) | Cap(1.1)", "CFG(7) | Cap(1.3)"],
        ["apg(3, radius=1)", "apg(5, radius=2)"],
    ],
    ids=["one rule for all", "a cap with its own bound", "rules apart"],
)
def test_rules_that_run_together_run_as_alone(texts):
    rules, x = [parse(text) for text in texts], starts(4, "tune")[:64]
    both = sample_together(predictor(LEAK), rules, x, uniform(5))
    for i, rule in enumerate(rules):
        torch.testing.assert_close(
            both[i], sample(predictor(LEAK), rule, x, uniform(5)), rtol=1e-9, atol=1e-9
        )


@pytest.mark.parametrize("count", [64, 512])
def test_the_benchmark_learns_by_the_function_that_users_call(count):
    subject, data = Subject(LEAK), examples(LEAK, count).float()
    assert learn_rule(subject, count) == learn_scale([(subject.predict, data)])


def test_every_family_runs_on_a_problem():
    bench = Bench(LEAK, 4)
    for family in families():
        setting = family.setting((0.3,) * len(family.knobs))
        score = bench.run(family, [setting], "tune")[0]
        assert all(math.isfinite(v) for v in score), family.name
