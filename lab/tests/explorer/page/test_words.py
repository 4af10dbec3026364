"""What the mixture view offers a teacher: the vectors of one sample, four stories, and words explained."""

import itertools
import re

import pytest
import torch
from browser import until

from meancap import CFG, Cap, guide
from meancap.record import Record
from meancap_lab.explorer.comparison import PRESETS
from meancap_lab.explorer.export import PAGE
from meancap_lab.explorer.mixture_view import ROUTES
from meancap_lab.explorer.requests import Work

STORIES = re.findall(r"name: '([\w-]+)', title: '([^']+)'", (PAGE / "words.js").read_text())


def test_the_vectors_of_the_page_are_the_library_s(tab):
    """The closed form in vector_panel.js, at states and times of every preset."""
    draw = torch.Generator().manual_seed(0)
    cases = []
    for preset in PRESETS.values():
        for t in (0.0, 0.3, 0.6, 0.95):
            x = torch.randn(2, generator=draw).double() + t * torch.tensor(preset.plane.box()[:2])
            scale, gamma = 12 * float(torch.rand(1, generator=draw)), 1 + float(torch.rand(1, generator=draw))
            cases.append((preset.plane, x, t, scale, gamma))
    tab.page.goto(tab.url)
    found = tab.page.evaluate(
        "async (cases) => { const { atSample } = await import('/vector_panel.js');"
        " return cases.map((one) => atSample(...one)); }",
        [
            [{"components": p.components, "std": p.std, "eta": p.eta}, x.tolist(), t, scale, gamma]
            for p, x, t, scale, gamma in cases
        ],
    )
    shares = []
    for (plane, x, t, scale, gamma), said in zip(cases, found, strict=True):
        p, record = plane.model().predict(x[None], t), Record()
        m, _ = guide(CFG(scale) | Cap(gamma), p, record=record)
        asked, _ = guide(CFG(scale), p)
        for name, value in (("m_u", p.m_u), ("m_c", p.m_c), ("asked", asked), ("m", m)):
            assert said[name] == pytest.approx(value[0].tolist(), abs=1e-9), name
        assert said["scale"] == pytest.approx(float(record.stacked()["scale"][0, 0]), abs=1e-6)
        shares.append(said["share"])
    assert sum(s < 1 for s in shares) > 5 and sum(s == 1 for s in shares) > 2, "both sides of the cap"


def test_the_sample_is_moved_by_keys_and_the_vectors_follow(tab):
    page = tab.open("#mixture?n=1000&px=0&py=0")
    said = page.locator('[data-panel="vectors"] .note').inner_text()
    page.locator(".vectors .sample").focus()
    page.keyboard.press("Shift+ArrowUp")
    until(lambda: "py=0.25" in page.evaluate("location.hash"))
    assert page.locator('[data-panel="vectors"] .note').inner_text() != said
    assert page.evaluate("document.activeElement.getAttribute('class')") == "sample"


def test_a_story_sets_the_sliders_and_its_words_are_true(tab):
    page = tab.open("#mixture?n=1000")
    assert len(STORIES) == 4
    page.get_by_role("button", name="The middle branch").click()
    tab.rest()
    assert "95 % of the samples" in page.locator(".stories .about").inner_text()
    assert page.locator(".squares .read").nth(1).inner_text().startswith("3 / 95 / 3 %")
    page.get_by_role("button", name="What is TV?").first.click()
    assert page.locator(".explained:popover-open").inner_text().startswith("TV, total variation")
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Help").click()
    assert "four stories" in page.get_by_role("dialog").inner_text()
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Overshoot").click()
    tab.rest()
    read = page.locator(".squares .read").all_inner_texts()
    assert [one.split()[:2] for one in read] == [["mean", "error"]] * 3, "TV is 0 wherever the samples lie"
    assert float(read[1].split()[2]) > 5 * float(read[2].split()[2])
    assert page.locator('[data-panel="bars"]').is_hidden(), "every share is 100 %"


def middle_and_tv(scene, scale, rule, n=4000):
    request = {"scene": scene, "scale": scale, "n": n, "rules": [rule], "quick": True}
    numbers = ROUTES["mixture/run"](request, Work())["rules"][0]["numbers"]
    return numbers["occupancy"][len(numbers["occupancy"]) // 2], numbers["tv"]


def test_the_shares_that_the_stories_tell_are_those_of_a_run():
    cap = "CFG(λ) | Cap(1.1)"
    assert middle_and_tv("triple", 8, "CFG(λ)")[0] == pytest.approx(0.95, abs=0.015)
    assert middle_and_tv("triple", 8, cap)[0] == pytest.approx(0.43, abs=0.03)
    assert middle_and_tv("off-centre", 8, cap)[0] == pytest.approx(0.65, abs=0.03)
    assert middle_and_tv("under", 2, "CFG(λ)", 2000)[1] < middle_and_tv("under", 2, cap, 2000)[1]
    assert middle_and_tv("under", 8, "CFG(λ)", 2000)[1] > middle_and_tv("under", 8, cap, 2000)[1]


NAMES = """list => list.map(e => {
  const [b, f] = [e, e.ownerSVGElement].map(one => one.getBoundingClientRect());
  return [b.left - f.left, b.top - f.top, f.right - b.right, f.bottom - b.bottom, b.width, b.height]; })"""


@pytest.mark.parametrize(
    "state",
    ["", "&scale=12&px=1.5&py=1.5&t=0.3", "&px=0&py=0&t=0", "&px=0.6&py=0.6&t=0.95", "&px=-1.7&py=0.2"],
)
def test_the_names_of_the_vectors_stay_in_the_frame_and_apart(tab, state):
    page = tab.open(f"#mixture?n=1000{state}")
    boxes = page.locator(".vectors text").evaluate_all(NAMES)
    assert len(boxes) >= 4 and all(min(box[:4]) >= 0 for box in boxes), boxes
    for (x, y, *_, w, h), (x2, y2, *_, w2, h2) in itertools.combinations(boxes, 2):
        assert x + w <= x2 + 2 or x2 + w2 <= x + 2 or y + h <= y2 + 5 or y2 + h2 <= y + 5, "they overlap"
