"""Reports on scored runs: names, interpolation, tables, the page, and the whole study in small."""

import csv
import io
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from made import made_run
from meancap_lab.cli import main
from meancap_lab.metrics import Estimate, mean_estimate
from meancap_lab.metrics.images import Unreadable
from meancap_lab.models import classes
from meancap_lab.models.checkpoint import save_sit
from meancap_lab.models.data import FASHION, Pixels
from meancap_lab.models.sit import SiTConfig
from meancap_lab.report import score_page as tables
from meancap_lab.report.score_page import blocks
from meancap_lab.report.scored_runs import Name, ScoredRun, at_level, collect, method_name
from meancap_lab.runs.paper_protocols import paper_source, paper_table
from meancap_lab.runs.scoring import open_target
from small_sit import random_sit


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("", Name("Fixed CFG", 7.0)),  # the pipeline's own scale counts
        ("CapDisplacement(1.15)", Name("PMC-CFG, displacement", 7.0, 1.15)),
        ("CFG(1)", Name("Conditional", 1.0)),
        ("CFG(2.5)", Name("Fixed CFG", 2.5)),
        ("CFG(Exponential(2, 0.2))", Name("C2FG", 2.0)),
        ("apg(4, radius=2.5)", Name("APG", 4.0)),
        ("CFG(4) | Cap(1.05)", Name("PMC-CFG", 4.0, 1.05)),
        ("CFG(4) | Cap(1.1, anchor='first')", Name("PMC-CFG, anchored", 4.0, 1.1)),
        (
            "CFG(4) | Cap(1, anchor=[0], floor=Piecewise([0, 1], [2, 3]))",
            Name("PMC-CFG, calibrated", 4.0, 1.0),
        ),
        ("CFG(7) | CapDisplacement(1.15)", Name("PMC-CFG, displacement", 7.0, 1.15)),
        ("CFG(3) | Rescale(phi=0.6)", Name("CFG(λ) | Rescale(phi=0.6)", 3.0)),
        ("apg(4, radius=3)", Name("Momentum(-0.5) | Clip(3) | Project() | CFG(λ)", 4.0)),
        ("CFG(Linear(1, 4)) | Cap(1.1)", Name("CFG(Linear(1, 4)) | Cap(Γ)", None, 1.1)),
    ],
)
def test_rules_get_the_names_of_the_paper(rule, expected):
    assert method_name(rule, 7.0) == expected


def flat(name, value, parts=None):
    return Estimate(name, value, 100, parts)


def test_interpolation_goes_through_the_points_and_between_them():
    sweep = [(flat("a", a), flat("FD", f)) for a, f in ((0.5, 4.0), (0.7, 2.0), (0.9, 3.0))]
    for level, expected in ((0.5, 4.0), (0.6, 3.0), (0.7, 2.0), (0.85, 2.75)):
        found = at_level(sweep, flat("a", level))
        assert found is not None and found.value == pytest.approx(expected)
    assert at_level(sweep, flat("a", 0.95)) is None
    assert at_level(sweep, flat("a", 0.4)) is None


def test_the_error_at_equal_alignment_agrees_with_simulation():
    values, errors = [], []
    for seed in range(200):
        g = torch.Generator().manual_seed(seed)
        shared = torch.randn(400, generator=g, dtype=torch.float64)

        def one(name, mean, g=g, shared=shared):
            own = torch.randn(400, generator=g, dtype=torch.float64)
            return mean_estimate(name, mean + 0.3 * shared + 0.3 * own)

        sweep = [(one("a", 0.5), one("f", 1.0)), (one("a", 0.9), one("f", 3.0))]
        found = at_level(sweep, one("a", 0.6))
        assert found is not None
        values.append(found.value)
        errors.append(found.error)
    spread = torch.tensor(values).std().item()
    assert sum(errors) / 200 == pytest.approx(spread, rel=0.2)  # the spread of 200 is known to 5 %


def test_all_tables_of_the_paper_are_there():
    imagenet, sd35 = paper_table("imagenet"), paper_table("sd35")
    assert len(imagenet) == 30 and len(sd35) == 16
    best = min((r for r in imagenet if r["evaluations"] == "50"), key=lambda r: float(r["fid"]))
    assert (best["method"], best["scale"], best["gamma"], best["fid"]) == ("PMC-CFG", "1.50", "1.05", "2.10")
    worst = min(sd35, key=lambda r: float(r["image_reward"]))
    assert (worst["method"], worst["scale"], worst["image_reward"]) == ("Fixed CFG", "9", "-0.0295")
    for name in ("gmm", "imagenet", "sd35"):
        assert "Peng" in paper_source(name)


def dimmed(images, share):
    return (images.float() * share).byte()


@pytest.fixture(scope="module")
def scored(tmp_path_factory, garments):
    """Runs whose quality is known: dimmer pictures are worse, and the 'cap' dims less."""
    torch.set_num_threads(1)
    images, labels = garments
    images, labels = images[:300], labels[:300]
    kinds = {"CFG(1)": 1.0, "CFG(2)": 0.8, "CFG(4)": 0.5, "CFG(2) | Cap(1.1)": 0.9, "CFG(4) | Cap(1.1)": 0.8}
    out = tmp_path_factory.mktemp("scored")
    for i, (rule, share) in enumerate(kinds.items()):
        made_run(out / f"run{i}", dimmed(images, share), labels, rule)
    assert main(["score", *(str(p) for p in sorted(out.iterdir())), "--protocol", "fashion"]) == 0
    return out


