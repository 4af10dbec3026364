"""Pictures from run folders: what stands where, what is refused, what is escaped."""

import base64
import io
import re
import sys
from html.parser import HTMLParser

import numpy as np
import pytest
from PIL import Image

from meancap_lab.cli import main
from meancap_lab.report.pictures import gallery, mean_lengths, need_matched, sheet
from meancap_lab.runs.config import RunConfig, RunIdentity, versions
from meancap_lab.runs.folder import Run, Store, write_npz
from meancap_lab.runs.generate import generate

PROMPT = '</td><script>alert("x")</script> & "cats"'


def run_of(folder, rule="CFG(4)", seed=0, prompts=(), images="png", diagnostics=False, count=6):
    """A finished run whose picture i is all i: the folder format without a model."""
    times, classes = (0.0, 0.5, 1.0), (0, 1)
    more = {"seed": seed, "batch": 3, "images": images, "diagnostics": diagnostics}
    config = RunIdentity("made", "0", rule, times, count, classes, **more)
    store = Store(folder, config, versions())
    for block in range(config.blocks):
        indices = list(config.indices(block))
        pictures = np.stack([np.full((4, 4, 3), i, np.uint8) for i in indices])
        records = [{"index": i, "seed": 100 * seed + i, "evaluations": 2} for i in indices]
        for record, i in zip(records, indices, strict=True):
            record |= {"prompt": prompts[i]} if prompts else {"label": i % 2}
        store.save(block, pictures, records, meter_of(len(indices)) if diagnostics else None)
    assert store.finish()
    return Run.open(folder)


def meter_of(count):
    ones = np.ones((2, count))
    values = {"gap": 2, "scale": 3, "asked": 4, "ratio": 1.25, "cosine": 0.6, "length": 5}
    found = {name: value * ones for name, value in values.items()}
    return {**found, "t": np.array([[0.0], [0.5]]) * ones, "active": ones > 0}


def test_runs_with_other_noise_or_conditions_are_refused(tmp_path):
    a, b = run_of(tmp_path / "a"), run_of(tmp_path / "b", seed=1)
    with pytest.raises(ValueError, match="differ in their seeds"):
        need_matched([a, b])
    c = run_of(tmp_path / "c", prompts=["x"] * 6)
    d = run_of(tmp_path / "d", prompts=["y"] * 6)
    with pytest.raises(ValueError, match="differ in their prompts"):
        sheet([c, d])
    need_matched([a, run_of(tmp_path / "e", rule="CFG(1)", count=4)])


def test_an_empty_meter_changed_bytes_and_other_sizes_are_no_crash(tmp_path, capsys):
    empty = run_of(tmp_path / "empty", diagnostics=True)
    with (empty.folder / "diagnostics.npz").open("wb") as file:
        write_npz(file, {}, {})  # as a pipeline without a rule leaves it
    assert main(["pictures", str(empty.folder), "--out", str(tmp_path / "p")]) == 0
    assert sorted(p.name for p in (tmp_path / "p").iterdir()) == ["gallery.html", "sheet.png"]
    flipped = run_of(tmp_path / "flipped", images="npz", count=150).folder / "samples.npz"
    content = bytearray(flipped.read_bytes())
    content[6000] ^= 255  # a pixel behind what the header's reader sees
    flipped.write_bytes(content)
    other = run_of(tmp_path / "other").folder
    Image.new("RGB", (7, 4)).save(other / "samples" / "000002.png")
    for folder, words in (
        (flipped.parent, "samples.npz is damaged"),
        (other, "pictures of one size and kind"),
    ):
        assert main(["pictures", str(folder), "--out", str(tmp_path / "q")]) == 2
        said = capsys.readouterr().err
        assert words in said and said.count("\n") == 1


def test_a_sheet_has_a_row_per_seed_and_a_column_per_rule(tmp_path):
    runs = [run_of(tmp_path / name, rule=rule) for name, rule in (("a", "CFG(1)"), ("b", "CFG(4)"))]
    figure = sheet(runs, [5, 2, 0])
    assert [axes.get_title() for axes in figure.axes[:2]] == ["CFG(1)", "CFG(4)"]
    shown = [int(axes.images[0].get_array().flat[0]) for axes in figure.axes]
    assert shown == [5, 5, 2, 2, 0, 0]


