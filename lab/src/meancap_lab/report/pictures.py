"""Pictures of matched runs: the same noise and the same class or prompt under different rules.

sheet      rows are seeds, columns are rules
gallery    one HTML page that opens from disk: no server, no script, no file beside it
mechanism  for each run |m_c| and |m_u|, |m_c - m_u|, effective and nominal scale, and chi over time; thin
           lines are samples, thick ones their mean
meters     effective scale, ratio and share capped of several runs
demo       the page of `meancap demo`: one picture, the meter, and four numbers for each rule
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import wrap
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle

from meancap.files import write_whole
from meancap.rules.calibration import GapCurve

from ..models.data import FASHION
from ..runs.folder import Run, png_bytes
from ..runs.scoring import read_scores
from ..tensor_files import read_tensors
from .document import Heading, Table, Text, html, markdown
from .style import AMBER, BLUE, GREEN, GREY, PAGE, PURPLE, SKY, VERMILION, look, save_png

_MARGIN = 1.3  # inches for the condition of a sample


def need_matched(runs: Sequence[Run]) -> None:
    """Raises an error if runs differ in more than the rule, because a comparison would not show the rule."""
    first = runs[0]
    for other in runs[1:]:
        for what, mine, theirs in (
            ("seeds", first.seeds, other.seeds),
            ("labels", first.labels, other.labels),
            ("prompts", first.prompts, other.prompts),
        ):
            shared = min(len(mine), len(theirs))
            if mine[:shared] != theirs[:shared]:
                raise ValueError(
                    f"{first.folder.name} and {other.folder.name} differ in their {what}; only runs of one "
                    "seed and one list of classes or prompts can be compared"
                )


def sheet(runs: Sequence[Run], positions: Sequence[int] | None = None, titles: Sequence[str] = ()) -> Figure:
    """Rows are samples (the first ten, or `positions`), columns are runs."""
    need_matched(runs)
    chosen = list(range(min(10, *map(len, runs)))) if positions is None else list(positions)
    images = [run.images(chosen) for run in runs]
    tall = images[0].shape[1] / images[0].shape[2]
    widest = 0.9 if images[0].shape[2] < 64 else 1.6
    cell = min(widest, (PAGE - _MARGIN) / len(runs))
    figure = Figure(figsize=(_MARGIN + cell * len(runs), 0.5 + cell * tall * len(chosen)))
    figure.set_layout_engine("constrained", w_pad=0.03, h_pad=0.01, wspace=0, hspace=0)
    axes: Any = figure.subplots(len(chosen), len(runs), squeeze=False)
    for j, run in enumerate(runs):
        axes[0, j].set_title(titles[j] if titles else run.rule.replace(" | ", "\n| ") or "no rule")
        for i, position in enumerate(chosen):
            _show(axes[i, j], images[j][i])
            if j == 0:
                lines = wrap(condition(run, position), 20)
                label = "\n".join(lines[:3]) + ("…" if len(lines) > 3 else "")
                axes[i, 0].set_ylabel(label, rotation=0, ha="right", va="center")
    return figure


def _scales_and_overshoot(
    drawn: Mapping[str, Run], positions: Sequence[int], ends: Mapping[str, Any]
) -> Figure:
    """For each prompt CFG above and capped below, scales from left to right; beside it a mixture's samples.

    The background is transparent and the words are grey, so that one file serves light and dark pages.
    """
    scales = [title for title in drawn if "capped" not in title]
    need_matched(list(drawn.values()))
    prompts = next(iter(drawn.values())).prompts
    figure = Figure(figsize=(6.0, 4.6), layout="constrained")
    halves: Any = figure.subfigures(1, 2, width_ratios=(2.6, 1))
    left, right = halves
    blocks = left.subfigures(len(positions), 1, squeeze=False)[:, 0]
    for position, block in zip(positions, blocks, strict=True):
        block.suptitle(f"“{prompts[position]}”", fontsize=8)
        axes = block.subplots(2, len(scales))
        for line, name, suffix in zip(axes, ("CFG", "capped"), ("", ", capped"), strict=True):
            line[0].set_ylabel(name, fontsize=8)
            for place, title in zip(line, scales, strict=True):
                _show(place, drawn[title + suffix].images([position])[0])
                if position == positions[0] and not suffix:
                    place.set_title("λ = " + title.removeprefix("CFG "), fontsize=8)
    right.suptitle("one component of a mixture", fontsize=8)
    places = right.subplots(len(ends), 1)
    for place, (title, x), colour in zip(places, ends.items(), (BLUE, VERMILION, GREEN), strict=True):
        place.scatter(x[:, 0], x[:, 1], s=0.6, color=colour, linewidths=0)
        for deviations in (1, 2):  # rings of the target, a Gaussian of deviation 0.03 at (0, 1)
            place.add_patch(Circle((0, 1), 0.03 * deviations, fill=False, color=GREY, linewidth=0.7))
        place.set(xlim=(-0.12, 0.12), ylim=(0.9, 1.14), xticks=(), yticks=(), title=title, aspect="equal")
        place.spines[:].set_visible(True)
    return figure


def condition(run: Run, position: int) -> str:
    """The condition of a sample: its prompt, or its class, by name for the shipped model."""
    record = run.records[position]
    if record.get("prompt") is not None:
        return str(record["prompt"])
    named = FASHION if run.config.get("model") == "fashion" else ()
    return named[record["label"]] if record["label"] < len(named) else f"class {record['label']}"


def _show(axes: Axes, image: npt.NDArray[np.uint8]) -> None:
    if image.shape[-1] == 1:
        axes.imshow(image[..., 0], cmap="gray", vmin=0, vmax=255, interpolation="nearest")
    else:
        axes.imshow(image, interpolation="nearest")
    axes.set_xticks([])
    axes.set_yticks([])
    for side in axes.spines.values():
        side.set_visible(False)


def gallery(runs: Sequence[Run], count: int = 40) -> str:
    """The page as text: a row for each of the first `count` samples, a column for each run."""
    need_matched(runs)
    shown = min(count, *map(len, runs))
    images = [run.images(range(shown)) for run in runs]
    rows: list[tuple[str | bytes, ...]] = []
    for i, seed in enumerate(runs[0].seeds[:shown]):
        rows.append((f"{condition(runs[0], i)}, seed {seed}", *(png_bytes(batch[i]) for batch in images)))
    first = runs[0].config
    note = (
        f"{first['model']}, {len(first['times']) - 1} steps, {first['solver']}. "
        "Every row has one noise and one condition; only the rule differs."
    )
    heads = ("sample", *(run.rule or "no rule" for run in runs))
    table = Table(heads, (tuple(rows),), names=len(heads))
    return html([Heading("Matched samples", 1), Text(note), table], Path())


_EPSILON = 1e-12  # epsilon_m of chi, which the paper does not state
_COLOURS = (BLUE, VERMILION, GREEN, PURPLE, AMBER, SKY)
Array = npt.NDArray[np.float64]


def mean_lengths(meter: Mapping[str, Array]) -> tuple[Array, Array]:
    """|m_c| and |m_u|, from the ratio, the gap and the angle that the meter keeps."""
    m_c = meter["length"] / meter["ratio"]
    squared = m_c**2 - 2 * m_c * meter["gap"] * meter["cosine"] + meter["gap"] ** 2
    return m_c, np.sqrt(np.maximum(squared, 0))


def _chi(meter: Mapping[str, Array]) -> Array:
    return meter["length"] / (mean_lengths(meter)[0] + _EPSILON)


def mechanism(pairs: Sequence[tuple[Run, Run]], samples: int = 30) -> Figure:
    """Four panels over time for each pair of runs: norms of the means and gap of the first, effective scale
    and chi of the second. The paper's figure has the first three, for no guidance and the cap."""
    figure = Figure(figsize=(PAGE, 0.4 + 1.7 * len(pairs)), layout="constrained")
    axes: Any = figure.subplots(len(pairs), 4, squeeze=False, sharex=True, sharey="col")
    for row, (path, scaled) in zip(axes, pairs, strict=True):
        t, used = path.meter["t"][:, 0], scaled.meter["t"][:, 0]
        m_c, m_u = mean_lengths(path.meter)
        _bundle(row[0], t, m_c, BLUE, samples, "conditional")
        _bundle(row[0], t, m_u, GREY, samples, "unconditional")
        _bundle(row[1], t, path.meter["gap"], PURPLE, samples)
        _bundle(row[2], used, scaled.meter["scale"], GREEN, samples, "effective")
        nominal = scaled.meter["asked"].mean(1)
        row[2].plot(used, nominal, color=VERMILION, linestyle="--", linewidth=0.9, label="nominal")
        _bundle(row[3], used, _chi(scaled.meter), AMBER, samples)
        titles = (
            f"length of the means, {path.rule}",
            f"gap |m_c − m_u|, {path.rule}",
            f"scale, {scaled.rule}",
            f"χ = |m| / (|m_c| + ε), {scaled.rule}",
        )
        for place, text in zip(row, titles, strict=True):
            place.set_title("\n".join(wrap(text, 28)))
    axes[0, 0].legend(loc="best")
    axes[0, 2].legend(loc="best")
    for place in axes[-1]:
        place.set_xlabel("t (noise at 0, data at 1)")
    return figure


