"""The keyboard alone from the list of runs to the cause, its evidence, its alert and back, in each of the four cases.

It leads there, and the focus is seen on the way.
"""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.browser import large_runs
from tests.browser.conftest import Tab
from tests.browser.hand_made import Runs, accept, wait_for_alert
from tests.browser.test_verdict import late_run
from tests.server.process import Server
from tests.server.records import batch, catalogue

MOST_TABS = 80
CAUSES = ("straggler", "gpu_health")
IS_SEEN = """() => {
  const one = document.activeElement, style = getComputedStyle(one), box = one.getBoundingClientRect();
  const isOutlined = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0;
  const isOnScreen = box.width > 0 && box.bottom > 0 && box.top < innerHeight && box.right > 0 && box.left < innerWidth;
  return [one.matches(":focus-visible") && isOutlined && isOnScreen, one.outerHTML.slice(0, 200)];
}"""


def tab_to(page: Page, selector: str) -> None:
    """Press Tab until an element has the focus; each on the way shows that it has it, within the window."""
    for _ in range(MOST_TABS):
        page.keyboard.press("Tab")
        is_seen, what = page.evaluate(IS_SEEN)
        assert is_seen, f"the focus is not seen on {what}"
        if page.evaluate("(selector) => document.activeElement.matches(selector)", selector):
            return
    raise AssertionError(f"{MOST_TABS} times Tab do not lead to {selector}")


def journey(tab: Tab, run: int, cause: str) -> None:
    """Runs, the run, the verdict's first link, its alert by the palette, the list again."""
    tab.page.set_viewport_size({"width": 1440, "height": 900})
    page = tab.open("/")
    expect(page.locator(f"[data-run='{run}']")).to_be_visible()
    tab_to(page, ".skip-link")
    page.keyboard.press("Enter")
    tab_to(page, f"[data-run='{run}'] .run-name")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/runs/{run}")
    verdict = page.get_by_test_id("verdict")
    expect(verdict).to_contain_text(re.compile(cause))
    tab_to(page, ".verdict-links a")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(rf"/runs/{run}/(step|hang|collectives|gpu)"))
    tab.drawn()
    page.keyboard.press("g")
    page.keyboard.press("o")
    page.wait_for_url(re.compile(rf"/runs/{run}(\?.*)?$"))
    expect(verdict).to_contain_text(re.compile(cause))
    page.keyboard.press("Control+k")
    page.keyboard.type("alert")
    expect(page.get_by_test_id("palette").locator("li[data-group=Alert]").first).to_be_visible()
    while not page.locator("li[data-group=Alert][aria-selected=true]").count():
        page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(rf"/runs/{run}/alerts\?key="))
    expect(page.locator(".alert:focus")).to_contain_text(re.compile(cause))
    tab_to(page, ".alert button")
    page.keyboard.press("g")
    page.keyboard.press("r")
    page.wait_for_url(re.compile(r"/(\?.*)?$"))
    expect(page.locator(f"[data-run='{run}'] .verdict-cell")).to_contain_text(re.compile(cause))


def test_an_overflow(tab: Tab, runs: Runs) -> None:
    journey(tab, wait_for_alert(runs.server, runs.alerted), "NaN or Inf")


def test_a_hang(tab: Tab, runs: Runs) -> None:
    journey(tab, wait_for_alert(runs.server, runs.hung), "Hung")


@pytest.mark.slow
def test_a_straggler(tab: Tab, runs: Runs) -> None:
    journey(tab, late_run(runs, "keyboard late", is_hot=False), "Straggler")


@pytest.mark.slow
def test_a_throttled_gpu(tab: Tab, runs: Runs) -> None:
    journey(tab, late_run(runs, "keyboard hot", is_hot=True), "GPU throttled")


@pytest.mark.soak
@pytest.mark.parametrize("ranks", [large_runs.RANKS, large_runs.MORE_RANKS])
def test_a_run_of_many_ranks(tab: Tab, tmp_path: Path, ranks: int) -> None:
    """On a machine with other work the rules of 1,024 ranks may get no time: then there is no such cause."""
    made = large_runs.make(tmp_path / "large.db", ranks)
    try:
        tab.address = made.server.url
        accept(made.server, batch(catalogue(6), 2, range(0), run="many ranks"))  # news: the rules look at what changes
        while not any(cause in CAUSES for cause in open_rules(made.server, made.ranks)):
            time.sleep(0.5)
        journey(tab, made.ranks, "Straggler|GPU")
    finally:
        made.server.stop()


def open_rules(server: Server, run: int) -> list[str]:
    return [each["finding"]["rule"] for each in server.get(f"/api/v1/runs/{run}/alerts")["alerts"]]
