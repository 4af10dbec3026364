"""The image view's routes: matched pictures of a shipped model under up to four rules.

    images/about   classes, limits and the catalogue: what the page offers
    images/check   {"text", "scale", "gamma"} -> {"rule"} in full, or the {"error"} about what is wrong
    images/prompt  {"prompt"} -> {"reads"}: the sentence as the scenes understand it, or the {"error"}
    images/run     the pictures of every rule and the meter of each, with progress and unfinished pictures;
                   with "last", finished pictures without those of the steps before

model     fashion draws a class; scenes draws a sentence, and perhaps a negative one
picture   of one class or sentence, seed, rule and number of steps; its bytes depend on nothing else, so the
          latest are kept. Picture k has class k mod (number of classes), as in `meancap generate`
block     pictures made together; the last one is filled up, because a matrix product of another shape may
          round differently
frame     the guided mean of a step as a picture; the last one is the picture
work      images × rules × evaluations, bounded; pictures that are kept cost nothing
gap       of each rule's pictures at each step, squared, over that of noised real examples of the same classes
          or sentence (`runs.path_matching`). Scenes are drawn from their law; the gaps of garments
          are in fashion_gaps.json, which `python -m tools.fashion_gaps` writes
"""

from __future__ import annotations

import json
import math
import re
import shlex
import threading
from base64 import b64encode
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from meancap.record import Record
from meancap.rules import Rule
from meancap.rules.calibration import GapCurve
from meancap.sampling import Predict, Times, noise, sample, shifted, trajectory, uniform

from ..metrics import diversity
from ..metrics.classifiers import fashion_classifier
from ..metrics.per_image import brightness, saturation
from ..models.classes import fashion
from ..models.data import FASHION
from ..models.scenes import codes, detector, draw, measure_pictures, parse_prompt, prompt_of, render
from ..models.scenes.model import scenes
from ..runs.config import sample_seed
from ..runs.generate import SHIFT
from ..runs.path_matching import Follow
from ..torch_settings import torch_settings
from . import comparison
from .comparison import RULE_ERRORS
from .requests import Request, Route, Work, check_fields, choice, integer, items, one_line, text

BLOCK = 8
SHAPES = {"fashion": (1, 28, 28), "scenes": (3, 32, 32)}  # of the pictures of each model
_IMAGES, _STEPS, _WORK = 64, 100, 6_400  # the last: half a minute on one core
_FRAMES, _KEPT = 32, 2048  # of one picture, the last step's among them; pictures in memory, some 30 kB each
_LONGEST_PROMPT = 200
_EXAMPLES, _KNOTS = 32, (0.0, 0.03, 0.07, 0.12, 0.2, 0.35, 0.6, 0.9)  # scenes of a sentence, with times
_FIELDS = ("model", "classes", "prompt", "negative", "seeds", "steps", "scale", "gamma", "rules", "last")
_METER = ("scale", "asked", "ratio", "gap", "cosine")
_SPAN = re.compile(r"\s*(\d{1,10})\s*(?:(?:-|–|\.\.)\s*(\d{1,10})\s*)?")
_SEEDS = "seeds are whole numbers below 4,294,967,296 and ranges of them, such as 0-7 or 3, 14, 20-25"


class Want(NamedTuple):
    """One picture to make."""

    label: int | str  # a class of the garments, or a sentence of the scenes
    seed: int
    negative: str = ""


class _Reading(NamedTuple):
    """What a classifier or detector finds in one picture."""

    hit: bool  # whether it shows what was requested
    sees: str
    sure: float | None  # the classifier's probability of the requested class
    pool: Tensor  # features, for distances
    brightness: float
    saturation: float | None  # of pictures with colours


@cache
def _open_model(name: str) -> tuple[Any, Any]:
    """A model and its classifier or detector, opened by the first picture that needs them."""
    return (scenes(), detector()) if name == "scenes" else (fashion(), fashion_classifier())


def _times(name: str, steps: int) -> Times:
    return shifted(steps, SHIFT) if name == "scenes" else uniform(steps)


def _predict(name: str, wanted: Sequence[Want]) -> Predict:
    negatives = [[want.negative for want in wanted]] if name == "scenes" else []
    predict: Predict = _open_model(name)[0].predict([want.label for want in wanted], *negatives)
    return predict


