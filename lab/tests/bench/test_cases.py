"""The problems are frozen, one for each stratum, in an order whose beginning is a fair subset."""

import hashlib
from itertools import product

import pytest
import torch

from meancap_lab.bench.cases import DIMENSIONS, KINDS, OFFSETS, OVERLAPS, read_cases, truth, widths
from tools.bench_cases import FOLDER, SETS, csv_of, draw_cases

FROZEN = {"problems": "6be2f4b25becccb2", "tuning": "fdbcb72242b66840", "unseen": "73869fb478af5540"}


@pytest.mark.parametrize("which", SETS)
def test_a_file_is_what_its_seeds_draw_and_never_changes(which):
    text = (FOLDER / f"{which}.csv").read_text()
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == FROZEN[which]
    assert csv_of(draw_cases(which)) == text and read_cases(which) == draw_cases(which)


@pytest.mark.parametrize("which", ["problems", "unseen"])
def test_every_stratum_has_one_problem(which):
    strata = [(one.kind, one.dimension, one.overlap, one.offset) for one in read_cases(which)]
    assert len(strata) >= 240 and sorted(strata) == sorted(product(KINDS, DIMENSIONS, OVERLAPS, OFFSETS))


@pytest.mark.parametrize("index", [0, 8, 31, 60])
def test_the_data_are_as_the_stratum_says(index):
    case = read_cases()[index]
    weights, means, variances = widths(case)
    law = truth(case).mixture
    assert len(means) == case.components and torch.allclose(law.mean, weights @ means)
    away = torch.pdist(means).mean() / variances.mean(1).sqrt().mean()
    assert abs(float(away) / (4 * OVERLAPS[case.overlap]) - 1) < 0.25
    radius = (weights @ ((means - law.mean).square() + variances)).sum().sqrt()
    assert abs(float(law.mean.norm() / radius) - case.offset) < 1e-9
    across = (variances[0].max() / variances[0].min()).sqrt()
    assert abs(float(across) - case.anisotropy) < 1e-3
