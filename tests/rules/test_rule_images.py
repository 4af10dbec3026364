"""Parts that act on whole predictions, channels, pixels and elements, beside their formulas written out."""

import pytest
import torch
import torch.nn.functional as F
from rule_cases import SHAPE, velocities

from cases import random_prediction
from meancap import CFG, Prediction, Rescale, guide, guided_velocity
from meancap.rules import (
    EnergyMatch,
    Frequencies,
    FreSca,
    FromUnconditional,
    Mimic,
    Renorm,
    Threshold,
    automatic,
    catalogue,
    mahiro,
    skimmed,
    tonemap,
    zeresfdg,
)
from meancap.rules.frequency import collapse, pyramid


@pytest.mark.parametrize(
    ("per", "dims"), [("sample", (1, 2, 3)), ("channel", (2, 3)), ("token", (3,)), ("pixel", (1,))]
)
@pytest.mark.parametrize("match", [False, True])
def test_renorm_is_a_cap_or_a_match_of_each_group(per, dims, match):
    x, v_c, v_u = velocities(3)
    v_c[0] *= 3
    guided = v_u + 1.5 * (v_c - v_u)
    v, _ = guided_velocity(CFG(1.5) | Renorm(0.8, per, match=match, least=0.0), x, 0.4, v_c, v_u)
    wanted, found = (v.square().sum(dims, keepdim=True).sqrt() for v in (v_c, guided))
    ratio = 0.8 * wanted / found
    torch.testing.assert_close(v, guided * (ratio if match else ratio.clamp(max=1)))
    if not match:
        v, _ = guided_velocity(CFG(9) | Renorm(per=per, least=0.9), x, 0.4, v_c, v_u)
        guided = v_u + 9 * (v_c - v_u)
        assert (v.abs() >= 0.9 * guided.abs() - 1e-12).all()


def test_energy_is_that_of_the_conditional_prediction():
    p = random_prediction(3, 200)
    m, _ = guide(CFG(4) | EnergyMatch(), p)
    torch.testing.assert_close(m.norm(dim=1), p.m_c.norm(dim=1))
    m, _ = guide(CFG(4) | EnergyMatch(0.45, 0.55), p)
    guided = p.m_u + 4 * p.delta
    for i in range(3):
        energy = []
        for v in (p.m_c[i], guided[i]):
            q = v.square()
            low, high = torch.quantile(q, torch.tensor([0.45, 0.55], dtype=q.dtype))
            energy.append(q[(q >= low) & (q <= high)].sum())
        torch.testing.assert_close(m[i], guided[i] * (energy[0] / energy[1]).sqrt())


def test_threshold_clips_at_its_quantile():
    p = random_prediction(2, 3, 8, 8)
    m, _ = guide(CFG(4) | Threshold(0.9), p)
    guided = p.m_u + 4 * p.delta
    for i in range(2):
        s = torch.quantile(guided[i].abs().flatten(), 0.9)
        assert s > 1
        torch.testing.assert_close(m[i], guided[i].clamp(-s, s) / s)
    assert m.abs().max() <= 1
    inside = Prediction(p.x, p.t, 0.01 * p.m_c, 0.01 * p.m_u)
    torch.testing.assert_close(guide(CFG(2) | Threshold(), inside)[0], guide(CFG(2), inside)[0])


@pytest.mark.parametrize("measure", ["AD", "STD"])
@pytest.mark.parametrize("start", ["MEAN", "ZERO"])
def test_mimic_gives_the_spread_of_the_lower_scale(measure, start):
    x, v_c, v_u = velocities(4)
    rule = CFG(9) | Mimic(5, 0.9, measure, start, phi=0.8)
    v, _ = guided_velocity(rule, x, 0.4, v_c, v_u)
    guided, low = v_u + 9 * (v_c - v_u), v_u + 5 * (v_c - v_u)
    for i in range(SHAPE[0]):
        for k in range(SHAPE[1]):
            a, b = guided[i, k], low[i, k]
            centred, other = a - a.mean(), b - b.mean()
            if measure == "STD":
                found, wanted = centred.std(), other.std()
            else:
                found, wanted = torch.quantile(centred.abs().flatten(), 0.9), other.abs().max()
            limit = torch.maximum(found, wanted)
            if start == "ZERO":
                out = a * wanted / found
            elif measure == "STD":
                out = centred / found * wanted + a.mean()
            else:
                out = centred.clamp(-limit, limit) / limit * wanted + a.mean()
            torch.testing.assert_close(v[i, k], 0.8 * out + 0.2 * a)


def test_a_pyramid_collapses_to_its_image():
    for size in ((8, 8), (9, 13), (12, 20)):
        image = torch.randn(2, 3, *size, dtype=torch.float64)
        for levels in (1, 2, 3):
            torch.testing.assert_close(collapse(pyramid(image, levels), image.shape), image)
    with pytest.raises(ValueError, match="too small for 4 levels"):
        pyramid(torch.randn(1, 1, 8, 8), 4)


def test_equal_frequency_scales_are_cfg_and_tokens_are_refused():
    p = random_prediction(*SHAPE)
    torch.testing.assert_close(guide(Frequencies((4, 4, 4)), p)[0], guide(CFG(4), p)[0])
    with pytest.raises(ValueError, match="unpack tokens first"):
        guide(Frequencies(), random_prediction(2, 16, 12))


@pytest.mark.parametrize("entry", [e for e in catalogue() if e.axes > 3], ids=lambda e: e.name)
def test_a_rule_for_images_refuses_vectors_and_tokens(entry):
    for shape in ((2, 12), (2, 16, 12)):
        with pytest.raises(ValueError, match="needs images"):
            guide(entry.rule(), random_prediction(*shape))