def mechanism_csv(plain: Run, capped: Run) -> str:
    """The means of the mechanism figure as CSV, and chi = |m| / (|m_c| + epsilon_m), which the paper logs."""
    m_c, m_u = mean_lengths(plain.meter)
    columns = {
        "t": plain.meter["t"], "m_c": m_c, "m_u": m_u, "gap": plain.meter["gap"],
        "t_capped": capped.meter["t"], "effective_scale": capped.meter["scale"],
        "chi": _chi(capped.meter),
    }  # fmt: skip
    rows = zip(*(values.mean(1) for values in columns.values()), strict=True)
    return "\n".join([",".join(columns), *(",".join(f"{v:.6g}" for v in row) for row in rows)]) + "\n"


def meters(runs: Sequence[Run], titles: Sequence[str] = (), real: GapCurve | None = None) -> Figure:
    """The guidance meter of several runs: effective scale, ratio and share capped, means over samples.

    With the gap `real` of examples, a fourth panel has the squared gap over theirs.
    """
    figure = Figure(figsize=(PAGE, 2.1), layout="constrained")
    axes: Any = figure.subplots(1, 3 if real is None else 4)
    for k, run in enumerate(runs):
        meter, colour = run.meter, _COLOURS[k % len(_COLOURS)]
        t = meter["t"][:, 0]
        name = titles[k] if titles else run.rule
        curves = [meter[field].astype(float).mean(1) for field in ("scale", "ratio", "active")]
        if real is not None:
            curves.append(
                [real.ratio(*one) for one in zip(t, (meter["gap"] ** 2).mean(1) ** 0.5, strict=True)]
            )
        for place, values in zip(axes, curves, strict=True):
            place.plot(t, values, color=colour, linewidth=1.5, label=name)
    named = ("effective scale", "ratio |m| / |m_c|", "share capped", "squared gap / real")
    for place, title in zip(axes, named, strict=False):
        place.set_title(title)
        place.set_xlabel("t")
    axes[2].set_ylim(-0.03, 1.03)
    axes[1].legend(loc="upper right")  # ratios fall to 1 from the left: that corner is free
    if real is not None:
        axes[3].axhline(1, color="#222222", linestyle=":")
        axes[3].set_yscale("log")
    return figure


