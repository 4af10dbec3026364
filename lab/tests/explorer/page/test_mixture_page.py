"""The mixture view in a real browser: what it shows is what the library gives, by pointer, keys and links."""

import itertools
import json

import pytest
import torch
from browser import READY, until

from meancap import parse, uniform
from meancap.rules.grammar import ParseError
from meancap_lab.explorer.comparison import PRESETS
from meancap_lab.mixtures import Condition, Mixture
from meancap_lab.mixtures.branches import branches
from meancap_lab.mixtures.condition import STD, TRIPLE, circle
from meancap_lab.mixtures.gmm_settings import SETTINGS
from meancap_lab.mixtures.sampler import flow

pytestmark = pytest.mark.usefixtures("compiled")

N = 20_000
FIELDS = ("occupancy", "tv", "mean_error", "variance_ratio", "radial_ratio", "tangential_ratio")


def due(condition, rule, n=N, steps=50):
    start = torch.randn(n, 2, generator=torch.Generator().manual_seed(0))
    found = branches(condition, flow(condition, parse(rule), start, uniform(steps)))
    return {name: v.tolist() if isinstance(v := getattr(found, name), torch.Tensor) else v for name in FIELDS}


def where(page):
    """The address as the page itself sees it now."""
    return page.evaluate("location.href")


def shown(page, index):
    """The numbers of one rule in the table, with all their digits."""
    cells = page.locator(f'td[data-rule="{index}"]')
    found = cells.evaluate_all(
        "list => list.map(td => [td.dataset.number, td.dataset.value, td.firstChild.data])"
    )
    return {name: json.loads(value) for name, value, _ in found}, {name: text for name, _, text in found}


def same(page, index, condition, rule, n=N, steps=50):
    values, text = shown(page, index)
    expected = due(condition, rule, n, steps)
    assert {name: values[name] for name in FIELDS} == expected
    assert text["tv"] == f"{expected['tv']:.4f}" and text["mean_error"] == f"{expected['mean_error']:.4f}"
    assert values["kl"] is not None


def test_it_loads_and_shows_the_librarys_numbers(tab):
    page = tab.open()
    for index, rule in enumerate(("CFG(1)", "CFG(3)", "CFG(3) | Cap(1.1)")):
        same(page, index, TRIPLE.condition(), rule)
    assert page.title() == "Mixture · meancap explorer"
    assert page.locator("canvas").count() == 5


def test_scale_and_gamma_change_the_numbers_and_the_link(tab):
    page = tab.open("#mixture?scene=pair")
    page.locator("input[name=scale]").focus()
    for _ in range(5):
        page.keyboard.press("ArrowRight")
    page.locator("input[name=gamma-number]").fill("1.3")
    page.keyboard.press("Enter")
    tab.rest()
    condition = PRESETS["pair"].plane.condition()
    for index, rule in enumerate(("CFG(1)", "CFG(3.5)", "CFG(3.5) | Cap(1.3)")):
        same(page, index, condition, rule)
    until(lambda: where(page).endswith("#mixture?scene=pair&scale=3.5&gamma=1.3"))
    assert page.locator("input[name=scale]").input_value() == "3.5"
    assert "CFG(3.5) | Cap(1.3)" in page.locator('[data-panel="scale"] .note').inner_text()


def test_every_paper_button_runs_that_setting(tab):
    page = tab.open("#mixture?scene=overlap&steps=7&solver=heun&n=1000")
    for setting in SETTINGS[::4]:  # one of each scene and guidance
        page.locator(f'button[data-paper="{setting}"]').click()
        tab.rest()
        same(page, 0, setting.scene.condition(), str(setting.rule), n=200_000)
        values, _ = shown(page, 0)
        assert page.locator("td[data-rule]").count() == 7  # one rule
        printed = page.locator('td[data-number="occupancy"] small').inner_text().removeprefix("paper ")
        for ours, theirs in zip(values["occupancy"], printed.split(" / "), strict=True):
            # Two independent runs of 200,000; the paper prints two decimals of a per cent.
            spread = (2 * ours * (1 - ours) / 200_000) ** 0.5
            assert abs(ours - float(theirs) / 100) < 5 * spread + 1e-4


def test_invalid_text_gets_a_sentence_and_the_rest_stays(tab):
    page = tab.open("#mixture?n=1000")
    field = page.get_by_label("Rule 2", exact=True)
    for text in ("CFG(3) | Cpa(1.1)", "CFG(3", "Cap(0.2)"):
        field.fill(text)
        with pytest.raises(ParseError) as caught:
            parse(text)
        said = page.locator(".rules li").nth(1).locator(".said")
        until(lambda said=said, due=str(caught.value): said.inner_text() == due)
        assert field.get_attribute("aria-invalid") == "true"
    same(page, 1, TRIPLE.condition(), "CFG(3)", n=1000)  # the last rule that could be read
    field.fill("limited_interval(λ, 0.3, 0.7)")
    until(lambda: field.get_attribute("aria-invalid") == "false")
    tab.rest()
    until(
        lambda: page.locator("th .named").nth(1).inner_text() == str(parse("limited_interval(3, 0.3, 0.7)"))
    )


