"""A comparison as one file: opened from disk it shows the same, asks nobody, and harms nobody."""

import json
import re
from base64 import b64decode

import pytest
from browser import Tab, until

from meancap_lab.cli import main
from meancap_lab.explorer import export
from meancap_lab.explorer.image_view import ROUTES
from meancap_lab.explorer.requests import Work

IMAGES = "images?classes=7&seeds=0-3&steps=5&scale=5&rule=CFG(λ)&rule=CFG(λ)+|+Cap(Γ)&left=0&right=1&pick=2"
MIXTURE = "mixture?n=1000&steps=10&scale=4&t=0.3"


def ready(view):
    return f'.{view}[data-busy="false"]'


def numbers(page):
    return page.locator("table tbody").all_inner_texts()


@pytest.fixture
def opened(browser, tmp_path):
    """Opens a file from disk in a page that must stay quiet and may ask nobody."""
    tabs = []

    def open_file(path, view, **options):
        tabs.append(Tab(browser, path.as_uri(), offline=True, **options))
        return tabs[-1].open(ready=ready(view))

    yield open_file
    for tab in tabs:
        tab.close()


@pytest.fixture
def few_stops(monkeypatch):
    monkeypatch.setattr(export, "SCALES", (8.0,))
    monkeypatch.setattr(export, "GAMMAS", (1.5,))


@pytest.mark.parametrize(("view", "link"), [("images", IMAGES), ("mixture", MIXTURE)])
def test_the_page_s_own_button_saves_what_is_on_it(compiled, tab, opened, few_stops, tmp_path, view, link):
    page = tab.open(f"#{link}", ready(view))
    with page.expect_download() as waited:
        page.get_by_role("button", name="Save page").click()
    path = tmp_path / waited.value.suggested_filename
    waited.value.save_as(path)
    assert path.name == f"meancap-{view}.html"
    copy = opened(path, view)
    assert numbers(copy) == numbers(page) and len(numbers(copy)) > 0
    for field in copy.locator(":is(.side, .stories) :is(input, select, button)").all():
        assert field.is_disabled()
    for name, fixed in (("scale", False), ("gamma", view == "images")):  # pictures keep stops of λ alone
        for field in copy.locator(f".sliders input[name^={name}]").all():
            assert field.is_disabled() == fixed
    assert copy.locator("#save-page").count() == 0 and not copy.locator("#tabs").is_visible()
    assert f"meancap explore --state '{link.split('?')[0]}" in copy.locator(".saved").inner_text()


def test_what_needs_no_server_still_works(opened, few_stops, tmp_path):
    path = export.write_page(IMAGES, tmp_path / "page.html")
    page = opened(path, "images")
    page.get_by_role("slider", name="Between rule 1 and rule 2").focus()
    page.keyboard.press("End")
    assert page.evaluate("document.querySelector('.stage').style.getPropertyValue('--wipe')") == "100%"
    page.locator(".rule-card .cell").first.click()
    assert "seed 0" in page.locator(".reading h2").inner_text()
    page.locator("input[name=scale]").fill("7.2")
    until(lambda: "CFG(8) | Cap(1.1)" in page.locator(".rule-card .named").all_inner_texts(), 60)
    assert "step 5 of 5: the picture" in page.locator(".stepper output").inner_text()
    assert page.locator("#error").is_hidden()
    page.evaluate("location.hash = '#images?seeds=5-6'")
    page.wait_for_selector("#error:not([hidden])")
    assert "run: meancap explore --state" in page.get_by_role("alert").inner_text()


def test_time_and_rule_can_be_changed_in_a_saved_mixture(opened, few_stops, tmp_path):
    path = export.write_page(MIXTURE, tmp_path / "page.html")
    page = opened(path, "mixture")
    assert page.locator('[data-panel="ends"] .note').inner_text() == "1,000 samples for each rule."
    hill = page.locator('canvas[aria-label^="Landscape"]')
    assert "At t = 0.30" in hill.get_attribute("aria-label")
    page.locator("input[name=t]").focus()
    page.keyboard.press("End")
    until(lambda: "At t = 0.99" in hill.get_attribute("aria-label"), 60)
    page.locator("input[name=look]").first.check(force=True)
    page.wait_for_selector(ready("mixture"))
    page.locator("input[name=scale]").fill("7")
    page.locator("input[name=gamma]").fill("1.4")
    until(lambda: page.locator("th .named").nth(2).inner_text() == "CFG(8) | Cap(1.5)", 60)
    page.wait_for_selector(ready("mixture"))
    assert page.locator("#error").is_hidden()