def _bundle(axes: Axes, t: Array, values: Array, colour: str, samples: int, label: str = "") -> None:
    """Thin lines for some samples, a thick one for the mean of all."""
    axes.plot(t, values[:, :samples], color=colour, alpha=0.22, linewidth=0.5)
    axes.plot(t, values.mean(1), color=colour, linewidth=2.0, label=label or None)


def draw_all(
    runs: Sequence[Run], out: Path, rows: int = 10, shown: int = 40, real: GapCurve | None = None
) -> list[Path]:
    """sheet.png, gallery.html, and what else the runs have data for; returns what was written."""
    need_matched(runs)
    out.mkdir(parents=True, exist_ok=True)
    written = [write_whole(out / "gallery.html", gallery(runs, shown))]
    with look():
        written.append(save_png(sheet(runs, range(min(rows, *map(len, runs)))), out / "sheet.png"))
        if all((run.folder / "diagnostics.npz").is_file() and run.meter for run in runs):
            written.append(save_png(mechanism([(run, run) for run in runs]), out / "mechanism.png"))
            written.append(save_png(meters(runs, real=real), out / "meter.png"))
    return written


_DEMO_PAGE = """\
# The same noise and the same prompt, with CFG and capped

![scenes](demo.png)

Without guidance (λ = 1) the model misses both prompts. CFG meets them, but from λ = 8 on it saturates colours
and backgrounds; with the cap at 1.1 the background keeps its shade. On the right are samples of a Gaussian
and the rings of their target: CFG 8 overshoots it and contracts. The same with garments:

![garments](garments.png)

{table}
- **accuracy**: how often a classifier trained on real garments recognises the requested one.
- **diversity**: mean distance between two pictures of one class, in that classifier's features.
- **brightness**: mean pixel value, which strong guidance drives up.
- **scale**: the applied guidance scale at the first and at the last step.

The guidance meter of each rule is in [meter.png](meter.png). At the start, when the sample is only noise, the
two means are short and the gap is long, so the cap applies little guidance. Later the gap closes and the cap
no longer acts.

All samples are side by side in [gallery.html](gallery.html). Each rule's folder holds its pictures,
`run.json` with everything needed to make them again, and `diagnostics.npz`. {count} pictures per rule are
enough to see a difference, not to measure one; `meancap reproduce fashion` measures it.
"""


