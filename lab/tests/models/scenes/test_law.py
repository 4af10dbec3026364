"""The law of the scenes is the one that is written down, and prompts change only what they say."""

import math

import pytest
import torch

from meancap_lab.models.scenes import ATTRIBUTES, draw, render
from meancap_lab.models.scenes.law import BOUNDS, _hsv_to_rgb, _masks

N = 20_000


@pytest.fixture(scope="module")
def scenes():
    return draw(N, torch.Generator().manual_seed(0))


def test_words_are_uniform_and_independent(scenes):
    codes = scenes.codes()
    for k, count in enumerate(ATTRIBUTES.values()):
        shares = codes[:, k].bincount(minlength=count) / N
        assert (shares - 1 / count).abs().max() < 5 * math.sqrt(1 / count / N)
    for i in range(6):
        for j in range(i):
            a, b = (codes[:, k].double() - codes[:, k].double().mean() for k in (i, j))
            assert abs((a * b).mean() / (a.std() * b.std())) < 5 / math.sqrt(N)


@pytest.mark.parametrize("name", ["saturation", "value", "radius", "background"])
def test_what_has_no_word_is_uniform(scenes, name):
    values = getattr(scenes, name).flatten().double()
    low, high = BOUNDS["brightness" if name == "background" else name]
    assert low <= values.min() and values.max() <= high
    # Kolmogorov-Smirnov: the largest distance of n uniform values exceeds 2 / sqrt(n) once in 1500.
    ranks = (torch.arange(len(values)) + 0.5) / len(values)
    assert ((values.sort().values - low) / (high - low) - ranks).abs().max() < 2 / math.sqrt(len(values))


def test_hues_stay_with_their_words(scenes):
    off = (scenes.hue - 60 * scenes.colour + 180) % 360 - 180
    assert off.abs().max() <= BOUNDS["hue"][1] + 1e-3


def test_objects_stay_inside_and_never_overlap(scenes):
    assert (scenes.centre - scenes.radius[..., None]).min() >= 0.499
    assert (scenes.centre + scenes.radius[..., None]).max() <= 31.501
    cover = _masks(scenes)
    # The softened tips of two triangles may meet in a pixel; they never claim more of it than there is.
    assert cover.sum(1).max() <= 1 + 1e-6 and (cover[:, 0] * cover[:, 1]).max() < 0.1


def test_the_relation_is_never_in_doubt(scenes):
    d = scenes.centre[:, 0] - scenes.centre[:, 1]
    along = torch.where(scenes.place < 2, d[:, 0], d[:, 1])
    across = torch.where(scenes.place < 2, d[:, 1], d[:, 0])
    assert (along.abs() >= 11).all() and (across.abs() <= BOUNDS["across"][1] - BOUNDS["across"][0]).all()
    assert torch.equal(along > 0, scenes.place % 2 == 1)  # right of and below: further along the axis


def test_a_prompt_fixes_what_it_says_and_nothing_else():
    wanted = torch.tensor([[0, -1, 2, 4, 1, 0]]).repeat(N, 1)
    codes = draw(wanted, torch.Generator().manual_seed(1)).codes()
    said = wanted[0] >= 0
    assert torch.equal(codes[:, said], wanted[:, said])
    shares = codes[:, 1].bincount(minlength=6) / N
    assert (shares - 1 / 6).abs().max() < 5 * math.sqrt(1 / 6 / N)


def test_coverage_is_the_area_of_the_shape(scenes):
    area = _masks(scenes).double().sum((2, 3))
    r = scenes.radius.double()
    exact = torch.stack([math.pi * r**2, 3.24 * r**2, 2 * r**2]).gather(0, scenes.shape[None])[0]
    off = area / exact - 1
    assert off.mean().abs() < 0.005 and off.abs().max() < 0.04  # the corners of a triangle are cut a little


def test_pictures_are_made_of_their_colours(scenes):
    pictures = render(scenes)
    assert pictures.min() >= 0 and pictures.max() <= 1
    column, row = (scenes.centre[:, 0, k].long() for k in (0, 1))
    at_centre = pictures[torch.arange(N), :, row, column]
    expected = _hsv_to_rgb(scenes.hue, scenes.saturation, scenes.value)[:, 0]
    assert (at_centre - expected).abs().max() < 1e-5
    assert (pictures[:, :, 0, 0] - scenes.background[:, None]).abs().max() < 1e-6


@pytest.mark.parametrize(
    "hue, expected", [(0, (1, 0, 0)), (60, (1, 1, 0)), (120, (0, 1, 0)), (240, (0, 0, 1))]
)
def test_hues_are_those_of_the_colour_circle(hue, expected):
    one = torch.ones(1)
    assert torch.allclose(_hsv_to_rgb(hue * one, one, one), torch.tensor([expected]).float(), atol=1e-6)