def test_a_link_with_a_bad_rule_or_scene_says_so(tabs):
    one = tabs()
    one.refusals = True
    page = one.open("#mixture?rule=CFG(1)&rule=Nonsense(2)&scale=abc&n=1000")
    assert "Nonsense" in page.locator(".said.bad").inner_text()
    assert shown(page, 1)[0]["tv"] is None and shown(page, 0)[0]["tv"] is not None
    page.evaluate("location.hash = '#mixture?scene=own&parts=0,0,1,1;1,1,1,1'")
    page.locator("#error:not([hidden])").wait_for()
    assert "outside the condition" in page.locator("#error").inner_text()
    page.evaluate("location.hash = '#mixture?n=1000000000'")
    until(lambda: "200,000" in page.locator("#error").inner_text())
    for place in ("0", "document.body.scrollHeight / 2", "document.body.scrollHeight"):
        page.evaluate(f"scrollTo(0, {place})")
        box = page.locator("#error").bounding_box()
        assert box["y"] >= 0 and box["y"] + box["height"] <= 900, "it is seen from everywhere"


def test_a_narrow_screen_needs_no_sideways_scrolling(tabs):
    one = tabs(viewport={"width": 360, "height": 740}, has_touch=True, device_scale_factor=2)
    page = one.open()
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    cut = page.locator("button, select, input:not(.chip input)").evaluate_all(
        "list => list.filter(e => { const r = e.getBoundingClientRect();"
        " return r.width && !e.closest('.scroll, .unseen') && (r.left < -0.5 || r.right > 360.5); })"
        ".map(e => e.outerHTML.slice(0, 90))"
    )
    assert cut == []
    plot = page.locator("canvas").first.bounding_box()
    assert plot["y"] + plot["height"] / 2 < 740, "a plot is on the first screen"


def test_a_link_brings_everything_back(tab, tabs):
    page = tab.open("#mixture?n=1000&steps=20")
    page.get_by_label("Overlapping").check()
    page.get_by_label("Rule 3", exact=True).fill("apg(λ) | Cap(Γ)")
    page.locator("select[name=n]").select_option("5000")
    page.locator("select[name=solver]").select_option("midpoint")
    page.locator("input[name=t]").fill("0.8")
    page.get_by_label("Whole plane").check()
    until(lambda: all(part in where(page) for part in ("zoom=whole", "apg(", "t=0.8", "n=5000")))
    tab.rest()
    other = tabs()
    again = other.open(where(page).removeprefix(tab.url))
    assert where(again) == where(page)
    assert again.get_by_label("Rule 3", exact=True).input_value() == "apg(λ) | Cap(Γ)"
    assert again.locator("select[name=solver]").input_value() == "midpoint"
    assert again.locator("input[name=t]").input_value() == "0.8"
    for index in range(3):
        assert shown(again, index) == shown(page, index)
    # The address bar changed by hand: the view follows without being loaded again.
    again.evaluate("location.hash = '#mixture?scene=single&n=1000'")
    until(lambda: again.locator("input[name=scene]:checked").input_value() == "single")
    other.rest()
    same(again, 1, PRESETS["single"].plane.condition(), "CFG(3)", n=1000)


def test_copied_link_and_numbers_are_those_on_the_page(tabs):
    one = tabs(permissions=["clipboard-read", "clipboard-write"])
    page = one.open("#mixture?n=1000&scene=pair&rule=CFG(λ)&rule=apg(λ)&rule=CFG(λ)|Cap(Γ)&steps=20")
    page.get_by_role("button", name="Copy link").click()
    until(lambda: page.evaluate("navigator.clipboard.readText()") == where(page))
    page.get_by_role("button", name="Copy as JSON").click()
    until(lambda: page.evaluate("navigator.clipboard.readText()").startswith("{"))
    copied = json.loads(page.evaluate("navigator.clipboard.readText()"))
    assert copied["link"] == where(page)
    for index, record in enumerate(copied["rules"]):
        values, _ = shown(page, index)
        assert {name: record[name] for name in (*FIELDS, "kl")} == {
            name: values[name] for name in (*FIELDS, "kl")
        }
    page.get_by_role("button", name="Copy as TSV").click()
    until(lambda: page.evaluate("navigator.clipboard.readText()").startswith("scene\t"))
    head, *rows = (line.split("\t") for line in page.evaluate("navigator.clipboard.readText()").splitlines())
    assert [float(row[head.index("tv")]) for row in rows] == [record["tv"] for record in copied["rules"]]
    assert {len(row) for row in rows} == {len(head)}
    page.get_by_role("button", name="Copy as Python").click()
    until(lambda: page.evaluate("navigator.clipboard.readText()").startswith("import torch"))
    printed = {}
    exec(  # the script that a reader would paste, with its last words kept
        page.evaluate("navigator.clipboard.readText()"),
        {"print": lambda rule, found: printed.update({rule: found})},
    )
    assert [one.tv for one in printed.values()] == [record["tv"] for record in copied["rules"]]
    assert [one.occupancy.tolist() for one in printed.values()] == [r["occupancy"] for r in copied["rules"]]


