"""`parse` reads the notation and nothing else."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meancap import CFG, Cap, Linear, apg, parse, pmc
from meancap.rules import ParseError, Rule

finite = st.floats(allow_nan=False, allow_infinity=False, width=64)


@given(finite, st.floats(1, 1e300), finite)
def test_every_number_survives(scale, gamma, anchor):
    rule = CFG(scale) | Cap(gamma, anchor=anchor)
    assert parse(str(rule)) == rule


@given(st.lists(st.lists(finite, min_size=2, max_size=2), min_size=1, max_size=4))
def test_nested_values_survive(values):
    rule = Cap(1.1, anchor=values)
    assert parse(str(rule)) == rule and hash(parse(str(rule))) == hash(rule)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("CFG(7)|Cap(1.1)", CFG(7) | Cap(1.1)),
        ("  CFG( scale = 7.0 )\n|\tCap(gamma=1.1, anchor=None)", CFG(7) | Cap(1.1)),
        ("pmc(7, 1.1)", pmc(7, 1.1)),
        ("apg(7, eta=.5, radius=None)", apg(7, eta=0.5, radius=None)),
        ("CFG(Linear(1, 7)) | Cap(inf)", CFG(Linear(1, 7)) | Cap(float("inf"))),
        ('CFG(+1e1) | Cap(1.1, anchor="first")', CFG(10) | Cap(1.1, anchor="first")),
    ],
)
def test_texts_a_person_would_type(text, rule):
    assert parse(text) == rule


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "a rule name is needed; known are"),
        ("CFD(7)", "unknown name 'CFD'; nearest are CFG"),
        ("CFG(7", "')' is needed"),
        ("CFG(7) Cap(1.1)", "go on with '|'"),
        ("CFG(7) |", "a rule name is needed"),
        ("CFG()", "scale"),
        ("CFG(7, 8)", "positional"),
        ("CFG(7) | Cap(1,1)", "Cap: takes 2 positional arguments but 3 were given; if a decimal"),
        ("CFG(7) | CapDisplacement(1,15)", "write 1.15; options have names"),
        ("pmc(7, 1,1)", "write 1.1; options have names"),
        ("CFG(strength=7)", "strength"),
        ("CFG(scale=7, scale=8)", "given twice"),
        ("Cap(0.5)", "gamma >= 1"),
        ("CFG(nan)", "finite"),
        ("StepInterval(0, nan)", "a whole number from 0 on"),
        ("tv_cfg(3, 1e18)", "a whole number of equal steps"),
        ("skimmed(4, flip=[1])", "True or False for flip"),
        ("Mimic(separate=0)", "True or False for separate"),
        ("fdg(nan)", "finite"),
        ("cfg_zero_star(0.6, form='nobody')", "cfg_zero_star needs 'published' or 'comfy' for form"),
        ("renorm(0.6, form='nobody')", "renorm needs 'z_image' or 'lumina2'"),
        ("Linear(1, 7)", "no rule by itself"),
        ("CFG(7) | Linear(1, 7)", "joins rules"),
        ("__import__('os')", "unknown name"),
        ("CFG(7); import os", "unexpected ';'"),
        ("CFG(" + "[" * 100 + "]" * 100 + ")", "deep"),
        ("Cap(1.1, anchor=[[1, 2], [3]])", "regular"),
        ("ZeroInit(inf)", "a whole number from 0 on"),
        ("tv_cfg(3, inf)", "a whole number of equal steps"),
        ("fbg([1, 0.5])", "increasing within [0, 1]"),
        ("Renorm(match='no')", "True or False for match"),
        ("Phases(2, CFG(2), CFG(3), together=None)", "True or False for together"),
        ("Rectify([nan], [1])", "finite"),
        ("Rectify([0, 0], [1, 1])", "increasing times"),
        ("CFG(inf)", "finite"),
        ("CFG(Linear(1, inf))", "finite"),
        ("CFG(Piecewise([0, 0], [1, 2]))", "increasing"),
        ("CFG(Steps([0, 1], [1]))", "Steps needs one value per time"),
        ("Interval(0.6, 0.2)", "Interval needs 0 <= lo <= hi <= 1; got lo=0.6, hi=0.2"),
        ("Clip(0)", "Clip needs 0 < radius; got radius=0.0"),
        ("Rescale(2)", "0 <= phi <= 1 (0 is off); got phi=2.0"),
        ("Rescale(0.5, space='noise')", "Rescale needs 'velocity' or 'mean' for space; got 'noise'"),
        ("Rotation(3, 4)", "0 <= limit <= pi"),
        ("Threshold(0.9, most=0.5)", "1 <= most"),
        ("apg(0.6, form='nobody')", "apg needs 'published' or 'diffusers' or 'comfy' for form; got 'nobody'"),
        ("cfgpp(0.6, form='nobody')", "CFGPP needs 'published' or 'adg' for form"),
        ("skimmed(0.6, form='nobody')", "Skim needs 'scaled' or 'linear' for form"),
        ("Beta(4, 0.5)", "1 <= a; got a=0.5"),
        ("Reuse(0)", "1 <= every"),
        ("DensityFeedback(0.5, most=1)", "0 < gain < most"),
        ("AwayFrom('a b', 1)", "AwayFrom needs the name of a prediction"),
        ("Frequencies([])", "finite numbers for scales"),
        ("Frequencies([1, 2], [1])", "one share per scale"),
        ("Phases(2, CFG(3), 4)", "Phases needs two rules"),
        ("fbg(10, pi=1)", "fbg needs 0 < pi < 1; got pi=1"),
        ("limited_interval(2, 1, 0.5)", "0 <= low < high (noise levels)"),
        ("tv_cfg(2, [0])", "two times or more"),
    ],
)
def test_errors_say_where_and_what_would_do(text, message):
    with pytest.raises(ParseError) as caught:
        parse(text)
    assert message in str(caught.value)


def test_random_texts_raise_nothing_but_our_error():
    rng = random.Random(7)
    words = ["CFG", "Cap", "apg", "pmc", "Linear", "Interval", "Clip", "Rescale", "anchor", "None", "inf"]
    marks = [*"()[],|=.'\"+-_ \n\t0123456789eE\\\0é∞{}@:;#", "1.1", "7", "1e999", "'first'", "nan", "True"]
    parsed = 0
    for i in range(15_000):
        if i % 3 == 0:
            text = "".join(
                chr(rng.choice((rng.randrange(128), rng.randrange(0x3000)))) for _ in range(rng.randrange(20))
            )
        elif i % 3 == 1:
            text = "".join(rng.choice(words + marks) for _ in range(rng.randrange(14)))
        else:
            good = rng.choice(
                ("CFG(7) | Cap(1.1, anchor=[1, 2])", "apg(7, eta=0.5)", "CFG(Linear(1, 7)) | Clip(2)")
            )
            at = rng.randrange(len(good))
            text = good[:at] + rng.choice(marks) + good[at + rng.randrange(3) :]
        try:
            assert isinstance(parse(text), Rule)
            parsed += 1
        except ParseError as error:
            assert str(error)
    assert parsed > 100  # the fuzz reaches past the tokenizer


def test_only_text_is_parsed():
    with pytest.raises(ParseError, match="given as text"):
        parse(7)
