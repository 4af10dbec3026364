"""The demonstration's page: one picture, the guidance meter, and four numbers for each rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ..files import write_whole
from ..runs.folder import Run
from ..runs.scoring import read_scores
from .gallery import write_gallery
from .meter import meters
from .pictures import save_png
from .sheets import class_panels, prompt_rows
from .style import look

_PAGE = """\
# The same noise and the same request, three rules

![scenes](demo.png)

Strong guidance saturates the colours and the background; capped, they stay close to the unguided ones. The
same with garments:

![garments](garments.png)

{table}

- **accuracy**: how often a classifier trained on real garments sees the one that was asked for.
- **diversity**: mean distance between two pictures of one class, in that classifier's features.
- **brightness**: mean pixel value, which strong guidance drives up.
- **scale**: the guidance that was granted at the first and at the last step.

{words}

The guidance meter of each rule ([meter.png](meter.png)): the cap grants little guidance while there is
only noise, where the two means are short and the gap is long, and lets go by itself as the gap closes.

All samples side by side: [gallery.html](gallery.html). Each rule's folder holds its pictures, `run.json`
with everything needed to make them again, and `diagnostics.npz`. {count} pictures a rule are enough to see a
difference, not to measure one: `meancap reproduce fashion` does that.
"""


def write_demo(runs: Mapping[str, Run], drawn: Mapping[str, Run], out: Path, names: Sequence[str]) -> Path:
    """demo.png of the scenes `drawn`; garments.png, meter.png, gallery.html and report.md of `runs`."""
    folders, titles = list(runs.values()), list(runs)
    with look():
        # Narrow, so that the labels can be read on a phone.
        short = [title.replace(", ", ",\n") for title in titles]
        save_png(prompt_rows(list(drawn.values()), short), out / "demo.png", 260)
        save_png(class_panels(folders, 5, short, names, 3.6), out / "garments.png", 260)
        save_png(meters(folders, titles), out / "meter.png")
    write_gallery(folders, out / "gallery.html", names=names)
    scores = {title: {s.name: s.value for s in read_scores(run.folder)} for title, run in runs.items()}
    page = _PAGE.format(table=_table(runs, scores), words=_words(titles, scores), count=len(folders[0]))
    return write_whole(out / "report.md", page)


def _table(runs: Mapping[str, Run], scores: Mapping[str, Mapping[str, float]]) -> str:
    lines = [
        "| rule | accuracy | diversity | brightness | scale, first → last | capped |",
        "|---|---|---|---|---|---|",
    ]
    for title, run in runs.items():
        s, scale = scores[title], run.meter["scale"].mean(1)
        lines.append(
            f"| {title} | {s['accuracy']:.2f} | {s['diversity']:.2f} | {s['brightness']:.3f} "
            f"| {scale[0]:.2f} → {scale[-1]:.2f} | {run.meter['active'].mean():.0%} |"
        )
    return "\n".join(lines)


def _words(titles: Sequence[str], scores: Mapping[str, Mapping[str, float]]) -> str:
    """What the numbers say, for the cap or against it."""
    plain, fixed, capped = (scores[title] for title in titles)
    return (
        f"Accuracy goes from {plain['accuracy']:.2f} to {fixed['accuracy']:.2f} with strong guidance and to "
        f"{capped['accuracy']:.2f} with the cap; of the diversity of the unguided pictures the first keeps "
        f"{fixed['diversity'] / plain['diversity']:.0%}, the second "
        f"{capped['diversity'] / plain['diversity']:.0%}."
    )
