"""Rules that look at a third prediction: published formulas written out, and what a network is asked for."""

import pytest
import torch
from rule_cases import Network

from cases import random_prediction
from meancap import CFG, Cap, Prediction, field, guide, parse, sample, trajectory, uniform
from meancap.rules import (
    AwayFrom,
    Gain,
    Interval,
    Phases,
    Removal,
    cap_fraction,
    composable,
    contrastive,
    crg,
    instruct_pix2pix,
    perp_neg,
    sld,
)
from meancap.sampling import beside

TIMES = (0.2, 0.45, 0.7, 0.9)
SHAPE = (3, 2, 4, 4)


def three(t, seed=0, dtype=torch.float64):
    g = torch.Generator().manual_seed(seed)
    x, c, u, n = (torch.randn(*SHAPE, generator=g, dtype=dtype) for _ in range(4))
    return Prediction.from_velocity(x, t, c, u).beside(negative=u + 0.5 * (c - u) + 0.6 * n)


def noises(p):
    """eps_c, eps_u, eps_n of each prediction."""
    return [(p.x - p.t * m) / (1 - p.t) for m in (p.m_c, p.m_u, p.other("negative"))]


def mean(p, eps):
    return (p.x - (1 - p.t) * eps) / p.t


def dot(a, b):
    return (a * b).flatten(1).sum(1).reshape(-1, 1, 1, 1)


def test_perp_neg_is_its_formula_in_noise_and_in_means():
    p = three(0.45)
    for c, u, n, back in [
        (p.m_c, p.m_u, p.other("negative"), lambda m: m),
        (*noises(p), lambda eps: mean(p, eps)),
    ]:
        d, way = c - u, n - u
        perpendicular = way - dot(way, d) / dot(d, d) * d
        expected = back(u + 5 * (d - 1.5 * perpendicular))
        torch.testing.assert_close(guide(perp_neg(5, weight=1.5), p)[0], expected)


@pytest.mark.parametrize("positive", [True, False])
def test_contrastive_is_its_formula(positive):
    p, tau = three(0.45), 0.03
    c, u, n = noises(p)
    near, far = (torch.exp(-tau * dot(v - u, v - u)) for v in (n, c))
    towards = 2 / (1 + far) if positive else 1.0
    expected = u + 5 * towards * (c - u) - 5 * 2 * near / (1 + near) * (n - u)
    found, _ = guide(contrastive(5, tau=tau, positive=positive), p)
    torch.testing.assert_close(found, mean(p, expected))


def test_sld_is_its_formula_over_steps():
    settings = {"sharpness": 0.4, "threshold": 0.3, "momentum": 0.3, "decay": 0.4, "warmup": 1}
    rule, state, nu = sld(7.5, **settings), None, 0.0
    for i, t in enumerate(TIMES):
        p = three(t, seed=i)
        c, u, n = noises(p)
        mu = torch.where(c - n >= 0.3, 0.0, ((c - n).abs() * 0.4).clamp(max=1.0))
        gamma = mu * (n - u) + 0.3 * nu
        nu = 0.4 * nu + 0.6 * gamma
        expected = u + 7.5 * (c - u - (gamma if i >= 1 else 0))
        m, state = guide(rule, p, state)
        torch.testing.assert_close(m, mean(p, expected))


def alpha_bar(t):
    return t**2 / (t**2 + (1 - t) ** 2)


def test_crg_is_its_formula_over_steps():
    rule, state, total, last = crg(1.0, threshold=20.0, strength=1.5, weight=2.0), None, 0.0, None
    acted = []
    for i, t in enumerate(TIMES):
        p = three(t, seed=i)
        c, u, n = noises(p)
        difference = dot(c - u, c - u) - dot(c - n, c - n)
        if last is not None:
            alpha = alpha_bar(last[0]) / alpha_bar(t)
            total = total + (1 - alpha) / (2 * alpha * (1 - alpha_bar(last[0]))) * last[1]
        evidence = 2.0 / 2 * difference + total
        omega = ((evidence - 20.0) / (2.0 * dot(n - u, n - u))).clamp(min=0)
        m, state = guide(rule, p, state)
        torch.testing.assert_close(m, mean(p, c - 1.5 * omega * (n - u)))
        acted += (omega > 0).flatten().tolist()
        last = t, difference
    assert any(acted) and not all(acted)


def test_crg_at_strength_one_brings_the_evidence_to_its_threshold():
    p = three(0.45)
    m, _ = guide(CFG(1.0) | Removal(threshold=-3.0, strength=1.0), p)
    _, u, n = noises(p)
    eps = (p.x - p.t * m) / (1 - p.t)
    evidence = (dot(eps - u, eps - u) - dot(eps - n, eps - n)) / 2
    torch.testing.assert_close(evidence, torch.full_like(evidence, -3.0))


