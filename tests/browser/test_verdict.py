"""The first screen answers what is wrong: cause, rank and step in the verdict, without a scroll or a click."""

from __future__ import annotations

import re
import time

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Tab
from tests.browser.hand_made import Runs, accept, number, wait_for_alert
from tests.browser.hand_made_health import KNOWN, LATE, late
from tests.server.records import batch, opening


def first_screen(tab: Tab, path: str) -> Page:
    """The Overview at 1440 x 900, as it opens."""
    tab.page.set_viewport_size({"width": 1440, "height": 900})
    return tab.open(path)


def expect_verdict(page: Page, level: str, text: str) -> None:
    """The accessible text of the verdict, all of which is on the first screen."""
    verdict = page.get_by_test_id("verdict")
    expect(verdict).to_have_attribute("data-level", level)
    expect(verdict).to_contain_text(re.compile(text))
    box = verdict.bounding_box()
    assert box is not None and box["y"] >= 0 and box["y"] + box["height"] <= 900, box
    assert page.evaluate("scrollY") == 0


def test_an_overflow(tab: Tab, runs: Runs) -> None:
    wait_for_alert(runs.server, runs.alerted)
    page = first_screen(tab, f"/runs/{runs.alerted}")
    expect_verdict(page, "critical", r"NaN or Inf\. Step 30, rank 0: the output of .* is the first to hold Inf")
    assert page.locator("main img, main script, main b img, [onerror]").count() == 0, "names are text"
    page.get_by_test_id("verdict").get_by_role("link", name="All evidence").click()
    expect(page.locator(".alert:focus")).to_contain_text("is the first to hold Inf")
    page.goto(f"{tab.address}/")
    row = page.locator(f"[data-testid=run-row][data-run='{runs.alerted}']")
    expect(row).to_contain_text("NaN or Inf")


def test_a_rank_that_does_not_come(tab: Tab, runs: Runs) -> None:
    wait_for_alert(runs.server, runs.hung)
    page = first_screen(tab, f"/runs/{runs.hung}")
    expect_verdict(
        page, "critical", r"Hung\. The run waits for rank 2, which has not joined a collective .*, after step 10\."
    )
    expect(page.get_by_test_id("verdict")).to_contain_text("Rank 2 is at train.py:71 in load_checkpoint.")
    expect(page.get_by_test_id("hang-note")).to_be_hidden()  # said once
    expect(page.locator(".run-header .badge")).to_have_text(re.compile("hung"))


def late_run(runs: Runs, name: str, *, is_hot: bool) -> int:
    """The number of a run as `hand_made_health.late` makes it, once it has an alert."""
    accept(runs.server, *late(name, time.time_ns(), is_hot=is_hot))
    return wait_for_alert(runs.server, number(runs.server, name))


@pytest.mark.slow
def test_a_rank_that_lags(tab: Tab, runs: Runs) -> None:
    page = first_screen(tab, f"/runs/{late_run(runs, 'verdict late', is_hot=False)}")
    expect_verdict(page, "warning", rf"Straggler\. The others wait 30 ms a step for rank {LATE}\b")


@pytest.mark.slow
def test_a_throttled_gpu_and_what_it_costs(tab: Tab, runs: Runs) -> None:
    page = first_screen(tab, f"/runs/{late_run(runs, 'verdict hot', is_hot=True)}")
    expect_verdict(
        page, "warning",
        rf"GPU throttled\. Rank {LATE}: its GPU H100 on node1 is throttled \(92 C, 1,200 of 1,980 MHz\), "
        r"since step 15\."
        rf".*The others wait 30 ms a step for rank {LATE}",
    )  # fmt: skip
    expect(page.get_by_test_id("verdict").get_by_role("button", name="Copy the code")).to_be_visible()


def test_a_healthy_run_is_green(tab: Tab, runs: Runs) -> None:
    accept(runs.server, opening(KNOWN, run="verdict well"), batch(KNOWN, 0, range(60), run="verdict well"))
    page = first_screen(tab, f"/runs/{number(runs.server, 'verdict well')}")
    expect_verdict(page, "ok", "No overflow")
    expect(page.get_by_test_id("verdict").locator(".verdict-chip")).to_have_count(0)