class Seen(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.text, self.sources = [], "", []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.sources += [value for name, value in attrs if name in ("src", "href")]

    def handle_data(self, data):
        self.text += data


def test_the_gallery_escapes_prompts_and_needs_no_other_file(tmp_path):
    run = run_of(tmp_path / "a", rule="CFG(4)", prompts=[PROMPT] * 6)
    page = Seen()
    page.feed(gallery([run], count=4))
    assert "script" not in page.tags and "b" not in page.tags
    assert page.text.count(PROMPT) == 4
    assert len(page.sources) == 4 and all(s.startswith("data:image/png;base64,") for s in page.sources)
    picture = Image.open(io.BytesIO(base64.b64decode(page.sources[3].partition(",")[2])))
    assert np.asarray(picture)[0, 0].tolist() == [3, 3, 3]


def test_norms_come_back_from_the_meter():
    g = np.random.default_rng(0)
    m_c, m_u = g.normal(size=(2, 5, 7, 30))
    m = m_c + 0.8 * (m_c - m_u)
    size = lambda v: np.linalg.norm(v, axis=-1)  # noqa: E731
    gap = m_c - m_u
    meter = {
        "length": size(m),
        "ratio": size(m) / size(m_c),
        "gap": size(gap),
        "cosine": (m_c * gap).sum(-1) / size(m_c) / size(gap),
    }
    found = mean_lengths(meter)
    np.testing.assert_allclose(found[0], size(m_c))
    np.testing.assert_allclose(found[1], size(m_u))


def test_pictures_command_draws_from_folders(tmp_path, capsys):
    for name in "ab":
        run_of(tmp_path / name, diagnostics=True, images="npz")
    out = tmp_path / "out"
    assert main(["pictures", str(tmp_path / "a"), str(tmp_path / "b"), "--out", str(out)]) == 0
    names = {"gallery.html", "sheet.png", "mechanism.png", "meter.png"}
    assert {p.name for p in out.iterdir()} == names
    first = {p.name: p.read_bytes() for p in out.iterdir()}
    assert main(["pictures", str(tmp_path / "a"), str(tmp_path / "b"), "--out", str(out)]) == 0
    assert {p.name: p.read_bytes() for p in out.iterdir()} == first
    capsys.readouterr()
    assert main(["pictures", str(tmp_path / "nowhere"), "--out", str(out)]) == 2
    assert re.match(r"meancap: .*nowhere is no run folder", capsys.readouterr().err)


@pytest.mark.parametrize(("images", "name"), [("png", "samples/000002.png"), ("npz", "samples.npz")])
def test_a_damaged_picture_is_named(tmp_path, capsys, images, name):
    run_of(tmp_path / "a", images=images)
    path = tmp_path / "a" / name
    path.write_bytes(path.read_bytes()[:30])
    assert main(["pictures", str(tmp_path / "a"), "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert str(path) in said and said.count("\n") == 1


@pytest.fixture(scope="module")
def garments(tmp_path_factory):
    folder = tmp_path_factory.mktemp("garments") / "run"
    assert list(generate(folder, RunConfig("fashion", rule="CFG(2)", per_class=1, steps=2, batch=10))) == [0]
    return Run.open(folder)


def test_classes_have_their_names_in_every_picture(garments):
    assert "T-shirt" in gallery([garments]) and "class 0" not in gallery([garments])
    assert sheet([garments], [0]).axes[0].get_ylabel() == "T-shirt"


@pytest.mark.parametrize("command", [["pictures", "nowhere", "--out"], ["demo", "--out"]])
def test_without_matplotlib_the_extra_is_named(command, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main([*command, str(tmp_path / "out")]) == 2
    sentence = 'needs matplotlib, which is not installed; run pip install "./lab[report]"'
    assert sentence in capsys.readouterr().err
