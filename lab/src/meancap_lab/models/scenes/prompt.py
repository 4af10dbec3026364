"""The prompts of the scenes: sentences, their grammar and their codes.

    prompt      scene, background | scene | background | nothing at all
    scene       thing | thing relation thing | thing and thing
    thing       [a] [colour] shape | [a] [colour] object | something
    relation    [to the] left of | [to the] right of | above | over | below | under
    background  [on | with] [a] dark background | light background

Attributes that a sentence does not name are left open. "A red disc left of a blue square" and "a blue square
right of a red disc" are the same prompt to the model.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .law import BACKGROUNDS, COLOURS, PLACES, SHAPES

_OPEN = ("object", "shape", "thing")
_ARTICLES = ("a", "an", "the", "one")
_WORDS = {"above": "above", "over": "above", "below": "below", "under": "below", "beneath": "below"}
_LIKE = {"circle": "disc", "disk": "disc", "box": "square", "purple": "magenta", "turquoise": "cyan"}
_EXAMPLE = 'write for example "a red disc left of a blue square, dark background"'


@dataclass(frozen=True)
class Thing:
    """An object as far as it is described."""

    shape: str | None = None
    colour: str | None = None

    def __str__(self) -> str:
        if self == Thing():
            return "something"
        return " ".join(["a", *([self.colour] if self.colour else []), self.shape or "object"])


@dataclass(frozen=True)
class Prompt:
    """What a sentence fixes. `place` is where the first thing is, seen from the second."""

    first: Thing = Thing()
    second: Thing = Thing()
    place: str | None = None
    background: str | None = None

    def __str__(self) -> str:
        scene = ""
        if self.place:
            of = " of" if self.place in ("left", "right") else ""
            scene = f"{self.first} {self.place}{of} {self.second}"
        elif self.second != Thing():
            scene = f"{self.first} and {self.second}"
        elif self.first != Thing():
            scene = str(self.first)
        ground = f"{self.background} background" if self.background else ""
        return ", ".join(part for part in (scene, ground) if part)

    def codes(self) -> tuple[int, ...]:
        """Six numbers in the order of ATTRIBUTES; -1 if the sentence leaves it open."""
        return (
            _index(SHAPES, self.first.shape), _index(COLOURS, self.first.colour),
            _index(SHAPES, self.second.shape), _index(COLOURS, self.second.colour),
            _index(PLACES, self.place), _index(BACKGROUNDS, self.background),
        )  # fmt: skip


def prompt_of(code: Sequence[int]) -> Prompt:
    """The prompt with these six codes."""
    a, b, c, d, place, background = code
    return Prompt(
        Thing(_word(SHAPES, a), _word(COLOURS, b)), Thing(_word(SHAPES, c), _word(COLOURS, d)),
        _word(PLACES, place), _word(BACKGROUNDS, background),
    )  # fmt: skip


def codes(prompts: Sequence[str | Prompt]) -> Tensor:
    """(n, 6) codes of sentences or prompts."""
    if isinstance(prompts, str):
        raise TypeError(f"a list of sentences is needed, one for each sample; write [{_shown(prompts)}]")
    for p in prompts:
        if not isinstance(p, (str, Prompt)):
            raise TypeError(f'a prompt is a sentence, and "" leaves everything open; got {p!r}')
    rows = [(parse_prompt(p) if isinstance(p, str) else p).codes() for p in prompts]
    return torch.tensor(rows, dtype=torch.long).reshape(-1, 6)


def parse_prompt(text: str) -> Prompt:
    """Reads a sentence; raises one sentence that explains what was not understood."""
    words = [_LIKE.get(w, w) for w in re.findall(r"[^\s,.;]+", text.lower())]
    scene, background = _split_background(words, text)
    at, length, place = _relation(scene, text)
    if at is None:
        return Prompt(_thing(scene, text) if scene else Thing(), background=background)
    first, second = scene[:at], scene[at + length :]
    if not first or not second:
        raise ValueError(f"the relation in {_shown(text)} needs a thing on each side; {_EXAMPLE}")
    return Prompt(_thing(first, text), _thing(second, text), place, background)


def _split_background(words: list[str], text: str) -> tuple[list[str], str | None]:
    if "background" not in words:
        return words, None
    at = words.index("background")
    kind = words[at - 1] if at else ""
    if kind not in BACKGROUNDS:
        raise ValueError(f"a background is dark or light; got {kind or 'no word for it'!r} in {_shown(text)}")
    if words[at + 1 :]:
        raise ValueError(
            f"the background comes last; got {' '.join(words[at + 1 :])!r} after it in {_shown(text)}"
        )
    rest = words[: at - 1]
    while rest and rest[-1] in ("a", "the", "on", "with", "and", "before"):
        rest = rest[:-1]
    return rest, kind


def _relation(words: list[str], text: str) -> tuple[int | None, int, str | None]:
    """Where the relation begins, how many words it takes, and its name; "and" relates without a place."""
    hits: list[tuple[int, int, str | None]] = []
    for i, word in enumerate(words):
        if word in _WORDS:
            hits.append((i, 1, _WORDS[word]))
        elif word in ("left", "right"):
            if words[i + 1 : i + 2] != ["of"]:
                raise ValueError(f'"{word}" is followed by "of"; {_EXAMPLE}; got {_shown(text)}')
            begin = i - 2 if words[max(0, i - 2) : i] == ["to", "the"] else i
            hits.append((begin, i + 2 - begin, word))
        elif word == "and":
            hits.append((i, 1, None))
    if len(hits) > 1:
        raise ValueError(
            f"a scene has two objects and one relation; got {len(hits)} relations in {_shown(text)}"
        )
    return hits[0] if hits else (None, 0, None)


def _thing(words: list[str], text: str) -> Thing:
    if words == ["something"]:
        return Thing()
    rest = words[1:] if words[0] in _ARTICLES else words
    colour = rest[0] if rest and rest[0] in COLOURS else None
    rest = rest[1:] if colour else rest
    if len(rest) == 1 and rest[0] in SHAPES:
        return Thing(rest[0], colour)
    if len(rest) == 1 and rest[0] in _OPEN:
        return Thing(None, colour)
    bad = next((w for w in rest if w not in (*_ARTICLES, *SHAPES, *COLOURS, *_OPEN)), None)
    if bad is not None:
        raise ValueError(
            f"unknown word {_shown(bad)}; shapes are {', '.join(SHAPES)} (or object), "
            f"colours {', '.join(COLOURS)}; got {_shown(text)}"
        )
    raise ValueError(f"{_shown(' '.join(words))} must be a single object like 'a red disc'; {_EXAMPLE}")


def _shown(text: str) -> str:
    """A sentence in quotes, its beginning if it is long."""
    return repr(text if len(text) <= 100 else f"{text[:97]}...")


def _index(words: tuple[str, ...], word: str | None) -> int:
    return -1 if word is None else words.index(word)


def _word(words: tuple[str, ...], index: int) -> str | None:
    return None if index < 0 else words[index]