def test_a_scene_of_one_s_own_is_saved_too_and_fits_a_phone(opened, tmp_path):
    parts = "1,0,0.5,1;-0.5,0.8,0.25,0;0,-1,0.25,1"
    link = f"mixture?scene=own&parts={parts}&std=0.1&eta=0.2&n=200&steps=4&rule=CFG(2)&look=0"
    phone = {"viewport": {"width": 360, "height": 740}, "color_scheme": "dark"}
    page = opened(export.write_page(link, tmp_path / "page.html"), "mixture", **phone)
    assert page.locator("#error").is_hidden() and "CFG(2)" in page.locator("#view").inner_text()
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    with pytest.raises(ValueError, match="component"):
        export.write_page(link.replace(parts, "1,2"), tmp_path / "other.html")


def test_a_stop_of_the_slider_shows_the_pictures_that_the_view_makes_there(few_stops):
    """Of the link's own λ every step, of another stop the finished pictures, byte for byte."""
    view, state = export.read_link(IMAGES)
    runs = [
        (request, smaller)
        for name, request, smaller in export.page_requests(view, state)
        if name.endswith("run")
    ]
    assert [(request["scale"], smaller) for request, smaller in runs] == [(5, {}), (8.0, {"last": True})]
    whole, last = (ROUTES["images/run"](runs[1][0] | smaller, Work()) for smaller in ({}, {"last": True}))
    assert whole["frame_steps"] == [0, 1, 2, 3, 4] and last["frame_steps"] == [4]
    for one, other in zip(whole["rules"], last["rules"], strict=True):
        for full, end in zip(one["pictures"], other["pictures"], strict=True):
            assert b64decode(full["frames"])[-28 * 28 :] == b64decode(end["frames"])
            assert full["meter"] == end["meter"]


def test_text_of_a_link_stays_text(opened, tmp_path):
    """What ends a script, opens a comment or an element in one's own rule is shown, not run."""
    evil = "</script><!--<script><img src=x onerror=document.title=`owned`>"
    path = export.write_page(
        f"images?seeds=0&steps=1&rule=CFG(1)&rule={evil}&left=0&right=0", tmp_path / "page.html"
    )
    page = opened(path, "images")
    assert page.title() == "Images · meancap explorer"
    assert page.get_by_label("Rule 2", exact=True).input_value() == evil
    assert evil in page.locator(".saved").inner_text()
    assert page.locator("#view img").count() == 0


def test_a_link_is_read_as_the_page_reads_it(tab, server):
    page = tab.open("#images?seeds=0&steps=1&rule=CFG(1)", ready("images"))
    for link in (
        IMAGES,
        MIXTURE,
        "images?one=true&rule=CFG(λ)%7CCap(1.5)&seeds=1,+2&gamma=1.25",
        "mixture?rule=",
    ):
        own = page.evaluate(
            "async link => { const { view, state } = (await import('/app.js')).fromLink('#' + link);"
            " return [view.name, state]; }",
            link,
        )
        assert own == list(export.read_link(f"http://127.0.0.1:1/#{link}"))


def test_the_command_writes_the_same_file_as_the_button(tmp_path):
    path = tmp_path / "page.html"
    assert main(["explore", "--state", IMAGES, "--export", str(path)]) == 0
    text = path.read_text()
    assert text == export.saved_page(f"#{IMAGES}", Work())
    data = re.search(r'id="saved">(.*?)</script>', text, re.S)[1]
    assert json.loads(data)["link"] == f"#{IMAGES}"
    assert not re.search(r'(?:src|href)="(?!data:|#)', text), "nothing outside the file is referred to"
    assert [p.name for p in tmp_path.iterdir()] == ["page.html"]


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ("pictures?seeds=0", "begins with mixture or images"),
        ("images?seed=0", "no setting 'seed'"),
        ("images?steps=many", "steps must be a number"),
        ("images?seeds=0-999999999", "at most 64 images"),
        ("mixture?n=1000000000", "whole number from 100"),
    ],
)
def test_a_wrong_state_is_one_sentence_and_no_file(state, said, tmp_path, capsys):
    assert main(["explore", "--state", state, "--export", str(tmp_path / "page.html")]) == 2
    assert said in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_missing_folder_is_said_before_any_work(tmp_path):
    with pytest.raises(ValueError, match="no folder"):
        export.write_page(IMAGES, tmp_path / "no" / "page.html")
    with pytest.raises(ValueError, match="is a folder"):
        export.write_page(IMAGES, tmp_path)


def test_half_a_character_in_a_link_leaves_a_file_that_can_be_read(tmp_path):
    """An argument that is not UTF-8 comes with surrogates, which no file and no answer can hold."""
    path = export.write_page("mixture?n=100&steps=1&rule=CFG(1)&rule=\udcff&look=0", tmp_path / "page.html")
    data = re.search(r'id="saved">(.*?)</script>', path.read_text(encoding="utf-8"), re.S)[1]
    (answer,) = (one for one in json.loads(data)["answers"] if one["name"] == "mixture/run")
    rules = answer["result"]["rules"]
    assert rules[0]["numbers"] and "unexpected " in rules[1]["error"]