def test_a_report_orders_compares_and_judges(scored, capsys):
    capsys.readouterr()
    assert main(["report", str(scored)]) == 0
    written = [Path(line).name for line in capsys.readouterr().out.split()]
    assert written == ["fronts-fashion.png", "fronts-fashion.svg", "scores.csv", "report.md", "report.html"]
    entries = collect(scored)
    assert [e.name.label for e in entries] == [
        "Conditional", "Fixed CFG", "PMC-CFG 1.10", "Fixed CFG", "PMC-CFG 1.10",
    ]  # fmt: skip
    groups = tables.equal_scale(entries, "fashion", ["FD-fashion"]).groups
    assert [line[0] for group in groups for line in group] == ["PMC-CFG"] * 2
    assert all(line[-1].startswith("**-") for group in groups for line in group)  # better, beyond chance
    page = (scored / "report.html").read_text()
    assert "<script" not in page and "PMC-CFG" in page and "data:image/png;base64" in page


def test_a_folder_of_runs_is_scored_run_by_run(scored, tmp_path, capsys):
    """Not the figures that a report has drawn into it."""
    for name in ("run0", "run1"):
        shutil.copytree(scored / name, tmp_path / name)
    (tmp_path / "figure.png").write_bytes(b"no sample")
    assert main(["score", str(tmp_path), "--protocol", "hsv"]) == 0
    printed = capsys.readouterr().out
    assert all(f"{tmp_path / name}  300" in printed for name in ("run0", "run1"))
    with pytest.raises(Unreadable, match="is a folder of runs; give one of them: run0, run1"):
        open_target(tmp_path)


def test_the_csv_holds_every_number_with_its_protocol(scored):
    main(["report", str(scored)])
    page = (scored / "report.html").read_bytes()
    main(["report", str(scored)])
    assert (scored / "report.html").read_bytes() == page  # the same folder, the same bytes
    rows = list(csv.DictReader(io.StringIO((scored / "scores.csv").read_text())))
    assert len(rows) == 5 * 12
    assert all(row["protocol"].startswith("fashion: ") and row["n"] == "300" for row in rows)
    assert all(float(r["low"]) <= float(r["value"]) <= float(r["high"]) for r in rows)


def entry(rule, pairing="a", n=100, **values):
    """A scored run; its parts lie round each value in the same pattern, so that pairs differ exactly."""
    noise = torch.linspace(-1, 1, 9, dtype=torch.float64)
    scores = {k.replace("_", "-"): Estimate(k.replace("_", "-"), v, n, v + noise) for k, v in values.items()}
    return ScoredRun(
        Path(rule), rule, method_name(rule), 50, n, pairing, None, {"fashion": scores}, {"fashion": "x"}
    )


def test_each_seed_is_compared_with_fixed_cfg_of_its_own_noise():
    runs = [
        entry("CFG(1)", "a", FD_fashion=9.0, alignment=0.2),
        entry("CFG(1)", "b", FD_fashion=8.0, alignment=0.1),
        entry("CFG(2)", "a", FD_fashion=3.0, alignment=0.5),
        entry("CFG(2)", "b", FD_fashion=5.0, alignment=0.4),
        entry("CFG(2) | Cap(1.1)", "a", FD_fashion=2.0, alignment=0.6),
        entry("CFG(2) | Cap(1.1)", "b", FD_fashion=4.5, alignment=0.7),
    ]
    (group,) = tables.equal_scale(runs, "fashion", ["FD-fashion"]).groups
    assert [line[0] for line in group] == ["PMC-CFG"] * 2
    assert [line[-1] for line in group] == ["**-1.0000 ± 0.0000**", "**-0.5000 ± 0.0000**"]
    # Seed a rises from 0.2 to 0.6, seed b from 0.1 to 0.7: each is read where its own fixed CFG aligns.
    aligned = tables.equal_alignment(runs, "fashion", ["FD-fashion"])
    assert aligned is not None
    found = [float(line[-1].strip("*").split(" ")[0]) for g in aligned.groups for line in g]
    assert found == pytest.approx([9 - 7 * 0.3 / 0.4 - 3, 8 - 3.5 * 0.3 / 0.6 - 5], abs=1e-3)


def test_runs_without_a_scale_or_without_some_numbers_stay_in_the_report():
    runs = [
        entry("CFG(2)", FD_fashion=3.0),  # no labels: neither alignment nor diversity
        entry("CFG(2) | Cap(1.1)", FD_fashion=2.0, diversity=1.0, alignment=0.5),
        entry("Cap(1.1)", FD_fashion=1.0, diversity=1.0, alignment=0.5),  # no scale
    ]
    columns = ["diversity", "FD-fashion"]
    (group,) = tables.equal_scale(runs, "fashion", columns).groups
    assert group[0][-2:] == ("—", "**-1.0000 ± 0.0000**")
    assert len(tables.results(runs, "fashion").groups) == 2


