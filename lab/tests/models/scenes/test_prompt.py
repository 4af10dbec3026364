"""Sentences are read, written and refused as the grammar says."""

import itertools

import pytest
import torch

from meancap_lab.models.scenes import ATTRIBUTES, Prompt, Thing, codes, parse_prompt, prompt_of


def test_reading_what_was_written_gives_the_prompt_back():
    ranges = [range(-1, count) for count in ATTRIBUTES.values()]
    for code in itertools.islice(itertools.product(*ranges), 0, None, 7):
        prompt = prompt_of(code)
        read = parse_prompt(str(prompt))
        # "Something" beside a thing that is described says no more than the thing alone.
        if prompt.place is None and prompt.second == Thing():
            assert read.first == prompt.first
        assert read.codes() == tuple(code), str(prompt)


@pytest.mark.parametrize(
    "text, same",
    [
        ("A red circle to the left of the blue box.", "a red disc left of a blue square"),
        ("red disc above something on a dark background", "a red disc above something, dark background"),
        ("a disc over a purple object", "a disc above a magenta object"),
        ("an object under a triangle", "an object below a triangle"),
        ("", ""),
        ("light background", "with a light background"),
    ],
)
def test_two_ways_of_saying_one_thing(text, same):
    assert parse_prompt(text) == parse_prompt(same)


def test_what_is_not_said_is_open():
    assert parse_prompt("a disc") == Prompt(Thing("disc"))
    assert codes(["", "a red object and a disc"]).tolist() == [[-1] * 6, [-1, 0, 0, -1, -1, -1]]


@pytest.mark.parametrize(
    "text, answer",
    [
        ("a red dog left of a disc", "unknown word 'dog'"),
        ("a disc left a square", 'followed by "of"'),
        ("left of a disc", "a thing on each side"),
        ("a disc above a square below a disc", "2 relations"),
        ("a disc, blue background", "dark or light"),
        ("dark background, a disc", "comes last"),
        ("a red", "must be a single object"),
        ("a disc square", "must be a single object"),
        ("a red disc, a blue square, a disc", "must be a single object"),
        ("x" * 500, r"unknown word 'x{97}\.\.\.'"),
    ],
)
def test_a_bad_sentence_is_answered_by_a_sentence(text, answer):
    with pytest.raises(ValueError, match=answer) as error:
        parse_prompt(text)
    assert "\n" not in str(error.value)


def test_codes_of_no_prompts_are_an_empty_table():
    assert codes([]).shape == (0, 6) and codes([]).dtype == torch.long


@pytest.mark.parametrize("prompts, answer", [("a red disc", r"write \['a red disc'\]"), ([None], "got None")])
def test_what_is_no_list_of_sentences_is_refused(prompts, answer):
    with pytest.raises(TypeError, match=answer):
        codes(prompts)
