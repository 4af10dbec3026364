"""What the page does in an awkward moment: an answer comes late, a view is left, the server is gone."""

import re

import pytest
from browser import READY, Tab, serving, until

IMAGES = '.images[data-busy="false"]'
FEW = "#images?classes=7&seeds=0-1&steps=2&rule=CFG(1)&rule=CFG(2)&left=0&right=1"

# Answers to questions that `holds` accepts are kept back until `release()`.
HOLD = """window.holds = () => false;
window.held = 0;
const released = new Promise((done) => { window.release = done; });
const real = window.fetch;
window.fetch = async (path, options) => {
  const kept = holds(String(path), options?.body ?? '');
  const found = await real(path, options);
  if (kept) { window.held += 1; await released; }
  return found;
};"""


@pytest.fixture
def holding(tab):
    tab.page.add_init_script(HOLD)
    return tab


def hold(page, condition):
    page.evaluate(f"void (window.holds = (path, body) => {condition})")


def held(page):
    until(lambda: page.evaluate("held") > 0, 60)


def test_skipping_to_the_view_keeps_the_state(tab):
    page = tab.open("#mixture?n=1000&scene=pair&scale=5")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "view"
    page.wait_for_timeout(300)
    assert page.evaluate("location.hash") == "#mixture?scene=pair&scale=5&n=1000"
    assert page.locator("input[name=scale]").input_value() == "5"


@pytest.mark.parametrize(("view", "ready"), [("mixture?n=1000", READY), (FEW[1:], IMAGES)])
def test_a_link_that_is_set_while_the_page_loads_is_the_one_shown(holding, view, ready):
    page = holding.page
    page.add_init_script("holds = (path) => path.endsWith('/about')")
    page.goto(f"{holding.url}#{view}")
    held(page)
    page.evaluate(f"location.hash = '#{view}&gamma=1.7'")
    page.wait_for_timeout(100)
    page.evaluate("release()")
    page.wait_for_selector(ready)
    assert page.locator("input[name=gamma]").input_value() == "1.7"


@pytest.mark.slow
def test_a_rule_typed_just_before_a_view_is_left_belongs_to_that_view(holding):
    page = holding.open(FEW, IMAGES)
    hold(page, "path.endsWith('/check')")
    page.get_by_label("Rule 1", exact=True).fill("CFG(5)")
    held(page)
    page.evaluate("location.hash = '#mixture?n=1000'")
    page.wait_for_selector(READY)
    page.evaluate("release()")
    page.wait_for_timeout(400)
    assert page.evaluate("location.hash") == "#mixture?n=1000"
    assert "CFG(5)" not in page.locator("input[name=rule]").evaluate_all("list => list.map(e => e.value)")


@pytest.mark.slow
def test_the_landscape_asked_for_last_stays(holding):
    page = holding.open("#mixture?n=1000&scale=1")
    hold(page, """path.endsWith('/field') && body.includes('"scale":1,')""")
    note = page.locator('[data-panel="way"] .note').first
    page.locator("input[name=t]").fill("0.3")
    held(page)
    page.locator("input[name=scale-number]").fill("8")
    page.keyboard.press("Enter")
    holding.rest()
    assert "a cap acts on" in note.inner_text()
    page.evaluate("release()")
    page.wait_for_timeout(300)
    assert "a cap acts on" in note.inner_text()


@pytest.mark.parametrize(
    ("link", "ready", "more"),
    [("#mixture?n=1000", READY, "input[name=scale]"), (FEW, IMAGES, "input[name=steps]")],
)
def test_a_server_that_is_gone_is_said_and_may_come_back(browser, link, ready, more):
    with serving() as first:
        port = first.port
        tab = Tab(browser, first.url)
        page = tab.open(link, ready)
    page.locator(more).press("ArrowRight")
    page.wait_for_selector("#error:not([hidden])")
    assert page.locator("#error").inner_text().endswith(f"start it again with: meancap explore --port {port}")
    page.wait_for_selector(ready)
    with serving(port):
        page.locator(more).press("ArrowRight")
        page.wait_for_selector("#error", state="hidden")
        page.wait_for_selector(ready)
        tab.context.close()
    assert not [one for one in tab.said if not re.search("ERR_|Failed to load", one)]
