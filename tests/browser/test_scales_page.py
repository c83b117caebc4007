"""The Scales page: which operands are cast, whether their scales fit, and what is unknown."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from playwright.sync_api import expect

from tests.browser.conftest import Tab
from tests.browser.hand_made import Runs, accept, number
from tests.server.scale_batches import send


def test_states_of_scales(runs: Runs, tab: Tab) -> None:
    bits = np.zeros((6, 20))
    bits[0, 7:] = 2.0
    bits[3, 5:] = -6.0
    send(partial(accept, runs.server), bits, age=np.where(np.arange(20) >= 5, 12.0, 1.0), run="scales")
    page = tab.open(f"/runs/{number(runs.server, 'scales')}/scales")
    expect(page.get_by_test_id("verdict")).to_contain_text("the scale of 1 operand was too small")
    table = page.get_by_test_id("scales-operands")
    expect(table.get_by_role("row", name="blocks.0.up input")).to_contain_text("scale too small")
    expect(table.get_by_role("row", name="blocks.0.down input")).to_contain_text("entry 12 of 256")
    expect(table.get_by_role("row", name="head input")).to_contain_text("unknown")
    expect(page.get_by_test_id("verdict")).to_contain_text("nothing is read: no cast of it was seen")
    expect(page.get_by_test_id("figure-layers")).to_be_visible()
    table.get_by_role("link", name="blocks.0.up input").click()
    page.wait_for_url("**/tensor?*")


def test_a_phone_has_room_for_the_legend_and_the_plot(runs: Runs, new_tab: Callable[..., Tab]) -> None:
    send(partial(accept, runs.server), 0.0, run="scales on a phone")
    tab = new_tab(runs.server.url, viewport={"width": 390, "height": 844})
    page = tab.open(f"/runs/{number(runs.server, 'scales on a phone')}/scales")
    expect(page.get_by_test_id("verdict")).to_contain_text("Of 1 operand nothing is read")
    first = page.locator(".legend-ticks span", has_text="8 beyond").bounding_box()
    last = page.locator(".legend-ticks span", has_text="8 bits free").bounding_box()
    assert first is not None and first["x"] >= 0
    assert last is not None and last["x"] + last["width"] <= 390
    strip = page.get_by_test_id("step-brush").bounding_box()  # as wide as the plot
    assert strip is not None and strip["width"] > 390 / 2, "more than half of the page is for the steps"
