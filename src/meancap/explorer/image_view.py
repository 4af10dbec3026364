"""The image view's questions: matched pictures of a shipped model under up to four rules.

    images/about   classes, limits and the catalogue: what the page offers
    images/check   {"text", "scale", "gamma"} -> {"rule"} in full, or the {"error"} that says what is wrong
    images/prompt  {"prompt"} -> {"reads"}: the sentence as the scenes understand it, or the {"error"}
    images/run     the pictures of every rule and the meter of each; a job, which shows unfinished pictures.
                   With "last", finished pictures alone, without those of the steps before

model   fashion, asked for classes; or scenes, asked for a sentence and perhaps a negative one
image   what is asked for and a seed; image k has class k mod (number of classes), as in `meancap generate`
rule    a text, in which λ and Γ stand for the view's scale and gamma
work    images × rules × evaluations, bounded; pictures that were made before cost nothing
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from ..models.data import FASHION
from ..prediction import Prediction
from ..rules import Rule, catalogue, guide
from .comparison import LARGEST_GAMMA, LARGEST_SCALE, LONGEST_RULE, MOST_RULES, RULE_ERRORS, read_rule
from .image_answers import Asked, answer, pixel_text
from .jobs import Route, Work
from .requests import Request, choice, integer, items, number, only, text

if TYPE_CHECKING:
    from .painter import Painter, Picture
    from .subjects import Want

IMAGES, STEPS, WORK = 64, 100, 6_400  # the last: half a minute on one core
SHAPES = {"fashion": (1, 28, 28), "scenes": (3, 32, 32)}  # of the pictures of each model
LONGEST_PROMPT = 200
FIELDS = ("model", "classes", "prompt", "negative", "seeds", "steps", "scale", "gamma", "rules", "last")
_SPAN = re.compile(r"\s*(\d{1,10})\s*(?:(?:-|–|\.\.)\s*(\d{1,10})\s*)?")
_SEEDS = "seeds are whole numbers below 4,294,967,296 and ranges of them, such as 0-7 or 3, 14, 20-25"


def about(request: Request, work: Work) -> dict[str, Any]:
    """What the view needs before anything is made."""
    only(request, ())
    return {
        "classes": list(FASHION),
        "limits": {
            "images": IMAGES,
            "rules": MOST_RULES,
            "steps": STEPS,
            "work": WORK,
            "scale": LARGEST_SCALE,
            "gamma": LARGEST_GAMMA,
        },
        "rules": [
            {"name": e.name, "title": e.title, "text": e.call.replace("{scale}", "λ")}
            for e in catalogue()
            if e.kind == "rule" and not e.needs
        ],
    }


def check(request: Request, work: Work) -> dict[str, Any]:
    """Whether one text is a rule for pictures; an unfinished text is not an error of the request."""
    only(request, ("text", "scale", "gamma", "model"))
    model = choice(request, "model", SHAPES, "fashion")
    rule = attempt_on_pictures(text(request, "text", LONGEST_RULE), *_knobs(request), model)
    return {"error": rule} if isinstance(rule, str) else {"rule": str(rule)}


def prompt(request: Request, work: Work) -> dict[str, Any]:
    """How the scenes understand a sentence; while it is typed, a word that they do not know is no failure."""
    from .subjects import read_prompt

    only(request, ("prompt",))
    try:
        return {"reads": read_prompt(text(request, "prompt", LONGEST_PROMPT))}
    except ValueError as error:
        return {"error": str(error)}


def run(request: Request, work: Work) -> dict[str, Any]:
    """The pictures of every rule, and the meter of each."""
    work.tell(0, "opening the model")
    asked = read_request(request)
    painter = _painter()
    made: list[dict[Want, Picture]] = [{} for _ in asked.rules]
    shown: list[list[str | None]] = [[None] * len(asked.wanted) for _ in asked.rules]
    from .painter import BLOCK

    rules = list(asked.rules)
    valid = [index for index, rule in enumerate(rules) if isinstance(rule, Rule)]
    # The first block of every rule before any second one: there is something to compare early.
    blocks = [(low, index) for low in range(0, len(asked.wanted), BLOCK) for index in valid]
    for done, (low, index) in enumerate(blocks):
        rule, block = rules[index], asked.wanted[low : low + BLOCK]
        if isinstance(rule, str):  # it failed in an earlier block
            continue
        said = f"images {low + 1} to {low + len(block)} of {len(asked.wanted)}, rule {index + 1}"
        try:
            for step, frames in enumerate(painter.paint(rule, asked.steps, block, made[index]), 1):
                for i, want in enumerate(block, low):
                    shown[index][i] = pixel_text(frames[want]) if want in frames else shown[index][i]
                share = (done + step / asked.steps) / len(blocks)
                work.tell(share, f"{said}, step {step} of {asked.steps}", {"frames": shown})
        except RULE_ERRORS as error:
            rules[index] = f"{rule} cannot go on: {_sentence(error)}"
            continue
        shown[index][low : low + BLOCK] = [pixel_text(made[index][want].pixels) for want in block]
        work.tell((done + 1) / len(blocks), said, {"frames": shown})
    return answer(replace(asked, rules=tuple(rules)), made)


def read_request(request: Request) -> Asked:
    """The request, checked and bounded before any work."""
    from .painter import frame_steps
    from .subjects import Want, read_prompt

    only(request, FIELDS)
    model, negative = choice(request, "model", SHAPES, "fashion"), ""
    classes: tuple[int | str, ...]
    if model == "scenes":
        classes = (text(request, "prompt", LONGEST_PROMPT, ""),)
        negative = text(request, "negative", LONGEST_PROMPT, "")
        for sentence in (classes[0], negative):
            read_prompt(str(sentence))
    else:
        classes = tuple(_label(one) for one in items(request, "classes", 1, len(FASHION)))
    seeds = read_seeds(text(request, "seeds", 400))
    steps = integer(request, "steps", 1, STEPS)
    texts = [text({"rule": one}, "rule", LONGEST_RULE) for one in items(request, "rules", 1, MOST_RULES)]
    if len(seeds) * len(texts) * steps > WORK:
        raise ValueError(
            f"{len(seeds)} images × {len(texts)} rules × {steps} evaluations are more than {WORK:,}; "
            "take fewer of one of them, or `meancap generate`, which has no bound"
        )
    rules = tuple(attempt_on_pictures(one, *_knobs(request), model) for one in texts)
    wanted = tuple(Want(classes[k % len(classes)], seed, negative) for k, seed in enumerate(seeds))
    frames = frame_steps(steps)[-1 if request.get("last") else 0 :]
    return Asked(model, wanted, classes, steps, tuple(texts), rules, tuple(frames))


def read_seeds(said: str) -> list[int]:
    """The seeds that a text such as '0-7, 12' lists, in its order."""
    seeds: list[int] = []
    for part in said.split(","):
        span = _SPAN.fullmatch(part)
        low, high = (0, 0) if span is None else (int(span[1]), int(span[2] or span[1]))
        if span is None or high >= 2**32 or low > high:
            raise ValueError(f"{_SEEDS}; got {part.strip()[:40]!r}")
        if len(seeds) + high - low + 1 > IMAGES:
            raise ValueError(f"the view shows at most {IMAGES} images; these seeds are more")
        seeds += range(low, high + 1)
    twice = [seed for seed in seeds if seeds.count(seed) > 1]
    if twice:
        raise ValueError(f"each seed is one image; {twice[0]} is there twice")
    return seeds


def _label(said: Any) -> int:
    label = int(said) if isinstance(said, (int, str)) and str(said).isdecimal() and len(str(said)) < 4 else -1
    if not 0 <= label < len(FASHION):
        raise ValueError(f"classes are numbers from 0 to {len(FASHION) - 1}; got {str(said)[:20]!r}")
    return label


def _knobs(request: Request) -> tuple[float, float]:
    return number(request, "scale", 0, LARGEST_SCALE), number(request, "gamma", 1, LARGEST_GAMMA)


def attempt_on_pictures(said: str, scale: float, gamma: float, model: str = "fashion") -> Rule | str:
    """The rule, tried on one prediction of the model's shape; or what is wrong with it."""
    shape = SHAPES[model]
    m_c, m_u = (torch.linspace(low, 1, math.prod(shape)).reshape(1, *shape) for low in (-1.0, -0.5))
    try:
        rule = read_rule(said, scale, gamma)
        guide(rule, Prediction(torch.zeros_like(m_c), 0.0, m_c, m_u, 0.05))
    except RULE_ERRORS as error:
        return _sentence(error)
    return rule


def _sentence(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]


@cache
def _painter() -> Painter:
    """One for the process; opened by the first question, so that the page loads without it."""
    from .painter import Painter

    return Painter()


ROUTES: dict[str, Route] = {
    "images/about": about,
    "images/check": check,
    "images/prompt": prompt,
    "images/run": run,
}
