"""Scenes: which rule draws what a sentence asks for, and what it does to all the rest.

    parts      scenes: the shipped model; negative: it, with a negative prompt; wrong: the second model, a
               fifth of whose captions belonged to another scene (scenes_wrong.safetensors, in this folder)
    prompts    half of them fix all six words, half leave each word open with probability 1/2
    pilots     on prompts and noise of their own: APG's radius at each scale and the temperature of feedback
               (most pictures wholly right and drawn), the scale of fixed guidance with most pictures wholly
               right, the radii of the calibrated cap; ties go to the first candidate
    sampler    Euler on SD3's grid, shift 3; float32; all rules share prompts and noise

OUT gets readings.csv (what was seen on every picture), table.csv, compared.csv and figures.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from meancap import Record
from meancap.files import write_whole
from meancap.metrics.distances import frechet_distance
from meancap.metrics.manifold import recall_at
from meancap.rules import CFG, Cap, CapDisplacement, Rule, apg, density_feedback, parse
from meancap.runs.calibrate import calibrate
from meancap.runs.config import sample_seed
from meancap.sampling import noise, sample, shifted
from meancap.scenes import (
    Measured,
    SceneModel,
    detector,
    draw,
    measure_pictures,
    prompt_of,
    render,
    scenes,
)
from meancap.scenes import codes as codes_of
from meancap.schedules import Exponential
from studies.common import Cells, Row, chosen, command, option, write_csv, write_figures, write_page
from studies.scene_measures import joined_measures, mean_tv, share_interval, some_measures, summary, violated

from .compare import NUMBERS, compared, contrast_rows, read_readings
from .page import CLAUSES, draw_curves, draw_sheet, parts

HERE = Path(__file__).parent
WRONG = HERE.parent / "axes" / "scenes_wrong.safetensors"
WRONG_SHARE = 0.2  # of the captions of the second model; they are drawn at random, as feedback supposes
PARTS = ("scenes", "negative", "wrong")
SHIFT, PILOT_SEED, TRUTH_SEED, TV_GROUPS = 3.0, 1000, 2000, 12
RADII, TEMPERATURES = (2.5, 5.0, 10.0, 20.0), (1.0, 4.0)


@dataclass(frozen=True)
class Study:
    """How much to run."""

    prompts: int = option(32, "prompts in each cell, for each seed")
    seeds: tuple[int, ...] = option((0, 1, 2), "seeds of prompts and noise")
    steps: int = option(16, "Euler steps")
    scales: tuple[float, ...] = option((2.0, 4.0, 7.0, 15.0), "guidance scales of the first part")
    beyond: tuple[float, ...] = option((50.0,), "scales for caps only")
    negative_scales: tuple[float, ...] = option((4.0, 15.0), "scales with negative prompts")
    wrong_scales: tuple[float, ...] = option((2.0, 4.0, 15.0), "scales with wrong captions")

    def __post_init__(self) -> None:
        everywhere = (*self.scales, *self.beyond, *self.negative_scales, *self.wrong_scales)
        if not self.scales or min(everywhere) <= 1:
            raise ValueError("the study needs scales above 1; the unguided run is always part of it")


QUICK = Study(16, (0,), 8, (4.0,), (), (4.0,), (4.0,))


@dataclass(frozen=True)
class Setting:
    """A rule at a scale, in one part."""

    part: str
    method: str
    scale: float
    rule: Rule
    gamma: float | None = None

    def cell(self, seed: int) -> str:
        return f"{self.part}-{self.method}-{self.gamma or ''}-scale-{self.scale:g}-seed{seed}"


def settings(study: Study, pilots: dict[str, Any], part: str) -> Iterator[Setting]:
    """The rules of a part at each of its scales; APG and C2FG are for the first part."""
    scales = {"scenes": study.scales, "negative": study.negative_scales, "wrong": study.wrong_scales}[part]
    calibrated = parse(pilots["calibrated"]["wrong" if part == "wrong" else "scenes"])

    def caps(scale: float) -> Iterator[Setting]:
        fixed = CFG(scale)
        yield Setting(part, "Cap", scale, fixed | Cap(1.05), 1.05)
        yield Setting(part, "Cap", scale, fixed | Cap(1.10), 1.10)
        yield Setting(part, "Displacement", scale, fixed | CapDisplacement(1.15), 1.15)
        yield Setting(part, "Anchored", scale, fixed | Cap(1.10, anchor="first"), 1.10)
        yield Setting(part, "Calibrated", scale, fixed | calibrated)

    yield Setting(part, "Conditional", 1.0, CFG(1.0))
    for scale in scales:
        yield Setting(part, "CFG", scale, CFG(scale))
        if part == "scenes":
            yield Setting(part, "APG", scale, apg(scale, radius=pilots["radii"][f"{scale:g}"]))
            yield Setting(part, "C2FG", scale, CFG(Exponential(scale, 0.2)))
        yield from caps(scale)
    for scale in () if part == "negative" else study.beyond:
        yield from caps(scale)
    if part == "wrong":
        known = 1 - WRONG_SHARE
        yield Setting(part, "Feedback known", round(1 / known, 4), density_feedback(known))
    # Feedback begins at the scale: R = 1 there, so that the scale is 1 / pi.
    for scale in () if part == "negative" else scales:
        rule = density_feedback(round(1 / scale, 4), temperature=pilots["temperature"])
        yield Setting(part, "Feedback", scale, rule)


def complete_and_partial(count: int, seed: int) -> list[str]:
    """Prompts of the law: the first half complete, each word of the others open with probability 1/2."""
    g = torch.Generator().manual_seed(sample_seed(seed, 0))
    codes = draw(count, g).codes()
    unsaid = torch.rand(codes.shape, generator=g) < 0.5
    unsaid[: count // 2] = False
    return _sentences(torch.where(unsaid, -1, codes))


def with_negatives(count: int, seed: int) -> tuple[list[str], list[str]]:
    """Prompts that leave both colours open, and a colour that must not be there."""
    g = torch.Generator().manual_seed(sample_seed(seed, 1))
    codes = draw(count, g).codes()
    colours = codes[:, 1].clone()
    codes[:, 1] = codes[:, 3] = -1
    nothing = torch.full_like(codes, -1)
    nothing[:, 1] = colours
    return _sentences(codes), _sentences(nothing)


def prompts_of(study: Study, part: str, seed: int) -> tuple[list[str], list[str] | None]:
    """The prompts of a part and seed, and its negative ones."""
    if part == "negative":
        return with_negatives(study.prompts, seed)
    return complete_and_partial(study.prompts, seed), None


def _sentences(codes: Tensor) -> list[str]:
    return [str(prompt_of(row)) for row in codes.tolist()]


@cache
def model_of(part: str) -> SceneModel:
    """The model of a part."""
    return scenes(WRONG) if part == "wrong" else scenes()


def make_pictures(study: Study, part: str, rule: Rule, seed: int) -> dict[str, Tensor]:
    """Pictures (n, 3, 32, 32), and the effective scale, mean over steps and pictures."""
    model, record = model_of(part), Record()
    prompts, negatives = prompts_of(study, part, seed)
    x = noise([sample_seed(seed, i) for i in range(len(prompts))], model.shape)
    predict = model.predict(prompts, negatives)
    pictures = model.decode(sample(predict, rule, x, shifted(study.steps, SHIFT), record=record))
    return {"pictures": pictures, "used": record.stacked()["scale"].mean()}


def find_pilots(study: Study) -> dict[str, Any]:
    """What is chosen beforehand."""

    def measured(rule: Rule, part: str = "scenes") -> Measured:
        pictures = make_pictures(study, part, rule, PILOT_SEED)["pictures"]
        return measure_pictures(detector(), pictures, codes)

    def hits(rule: Rule) -> int:
        seen = measured(rule)
        return int((seen.right["all"] & seen.drawn).sum())

    def best(values: Sequence[float], score: Callable[[float], int]) -> float:
        return max(values, key=score)  # the first of the best

    def radii_of(part: str) -> str:
        model = model_of(part)
        x = noise([sample_seed(PILOT_SEED, i) for i in range(len(codes))], model.shape)
        times = shifted(study.steps, SHIFT)
        return str(calibrate([(model.predict(codes), x)], times, model=model.name).cap())

    codes = codes_of(complete_and_partial(study.prompts, PILOT_SEED))
    start = round(1 / study.scales[len(study.scales) > 1], 4)
    scales = {"scenes": study.scales, "wrong": study.wrong_scales}
    return {
        "radii": {f"{s:g}": best(RADII, lambda r, s=s: hits(apg(s, radius=r))) for s in study.scales},
        "temperature": best(TEMPERATURES, lambda heat: hits(density_feedback(start, temperature=heat))),
        "best": {
            part: best(values, lambda s, part=part: int(measured(CFG(s), part).right["all"].sum()))
            for part, values in scales.items()
        },
        "calibrated": {part: radii_of(part) for part in scales},
    }


def open_pilots(study: Study, out: Path) -> dict[str, Any]:
    """What pilots.json says, or what the pilots find."""
    path = out / "pilots.json"
    if not path.is_file():
        write_whole(path, json.dumps(find_pilots(study), indent=1) + "\n")
    return dict(json.loads(path.read_text(encoding="utf-8")))


def measure_part(study: Study, cells: Cells, pilots: dict[str, Any], part: str) -> Iterator[tuple[str, Row]]:
    """Rows of table.csv and of readings.csv; renders of the same prompts ("Truth") come first.

    right ...         share of pictures on which the detector finds what the prompt demands, and all of it
    drawn             share of pictures whose two objects overlap their template with IoU > 0.85
    lost, gained      pictures that fixed guidance at the same scale has right and this rule has not, and the
                      other way round: same prompt, same noise
    FD, recall        of the detector's 96 features, against the renders
    violated          negative part: share of pictures that show the colour that must not be there
    """
    prompts = {seed: prompts_of(study, part, seed) for seed in study.seeds}
    codes = {seed: codes_of(prompts[seed][0]) for seed in study.seeds}
    negatives = {seed: codes_of(given[1]) for seed, given in prompts.items() if given[1] is not None}
    truth = joined_measures([measure_pictures(detector(), *renders(codes[s], s)) for s in study.seeds])
    yield "table", table_row(part, "Truth", "", truth, None, negatives)
    fixed: dict[float, Tensor] = {}
    for s in settings(study, pilots, part):
        made, used = [], []
        for seed in study.seeds:
            cell = cells.make(s.cell(seed), partial(make_pictures, study, part, s.rule, seed))
            made.append(measure_pictures(detector(), cell["pictures"], codes[seed]))
            used.append(float(cell["used"]))
            yield "readings", reading_row(s, seed, made[-1], used[-1], negatives.get(seed))
        together = joined_measures(made)
        row = table_row(part, s.method, s.scale, together, truth, negatives)
        row |= {"gamma": "" if s.gamma is None else s.gamma, "scale used": sum(used) / len(used)}
        right = together.right["all"]
        if s.method == "CFG":
            fixed[s.scale] = right
        if (other := fixed.get(s.scale)) is not None:
            row["lost"] = float((other & ~right).double().mean())
            row["gained"] = float((right & ~other).double().mean())
        yield "table", row


def renders(codes: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """One picture of the law for each prompt, with the prompts."""
    g = torch.Generator().manual_seed(sample_seed(TRUTH_SEED + seed, 0))
    return (render(draw(codes, g)) * 255).round().byte(), codes


def table_row(
    part: str, method: str, scale: float | str, made: Measured, truth: Measured | None,
    negatives: dict[int, Tensor],
) -> Row:  # fmt: skip
    """One line of the table; that of the renders has no truth to be compared with."""
    numbers = summary(made)
    row: Row = {"part": part, "method": method, "scale": scale, "gamma": "", "pictures": len(made.codes)}
    row |= numbers | {"tv": mean_tv(numbers), "tv error": tv_error(made)}
    for name, hits in (("right all", made.right["all"]), ("drawn", made.drawn)):
        row[f"{name} low"], row[f"{name} high"] = share_interval(int(hits.sum()), len(hits))
    if truth is not None:
        row["FD"] = frechet_distance(made.readings.pool, truth.readings.pool)
        row["recall"] = recall_at(truth.readings.pool, made.readings.pool)
    if negatives:
        row["violated"] = float(violated(made, torch.cat([*negatives.values()])).double().mean())
    return row


def tv_error(made: Measured) -> float:
    """Standard error of the mean total variation, leaving out one group of pictures at a time."""
    count = min(TV_GROUPS, len(made.codes))
    place = torch.arange(len(made.codes)) % count
    values = torch.tensor([mean_tv(summary(some_measures(made, place != k))) for k in range(count)]).double()
    return float(((count - 1) / count * (values - values.mean()).square().sum()).sqrt())


def reading_row(s: Setting, seed: int, made: Measured, used: float, negatives: Tensor | None) -> Row:
    """What was seen on every picture of a cell: a 0 or 1 for each, or thousandths."""

    def bits(values: Tensor) -> str:
        return "".join("1" if v else "0" for v in values.tolist())

    row: Row = {"part": s.part, "method": s.method, "gamma": s.gamma or "", "scale": s.scale, "seed": seed}
    row |= {"rule": str(s.rule), "scale used": used}
    row |= {f"right {name}": bits(made.right[name]) for name in ("all", *CLAUSES)}
    row["drawn"] = bits(made.drawn)
    row["violated"] = "" if negatives is None else bits(violated(made, negatives))
    for name in NUMBERS:
        row[name] = " ".join(str(round(v * 1000)) for v in getattr(made, name).tolist())
    return row


def main(argv: Sequence[str] | None = None) -> None:
    args = command(__doc__, "python -m studies.scenes --out out/scenes", Study()).parse_args(argv)
    if args.page:
        write_comparisons(HERE)
        write_figures(HERE, {"curves": lambda: draw_curves(HERE)})
        return write_page(HERE, parts(HERE))
    study = chosen(args, Study(), QUICK)
    cells = Cells(args.out, study, model=model_of("scenes").sha256)
    pilots = open_pilots(study, args.out)
    tables: dict[str, list[Row]] = {"table": [], "readings": []}
    for part in PARTS:
        for name, row in measure_part(study, cells, pilots, part):
            tables[name].append(row)
    for name, rows in tables.items():
        write_csv(args.out / f"{name}.csv", rows)
    write_comparisons(args.out)
    first = study.seeds[0]
    scale = min(study.scales, key=lambda s: abs(s - 8))
    shown = [s for s in settings(study, pilots, "scenes") if s.scale in (1.0, scale)]
    sheet = [(f"{s.method} {s.gamma or ''}", cells.load(s.cell(first))["pictures"]) for s in shown]
    prompts = prompts_of(study, "scenes", first)[0]
    drawings = {"curves": lambda: draw_curves(args.out), "sheet": lambda: draw_sheet(sheet, prompts, scale)}
    return write_figures(args.out, drawings)


def write_comparisons(folder: Path) -> None:
    """compared.csv: every rule less fixed guidance where the two do equally much."""
    readings = read_readings(folder / "readings.csv")
    rows = [row for part in ("scenes", "wrong") for row in contrast_rows(compared(readings, part))]
    write_csv(folder / "compared.csv", rows)
