"""The last lines of stderr: where a rank died, on its step and in the palette; as text, whatever they hold."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from rangewatch.wire.events import Stderr, event
from rangewatch.wire.records import Event
from tests.browser.axe import findings
from tests.browser.conftest import Tab
from tests.browser.hand_made import MARKUP, Runs, accept, number
from tests.server.records import batch, catalogue, opening

KNOWN = catalogue(3)
LINES = ("step 1041", *(each.replace("\n", " ") for each in MARKUP), "CUDA error: device-side assert triggered")


def died(runs: Runs, name: str) -> int:
    tail = event(Stderr(lines=LINES, source="file", path="/logs/1/stderr.log", is_cut=True), 2, 1042)
    for rank in range(2):
        accept(runs.server, opening(KNOWN, run=name, rank=rank, world_size=2))
        reported = (tail, Event("died", 3, 1042, "died of signal 6 (SIGABRT) in step 1042", {"signal": 6}))
        accept(runs.server, batch(KNOWN, 0, [0, 1], run=name, rank=rank, events=reported if rank else ()))
    return number(runs.server, name)


def test_where_a_rank_died_its_last_lines_are_a_click_away(tab: Tab, runs: Runs) -> None:
    run = died(runs, "stderr-died")
    page = tab.open(f"/runs/{run}")
    tail = page.get_by_test_id("stderr-tail")
    expect(tail).to_have_count(1)
    tail.get_by_text("Last lines of stderr of rank 1").click()
    expect(tail.locator("pre")).to_contain_text("device-side assert")
    assert tail.locator("pre").inner_text().split("\n") == list(LINES)
    expect(tail.get_by_role("status")).to_have_text(
        "At step 1,042. The end of /logs/1/stderr.log on host. There was more before."
    )
    assert page.locator("main img, main script, main b, [onerror]").count() == 0
    assert findings(page) == []
    for width in (390, 1280):
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_function("() => document.documentElement.scrollWidth <= document.documentElement.clientWidth")


@pytest.mark.slow
def test_it_is_found_by_name_and_unknown_is_said_to_be_unknown(tab: Tab, runs: Runs) -> None:
    run = died(runs, "stderr-found")
    page = tab.open(f"/runs/{run}/collectives")
    page.keyboard.press("Control+k")
    page.keyboard.type("stderr")
    expect(page.get_by_test_id("palette").locator("li[data-group=Rank]")).to_contain_text("stderr of rank 1")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(f"/runs/{run}/step[?]rank=1$"))
    tail = page.get_by_test_id("stderr-tail")
    expect(tail.locator("pre")).to_contain_text("step 1041")
    page.keyboard.press("Control+k")
    page.keyboard.type("stderr of rank 0")
    page.keyboard.press("Enter")
    expect(tail.get_by_role("status")).to_have_text(re.compile("^Not recorded: turn on with attach.stderr_tail=True"))
    expect(tail.locator("pre")).to_be_hidden()
