"""The Experts page: routers, the load of their experts, and what to do where there are none."""

from __future__ import annotations

from functools import partial

import numpy as np
from playwright.sync_api import expect

from tests.browser.conftest import Tab
from tests.browser.hand_made import Runs, accept, number, wait_for_alert
from tests.server import expert_batches, whatif_batches


def test_loads_by_router_and_by_expert(runs: Runs, tab: Tab) -> None:
    loads = np.full((2, 4, 20), 50.0)
    loads[1] = np.array([0.0, 50, 100, 50])[:, None]
    expert_batches.send(partial(accept, runs.server), loads, run="experts")
    page = tab.open(f"/runs/{number(runs.server, 'experts')}/experts")
    expect(page.get_by_test_id("verdict")).to_contain_text("1 of 8 experts got no token")
    expect(page.get_by_test_id("verdict")).to_contain_text("expert 2 of blocks.1.router: 2 × the mean")
    table = page.get_by_test_id("experts-routers")
    expect(table.get_by_role("row", name="blocks.1.router")).to_contain_text("1.00 (expert 2)")
    expect(table.get_by_role("row", name="blocks.0.router")).to_contain_text("1.25 of 2.00 bits")
    expect(page.get_by_role("heading", name="Load of the 4 experts of blocks.1.router")).to_be_visible()
    table.get_by_role("button", name="blocks.0.router").click()
    page.wait_for_url("**/experts?*tensor=1")
    expect(page.get_by_role("heading", name="Load of the 4 experts of blocks.0.router")).to_be_visible()
    page.get_by_test_id("figure-experts").focus()
    page.keyboard.press("ArrowLeft")
    expect(page.get_by_text("MaxVio 0, 4.8 % dropped")).to_be_visible()


def test_an_expert_that_died_within_the_shown_steps_is_not_green(runs: Runs, tab: Tab) -> None:
    """It got tokens in these steps, before; the alert is open."""
    loads = np.full((2, 4, 120), 50.0)
    loads[1, 2, 60:] = 0
    expert_batches.send(partial(accept, runs.server), loads, run="dying", steps=120)
    run = number(runs.server, "dying")
    wait_for_alert(runs.server, run)
    page = tab.open(f"/runs/{run}/experts")
    verdict = page.get_by_test_id("verdict")
    expect(verdict).to_contain_text("expert 2 of blocks.1.router gets no token any more")
    expect(verdict).to_have_attribute("data-level", "warning")
    tab.visit(f"/runs/{run}/experts?start=0&stop=50")
    expect(verdict).to_contain_text("expert 2 of blocks.1.router gets no token any more")


def test_a_run_without_routers_says_how(runs: Runs, tab: Tab) -> None:
    whatif_batches.send(partial(accept, runs.server), {}, run="no experts")
    page = tab.open(f"/runs/{number(runs.server, 'no experts')}/experts")
    expect(page.get_by_test_id("empty-state")).to_contain_text('routers=["blocks.*.router"]')
    expect(page.get_by_test_id("figure-routers")).to_have_count(0)