def write_demo(
    runs: Mapping[str, Run], drawn: Mapping[str, Run], positions: Sequence[int], out: Path
) -> Path:
    """demo.png of some scenes of `drawn`; garments.png, meter.png, gallery.html and report.md of `runs`."""
    ends = read_tensors(out / "overshoot.safetensors")[0]
    folders, titles = list(runs.values()), list(runs)
    with look():
        short = [title.replace(", ", ",\n") for title in titles]
        with rc_context({"text.color": GREY, "axes.titlecolor": GREY, "axes.labelcolor": GREY}):
            picture = _scales_and_overshoot(drawn, positions, {title: ends[title] for title in runs})
        save_png(picture, out / "demo.png", 200, transparent=True)
        save_png(sheet(folders, range(10), short), out / "garments.png", 260)
        save_png(meters(folders, titles), out / "meter.png")
    write_whole(out / "gallery.html", gallery(folders))
    scores = {title: {s.name: s.value for s in read_scores(run.folder)} for title, run in runs.items()}
    page = _DEMO_PAGE.format(table=_table(runs, scores), count=len(folders[0]))
    return write_whole(out / "report.md", page)


def _table(runs: Mapping[str, Run], scores: Mapping[str, Mapping[str, float]]) -> str:
    rows = []
    for title, run in runs.items():
        s, scale, share = scores[title], run.meter["scale"].mean(1), run.meter["active"].mean()
        row = (title, f"{s['accuracy']:.2f}", f"{s['diversity']:.2f}", f"{s['brightness']:.3f}")
        rows.append((*row, f"{scale[0]:.2f} → {scale[-1]:.2f}", f"{share:.0%}"))
    heads = ("rule", "accuracy", "diversity", "brightness", "scale, first → last", "capped")
    return markdown([Table(heads, (tuple(rows),))])