def _read_garments(pictures: Tensor, wanted: Sequence[Want]) -> list[_Reading]:
    model, classifier = _open_model("fashion")
    seen, bright = classifier(pictures), brightness(pictures)
    chances = seen["logits"].double().softmax(1)
    best, labels = chances.argmax(1).tolist(), [int(want.label) for want in wanted]
    return [
        _Reading(b == k, model.names[b], float(chances[i, k]), seen["pool"][i], float(bright[i]), None)
        for i, (b, k) in enumerate(zip(best, labels, strict=True))
    ]


def _read_scenes(pictures: Tensor, wanted: Sequence[Want]) -> list[_Reading]:
    requested = codes([str(want.label) for want in wanted])
    m = measure_pictures(_open_model("scenes")[1], pictures.permute(0, 3, 1, 2), requested)
    light = (m.forms.background >= 0.5).long()
    sees = [str(prompt_of([*m.seen[i].tolist(), int(light[i])])) for i in range(len(wanted))]
    right, bright, colour = m.right["all"], brightness(pictures), saturation(pictures)
    return [
        _Reading(bool(right[i]), sees[i], None, m.readings.pool[i], float(bright[i]), float(colour[i]))
        for i in range(len(wanted))
    ]


@lru_cache(256)
def _scene_gaps(prompt: str, negative: str, first: int) -> Tensor:
    """Squared gaps of a block of scenes of the law, from number `first` on, (times, scenes)."""
    model, record = _open_model("scenes")[0], Record()
    law = draw(codes([prompt] * BLOCK), torch.Generator().manual_seed(first))
    data = model.pixels.data(255 * render(law))
    start = noise(range(first, first + BLOCK), SHAPES["scenes"])
    predict = _predict("scenes", [Want(prompt, 0, negative)] * BLOCK)
    with torch_settings(threads=1):
        sample(predict, Follow(data), start, (*_KNOTS, 1.0), record=record)
    return record.stacked()["gap"].double().square()


@cache
def _garment_gaps() -> tuple[tuple[float, ...], Tensor]:
    """The times, and the squared gap of real pictures of each class, (classes, times)."""
    read = json.loads(Path(__file__).with_name("fashion_gaps.json").read_text(encoding="utf-8"))
    return tuple(read["times"]), torch.tensor(read["gap"], dtype=torch.float64).square()


def _real_gaps(order: Order, work: Work) -> GapCurve:
    """The gap of noised real examples of what the pictures were requested to be."""
    if order.model == "scenes":
        blocks = []
        for first in range(0, _EXAMPLES, BLOCK):
            work.tell(1.0, "scenes to compare with")
            blocks.append(_scene_gaps(str(order.classes[0]), order.wanted[0].negative, first))
        return GapCurve(_KNOTS, tuple(torch.cat(blocks, 1).mean(1).sqrt().tolist()))
    times, squares = _garment_gaps()
    own = squares[[int(want.label) for want in order.wanted]]
    return GapCurve(times, tuple(own.mean(0).sqrt().tolist()))


def _compare_gaps(pictures: Sequence[Picture], times: Sequence[float], real: GapCurve) -> dict[str, Any]:
    """The mean squared gap of a rule's pictures over that of real examples, and a sentence about it."""
    squares = torch.stack([one.meter["gap"] for one in pictures]).double().square()
    gaps, sentence = squares.mean(0).sqrt().tolist(), ""
    ratios = [real.ratio(t, gap) if t <= real.times[-1] else None for t, gap in zip(times, gaps, strict=True)]
    far = real.farthest(times, gaps)
    if far is not None and len(squares) > 1:
        own = squares[:, far[0]]
        error = 1.96 * float(own.std() / own.mean()) / math.sqrt(len(own))
        sentence = f" (± {error:.0%} with {len(own)} pictures)"
    return {"ratios": ratios, "sentence": real.compare(times, gaps) + sentence}


@dataclass(frozen=True, eq=False)
class Picture:
    """One picture and how it was made."""

    frames: Tensor  # (frames, height, width, channels) uint8
    meter: Mapping[str, Tensor]  # the fields of `meancap.record` over the steps
    finite: bool  # whether all states were finite
    reading: _Reading


