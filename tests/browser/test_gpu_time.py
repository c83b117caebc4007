"""One card whose last step hangs: over the steps it is one column, over the time all of it is to be seen."""

from __future__ import annotations

import re

import numpy as np
import pytest
from playwright.sync_api import expect

from rangewatch.wire.records import Event, Samples
from tests.browser import drawn
from tests.browser.conftest import Tab
from tests.browser.hand_made import Runs, accept, number
from tests.browser.hand_made_health import KNOWN, SECOND, with_samples
from tests.server.records import batch, opening

STEPS, HANG_S = 20, 580
START_NS = 1_790_000_000 * SECOND
NO_SIDEWAYS = "() => document.documentElement.scrollWidth <= document.documentElement.clientWidth"
TICKS = "[data-testid=figure-gpu-power] .xtick text"
SHOWN = "document.querySelector('[data-testid=figure-gpu-power]')?.data?.[1].x.length"
PART_IS_SHOWN = f"() => {SHOWN} > 100 && {SHOWN} < 200"


@pytest.fixture(scope="module")
def address(runs: Runs) -> str:
    """A card that draws 600 W for twenty steps of a second, and 90 W in the ten minutes of the twenty-first."""
    second = np.arange(float(STEPS + HANG_S))
    is_hung = second >= STEPS
    columns = {
        "step": np.minimum(second, STEPS), "present": np.ones(len(second)), "power_w": np.where(is_hung, 90.0, 600.0),
        "power_limit_w": np.full(len(second), 700.0), "violation_power_ns": np.where(second < STEPS, 5e8, 0.0),
        "throttle_reasons": np.where(second == 300, 64.0, 0.0), "pcie_sent_bytes_per_s": np.full(len(second), 2e6),
    }  # fmt: skip
    card = Samples("gpu", "GPU-h", START_NS + second.astype(np.int64) * SECOND, columns, {"name": "H100"})
    data = {"uuid": "GPU-h", "xid": 119, "resolution": "reset_gpu"}
    xid = Event("xid", START_NS + 400 * SECOND, STEPS, "Xid 119 <b>", data)
    found = with_samples(batch(KNOWN, 0, range(STEPS), run="hung card", events=(xid,)), card)
    accept(runs.server, opening(KNOWN, "hung card"), found)
    return f"/runs/{number(runs.server, 'hung card')}/gpu"


def test_a_long_hang_is_shown_over_the_time(tab: Tab, address: str) -> None:
    page = tab.open(address)
    expect(page.get_by_label("Axis")).to_have_value("time")
    x = page.locator(drawn.selector("gpu-power")).evaluate("(figure) => Array.from(figure.data[1].x)")
    assert (x[0], x[-1], len(x)) == (0, STEPS + HANG_S - 1, STEPS + HANG_S)
    assert all(re.fullmatch(r"\d\d:\d\d", text) for text in page.locator(TICKS).all_text_contents())
    marks = page.locator(drawn.selector("gpu-events")).evaluate("(figure) => figure.data[0].x")
    assert marks == [400]
    band = page.locator(drawn.selector("gpu-throttle")).evaluate("(figure) => figure.layout.shapes[0]")
    assert (band["x0"] + band["x1"]) / 2 == 300
    held = page.locator(drawn.selector("gpu-held")).evaluate("(figure) => Array.from(figure.data[2].y).slice(0, 3)")
    assert held == [50, 50, 50]
    expect(page.get_by_test_id("figure-gpu-power")).to_have_attribute("aria-label", re.compile("Power, W over time"))
    page.get_by_test_id("figure-gpu-power").focus()
    page.keyboard.press("ArrowLeft")
    readout = page.locator(".lane", has=page.get_by_test_id("figure-gpu-power")).locator(".lane-readout")
    expect(readout).to_have_text(re.compile(r"\d\d:\d\d:\d\d \S+, step 20 · power 90 W, limit 700 W"))
    expect(page.get_by_test_id("figure-step_time")).to_have_count(0)
    page.set_viewport_size({"width": 390, "height": 844})
    page.wait_for_function(NO_SIDEWAYS)  # figures follow the width


@pytest.mark.slow
def test_the_reader_chooses_the_axis(tab: Tab, address: str) -> None:
    page = tab.open(address)
    page.get_by_label("Axis").select_option("steps")
    expect(page.get_by_test_id("figure-step_time")).to_be_attached()  # this run has none to show
    x = page.locator(drawn.selector("gpu-power")).evaluate("(figure) => Array.from(figure.data[1].x)")
    assert x[-1] < STEPS + 0.5
    page.get_by_label("Axis").select_option("time")
    expect(page.get_by_test_id("figure-step_time")).to_have_count(0)


@pytest.mark.slow
def test_a_part_of_the_time_is_asked_for(tab: Tab, address: str) -> None:
    page = tab.open(address)
    plot = page.locator(drawn.selector("gpu-power"))
    box = drawn.area(page, "gpu-power")
    with page.expect_request(re.compile("start_ns=.*stop_ns=")):
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] * 3 / 4, box["y"] + box["height"] / 2, steps=4)
        page.mouse.up()
    page.wait_for_function(PART_IS_SHOWN)
    first, *_, last = plot.evaluate("(figure) => Array.from(figure.data[1].x)")
    assert first == 0 and 140 < last < 160, "seconds from the first sample that is shown"
    page.wait_for_url(re.compile(r"from=\d{13}&to=\d{13}&key=GPU-h&axis=time$"))
    page.reload()
    tab.drawn()
    page.wait_for_function(PART_IS_SHOWN)
    page.get_by_label("First step").fill("2")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(r"start=2&key=GPU-h&axis=time$"))
    page.wait_for_function(f"() => {SHOWN} === {STEPS - 2}")  # of the step that hangs no record has come
    page.go_back()
    page.wait_for_function(PART_IS_SHOWN)
    page.go_back()
    page.wait_for_url(re.compile(r"/gpu\?rank=0&key=GPU-h$"))
