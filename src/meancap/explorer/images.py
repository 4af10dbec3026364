"""The image view's questions: matched pictures of a model in the box under up to four rules.

    images/about   classes, limits and the catalogue: what the page offers
    images/check   {"text", "scale", "gamma"} -> {"rule"} in full, or the {"error"} that says what is wrong
    images/prompt  {"prompt"} -> {"reads"}: the sentence as the scenes understand it, or the {"error"}
    images/run     the pictures of every rule and the meter of each; a job, which shows unfinished pictures

model   fashion, asked for classes; or scenes, asked for a sentence and perhaps a negative one
image   what is asked for and a seed; image k has class k mod (number of classes), as in `meancap generate`
rule    a text, in which λ and Γ stand for the view's scale and gamma
work    images × rules × evaluations, bounded; pictures that were made before cost nothing
"""

from __future__ import annotations

import math
import re
import shlex
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..models.data import FASHION
from ..prediction import Prediction
from ..rules import Rule, catalogue, guide
from ..runs.config import sample_seed
from .comparison import LARGEST_GAMMA, LARGEST_SCALE, LONGEST_RULE, MOST_RULES, RULE_ERRORS, read_rule
from .jobs import Route, Work
from .requests import Request, choice, integer, items, number, only, text

if TYPE_CHECKING:
    from .painter import Painter, Picture
    from .subjects import Want

IMAGES, STEPS, WORK = 64, 100, 6_400  # the last: half a minute on one core
SHAPES = {"fashion": (1, 28, 28), "scenes": (3, 32, 32)}  # of the pictures of each model
LONGEST_PROMPT = 200
FIELDS = ("model", "classes", "prompt", "negative", "seeds", "steps", "scale", "gamma", "rules")
_SPAN = re.compile(r"\s*(\d{1,10})\s*(?:(?:-|–|\.\.)\s*(\d{1,10})\s*)?")
_SEEDS = "seeds are whole numbers below 4,294,967,296 and ranges of them, such as 0-7 or 3, 14, 20-25"


@dataclass(frozen=True)
class Asked:
    """A request, checked."""

    model: str
    wanted: tuple[Want, ...]
    classes: tuple[int | str, ...]  # what the images take turns in: classes, or one sentence
    steps: int
    texts: tuple[str, ...]
    rules: tuple[Rule | str, ...]  # a sentence where a text is no rule


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
            if e.kind == "rule"
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
                    shown[index][i] = _bytes(frames[want]) if want in frames else shown[index][i]
                share = (done + step / asked.steps) / len(blocks)
                work.tell(share, f"{said}, step {step} of {asked.steps}", {"frames": shown})
        except RULE_ERRORS as error:
            rules[index] = f"{rule} cannot go on: {_sentence(error)}"
            continue
        shown[index][low : low + BLOCK] = [_bytes(made[index][want].pixels) for want in block]
        work.tell((done + 1) / len(blocks), said, {"frames": shown})
    return _answer(replace(asked, rules=tuple(rules)), made)


def read_request(request: Request) -> Asked:
    """The request, checked and bounded before any work."""
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
    return Asked(model, wanted, classes, steps, tuple(texts), rules)


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


def _answer(asked: Asked, pictures_of: Sequence[Mapping[Want, Picture]]) -> dict[str, Any]:
    from .painter import frame_steps
    from .subjects import subject_of

    subject, names = subject_of(asked.wanted[0]), list(FASHION)
    if asked.model == "scenes":
        names = [str(asked.classes[0])]
    labels = [want.label if isinstance(want.label, int) else 0 for want in asked.wanted]

    entries: list[dict[str, Any]] = []
    for said, rule, made in zip(asked.texts, asked.rules, pictures_of, strict=True):
        if isinstance(rule, str):
            entries.append({"text": said, "error": rule})
            continue
        pictures = [made[want] for want in asked.wanted]
        entries.append(
            {
                "text": said,
                "rule": str(rule),
                "command": command(asked, rule),
                "numbers": mean_numbers(pictures, labels),
                "pictures": [_one(picture) for picture in pictures],
            }
        )
    return {
        "model": subject.name,
        "size": subject.shape[-1],
        "channels": subject.shape[0],
        "classes": names,
        "steps": asked.steps,
        "times": [float(t) for t in subject.times(asked.steps)[:-1]],
        "frame_steps": frame_steps(asked.steps),
        "images": [
            {"seed": want.seed, "label": label} for want, label in zip(asked.wanted, labels, strict=True)
        ],
        "rules": entries,
    }


