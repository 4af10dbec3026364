"""The image view in a real browser: what it shows is what the library gives, and it can be worked by keys."""

import json
import math
import re
import time

import pytest
import torch
from browser import until

from meancap import CFG, Cap, Record, sample, uniform
from meancap.rules.calibration import GapCurve
from meancap.sampling import noise
from meancap_lab.explorer import image_view
from meancap_lab.explorer import server as server_module
from meancap_lab.explorer.image_view import BLOCK
from meancap_lab.models import fashion

READY = '.images[data-busy="false"]'
SMALL = "#images?classes=7&seeds=0-3&steps=5&scale=5&rule=CFG(λ)&rule=CFG(λ)+|+Cap(Γ)&left=0&right=1"


def made(rule, *, seeds=range(4), steps=5, label=7):
    """Pictures and meter by the library alone, as many at once as the view makes, since that may round."""
    model, record, block = fashion(), Record(), [*seeds, *[0] * (BLOCK - len(seeds))]
    x = sample(model.predict([label] * BLOCK), rule, noise(block, model.shape), uniform(steps), record=record)
    return model.decode(x)[:, 0], record.stacked()


def shown(page, index, image):
    """The grey values on a canvas of a grid."""
    cell = page.locator(".rule-card").nth(index).locator("canvas").nth(image)
    found = cell.evaluate("c => [...c.getContext('2d').getImageData(0, 0, 28, 28).data]")
    grey = torch.tensor(found, dtype=torch.uint8).reshape(28, 28, 4)
    assert bool((grey[..., :3] == grey[..., :1]).all()) and bool((grey[..., 3] == 255).all())
    return grey[..., 0]


def row(page, table, index):
    return page.locator(f"table.{table} tbody tr").nth(index).locator("td").all_inner_texts()


def expected(meter, image):
    """The cells of one picture's row, as the page writes them, without the classifier's."""
    scale, asked = meter["scale"][:, image], meter["asked"][:, image]
    capped = 100 * float(meter["active"][:, image].double().mean())
    return [
        f"{float(asked.max()):.2f}",
        f"{float(scale[0]):.2f} → {float(scale[-1]):.2f}",
        f"{math.floor(capped + 0.5)} %",
        f"{float(meter['ratio'][:, image].max()):.3f}",
    ]


def compared(meter):
    """The sentence about the squared gap of the four pictures, without its error."""
    times, squares = image_view._garment_gaps()
    real = GapCurve(times, tuple(squares[7].sqrt().tolist()))
    gaps = meter["gap"][:, :4].double().square().mean(1).sqrt()
    return real.compare([i / 5 for i in range(5)], gaps.tolist())


def test_pictures_and_meter_are_the_library_s_also_after_a_slider_moved(tab):
    page = tab.open(SMALL, READY)
    for scale in (5, 6):
        for index, rule in enumerate((CFG(scale), CFG(scale) | Cap(1.1))):
            pictures, meter = made(rule)
            for image in range(4):
                assert torch.equal(shown(page, index, image), pictures[image])
            assert row(page, "own", index)[:4] == expected(meter, 0)
            said = page.locator(".legend.path .named").nth(index).inner_text()
            assert said.startswith(compared(meter)) and said.endswith("with 4 pictures)")
        if scale == 5:
            page.get_by_label("λ scale", exact=True).focus()
            for _ in range(10):
                page.keyboard.press("ArrowRight")
            until(lambda: page.locator(".rule-card .named").first.inner_text() == "CFG(6)", 60)
            page.wait_for_selector(READY)
    until(lambda: "scale=6" in page.evaluate("location.hash"), 60)