def test_zeresfdg_smooths_over_both_sides_of_an_image():
    with pytest.raises(ValueError, match="height and width of 2 or more"):
        guide(zeresfdg(4), random_prediction(2, 3, 1, 8))


def test_fresca_scales_a_centred_square_of_frequencies():
    p = random_prediction(2, 3, 12, 15)
    m, _ = guide(FreSca(0.5, 2.0, cutoff=3) | FromUnconditional(4), p)
    plane = torch.fft.fftshift(torch.fft.fftn(p.delta, dim=(-2, -1)), dim=(-2, -1))
    mask = torch.full((12, 15), 2.0)
    mask[6 - 3 : 6 + 3, 7 - 3 : 7 + 3] = 0.5
    filtered = torch.fft.ifftn(torch.fft.ifftshift(plane * mask, dim=(-2, -1)), dim=(-2, -1)).real
    torch.testing.assert_close(m, p.m_u + 4 * filtered)


def skim_written_out(x, c, u, w, skim):
    """Element by element, as the node does it."""

    def sign(v):
        return (v > 0) - (v < 0)

    def skimmed_one(x, a, b, w):
        guided = b + w * (a - b)
        if sign(a - b) == sign(a) == sign(guided) == sign(guided - x):
            return a - (guided - (b + skim * (a - b))) / w
        return a

    u = skimmed_one(x, u, c, w)
    c = skimmed_one(x, c, u, w - 1)
    return u + w * (c - u)


def test_skimmed_cfg_element_by_element():
    p = random_prediction(4, 50)
    m, _ = guide(skimmed(9, skim=3), p)
    rows = zip(p.x.flatten().tolist(), p.m_c.flatten().tolist(), p.m_u.flatten().tolist(), strict=True)
    expected = torch.tensor([skim_written_out(*row, 9.0, 3.0) for row in rows], dtype=torch.float64)
    torch.testing.assert_close(m.flatten(), expected)
    assert not torch.allclose(m, guide(CFG(9), p)[0])


def linear_skim_written_out(x, c, u, w, skim):
    def sign(v):
        return (v > 0) - (v < 0)

    for a, b in ((0, 1), (1, 0)):
        pair = (c, u)
        guided = pair[b] + w * (pair[a] - pair[b])
        if sign(pair[a] - pair[b]) == sign(pair[a]) == sign(guided) == sign(guided - x):
            share = (skim - 1) / (w - 1)
            u = c * (1 - share) + u * share
    return u + w * (c - u)


def test_linear_skimming_element_by_element():
    p = random_prediction(4, 50)
    m, _ = guide(skimmed(9, skim=3, form="linear"), p)
    rows = zip(p.x.flatten().tolist(), p.m_c.flatten().tolist(), p.m_u.flatten().tolist(), strict=True)
    expected = torch.tensor([linear_skim_written_out(*row, 9.0, 3.0) for row in rows], dtype=torch.float64)
    torch.testing.assert_close(m.flatten(), expected)


def test_automatic_cfg_channel_by_channel():
    p = random_prediction(2, 3, 8, 8)
    m, _ = guide(automatic(6), p)
    guided = p.m_u + 8 * p.delta
    for i in range(2):
        for k in range(3):
            rows = guided[i, k]
            top, bottom = rows.topk(2).values.mean(), rows.topk(2, largest=False).values.abs().mean()
            scale = 8 * 0.6 / ((top + bottom) / 2)
            torch.testing.assert_close(m[i, k], p.m_u[i, k] + scale * p.delta[i, k])


def test_mahiro_of_one_sample_is_the_node():
    p = random_prediction(1, 4, 8, 8)
    guided, leap = p.m_u + 5 * p.delta, 5 * p.m_c

    def root(v):
        return v.abs().sqrt() * v.sign()

    q = 2 * (1 + F.cosine_similarity(root(5 * p.m_u), root((leap + guided) / 2)).mean())
    torch.testing.assert_close(guide(mahiro(5), p)[0], (q * guided + (4 - q) * leap) / 4)


def test_the_tone_map_is_reinhards_curve_per_pixel():
    p = random_prediction(2, 4, 8, 8)
    m, _ = guide(tonemap(5), p)
    length = p.delta.norm(dim=1, keepdim=True)
    top = length.mean(dim=(1, 2, 3), keepdim=True) + 5 * length.std(dim=(1, 2, 3), keepdim=True)
    torch.testing.assert_close(m, p.m_u + 5 * p.delta / length * top * (length / top) / (1 + length / top))


def test_a_sample_of_one_value_has_no_spread_to_match():
    x, v_c, v_u = velocities(4, (3, 1))
    assert torch.equal(
        guided_velocity(CFG(3) | Rescale(0.7), x, 0.4, v_c, v_u)[0],
        guided_velocity(CFG(3) | Rescale(0), x, 0.4, v_c, v_u)[0],
    )


def test_automatic_takes_whole_rows_of_an_image_that_is_tall():
    x, v_c, v_u = velocities(5, (2, 4, 64, 8))
    p = Prediction.from_velocity(x, 0.4, v_c, v_u)
    m, _ = guide(automatic(4), p)
    guided = p.m_c + 7 * p.delta
    span = (guided.mean((2, 3), keepdim=True) + guided.abs().mean((2, 3), keepdim=True)) / 2
    torch.testing.assert_close(m, p.m_c + (3.2 / span - 1) * p.delta)
