"""Both axes on the shipped networks: what a picture shows, and how far its pixels are from real ones.

    garments   the shipped model of Fashion-MNIST; the classes take turns
    scenes     the shipped model of sentences; prompts name both objects and their place, not the background
    wrong      the scenes' model that was trained with a fifth of its captions wrong

    sampler    Euler; garments on a uniform grid, scenes on SD3's (shift 3); networks in bfloat16, guidance in
               float32; all rules share noise and conditions
    pilot      noise, conditions and pictures that are not scored choose APG's radius (least FD x SW2), the
               radii of the calibrated cap and the learned scale

A cell holds the pictures of one model, rule, seed and number of evaluations. readings.csv has a line for each
number of a cell, with its pseudo-values over groups of pictures, which are the same pictures under all rules.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from meancap.files import write_whole
from meancap.rules import Calibration, apg, parse
from meancap.sampling import Predict, Times, noise, sample, shifted, uniform
from meancap.sampling.stochastic import generator_of
from meancap_lab.metrics.score import Estimate
from meancap_lab.models import data
from meancap_lab.models.checkpoint import load_sit
from meancap_lab.models.classes import SHIPPED, ClassModel, fashion
from meancap_lab.models.scenes import SceneModel, draw, scenes
from meancap_lab.runs.calibrate import learn_scale, run_pilot
from meancap_lab.runs.config import sample_seed
from studies.common import Cells, Row, chosen, command, option, write_csv, write_figures, write_page

from .measure import Garments, Scenes, grouped, renders
from .page import draw_fronts, draw_robustness, parts, read_readings, setting_rows

HERE = Path(__file__).parent
MODELS = ("garments", "scenes", "wrong")
PILOT_SEED, TRUTH_SEED, REAL_SEED, BATCH = 1000, 2000, 3000, 50
RADII = (1.25, 2.5, 5.0, 10.0)
FIXED = (1.0, 1.2, 1.5, 2.0, 3.0, 5.0, 8.0, 15.0)
TUNED = (3.0, 8.0)
# The rules beside fixed guidance: name, text and scales.
RULES = (
    ("Cap(1.1, anchor='first')", "CFG({scale}) | Cap(1.1, anchor='first')", (2.0, 3.0, 4.0, 8.0, 15.0)),
    ("Interval(0.2, 1)", "CFG({scale}) | Interval(0.2, 1)", (3.0, 8.0, 15.0)),
    ("Cap(1.1)", "CFG({scale}) | Cap(1.1)", (3.0, 8.0, 15.0)),
    ("apg, tuned", "{apg}", TUNED),
    ("CapDisplacement(1.15)", "CFG({scale}) | CapDisplacement(1.15)", (4.0, 15.0)),
    ("calibrated cap", "CFG({scale}) | {calibrated}", (4.0, 15.0)),
    ("Rescale(0.7)", "CFG({scale}) | Rescale(0.7)", (3.0,)),
    ("Cap(1.05)", "CFG({scale}) | Cap(1.05)", (4.0,)),
    ("learned λ(t)", "{learned}", (1.0,)),
    ("path-matched", "{path}", (1.0,)),
)
# One seed of these at other numbers of evaluations, and a pilot's count of their pictures in float32.
FEW = (("CFG", 2.0), ("CFG", 3.0), ("Cap(1.1, anchor='first')", 3.0), ("Interval(0.2, 1)", 3.0))
EVALUATIONS, OTHERS = 20, (10, 50)


@dataclass(frozen=True)
class Study:
    """How much to run."""

    garments: int = option(1000, "garments of a cell")
    scenes: int = option(400, "scenes of a cell, two for each prompt")
    pilot: int = option(120, "pictures of each pilot")
    seeds: tuple[int, ...] = option((0, 1, 2, 3, 4), "noise seeds")

    def count(self, model: str) -> int:
        return self.garments if model == "garments" else self.scenes


QUICK = Study(60, 32, 32, (0,))


@dataclass(frozen=True)
class Setting:
    """A rule at a scale."""

    method: str
    scale: float
    rule: str

    def cell(self, model: str, evaluations: int, seed: int) -> str:
        return f"{model}-{evaluations}-{self.method}-{self.scale:g}-seed{seed}"


def settings(pilots: dict[str, Any]) -> Iterator[Setting]:
    """Fixed guidance, then the other rules, each once; `pilots` are those of the model."""
    known = {f"CFG({scale:g})" for scale in FIXED}
    for scale in FIXED:
        yield Setting("CFG", scale, f"CFG({scale:g})")
    for method, text, scales in RULES:
        for scale in scales:
            own = pilots | {"apg": pilots["apg"].get(f"{scale:g}", ""), "scale": f"{scale:g}"}
            if (rule := text.format(**own)) and rule not in known:
                known.add(rule)
                yield Setting(method, scale, rule)


@cache
def network(model: str, dtype: torch.dtype = torch.bfloat16) -> ClassModel | SceneModel:
    """One of the three models."""
    if model == "garments":
        return fashion().to("cpu", dtype)
    return scenes(HERE / "scenes_wrong.safetensors" if model == "wrong" else None).to("cpu", dtype)


def prompts_of(count: int, seed: int) -> Tensor:
    """(count, 6) codes of the law, each twice, that leave the background open."""
    codes = draw((count + 1) // 2, generator_of(sample_seed(seed, 0))).codes()
    codes[:, 5] = -1
    return codes.repeat_interleave(2, 0)[:count]


def conditions(model: str, count: int, seed: int) -> Tensor:
    """The class or the codes of each picture."""
    return torch.arange(count) % 10 if model == "garments" else prompts_of(count, seed)


def make_pictures(
    model: str, rule: str, count: int, evaluations: int, seed: int, dtype: torch.dtype = torch.bfloat16
) -> dict[str, Tensor]:
    """uint8 pictures."""
    net, made = network(model, dtype), []
    for predict, x in batches(net, conditions(model, count, seed), seed):
        made.append(net.decode(sample(predict, parse(rule), x, grid(model, evaluations))))
    return {"pictures": torch.cat(made)}


def grid(model: str, evaluations: int) -> Times:
    return uniform(evaluations) if model == "garments" else shifted(evaluations)


def batches(net: ClassModel | SceneModel, wanted: Tensor, seed: int) -> Iterator[tuple[Predict, Tensor]]:
    """Predictor and noise of each batch."""
    for rows in torch.arange(len(wanted)).split(BATCH):
        yield net.predict(wanted[rows]), noise([sample_seed(seed, i) for i in rows.tolist()], net.shape)


@dataclass(frozen=True)
class Truth:
    """Real pictures of the three models; garments need the folder of Fashion-MNIST."""

    folder: Path

    @cached_property
    def garments(self) -> Garments:
        test, pixels = data.read_fashion(self.folder, train=False), load_sit(SHIPPED)[1]
        assert pixels is not None
        return Garments(test.images, test.labels, pixels)

    def measure(self, model: str, pictures: Tensor, seed: int) -> list[Estimate]:
        """The numbers of a cell; a group of pictures (i modulo GROUPS) has all classes, or whole prompts."""
        order = torch.arange(len(pictures)).reshape(-1, 10 if model == "garments" else 2).T.flatten()
        wanted = conditions(model, len(pictures), seed)[order]
        if model == "garments":
            real: Garments | Scenes = self.garments
        else:
            real = Scenes(conditions(model, len(pictures), seed), scenes().pixels, TRUTH_SEED + seed)
        return [grouped(e) for e in real.measure(pictures[order], wanted)]

    def real_pictures(self, model: str, count: int, seed: int) -> Tensor:
        """Training pictures of Fashion-MNIST, or further renders, as many as a cell has."""
        if model != "garments":
            return renders(conditions(model, count, seed), REAL_SEED + seed)
        train, each = data.read_fashion(self.folder), count // 10
        places = [(train.labels == k).nonzero()[seed * each : (seed + 1) * each, 0] for k in range(10)]
        return train.images[torch.stack(places, 1).flatten()]

    def examples(self, model: str, count: int) -> tuple[Tensor, Tensor]:
        """Data of real pictures and their conditions, for the learned scale; none is scored."""
        if model != "garments":
            codes = prompts_of(count, PILOT_SEED)
            return scenes().pixels.data(renders(codes, PILOT_SEED)), codes
        train, real = data.read_fashion(self.folder), self.garments
        return real.pixels.data(train.images[-count:]), train.labels[-count:]


def find_pilots(study: Study, truth: Truth, model: str) -> dict[str, Any]:
    """Rules that are chosen beforehand: APG at each scale, the calibrated cap, the learned scale."""
    count, net = study.pilot, network(model)

    def product(rule: str) -> float:
        made = make_pictures(model, rule, count, EVALUATIONS, PILOT_SEED)["pictures"]
        numbers = {e.name: e.value for e in truth.measure(model, made, PILOT_SEED)}
        return numbers["FD"] * numbers["SW2"]

    wanted = conditions(model, count, PILOT_SEED)
    cap = run_pilot(batches(net, wanted, PILOT_SEED), grid(model, EVALUATIONS)).cap("rms")
    clean, own = truth.examples(model, 2 * count)
    pairs = zip(own.split(BATCH), clean.split(BATCH), strict=True)
    learned = learn_scale([(net.predict(c), x) for c, x in pairs], model=net.name)
    return {
        "apg": {f"{s:g}": min((str(apg(s, radius=r)) for r in RADII), key=product) for s in TUNED},
        "calibrated": str(cap),
        "learned": str(learned),
    }


def path_rule(model: str) -> str:
    """What path matching chose for the model; nothing with wrong captions."""
    names = {"garments": "fashion-320", "scenes": "scenes-128"}
    path = HERE.parent / "path_matching" / f"{names.get(model)}.json"
    return str(Calibration.load(path)) if path.is_file() else ""


def jobs(study: Study, models: Sequence[str]) -> Iterator[tuple[str, int, int]]:
    """Model, evaluations and seed in the order of work: what is finished is a complete seed."""
    for seed in study.seeds:
        yield from ((model, EVALUATIONS, seed) for model in models)
    yield from ((model, n, study.seeds[0]) for n in OTHERS for model in models)


@dataclass(frozen=True)
class Work:
    """The cells of the study; `made` restricts it to those that have been made."""

    study: Study
    cells: Cells
    truth: Truth
    made: bool = False

    def readings(self, models: Sequence[str]) -> Iterator[Row]:
        """A line for each number of each cell."""
        for model, n, seed in jobs(self.study, models):
            count = self.study.count(model)
            if n == EVALUATIONS and model != "wrong":
                make, about = partial(self._real, model, count, seed), (model, 0, "real", "", seed)
                yield from self._lines(f"{model}-real-seed{seed}", make, about)
            for s in self._settings(model):
                name, about = s.cell(model, n, seed), (model, n, s.method, s.scale, seed)
                if (n != EVALUATIONS and (s.method, s.scale) not in FEW) or self._lacks(name):
                    continue
                make = partial(make_pictures, model, s.rule, count, n, seed)
                yield from self._lines(name, make, about)
        if "garments" in models:
            yield from self._precision()

    def _settings(self, model: str) -> list[Setting]:
        path = self.cells.folder / f"pilots-{model}.json"
        pilots: dict[str, Any] = {"apg": {}, "calibrated": "", "learned": ""}  # enough for what has been made
        if not path.is_file() and not self.made:
            write_whole(path, json.dumps(find_pilots(self.study, self.truth, model), indent=1) + "\n")
        if path.is_file():
            pilots = json.loads(path.read_text(encoding="utf-8"))
        return [*settings(pilots | {"path": path_rule(model)})]

    def _real(self, model: str, count: int, seed: int) -> dict[str, Tensor]:
        return {"pictures": self.truth.real_pictures(model, count, seed)}

    def _precision(self) -> Iterator[Row]:
        """The first garments of a few cells, by networks in float32 and in bfloat16."""
        for s in (s for s in self._settings("garments") if (s.method, s.scale) in FEW):
            for name, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16)):
                make = partial(make_pictures, "garments", s.rule, self.study.pilot, EVALUATIONS, 0, dtype)
                about = (f"garments {name}", EVALUATIONS, s.method, s.scale, 0)
                if not self._lacks(cell := f"{name}-{s.cell('garments', EVALUATIONS, 0)}"):
                    yield from self._lines(cell, make, about)

    def _lacks(self, name: str) -> bool:
        return self.made and name not in self.cells

    def _lines(
        self, name: str, make: Callable[[], dict[str, Tensor]], about: tuple[str, int, str, float | str, int]
    ) -> Iterator[Row]:
        pictures, (model, *_, seed) = self.cells.make(name, make)["pictures"], about

        def measured() -> dict[str, Tensor]:
            estimates = self.truth.measure(model.split()[0], pictures, seed)
            empty = torch.empty(0)  # too few pictures for an error
            values = {e.name: [e.value, *(empty if e.parts is None else e.parts)] for e in estimates}
            return {name: torch.tensor(numbers, dtype=torch.float64) for name, numbers in values.items()}

        columns = ("model", "evaluations", "method", "scale", "seed", "pictures", "number", "value", "parts")
        for number, values in self.cells.make(f"measured-{name}", measured).items():
            value, *parts = (f"{v:.5g}" for v in values.tolist())
            row = (*about, len(pictures), number, value, " ".join(parts))
            yield dict(zip(columns, row, strict=True))


def main(argv: Sequence[str] | None = None) -> None:
    p = command(__doc__, "python -m studies.axes --data DIR --out out/axes", Study())
    p.add_argument("--data", type=Path, metavar="DIR", help="the files of Fashion-MNIST")
    p.add_argument("--models", default=",".join(MODELS), metavar="V", help="which models (all)")
    p.add_argument("--collect", action="store_true", help="write readings.csv of the cells made so far")
    args = p.parse_args(argv)
    if not args.page:
        if args.data is None:
            raise ValueError("give --data DIR, the folder of Fashion-MNIST's idx files")
        study = chosen(args, Study(), QUICK)
        work = Work(study, Cells(args.out, study), Truth(args.data), args.collect)
        write_csv(args.out / "readings.csv", work.readings(args.models.split(",")))
    out = HERE if args.page else args.out
    seen = read_readings(out / "readings.csv")
    drawings = {"fronts": partial(draw_fronts, seen), "robustness": partial(draw_robustness, seen)}
    write_figures(out, drawings)
    write_csv(out / "settings.csv", setting_rows(seen))
    if args.page:
        write_page(HERE, parts(HERE))