def test_away_from_a_weak_model_is_perturbed_attention_guidance():
    """SD3's PAG pipeline: u + s (c - u) + s_p (c - p), in the network's own outputs."""
    p = random_prediction(*SHAPE)
    weak = torch.randn(*SHAPE, dtype=torch.float64)
    expected = p.out_u + 5 * (p.out_c - p.out_u) + 3 * (p.out_c - weak)
    found, _ = guide(CFG(5) | AwayFrom("weak", 3), p.beside(weak=weak))
    torch.testing.assert_close(found, p.x + (1 - p.t) * expected)
    alone, _ = guide(Gain(0) | AwayFrom("weak", 1.1), p.beside(weak=weak))
    against, _ = guide(CFG(2.1), Prediction.from_velocity(p.x, p.t, p.out_c, weak))
    torch.testing.assert_close(alone, against)  # autoguidance


def test_two_conditions_are_the_combination_of_the_pipeline():
    p = random_prediction(*SHAPE)
    image = torch.randn(*SHAPE, dtype=torch.float64)
    expected = p.out_u + 7.5 * (p.out_c - image) + 1.5 * (image - p.out_u)
    found, _ = guide(instruct_pix2pix(7.5, image=1.5), p.beside(image=image))
    torch.testing.assert_close(found, p.x + (1 - p.t) * expected)
    capped, _ = guide(instruct_pix2pix(7.5) | Cap(1.1), p.beside(image=image))
    way = found - p.m_c
    torch.testing.assert_close(capped, p.m_c + cap_fraction(p.m_c, way, 1.1) * way)  # over the sum


OTHERS = ("second", "negative", "weak", "perturbed", "modality")


def many(t, seed=3):
    """A prediction with five further outputs, and all outputs by name."""
    g = torch.Generator().manual_seed(seed)
    x, c, u, *others = (torch.randn(*SHAPE, generator=g, dtype=torch.float64) for _ in range(3 + len(OTHERS)))
    named = dict(zip(OTHERS, others, strict=True))
    return Prediction.from_velocity(x, t, c, u).beside(**named), {"c": c, "u": u, **named}


COMPOSITIONS = {  # at t = 0.4 and at t = 0.9: the published sums of the outputs
    "composable(3)": lambda c, u, second, **_: u + 3 * (c - u) + 3 * (second - u),
    "composable(3, others=['second', 'negative'], weights=[2, -3])": (
        lambda c, u, second, negative, **_: u + 3 * (c - negative) + 2 * (second - u)  # AND, NOT
    ),
    "signed_negative(3, weight=2)": lambda c, u, negative, **_: u + 3 * (c - u) - 2 * (negative - u),
    "windowed_negative(3)": (
        lambda c, negative, **_: negative + 3 * (c - negative),
        lambda c, u, **_: u + 3 * (c - u),
    ),
    "sgg(3)": (lambda c, u, **_: c + 2 * (c - u), lambda c, weak, **_: c + 2 * (c - weak)),
    "mixed_autoguidance(3, share=0.25)": lambda c, u, weak, **_: 3 * c - 2 * (0.25 * weak + 0.75 * u),
    "ltx2(3, perturbed=1.5, modality=4)": (
        lambda c, u, perturbed, modality, **_: c + 2 * (c - u) + 1.5 * (c - perturbed) + 3 * (c - modality)
    ),
}


@pytest.mark.parametrize("text", COMPOSITIONS)
def test_a_composition_is_its_sum_and_a_cap_bounds_the_sum(text):
    rule, formulas = parse(text), COMPOSITIONS[text]
    for i, t in enumerate((0.4, 0.9)):
        p, outputs = many(t)
        expected = (formulas[i] if isinstance(formulas, tuple) else formulas)(**outputs)
        found, _ = guide(rule, p)
        torch.testing.assert_close(found, p.x + (1 - t) * expected)
        capped, _ = guide(rule | Cap(1.1), p)
        way = found - p.m_c
        torch.testing.assert_close(capped, p.m_c + cap_fraction(p.m_c, way, 1.1) * way)
        assert (dot(capped, capped).sqrt() <= 1.1 * (1 + 1e-15) * dot(p.m_c, p.m_c).sqrt()).all()


ONE_CONDITION = (
    "composable(3, others=[])", "signed_negative(3, weight=0)", "windowed_negative(3, start=0.9, end=1)",
    "sgg(3, tau=0)", "mixed_autoguidance(3, share=0)", "ltx2(3, perturbed=0, modality=1)",
)  # fmt: skip


@pytest.mark.parametrize("text", ONE_CONDITION)
def test_a_composition_of_one_condition_is_cfg(text):
    p, _ = many(0.4)
    torch.testing.assert_close(guide(parse(text), p)[0], guide(CFG(3), p)[0])


