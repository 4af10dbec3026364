"""The marked parts of docs/scenes.md, from a folder of `meancap reproduce scenes`.

    python tools/scenes_page.py FOLDER docs      from a study
    python tools/scenes_page.py docs             again, from what the documents keep

keeps study.json, table.csv, readings.csv and compared.csv in docs/scenes/ with the two figures. Shares, their
intervals and all comparisons are worked out from readings.csv; FD, recall and tv stand in table.csv.
"""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

import torch

from meancap.files import write_whole
from meancap.metrics.score import bootstrap, paired_interval, share_interval
from meancap.report.document import with_parts
from meancap.report.scenes_compared import KINDS, SceneContrast, compared, contrast_rows, said
from meancap.runs.scenes_readings import CLAUSES, SceneReading, chosen, read_readings
from meancap.runs.scenes_table import write_table

KEPT = ("study.json", "table.csv", "readings.csv", "curves.png", "sheet.png")
CAPS = ("Cap 1.05", "Cap 1.1", "Displacement 1.15", "Anchored 1.1", "Calibrated")
SHOWN = (4.0, 15.0, 50.0)
PARTS = {"scenes": "right captions", "wrong": "a fifth of the captions wrong"}


def publish(folder: Path, docs: Path) -> None:
    """The page and what it is made from, into a folder of documents."""
    kept = docs / "scenes"
    if folder != kept:
        for name in KEPT:
            write_whole(kept / name, (folder / name).read_bytes())
    readings = read_readings(kept / "readings.csv")
    contrasts = [line for part in PARTS for line in compared(readings, part)]
    write_table(contrast_rows(contrasts), kept / "compared.csv")
    write_whole(docs / "scenes.md", page(docs).encode())


def page(docs: Path) -> str:
    """The text of docs/scenes.md, its marked parts worked out again."""
    text = (docs / "scenes.md").read_text(encoding="utf-8")
    return with_parts(text, Scenes(docs / "scenes").parts())


