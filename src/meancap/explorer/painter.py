"""Pictures of the shipped model under a rule, made in blocks; the latest are kept in memory.

picture   of one class, seed, rule and number of steps; its bytes depend on nothing else
block     pictures made together; the last one is filled up, because a matrix product of another shape
          may round differently
frame     the guided mean of a step as a picture: where the flow was heading; the last one is the picture
meter     the fields of `meancap.diagnostics` over the steps
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ..diagnostics import Record
from ..metrics import brightness
from ..metrics.extractors.fashion import fashion_classifier
from ..models.classes import ClassModel, fashion
from ..rules import Rule
from ..sampling import noise, trajectory, uniform
from ..torch_settings import torch_settings

BLOCK = 8
FRAMES = 32  # kept of each picture, the last step's among them
KEPT = 2048  # pictures in memory, some 30 kB each
FIELDS = ("t", "scale", "asked", "ratio", "gap", "cosine", "active")


class Want(NamedTuple):
    """One picture to make."""

    label: int
    seed: int


@dataclass(frozen=True, eq=False)
class Picture:
    """One picture and how it was made."""

    frames: Tensor  # (frames, height, width) uint8
    meter: Mapping[str, Tensor]  # each field over the steps
    finite: bool  # whether all states were finite
    logits: Tensor  # of the shipped classifier
    pool: Tensor  # its features, for distances
    brightness: float

    @property
    def pixels(self) -> Tensor:
        return self.frames[-1]


def frame_steps(steps: int) -> list[int]:
    """The steps whose frames are kept: all of them if they are few, else evenly spread with both ends."""
    count = min(steps, FRAMES)
    return [round(i * (steps - 1) / max(count - 1, 1)) if count > 1 else steps - 1 for i in range(count)]


def on_one_thread(frames: Iterator[Tensor]) -> Iterator[Tensor]:
    """The same frames, each made with one thread of torch; between them the setting is what it was."""
    while True:
        with torch_settings(threads=1):
            frame = next(frames, None)
        if frame is None:
            return
        yield frame


class Painter:
    """The model, its classifier, and the pictures made so far; one block is made at a time."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, int, Want], Picture] = OrderedDict()
        self._lock = threading.Lock()  # of the kept pictures
        self._open = threading.Lock()  # of the model

    @property
    def model(self) -> ClassModel:
        with self._open:
            if not hasattr(self, "_model"):
                self._model = fashion()
                self._classifier = fashion_classifier()
            return self._model

    def paint(
        self, rule: Rule, steps: int, wanted: Sequence[Want], made_pictures: dict[Want, Picture]
    ) -> Iterator[dict[Want, Tensor]]:
        """Fills `made_pictures`; yields, after each step, what the unfinished pictures look like.

        The work stops when the caller stops iterating.
        """
        known = {want: self._find(rule, steps, want) for want in wanted}
        made_pictures.update({want: picture for want, picture in known.items() if picture is not None})
        missing = [want for want, picture in known.items() if picture is None]
        for low in range(0, len(missing), BLOCK):
            block, made = missing[low : low + BLOCK], list[Picture]()
            # As in `meancap generate`: the bits of a matrix product depend on the number of threads.
            for frames in on_one_thread(self._block(rule, steps, block, made)):
                yield dict(zip(block, frames, strict=False))  # without what the block was filled up with
            for want, picture in zip(block, made, strict=True):
                made_pictures[want] = picture
                self._keep((str(rule), steps, want), picture)

    def _find(self, rule: Rule, steps: int, want: Want) -> Picture | None:
        """A picture that was made before."""
        key = (str(rule), steps, want)
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def _block(self, rule: Rule, steps: int, block: Sequence[Want], made: list[Picture]) -> Iterator[Tensor]:
        """Yields what the block looks like at each step; puts the pictures into `made` at the end."""
        model, record = self.model, Record()
        filled = [*block, *[block[0]] * (BLOCK - len(block))]
        predict = model.predict([want.label for want in filled])
        x = noise([want.seed for want in filled], model.shape)
        shown = set(frame_steps(steps))
        frames, finite = [], torch.ones(BLOCK, dtype=torch.bool)
        for step in trajectory(predict, rule, x, uniform(steps), record=record):
            finite &= step.x_next.flatten(1).isfinite().all(1)
            pictures = model.decode(step.m.nan_to_num(0.0))[:, 0]
            if step.index in shown:
                frames.append(pictures)
            yield pictures
        stack = torch.stack(frames, 1)
        seen = self._classifier(stack[:, -1, :, :, None])
        meter = record.stacked()
        light = brightness(stack[:, -1, :, :, None])
        made += [
            Picture(
                stack[i],
                {name: meter[name][:, i] for name in FIELDS},
                bool(finite[i]),
                seen["logits"][i],
                seen["pool"][i],
                float(light[i]),
            )
            for i in range(len(block))
        ]

    def _keep(self, key: tuple[str, int, Want], picture: Picture) -> None:
        with self._lock:
            self._kept[key] = picture
            self._kept.move_to_end(key)
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
