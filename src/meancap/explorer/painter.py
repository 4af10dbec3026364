"""Pictures of the shipped models under a rule, made in blocks; the latest are kept in memory.

picture   of one class or sentence, seed, rule and number of steps; its bytes depend on nothing else
block     pictures made together; the last one is filled up, because a matrix product of another shape
          may round differently
frame     the guided mean of a step as a picture: where the flow was heading; the last one is the picture
meter     the fields of `meancap.record` over the steps
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..record import Record
from ..rules import Rule
from ..sampling import noise, trajectory
from ..torch_settings import torch_settings
from .subjects import Reading, Want, subject_of

BLOCK = 8
FRAMES = 32  # kept of each picture, the last step's among them
KEPT = 2048  # pictures in memory, some 30 kB each
FIELDS = ("t", "scale", "asked", "ratio", "gap", "cosine", "active")


@dataclass(frozen=True, eq=False)
class Picture:
    """One picture and how it was made."""

    frames: Tensor  # (frames, height, width) uint8; with colours (frames, height, width, 3)
    meter: Mapping[str, Tensor]  # each field over the steps
    finite: bool  # whether all states were finite
    reading: Reading

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
    """The pictures made so far; one block is made at a time."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, int, Want], Picture] = OrderedDict()
        self._lock = threading.Lock()

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
        subject, record = subject_of(block[0]), Record()
        filled = [*block, *[block[0]] * (BLOCK - len(block))]
        x = noise([want.seed for want in filled], subject.shape)
        shown = set(frame_steps(steps))
        frames, finite = [], torch.ones(BLOCK, dtype=torch.bool)
        for step in trajectory(subject.predict(filled), rule, x, subject.times(steps), record=record):
            finite &= step.x_next.flatten(1).isfinite().all(1)
            pictures = subject.pictures(step.m.nan_to_num(0.0))
            if step.index in shown:
                frames.append(pictures)
            yield pictures
        stack = torch.stack(frames, 1)
        readings = subject.read(stack[:, -1], filled)
        meter = record.stacked()
        made += [
            Picture(
                stack[i],
                {name: meter[name][:, i] for name in FIELDS},
                bool(finite[i]),
                readings[i],
            )
            for i in range(len(block))
        ]

    def _keep(self, key: tuple[str, int, Want], picture: Picture) -> None:
        with self._lock:
            self._kept[key] = picture
            self._kept.move_to_end(key)
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
