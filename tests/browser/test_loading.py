"""What stands where a page's answers are awaited."""

from __future__ import annotations

import pytest
from playwright.sync_api import Route, expect

from tests.browser.conftest import Tab
from tests.browser.hand_made import Runs


@pytest.mark.slow
def test_a_page_that_waits_is_not_blank(tab: Tab, runs: Runs) -> None:
    page = tab.page
    held: list[Route] = []

    def held_back(route: Route) -> None:
        held.append(route)

    page.route("**/api/v1/runs/*/alerts?*", held_back)
    page.goto(f"{tab.address}/runs/{runs.states}/alerts")
    expect(page.get_by_test_id("skeleton")).to_be_visible()
    for route in held:
        route.continue_()
    page.unroute("**/api/v1/runs/*/alerts?*")
    expect(page.get_by_test_id("skeleton")).to_have_count(0)