def frame_steps(steps: int) -> list[int]:
    """The steps whose frames are kept: all of them if they are few, else evenly spread with both ends."""
    count = min(steps, _FRAMES)
    return [round(i * (steps - 1) / max(count - 1, 1)) if count > 1 else steps - 1 for i in range(count)]


class Painter:
    """Makes pictures and keeps the latest; one block is made at a time."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, int, Want], Picture] = OrderedDict()
        self._lock = threading.Lock()

    def paint(
        self, rule: Rule, steps: int, block: Sequence[Want], made: dict[Want, Picture]
    ) -> Iterator[dict[Want, Tensor]]:
        """Fill `made` with at most BLOCK pictures; yield after each step what the unfinished look like.

        The work stops when the caller stops iterating.
        """
        keys = {want: (str(rule), steps, want) for want in block}
        with self._lock:
            made.update({want: self._kept[key] for want, key in keys.items() if key in self._kept})
        missing = [want for want in block if want not in made]
        if missing:
            # As in `meancap generate`: the bits of a matrix product depend on the number of threads.
            for frames in _on_one_thread(self._block(rule, steps, missing, made)):
                yield dict(zip(missing, frames, strict=False))  # without what the block was filled up with
        with self._lock:
            for want, key in keys.items():
                self._kept[key] = made[want]
                self._kept.move_to_end(key)
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)

    def _block(
        self, rule: Rule, steps: int, block: Sequence[Want], made: dict[Want, Picture]
    ) -> Iterator[Tensor]:
        """Yield what the block looks like at each step; put the pictures into `made` at the end."""
        model = "scenes" if isinstance(block[0].label, str) else "fashion"
        record = Record()
        filled = [*block, *[block[0]] * (BLOCK - len(block))]
        x = noise([want.seed for want in filled], SHAPES[model])
        shown = set(frame_steps(steps))
        frames, finite = [], torch.ones(BLOCK, dtype=torch.bool)
        for step in trajectory(_predict(model, filled), rule, x, _times(model, steps), record=record):
            finite &= step.x_next.flatten(1).isfinite().all(1)
            pictures = _open_model(model)[0].decode(step.m.nan_to_num(0.0)).permute(0, 2, 3, 1)
            if step.index in shown:
                frames.append(pictures)
            yield pictures
        stack, meter = torch.stack(frames, 1), record.stacked()
        readings = (_read_scenes if model == "scenes" else _read_garments)(stack[:, -1], filled)
        for i, want in enumerate(block):
            own = {name: meter[name][:, i] for name in (*_METER, "active")}
            made[want] = Picture(stack[i], own, bool(finite[i]), readings[i])


def _on_one_thread(frames: Iterator[Tensor]) -> Iterator[Tensor]:
    """The same frames, each made with one thread of torch; between them the setting is what it was."""
    while True:
        with torch_settings(threads=1):
            frame = next(frames, None)
        if frame is None:
            return
        yield frame


_PAINTER = Painter()


@dataclass(frozen=True)
class Order:
    """A request, checked."""

    model: str
    wanted: tuple[Want, ...]
    classes: tuple[int | str, ...]  # what the images take turns in: classes, or one sentence
    steps: int
    texts: tuple[str, ...]
    rules: tuple[Rule | str, ...]  # a sentence if a text is no rule
    frames: tuple[int, ...]  # the steps whose pictures are sent; the last one always is

    def command(self, rule: Rule) -> str | None:
        """The `meancap generate` that makes the same files, if these seeds are those of a run."""
        seeds = [want.seed for want in self.wanted]
        run = seeds[0] // sample_seed(1, 0)
        if seeds[0] != sample_seed(run, 0) or any(b != a + 1 for a, b in pairwise(seeds)):
            return None
        each = -(-len(seeds) // len(self.classes))
        which = f"--classes {','.join(map(str, self.classes))}"
        if self.model == "scenes":
            against = self.wanted[0].negative
            which = f"--prompt {shlex.quote(str(self.classes[0]))}"
            which += f" --negative {shlex.quote(against)}" if against else ""
        return (
            f'meancap generate --model {self.model} --rule "{rule}" {which} '
            f"--per-class {each} --steps {self.steps} --seed {run} --batch {BLOCK} --out RUN"
        )


def _read_order(request: Request) -> Order:
    """The request, checked and bounded before any work."""
    check_fields(request, _FIELDS)
    model, negative = choice(request, "model", SHAPES, "fashion"), ""
    classes: tuple[int | str, ...]
    if model == "scenes":
        classes = (text(request, "prompt", _LONGEST_PROMPT, ""),)
        negative = text(request, "negative", _LONGEST_PROMPT, "")
        for sentence in (str(classes[0]), negative):
            parse_prompt(sentence)
    else:
        classes = tuple(_read_class(one) for one in items(request, "classes", 1, len(FASHION)))
    seeds = _read_seeds(text(request, "seeds", 400))
    steps, texts = integer(request, "steps", 1, _STEPS), comparison.read_rule_texts(request)
    if len(seeds) * len(texts) * steps > _WORK:
        raise ValueError(
            f"{len(seeds)} images × {len(texts)} rules × {steps} evaluations are more than {_WORK:,}; "
            "choose fewer of one of them, or use `meancap generate`, which has no bound"
        )
    sliders = comparison.read_sliders(request)
    rules = tuple(comparison.rule_or_error(one, *sliders, SHAPES[model]) for one in texts)
    wanted = tuple(Want(classes[k % len(classes)], seed, negative) for k, seed in enumerate(seeds))
    frames = frame_steps(steps)[-1 if request.get("last") else 0 :]
    return Order(model, wanted, classes, steps, texts, rules, tuple(frames))


def _read_seeds(listed: str) -> list[int]:
    """The seeds that a text such as '0-7, 12' lists, in its order."""
    seeds: list[int] = []
    for part in listed.split(","):
        span = _SPAN.fullmatch(part)
        low, high = (0, 0) if span is None else (int(span[1]), int(span[2] or span[1]))
        if span is None or high >= 2**32 or low > high:
            raise ValueError(f"{_SEEDS}; got {part.strip()[:40]!r}")
        if len(seeds) + high - low + 1 > _IMAGES:
            raise ValueError(f"the view shows at most {_IMAGES} images; list fewer seeds")
        seeds += range(low, high + 1)
    twice = [seed for seed in seeds if seeds.count(seed) > 1]
    if twice:
        raise ValueError(f"each seed makes one image; {twice[0]} is listed twice")
    return seeds


def _read_class(given: Any) -> int:
    if str(given) not in map(str, range(len(FASHION))):
        raise ValueError(f"classes are numbers from 0 to {len(FASHION) - 1}; got {str(given)[:20]!r}")
    return int(given)


def _about(request: Request, work: Work) -> dict[str, Any]:
    check_fields(request, ())
    limits = {name: comparison.LIMITS[name] for name in ("rules", "scale", "gamma")}
    return {
        "classes": list(FASHION),
        "limits": {**limits, "images": _IMAGES, "steps": _STEPS, "work": _WORK},
        "rules": comparison.rule_menu(axes=4),
    }


def _check(request: Request, work: Work) -> dict[str, str]:
    check_fields(request, ("text", "scale", "gamma", "model"))
    return comparison.check_rule(request, SHAPES[choice(request, "model", SHAPES, "fashion")])


def _prompt(request: Request, work: Work) -> dict[str, Any]:
    check_fields(request, ("prompt",))
    try:
        return {"reads": str(parse_prompt(text(request, "prompt", _LONGEST_PROMPT)))}
    except ValueError as error:  # an unfinished sentence is not a bad request
        return {"error": str(error)}


def _run(request: Request, work: Work) -> dict[str, Any]:
    work.tell(0, "opening the model")
    order = _read_order(request)
    count, rules = len(order.wanted), list(order.rules)
    made: list[dict[Want, Picture]] = [{} for _ in rules]
    shown: list[list[str | None]] = [[None] * count for _ in rules]
    valid = [index for index, rule in enumerate(rules) if isinstance(rule, Rule)]
    # The first block of every rule before any second one: there is something to compare early.
    blocks = [(low, index) for low in range(0, count, BLOCK) for index in valid]
    for done, (low, index) in enumerate(blocks):
        rule, block = rules[index], order.wanted[low : low + BLOCK]
        if isinstance(rule, str):  # it failed in an earlier block
            continue
        words = f"images {low + 1} to {low + len(block)} of {count}, rule {index + 1}"
        try:
            for step, frames in enumerate(_PAINTER.paint(rule, order.steps, block, made[index]), 1):
                for i, want in enumerate(block, low):
                    shown[index][i] = _pixel_text(frames[want]) if want in frames else shown[index][i]
                share = (done + step / order.steps) / len(blocks)
                work.tell(share, f"{words}, step {step} of {order.steps}", {"frames": shown})
        except RULE_ERRORS as error:
            rules[index] = f"{rule} cannot go on: {one_line(error, 300)}"
            continue
        shown[index][low : low + BLOCK] = [_pixel_text(made[index][want].frames[-1]) for want in block]
        work.tell((done + 1) / len(blocks), words, {"frames": shown})
    order = replace(order, rules=tuple(rules))
    return _answer(order, made, _real_gaps(order, work))


def _answer(order: Order, pictures_of: Sequence[Mapping[Want, Picture]], real: GapCurve) -> dict[str, Any]:
    """Every rule's pictures, or why it has none."""
    names = [str(order.classes[0])] if order.model == "scenes" else list(FASHION)
    labels = [want.label if isinstance(want.label, int) else 0 for want in order.wanted]
    times = [float(t) for t in _times(order.model, order.steps)[:-1]]
    entries: list[dict[str, Any]] = []
    for template, rule, made in zip(order.texts, order.rules, pictures_of, strict=True):
        if isinstance(rule, str):
            entries.append({"text": template, "error": rule})
            continue
        pictures = [made[want] for want in order.wanted]
        entries.append(
            {
                "text": template,
                "rule": str(rule),
                "command": order.command(rule),
                "numbers": _mean_numbers(pictures, labels),
                "gap": _compare_gaps(pictures, times, real),
                "pictures": [_picture(one, len(order.frames)) for one in pictures],
            }
        )
    return {
        "model": _open_model(order.model)[0].name,
        "size": SHAPES[order.model][-1],
        "channels": SHAPES[order.model][0],
        "classes": names,
        "steps": order.steps,
        "times": times,
        "frame_steps": list(order.frames),
        "images": [{"seed": want.seed, "label": k} for want, k in zip(order.wanted, labels, strict=True)],
        "rules": entries,
    }