class Scenes:
    """A study as its page tells it."""

    def __init__(self, folder: Path) -> None:
        self.study = json.loads((folder / "study.json").read_text(encoding="utf-8"))
        with (folder / "table.csv").open(encoding="utf-8", newline="") as file:
            self.table = list(csv.DictReader(file))
        self.readings = read_readings(folder / "readings.csv")
        self.pictures = len(self.readings[0].drawn)

    def parts(self) -> dict[str, str]:
        """The content of every marked part."""
        return {
            "about": self.about(),
            "answer": "\n".join(self.answer(part) for part in PARTS),
            "lost": self.lost(),
            "clauses": self.clauses(),
            "matched": self.matched(),
            "right captions": self.results("scenes"),
            "wrong captions": self.results("wrong"),
            "negative": self.negative(),
        }

    def of(self, part: str, label: str, scale: float) -> SceneReading:
        return next(r for r in self.readings if (r.part, r.label, r.scale) == (part, label, scale))

    def best(self, part: str) -> SceneReading:
        """Fixed guidance at the scale that the pilot found best."""
        return chosen(self.readings, part, "CFG", float(self.study["pilots"]["best"][part]))

    def about(self) -> str:
        asked, pilots = self.study["asked"], self.study["pilots"]
        radii = ", ".join(f"{r:g} at λ = {scale}" for scale, r in pilots["radii"].items())
        best = pilots["best"]
        return (
            f"**{self.readings[0].seeds} seeds × {asked['prompts']} prompts = {self.pictures} pictures for "
            "every rule and scale**, half of the prompts complete, half with each word open with probability "
            f"1/2; {asked['steps']} Euler evaluations, shift 3; float32; all rules share prompts and noise. "
            f"A pilot with other prompts and noise chose APG's radius ({radii}), the temperature of feedback "
            f"({pilots['temperature']:g}) and the best scale of fixed CFG ({best['scenes']:g}; with wrong "
            f"captions {best['wrong']:g})."
        )

    def answer(self, part: str) -> str:
        """The five caps together at large scales, against fixed guidance at its best scale and at λ = 4."""
        best = self.best(part)
        said = [f"- **{PARTS[part].capitalize()}.**"]
        for fixed in dict.fromkeys((best, chosen(self.readings, part, "CFG", 4.0))):
            which = ", which the pilot found best," if fixed is best else ""
            said.append(
                f"Fixed CFG at λ = {fixed.scale:g}{which} has {int(fixed.right['all'].sum())} of "
                f"{self.pictures} prompts wholly right. Against it"
            )
            lines = [self._caps_less(part, scale, fixed) for scale in (15.0, *self.study["asked"]["beyond"])]
            said.append(" and ".join(lines) + ".")
        worse = [
            f"{label} at λ = {r.scale:g}"
            for label in CAPS
            for r in self.readings
            if (r.part, r.label) == (part, label) and r.scale >= 15
            if paired_interval(*reversed(counts(r, best)), self.pictures)[1] < 0
        ]
        alone = f"worse are {', '.join(worse)}" if worse else "none is worse"
        return " ".join([*said, f"One by one, by their own intervals against the first, {alone}."])

    def _caps_less(self, part: str, scale: float, fixed: SceneReading) -> str:
        caps = torch.stack([self.of(part, label, scale).right["all"].double() for label in CAPS])
        each = caps.mean(0) - fixed.right["all"].double()
        low, high = bootstrap(each)
        lost, gained = float((-each).clamp(min=0).mean()), float(each.clamp(min=0).mean())
        return (
            f"the five caps at λ = {scale:g} lose {lost:.1%} of the pictures and gain {gained:.1%}, "
            f"{float(each.mean()):+.3f} [{low:+.3f}, {high:+.3f}]"
        )

    def _difference(self, lost: int, gained: int) -> tuple[str, str]:
        low, high = paired_interval(gained, lost, self.pictures)
        return f"{(gained - lost) / self.pictures:+.3f}", f"[{low:+.3f}, {high:+.3f}]"

    def lost(self) -> str:
        lines = [
            "| model | rule | λ | lost · gained, same λ | difference [95 %] "
            "| lost · gained, best λ | difference [95 %] |",
            "|---" * 7 + "|",
        ]
        for part, name in PARTS.items():
            for r in self.readings:
                if r.part != part or r.method in ("CFG", "C2FG", "Conditional") or r.scale not in SHOWN:
                    continue
                same = [f for f in self.readings if (f.part, f.method, f.scale) == (part, "CFG", r.scale)]
                cells = [*self._against(r, same[0] if same else None), *self._against(r, self.best(part))]
                lines.append(f"| {name} | {r.label} | {r.scale:g} | " + " | ".join(cells) + " |")
        return "\n".join(lines)

    def _against(self, r: SceneReading, fixed: SceneReading | None) -> tuple[str, str]:
        if fixed is None:
            return "–", "–"
        lost, gained = counts(r, fixed)
        return f"{lost} · {gained}", " ".join(self._difference(lost, gained))

    def clauses(self) -> str:
        """How many pictures lost each clause that fixed guidance at its best scale had, at large scales."""
        lines = ["| model | rule | λ | " + " | ".join(CLAUSES) + " |", "|---" * (3 + len(CLAUSES)) + "|"]
        for part, name in PARTS.items():
            best = self.best(part)
            for label in ("CFG", *CAPS):
                for r in self.readings:
                    if (r.part, r.label) == (part, label) and r.scale >= 15:
                        lost = [int((best.right[c] & ~r.right[c]).sum()) for c in CLAUSES]
                        lines.append(
                            f"| {name} | {label} | {r.scale:g} | " + " | ".join(map(str, lost)) + " |"
                        )
        return "\n".join(lines)

    def matched(self) -> str:
        """Caps, APG and feedback at λ = 15, where fixed guidance does as much."""
        lines = [
            "| model | rule | λ | against | fixed λ | right | drawn | saturation | clipped |",
            "|---" * 9 + "|",
        ]
        for part, name in PARTS.items():
            for c in compared(self.readings, part):
                if c.kind != KINDS[0] and c.rule.scale == 15 and c.rule.method != "C2FG":
                    lines.append(_matched(name, c))
        return "\n".join(lines)

    def results(self, part: str) -> str:
        lines = [
            "| rule | λ | scale used | right | drawn | saturation | clipped | tv | FD | recall |",
            "|---" * 10 + "|",
        ]
        for row in self._rows(part):
            number = [f"{float(row[k]):.3f}" for k in ("saturation", "clipped")]
            number.append(f"{float(row['tv']):.3f} ± {1.96 * float(row['tv error']):.3f}")
            number += [f"{float(row[k]):.2f}" if row[k] else "–" for k in ("FD", "recall")]
            lines.append(f"| {self._named(row)} | " + " | ".join([*self._shares(row, part), *number]) + " |")
        return "\n".join(lines)

    def negative(self) -> str:
        lines = [
            "| rule | λ | scale used | violated | right | drawn | saturation | clipped |",
            "|---" * 8 + "|",
        ]
        for row in self._rows("negative"):
            number = [f"{float(row[k]):.3f}" for k in ("saturation", "clipped")]
            used, *shares = self._shares(row, "negative")
            violated = f"{float(row['violated']):.3f}"
            if row["method"] != "Truth":
                found = self.of("negative", _label(row), float(row["scale"])).violated
                violated = _share(int(found.sum()), len(found)) if found is not None else ""
            lines.append(f"| {self._named(row)} | " + " | ".join([used, violated, *shares, *number]) + " |")
        return "\n".join(lines)

    def _rows(self, part: str) -> list[dict[str, str]]:
        return [row for row in self.table if row["part"] == part]

    @staticmethod
    def _named(row: dict[str, str]) -> str:
        fixed = {"Truth": "renders | ", "Conditional": "λ = 1 | "}
        return fixed.get(row["method"], f"{_label(row)} | {float(row['scale'] or 0):g}")

    def _shares(self, row: dict[str, str], part: str) -> list[str]:
        if row["method"] == "Truth":
            return ["–", *(f"{float(row[k]):.2f}" for k in ("right all", "drawn"))]
        r = self.of(part, _label(row), float(row["scale"]))
        return [f"{r.used:.2f}", *(_share(int(b.sum()), len(b)) for b in (r.right["all"], r.drawn))]


def counts(r: SceneReading, fixed: SceneReading) -> tuple[int, int]:
    """Pictures that fixed guidance has right and the rule has not, and the other way round."""
    mine, other = r.right["all"], fixed.right["all"]
    return int((other & ~mine).sum()), int((mine & ~other).sum())


def _matched(name: str, c: SceneContrast) -> str:
    cells = [said(*c.columns[k]) for k in ("right", "drawn", "saturation", "clipped")]
    reached = "not reached" if cells[1] == "–" else f"{c.scale:.3g}"
    about = [name, c.rule.label, f"{c.rule.scale:g}", c.kind, reached]
    return "| " + " | ".join([*about, *cells]) + " |"


def _label(row: dict[str, str]) -> str:
    return f"{row['method']} {row['gamma']}".strip()


def _share(hits: int, n: int) -> str:
    low, high = share_interval(hits, n)
    return f"{hits / n:.2f} [{low:.2f}, {high:.2f}]"


if __name__ == "__main__":
    *folder, target = map(Path, sys.argv[1:])
    publish(folder[0] if folder else target / "scenes", target)