def _one(picture: Picture) -> dict[str, Any]:
    return {
        "frames": _bytes(picture.frames),
        "meter": {name: _digits(picture.meter[name]) for name in ("scale", "asked", "ratio", "gap", "cosine")}
        | {"active": [int(on) for on in picture.meter["active"].tolist()]},
        "numbers": meter_numbers(picture),
        "finite": picture.finite,
        "sure": picture.reading.sure,
        "sees": picture.reading.sees,
        "hit": picture.reading.hit,
    }


def meter_numbers(picture: Picture) -> dict[str, Any]:
    """The meter in five numbers: what was asked for, what was granted, how often and how far."""
    scale, asked = picture.meter["scale"], picture.meter["asked"]
    return {
        "asked": [float(asked.min()), float(asked.max())],
        "first": float(scale[0]),
        "last": float(scale[-1]),
        "capped": float(picture.meter["active"].double().mean()),
        "ratio": float(picture.meter["ratio"].max()),
    }


def mean_numbers(pictures: Sequence[Picture], labels: Sequence[int]) -> dict[str, Any]:
    """Means over a rule's images; diversity where every class has two of them."""
    from ..metrics import diversity

    readings = [p.reading for p in pictures]
    pool = torch.stack([r.pool for r in readings])
    scale = torch.stack([p.meter["scale"] for p in pictures])
    paired = all(labels.count(label) > 1 for label in set(labels))
    return {
        "accuracy": sum(r.hit for r in readings) / len(readings),
        "sure": _mean([r.sure for r in readings]),
        "diversity": diversity(pool, torch.tensor(labels)) if paired else None,
        "brightness": _mean([r.brightness for r in readings]),
        "saturation": _mean([r.saturation for r in readings]),
        "first": float(scale[:, 0].mean()),
        "last": float(scale[:, -1].mean()),
        "capped": float(torch.stack([p.meter["active"] for p in pictures]).double().mean()),
        "ratio": max(float(p.meter["ratio"].max()) for p in pictures),
    }


def _mean(values: Sequence[float | None]) -> float | None:
    """Of numbers that all pictures have, or none has."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def command(asked: Asked, rule: Rule) -> str | None:
    """The command that makes the same files, where these seeds are those of a run."""
    from .painter import BLOCK  # the bits of a picture may depend on how many are made at once

    seeds = [want.seed for want in asked.wanted]
    run = seeds[0] // sample_seed(1, 0)
    if seeds[0] != sample_seed(run, 0) or any(b != a + 1 for a, b in pairwise(seeds)):
        return None
    each = -(-len(seeds) // len(asked.classes))
    which = f"--classes {','.join(map(str, asked.classes))}"
    if asked.model == "scenes":
        against = asked.wanted[0].negative
        which = f"--prompt {shlex.quote(str(asked.classes[0]))}"
        which += f" --negative {shlex.quote(against)}" if against else ""
    return (
        f'meancap generate --model {asked.model} --rule "{rule}" {which} '
        f"--per-class {each} --steps {asked.steps} --seed {run} --batch {BLOCK} --out RUN"
    )


def _sentence(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]


def _digits(values: Tensor) -> list[float]:
    """Six digits of each: more than a plot or a table shows."""
    return [float(f"{value:.6g}") for value in values.tolist()]


def _bytes(pixels: Tensor) -> str:
    return b64encode(pixels.contiguous().numpy().tobytes()).decode()


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