def _picture(picture: Picture, frames: int) -> dict[str, Any]:
    meter = picture.meter
    # Six digits: more than a plot or a table shows.
    lines = {name: [float(f"{value:.6g}") for value in meter[name].tolist()] for name in _METER}
    return {
        "frames": _pixel_text(picture.frames[-frames:]),
        "meter": {**lines, "active": meter["active"].int().tolist()},
        "numbers": {
            "asked": [float(meter["asked"].min()), float(meter["asked"].max())],
            "first": float(meter["scale"][0]),
            "last": float(meter["scale"][-1]),
            "capped": float(meter["active"].double().mean()),
            "ratio": float(meter["ratio"].max()),
        },
        "finite": picture.finite,
        "sure": picture.reading.sure,
        "sees": picture.reading.sees,
        "hit": picture.reading.hit,
    }


def _mean_numbers(pictures: Sequence[Picture], labels: Sequence[int]) -> dict[str, Any]:
    """Means over a rule's images; diversity if every class has two of them."""
    readings = [p.reading for p in pictures]
    meter = {name: torch.stack([p.meter[name] for p in pictures]) for name in ("scale", "active", "ratio")}
    paired = all(labels.count(label) > 1 for label in set(labels))
    pool = torch.stack([r.pool for r in readings])
    return {
        "accuracy": _mean([r.hit for r in readings]),
        "sure": _mean([r.sure for r in readings]),
        "diversity": diversity(pool, torch.tensor(labels)) if paired else None,
        "brightness": _mean([r.brightness for r in readings]),
        "saturation": _mean([r.saturation for r in readings]),
        "first": float(meter["scale"][:, 0].mean()),
        "last": float(meter["scale"][:, -1].mean()),
        "capped": float(meter["active"].double().mean()),
        "ratio": float(meter["ratio"].max()),
    }


def _mean(values: Sequence[float | None]) -> float | None:
    """Of numbers that all pictures have, or none has."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _pixel_text(pixels: Tensor) -> str:
    """The bytes of a picture, as JSON can hold them."""
    return b64encode(pixels.contiguous().numpy().tobytes()).decode()


ROUTES: dict[str, Route] = {
    "images/about": _about,
    "images/check": _check,
    "images/prompt": _prompt,
    "images/run": _run,
}