@pytest.mark.slow
def test_a_component_moves_by_keys(tab):
    page = tab.open("#mixture?n=1000")
    page.get_by_role("button", name="Component 1 at").focus()
    for key in ("ArrowUp", "ArrowUp", "Shift+ArrowRight", "+", "Tab", "Space"):
        page.keyboard.press(key)  # Tab goes on to component 2, which leaves the condition
    until(lambda: "scene=own" in where(page))
    tab.rest()
    means = circle().tolist()
    means[1] = [round(round(means[1][0], 3) + 0.25, 3), round(round(means[1][1], 3) + 0.1, 3)]
    weights = [0.125] * 8
    weights[1] = 0.1375
    rounded = torch.tensor([[round(v, 3) for v in row] for row in means], dtype=torch.float64)
    same(page, 1, Condition(Mixture(rounded, weights, std=STD), (0, 1)), "CFG(3)", n=1000)
    assert page.evaluate("document.activeElement.dataset.k") == "2"


@pytest.mark.slow
def test_a_component_can_be_dragged_and_others_added(tab):
    page = tab.open("#mixture?n=1000")
    page.locator('.component[data-k="4"]').scroll_into_view_if_needed()
    box = page.locator('.component[data-k="4"]').bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(box["x"] + 60, box["y"] - 30, steps=4)
    page.mouse.up()
    until(lambda: "scene=own" in where(page))
    tab.rest()
    assert page.locator(".component").count() == 8
    page.get_by_text("Change the scene").click()
    x = float(page.locator("input[name=component-x]").input_value())
    assert page.locator(".which").inner_text() == "Component 4" and x > 0.2
    page.get_by_role("button", name="Add one").click()
    until(lambda: page.locator(".component").count() == 9)
    page.locator("input[name=component-inside]").check()
    tab.rest()
    assert len(shown(page, 0)[0]["occupancy"]) == 4


# Inside the page, where a busy machine delays the watcher no more than the clock.
PLAYED = """async () => {
  const [play, clock] = [document.querySelector('.play'), document.querySelector('input[name=t]')];
  play.click();
  while (clock.value <= 0.4) await new Promise((later) => setTimeout(later, 10));
  if (play.textContent.includes('Pause')) play.click();
}"""


@pytest.mark.slow
def test_the_clock_shows_another_landscape(tab):
    page = tab.open("#mixture?n=1000&look=1")
    note = page.locator('[data-panel="way"] .note').first
    assert "t = 0.50" in note.inner_text() and "no cap acts" in note.inner_text()
    page.locator("input[name=t]").fill("0.2")
    until(lambda: "t = 0.20" in note.inner_text())
    page.locator("input[name=look]").nth(2).check()
    until(lambda: "a cap acts on" in note.inner_text())
    page.evaluate(PLAYED)
    stood = page.locator("input[name=t]").input_value()
    assert 0.4 < float(stood) < 1
    page.wait_for_timeout(200)
    assert page.locator("input[name=t]").input_value() == stood
    page.get_by_role("button", name="Play").click()
    until(lambda: page.locator("input[name=t]").input_value() == "1")
    page.get_by_text("Paths at this time, as a table").click()
    until(lambda: page.locator('[data-panel="way"] tbody tr').count() == 10)


def test_everything_has_a_name_and_can_be_reached_by_keys(tab):
    page = tab.open("#mixture?n=1000")
    tree = tab.context.new_cdp_session(page).send("Accessibility.getFullAXTree")["nodes"]
    wanted = {"button", "slider", "spinbutton", "combobox", "textbox", "radio", "checkbox"}
    wanted |= {"img", "region", "link"}
    seen = [n for n in tree if not n.get("ignored") and n["role"]["value"] in wanted]
    assert len(seen) > 50
    assert [n["role"]["value"] for n in seen if not n.get("name", {}).get("value", "").strip()] == []
    page.locator("body").evaluate("b => b.focus()")
    reached = []
    for _ in range(20):
        page.keyboard.press("Tab")
        reached.append(
            page.evaluate("document.activeElement.name || document.activeElement.textContent.trim()")
        )
    assert reached[0] == "Skip to the view"
    assert {"Mixture", "Images", "Copy link", "Dark", "scale", "gamma"} <= set(reached)
    assert page.locator("#status").inner_text().startswith("Rule 1: total variation")
    for link, ready in (
        ("#mixture?n=1000", READY),
        ("#images?seeds=0-1&steps=2", '.images[data-busy="false"]'),
    ):
        tab.open(link, ready)
        levels = [
            int(tag[1]) for tag in page.locator("h1, h2, h3, h4").evaluate_all("l => l.map(e => e.tagName)")
        ]
        assert levels[0] == 1 and all(b <= a + 1 for a, b in itertools.pairwise(levels)), (
            "no level is left out"
        )
        assert page.locator("main section:not([aria-labelledby])").count() == 0
        assert page.locator("main h2").count() == page.locator("main section").count()
