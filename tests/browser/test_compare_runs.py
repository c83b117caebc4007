"""Runs compared: ticked in the list, drawn over each other, where they part and what was set otherwise."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
from playwright.sync_api import expect

from rangewatch.wire.records import Event
from tests.browser.axe import findings
from tests.browser.conftest import Tab
from tests.browser.hand_made import MARKUP, accept, number
from tests.server.process import Server
from tests.server.records import batch, catalogue, opening

KNOWN = catalogue(4)
STEPS = 60


def send(server: Server, run: str, **of: object) -> None:
    """A run that parts from the others at step 20, in its third tensor, by its `factor`."""
    factor = float(of.get("factor", 1))  # type: ignore[arg-type]
    loss, amax = 3.0 - np.arange(STEPS) / 50, np.ones((4, STEPS))
    loss[20:] *= factor
    amax[2:, 20:] = 1 if factor == 1 else 4
    events = (Event("attached", 1, 0, "", {"options": {"lr": of.get("lr", "1e-3"), "budget": 2}}),)
    series = {"loss": loss, "wall_time_s": 1e9 + np.arange(STEPS), **{str(of.get("series", "lr")): 1.0}}
    accept(server, opening(KNOWN, run=run))
    accept(server, batch(KNOWN, 0, range(STEPS), {"amax": amax}, run=run, series=series, events=events))


@pytest.fixture
def pair(new_tab: Callable[..., Tab], emptied: Server) -> tuple[Tab, Server]:
    send(emptied, "base")
    send(emptied, "other", factor=1.25, lr=MARKUP[0])
    send(emptied, "third", series=MARKUP[3])
    return new_tab(emptied.url), emptied


def test_runs_are_ticked_compared_and_part_where_they_do(pair: tuple[Tab, Server]) -> None:
    tab, server = pair
    page = tab.open("/")
    bar = page.get_by_test_id("compare-bar")
    page.get_by_label("Compare base").check()
    expect(bar).to_contain_text("tick another")
    page.get_by_label("Compare other").check()
    bar.get_by_role("link", name="Compare 2 runs").click()
    one, two = number(server, "base"), number(server, "other")
    page.wait_for_url(f"**/compare?runs={one},{two}")
    parting = page.get_by_test_id("compare-parting")
    expect(parting).to_contain_text("the loss first differs at step 20: 2.6 and 3.25, which is more than 0.1 % apart.")
    expect(page.get_by_test_id("compare-tensors")).to_contain_text(re.compile(r"At step 20, .* is the first whose"))
    settings = page.get_by_test_id("compare-settings")
    expect(settings.locator("tbody tr")).to_have_count(1)
    expect(settings.locator("tbody tr")).to_contain_text(MARKUP[0])
    assert page.locator("main img, main script, main b, [onerror]").count() == 0, "values are text"
    expect(page.locator("[data-testid=compare-loss] .compare-plot")).to_have_attribute("data-ready", "")
    page.get_by_label("Over").select_option("time")
    page.wait_for_url("**&x=time")
    page.get_by_role("link", name="Choose other runs").click()
    expect(page.get_by_label("Compare other")).to_be_checked()


def test_charts_are_saved_and_shown_as_a_table(pair: tuple[Tab, Server]) -> None:
    tab, server = pair
    one, two = number(server, "base"), number(server, "other")
    page = tab.open(f"/compare?runs={one},{two}")
    chart = page.get_by_test_id("compare-loss")
    for choice, end in (("CSV of what is shown", "csv"), ("PNG picture", "png")):
        chart.get_by_role("button", name="Save or show as a table").click()
        with page.expect_download() as waited:
            chart.get_by_role("button", name=choice).click()
        assert waited.value.suggested_filename.endswith(f"compare-{one}-{two}-loss.{end}")
        content = waited.value.path().read_bytes()
        if end == "csv":
            lines = content.decode().splitlines()
            assert lines[0].strip() == "run,name,step,value" and len(lines) == 1 + 2 * STEPS
            assert f"{two},other,20,{2.6 * 1.25}" in lines
        else:
            assert content.startswith(b"\x89PNG") and len(content) > 5_000
    chart.get_by_role("button", name="Save or show as a table").click()
    chart.get_by_role("button", name="Show as a table", exact=True).click()
    expect(chart.locator("table")).to_contain_text("base")
    assert findings(page) == []


@pytest.mark.slow
def test_what_cannot_be_compared_says_why(pair: tuple[Tab, Server]) -> None:
    tab, server = pair
    one = number(server, "base")
    page = tab.open(f"/compare?runs={one}")
    expect(page.get_by_test_id("empty-state")).to_contain_text("One run alone")
    tab.visit("/compare?runs=1,2,3,4,5,6,7,8,9")
    expect(page.get_by_test_id("empty-state")).to_contain_text("9 runs are too many: 8 at most")
    tab.visit("/compare")
    expect(page.get_by_test_id("empty-state")).to_contain_text("No run is ticked")
    tab.expected.append(r"404 .*/api/v1/compare")
    tab.visit(f"/compare?runs={one},99999")
    expect(page.get_by_test_id("error-state")).to_contain_text("there is no run 99999")


@pytest.mark.slow
def test_three_runs_in_both_themes_and_on_a_phone(pair: tuple[Tab, Server]) -> None:
    tab, server = pair
    runs = [number(server, name) for name in ("base", "other", "third")]
    page = tab.open(f"/compare?runs={','.join(map(str, runs))}&smooth=0.9&log=1")
    expect(page.get_by_test_id("compare-parting").locator("li")).to_have_count(2)
    expect(page.get_by_test_id("compare-parting")).to_contain_text("equal bit for bit at all 60 steps")
    expect(page.locator(".compare-notes")).to_contain_text(f"Logged by one run only: {MARKUP[3]}.")
    assert page.locator("main b").count() == 0
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        assert findings(page) == []
    for width in (390, 1280):
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_function("() => document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    page.get_by_label("Compare without third").click()
    page.wait_for_url(f"**/compare?runs={runs[0]},{runs[1]}&smooth=0.9&log=1")
    expect(page.get_by_test_id("compare-tensors")).to_be_visible()