def test_each_sample_has_its_own_window():
    times = torch.tensor([0.1, 0.3, 0.8], dtype=torch.float64)
    x, c, u, n = (torch.randn(*SHAPE, dtype=torch.float64) for _ in range(4))
    both = Prediction.from_velocity(x, times, c, u).beside(negative=n)
    found, _ = guide(parse("windowed_negative(3)"), both)
    for i, reference in enumerate((u, n, u)):
        one = Prediction.from_velocity(x[i : i + 1], times[i].item(), c[i : i + 1], reference[i : i + 1])
        torch.testing.assert_close(found[i : i + 1], guide(CFG(3), one)[0])


def test_a_condition_without_a_weight_is_an_error():
    with pytest.raises(ValueError, match=r"one weight for each of \['second'\]; got \[1, 2\]"):
        composable(3, weights=[1, 2])
    with pytest.raises(ValueError, match="Toward needs the name of a prediction"):
        parse("composable(3, others=['a b'])")


def test_a_rule_says_what_it_looks_at():
    assert CFG(3).needs == (CFG(3) | Cap(1.1)).needs == ()
    assert (perp_neg(3) | Cap(1.1)).needs == ("negative",)
    both = CFG(3) | AwayFrom("weak", 2) | AwayFrom("negative", 1) | AwayFrom("weak", 1)
    assert both.needs == ("weak", "negative")
    assert Phases(2, CFG(1), perp_neg(3)).needs == ("negative",)
    assert parse(str(both)) == both and parse(str(both)).needs == both.needs
    assert not (perp_neg(4) | Interval(0.3, 0.5)).idle(0.4) and (perp_neg(4) | Interval(0.3, 0.5)).idle(0.6)


def test_a_prediction_that_is_missing_is_one_sentence_with_the_next_move():
    p = random_prediction(*SHAPE)
    with pytest.raises(ValueError, match=r"PerpNeg.*'negative'.*p\.beside\(negative=output\)"):
        guide(perp_neg(3), p)
    with pytest.raises(ValueError, match="'negative'"):
        guide(perp_neg(3), p.beside(weak=p.out_u))
    with pytest.raises(ValueError, match="the prediction 'negative' has shape"):
        p.beside(negative=p.out_u[:, :1])
    with pytest.raises(KeyError, match="beside"):
        p.other("negative")
    assert p.beside(weak=p.out_u).beside(negative=p.out_c).until(0.6).extra.keys() == {"weak", "negative"}


def test_further_means_come_by_the_same_edge_in_every_parametrisation():
    """m = a x + k out: the same mean and the same way from m_u, whatever the network states."""
    x, m_c, m_u, m_n = (torch.randn(*SHAPE, dtype=torch.float64) for _ in range(4))
    t, alpha, sigma = 0.3, 0.8, 0.5
    y = alpha * m_u + sigma * x
    eps = [(y - alpha * m) / sigma for m in (m_c, m_u, m_n)]
    for p in (
        Prediction.from_mean(x, t, m_c, m_u).beside(negative=m_n),
        Prediction.from_velocity(x, t, *((m - x) / (1 - t) for m in (m_c, m_u))).beside(
            negative=(m_n - x) / (1 - t)
        ),
        Prediction.from_noise(y, *eps[:2], alpha=alpha, sigma=sigma).beside(negative=eps[2]),
    ):
        torch.testing.assert_close(p.other("negative"), m_n)
        torch.testing.assert_close(p.lead("negative"), m_n - m_u)


def test_a_predictor_that_no_rule_looks_at_is_never_called():
    x, times = torch.randn(3, 5, dtype=torch.float64), uniform(6)
    main, negative, weak = Network(0.0), Network(1.0), Network(0.3)
    predict = beside(main, negative=negative, weak=weak)
    plain = sample(predict, CFG(3) | Cap(1.1), x, times)
    assert torch.equal(plain, sample(main, CFG(3) | Cap(1.1), x, times))
    assert (main.both, negative.both, weak.both) == (12, 0, 0)
    sample(predict, perp_neg(3), x, times)
    sample(predict, perp_neg(3) | Interval(0.2, 0.6), x, times)
    assert (negative.both, weak.both) == (8, 0)  # two steps lie in the interval
    assert (main.both, main.half) == (20, 4)  # and the others need the conditional half alone
    for one in trajectory(predict, CFG(3) | AwayFrom("weak", 2), x, times):
        assert one.prediction.extra.keys() == {"weak"}
    field(predict, CFG(3) | AwayFrom("weak", 2))(0.3, x)
    assert (negative.both, weak.both) == (8, 7)
    with pytest.raises(ValueError, match="'other'"):
        sample(predict, CFG(3) | AwayFrom("other", 2), x, times)


def test_predictions_beside_are_those_of_the_other_predictor():
    x = torch.randn(4, 3, dtype=torch.float64)
    main, other = Network(0.0), Network(1.0)
    p = beside(main, negative=other).including(("negative",))(x, 0.4)
    torch.testing.assert_close(p.other("negative"), other(x, 0.4).m_c)
    torch.testing.assert_close(p.m_c, main(x, 0.4).m_c)