def test_slider_pictures_and_steps_are_worked_by_keys(tab):
    page = tab.open(SMALL, READY)
    slider = page.get_by_role("slider", name="Between rule 1 and rule 2")
    slider.focus()
    for key, share in (("ArrowRight", 51), ("ArrowLeft", 50), ("End", 100), ("Home", 0), ("PageUp", 10)):
        page.keyboard.press(key)
        said = f"{share} per cent rule 1, {100 - share} per cent rule 2"
        assert slider.input_value() == str(share) and slider.get_attribute("aria-valuetext") == said
        clip = page.locator(".stage .over").first.evaluate("e => getComputedStyle(e).clipPath")
        assert re.search(r"inset\(0px (.*?) 0px 0px\)", clip)[1] == f"{100 - share}%"
    until(lambda: "wipe=10" in page.evaluate("location.hash"), 60)
    page.get_by_role("button", name="One picture").click()
    assert page.locator(".stage .wiped").count() == 1
    end = shown(page, 1, 0)
    page.locator("#step").focus()
    page.keyboard.press("Home")
    assert "step 1 of 5" in page.locator(".stepper output").inner_text()
    assert not torch.equal(shown(page, 1, 0), end)
    page.keyboard.press("End")
    assert torch.equal(shown(page, 1, 0), end)
    page.locator(".rule-card").first.locator(".cell").first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("End")
    assert page.locator('.cell[aria-pressed="true"]').count() == 2, "one in each rule"
    assert "seed 3" in page.locator(".reading h2").inner_text()
    _, meter = made(CFG(5) | Cap(1.1))
    assert row(page, "own", 1)[:4] == expected(meter, 3)


def test_a_link_may_say_anything_and_wrong_rules_are_shown_as_such(tab):
    late = "Phases(1,+CFG(2),+Cap(1.1,+anchor=[1,+2,+3]),+together=False)"  # fails at its second step
    rules = f"rule=CFG(1)&rule=Nothing(4)&rule=Gain(1e30)&rule={late}"
    page = tab.open(
        f"#images?seeds=0-1&steps=3&{rules}&pick=1.5&left=-3&right=99&wipe=700&one=yes&x=1", READY
    )
    assert page.get_by_role("slider", name="Between rule 1 and rule 3").input_value() == "100"
    assert "seed 0" in page.locator(".reading h2").inner_text()
    assert row(page, "own", 1)[-1] == "nothing: the samples diverged"
    unknown, failed = page.locator(".rule-card.wrong").all_inner_texts()
    assert "unknown name 'Nothing'" in unknown and "cannot go on" in failed


def test_work_can_be_cancelled_and_taken_up(tab, monkeypatch):
    def endless(request, work):
        while True:
            work.tell(0.1, "on and on")
            time.sleep(0.05)

    page = tab.open(SMALL, READY)
    with monkeypatch.context() as patch:
        patch.setitem(server_module.ROUTES, "images/run", endless)
        page.get_by_role("button", name="New noise").click()
        until(lambda: "on and on" in page.locator(".progress").inner_text())
        page.get_by_role("button", name="Cancel").click()
        page.wait_for_selector(READY)
    assert "Cancelled." in page.locator(".progress").inner_text()
    assert page.get_by_role("button", name="Make pictures").is_visible()
    page.get_by_label("seeds").fill("500-501")
    page.keyboard.press("Enter")
    until(lambda: page.locator(".rule-card").first.locator(".cell").count() == 2, 60)
    page.wait_for_selector(READY)


def test_downloads_hold_the_pictures_and_the_numbers(tab, tmp_path):
    page = tab.open(SMALL, READY)
    with page.expect_download() as waited:
        page.get_by_role("button", name="Numbers (JSON)").click()
    found = json.loads(waited.value.path().read_text())
    _, meter = made(CFG(5) | Cap(1.1))
    assert found["settings"]["seeds"] == "0-3" and found["rules"][1]["rule"] == "CFG(5) | Cap(1.1)"
    granted = found["rules"][1]["pictures"][2]["meter"]["scale"]
    assert granted == pytest.approx(meter["scale"][:, 2].tolist(), rel=1e-4)
    with page.expect_download() as waited:
        page.get_by_role("button", name="Pictures (PNG)").click()
    from PIL import Image

    with Image.open(waited.value.path()) as sheet:
        grey = sheet.convert("L")
        first = torch.tensor(list(grey.crop((4, 30, 4 + 112, 30 + 112)).tobytes()), dtype=torch.uint8)
    pictures, _ = made(CFG(5))
    assert torch.equal(first.reshape(28, 4, 28, 4)[:, 0, :, 0], pictures[0])


@pytest.mark.parametrize(("width", "height"), [(1280, 800), (390, 844), (360, 740)])
def test_the_default_view_fits_the_screen(tabs, width, height):
    page = tabs(viewport={"width": width, "height": height}).open("#images", READY)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator(".rule-card").count() == 3
    plot = page.locator(".rule-card canvas").first.bounding_box()
    assert plot["y"] + plot["height"] < height, "a picture is on the first screen"
