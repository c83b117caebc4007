"""A page that follows a live run keeps nothing of what it showed before: the hour of bench/web.py, shortened."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import CDPSession

from tests.browser.conftest import Tab
from tests.browser.hand_made import Runs, accept, number
from tests.server.process import Server
from tests.server.records import batch, catalogue, opening

PAGES = ("", "/layers", "/step?step=20&rank=0")
KNOWN, SIZE = catalogue(3), 2_000  # more steps than a lane has columns: what is shown grows no more
# At most, of one update; the first ones still compile.
KEPT = {"Nodes": 2.0, "JSEventListeners": 0.9, "JSHeapUsedSize": 100_000.0}
# Every lane has been drawn again since, with this step.
SHOWN = """([step, before]) => {
  const lanes = [...document.querySelectorAll("main .plot")];
  return document.querySelector(".run-details").textContent.includes(`step ${step.toLocaleString("en-US")} `) &&
    lanes.every((lane, i) => lane.dataset.ready !== before[i]);
}"""
VERSIONS = "() => [...document.querySelectorAll('main .plot')].map((lane) => lane.dataset.ready)"


def follow(tab: Tab, server: Server, run: str, sequences: range) -> None:
    """Send these batches, each when the one before is on the screen."""
    for sequence in sequences:
        before = tab.page.evaluate(VERSIONS)
        low = SIZE + (sequence - 1) * 5
        accept(server, batch(KNOWN, sequence, range(low, low + 5), run=run, series={"loss": 1.0, "step_time_s": 0.1}))
        tab.page.wait_for_function(SHOWN, arg=[low + 4, before])


def held(tab: Tab, devtools: CDPSession) -> dict[str, float]:
    """What the tab holds after a collection of garbage, once it is at rest: a page without a lane names a step before
    all of it is shown, and has the nodes of two views then.
    """
    nodes = -1.0
    for _ in range(30):
        devtools.send("HeapProfiler.collectGarbage")
        metrics: list[dict[str, Any]] = devtools.send("Performance.getMetrics")["metrics"]
        found = {each["name"]: each["value"] for each in metrics if each["name"] in KEPT}
        if found["Nodes"] == nodes:
            break
        nodes = found["Nodes"]
        tab.page.wait_for_timeout(500)
    return found


@pytest.mark.parametrize(
    ("page", "updates"),
    [
        pytest.param("/layers", 8, marks=pytest.mark.slow),
        *(pytest.param(page, 120, marks=[pytest.mark.soak, pytest.mark.timeout(600)]) for page in PAGES),
    ],
)
def test_a_live_page_holds_no_more_after_many_updates(tab: Tab, runs: Runs, page: str, updates: int) -> None:
    run = f"followed {page} {updates}"
    first = batch(KNOWN, 0, range(SIZE), run=run, series={"loss": 1.0, "step_time_s": 0.1})
    accept(runs.server, opening(KNOWN, run), first)
    tab.open(f"/runs/{number(runs.server, run)}{page}")
    devtools = tab.context.new_cdp_session(tab.page)
    devtools.send("Performance.enable")
    follow(tab, runs.server, run, range(1, 7))
    before = held(tab, devtools)
    follow(tab, runs.server, run, range(7, 7 + updates))
    after = held(tab, devtools)
    devtools.detach()
    assert {
        name: (after[name] - before[name]) / updates
        for name in KEPT
        if after[name] - before[name] > KEPT[name] * updates
    } == {}