def test_few_images_have_no_interval_and_nothing_is_better():
    """Two pictures of each class once gave a win of +0.4962 ± 0.0000."""
    runs = [entry("CFG(2)", n=20, FD_fashion=3.0), entry("CFG(2) | Cap(1.1)", n=20, FD_fashion=2.0)]
    (group,) = tables.equal_scale(runs, "fashion", ["FD-fashion"]).groups
    assert group[0][-1] == "-1"
    assert "not which rule is better" in str(blocks(runs, Path("nowhere"))[1])
    assert "not which rule" not in str(blocks([entry("CFG(2)", FD_fashion=3.0)], Path("nowhere"))[1])


@pytest.mark.parametrize("n", [20, 100])
def test_a_front_has_whiskers_if_there_are_intervals_and_names_no_rule_that_is_absent(n):
    runs = [entry(f"CFG({s})", n=n, FD_fashion=3.0 + s, alignment=0.1 * s, recall=0.5) for s in (2, 4)]
    for plain in (False, True):
        figure = tables.fronts(
            [*runs, *[entry("CFG(1)", n=n, FD_fashion=9.0, recall=0.4)] * plain], "fashion"
        )
        named = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
        assert named == ["Conditional"] * plain + ["Fixed CFG"]
        drawn = [bar for axis in figure.axes for bar in axis.collections]
        assert bool(drawn) == (n >= 50)


def test_only_the_papers_own_cap_stands_beside_the_papers_numbers():
    def ours(protocol, *rules):
        number = "FID" if protocol == "adm-imagenet256" else "saturation"
        runs = [entry(rule, **{number: float(i)}) for i, rule in enumerate(rules)]
        n, model = (50, "sit:xl.pt") if protocol == "adm-imagenet256" else (10, "diffusers:sd35")
        runs = [replace(e, evaluations=n, scores={protocol: e.scores["fashion"]}) for e in runs]
        assert tables.beside_paper(runs, protocol) is None  # of another model
        found = tables.beside_paper([replace(e, model=model) for e in runs], protocol)
        return [] if found is None else [line[0] for line in found.groups[0] if line[5] != "—"]

    caps = ("CFG(2) | Cap(1.1, anchor='first')", "CFG(2) | CapDisplacement(1.1)")
    assert ours("adm-imagenet256", *caps) == []
    assert ours("adm-imagenet256", *caps, "CFG(2) | Cap(1.1)", "CFG(2)") == ["Fixed CFG", "PMC-CFG"]
    assert ours("hsv", "CFG(7) | Cap(1.15)") == []
    assert ours("hsv", "CFG(7) | CapDisplacement(1.15)", "CFG(7)") == ["Fixed CFG", "PMC-CFG"]


def test_alignment_is_lent_to_other_protocols_but_listed_under_its_own(tmp_path, garments):
    run = made_run(tmp_path / "run", garments[0][:40], garments[1][:40])
    assert main(["score", str(run), "--protocol", "fashion,hsv"]) == 0
    assert main(["report", str(tmp_path)]) == 0
    rows = list(csv.DictReader(io.StringIO((tmp_path / "scores.csv").read_text())))
    assert {r["protocol"].partition(":")[0] for r in rows if r["number"] == "alignment"} == {"fashion"}
    pixels, _, classifier = (tmp_path / "report.md").read_text().partition("## Protocol fashion")
    assert "| brightness | clipped |" in pixels and "alignment↑" not in pixels
    assert "that of the protocol `fashion`" in pixels and "alignment↑" in classifier


def test_a_report_on_nothing_is_refused(tmp_path, capsys):
    assert main(["report", str(tmp_path)]) == 2
    assert "no scored runs" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_reproduce_fashion_in_small(tmp_path, monkeypatch):
    config = SiTConfig(
        size=28, channels=1, patch=7, width=16, depth=1, heads=2, classes=10, learn_sigma=False
    )
    pixels = Pixels(torch.full((1, 28, 28), 0.3), 0.3)
    save_sit(tmp_path / "tiny.safetensors", random_sit(config), pixels, names=FASHION)
    monkeypatch.setattr(classes, "SHIPPED", tmp_path / "tiny.safetensors")
    out, table = tmp_path / "out", tmp_path / "out" / "table.csv"
    command = ["reproduce", "fashion", "--per-class", "2", "--scales", "2", "--evaluations", "2"]
    command += ["--out", str(out)]
    assert main(command) == 0
    entries = collect(out)
    assert [e.name.label for e in entries] == [
        "Conditional", "Fixed CFG", "APG", "C2FG", "PMC-CFG 1.05", "PMC-CFG 1.10",
    ]  # fmt: skip
    assert len({e.pairing for e in entries}) == 1 and {e.evaluations for e in entries} == {2}
    assert main(["report", str(out)]) == 0 and (out / "report.html").is_file()
    first = table.read_text()
    assert main(command) == 0 and table.read_text() == first  # nothing is made again
