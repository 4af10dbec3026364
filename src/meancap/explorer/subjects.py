"""What the image view shows: the garments, by class, and the scenes, by sentence.

want      one picture: what is asked for (a class, or a sentence with a negative one), and its seed
subject   a shipped model with its judge: means for what is wanted, the grid of times, pictures of the
          means as bytes, and a reading of each finished picture
reading   whether the picture is what was asked for, and what it shows instead
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple, Protocol

from torch import Tensor

from ..drawing import codes, parse_prompt, prompt_of
from ..metrics.colour import brightness, saturation
from ..metrics.extractors.fashion import fashion_classifier
from ..metrics.scenes import detector, measure_pictures
from ..models.classes import fashion
from ..models.scenes import scenes
from ..runs.generate import SHIFT
from ..sampling import Predict, Times, shifted, uniform


class Want(NamedTuple):
    """One picture to make."""

    label: int | str  # a class of the garments, or a sentence of the scenes
    seed: int
    negative: str = ""


class Reading(NamedTuple):
    """What a judge says of one picture."""

    hit: bool
    sees: str
    sure: float | None  # the chance that it gives to what was asked for, where it gives chances
    pool: Tensor  # features, for distances
    brightness: float
    saturation: float | None  # of pictures with colours


class Subject(Protocol):
    """A shipped model and its judge."""

    name: str
    shape: tuple[int, int, int]

    def times(self, steps: int) -> Times: ...
    def predict(self, wanted: Sequence[Want]) -> Predict: ...
    def pictures(self, means: Tensor) -> Tensor: ...  # (n, height, width), or (n, height, width, 3)
    def read(self, pictures: Tensor, wanted: Sequence[Want]) -> list[Reading]: ...


class Garments:
    def __init__(self) -> None:
        self.model, self._classifier = fashion(), fashion_classifier()
        self.name, self.shape = self.model.name, self.model.shape

    def times(self, steps: int) -> Times:
        return uniform(steps)

    def predict(self, wanted: Sequence[Want]) -> Predict:
        return self.model.predict([int(want.label) for want in wanted])

    def pictures(self, means: Tensor) -> Tensor:
        return self.model.decode(means)[:, 0]

    def read(self, pictures: Tensor, wanted: Sequence[Want]) -> list[Reading]:
        seen, light = self._classifier(pictures[..., None]), brightness(pictures[..., None])
        chances = seen["logits"].double().softmax(1)
        best = chances.argmax(1).tolist()
        return [
            Reading(
                best[i] == want.label,
                self.model.names[best[i]],
                float(chances[i, int(want.label)]),
                seen["pool"][i],
                float(light[i]),
                None,
            )
            for i, want in enumerate(wanted)
        ]


class Sentences:
    def __init__(self) -> None:
        self.model, self._detector = scenes(), detector()
        self.name, self.shape = self.model.name, self.model.shape

    def times(self, steps: int) -> Times:
        return shifted(steps, SHIFT)

    def predict(self, wanted: Sequence[Want]) -> Predict:
        return self.model.predict([str(w.label) for w in wanted], [w.negative for w in wanted])

    def pictures(self, means: Tensor) -> Tensor:
        return self.model.decode(means).permute(0, 2, 3, 1)

    def read(self, pictures: Tensor, wanted: Sequence[Want]) -> list[Reading]:
        asked = codes([str(want.label) for want in wanted])
        m = measure_pictures(self._detector, pictures.permute(0, 3, 1, 2), asked)
        light = (m.forms.background >= 0.5).long()
        right, colour, bright = m.right["all"], saturation(pictures), brightness(pictures)
        return [
            Reading(
                bool(right[i]),
                str(prompt_of([*m.seen[i].tolist(), int(light[i])])),
                None,
                m.readings.pool[i],
                float(bright[i]),
                float(colour[i]),
            )
            for i in range(len(wanted))
        ]


@cache
def garments() -> Garments:
    return Garments()


@cache
def sentences() -> Sentences:
    return Sentences()


def subject_of(want: Want) -> Subject:
    """Opened by the first picture that needs it."""
    return sentences() if isinstance(want.label, str) else garments()


def read_prompt(said: str) -> str:
    """The sentence as the scenes understand it; what they do not know is one sentence."""
    return str(parse_prompt(said))
