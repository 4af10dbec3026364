"""The three scenes are those of the paper's appendix."""

import math

import pytest
import torch

from meancap.lab.condition import PAIR, SCENES, SINGLE, STD, TRIPLE, circle

ROOT = math.sqrt(0.5)


def test_component_0_is_on_top_and_the_others_follow_clockwise():
    expected = [(0, 1), (ROOT, ROOT), (1, 0), (ROOT, -ROOT), (0, -1), (-ROOT, -ROOT), (-1, 0), (-ROOT, ROOT)]
    assert torch.allclose(circle(), torch.tensor(expected, dtype=torch.float64), atol=1e-15)


@pytest.mark.parametrize("scene", SCENES, ids=str)
def test_every_component_has_standard_deviation_003_and_the_weights_sum_to_one(scene):
    mixture = scene.mixture()
    assert mixture.std == pytest.approx(0.03) and STD == 0.03
    assert sum(scene.weights) == pytest.approx(1) and len(scene.weights) == 8


def test_the_pair_is_imbalanced_68_to_32_and_the_others_are_equal():
    assert PAIR.weights == (0.17, 0.08, 0.125, 0.125, 0.125, 0.125, 0.125, 0.125)
    assert PAIR.condition().conditional.weights.tolist() == pytest.approx([0.68, 0.32])
    assert SINGLE.weights == TRIPLE.weights == (0.125,) * 8
    assert TRIPLE.condition().conditional.weights.tolist() == pytest.approx([1 / 3] * 3)


def test_the_pair_is_off_centre_and_the_others_are_not():
    assert float(PAIR.mixture().mean.norm()) == pytest.approx(0.09 * math.sin(math.pi / 8))
    assert float(SINGLE.mixture().mean.norm()) < 1e-15


def test_a_scene_is_written_as_its_members():
    assert [str(scene) for scene in SCENES] == ["{0}", "{0,1}", "{0,1,2}"]
