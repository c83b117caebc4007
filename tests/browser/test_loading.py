"""What stands where a page's answers are awaited."""

from __future__ import annotations

import re

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


@pytest.mark.parametrize("path", ["", pytest.param("/collectives", marks=pytest.mark.slow)])
def test_nothing_moves_when_the_map_of_ranks_comes(tab: Tab, runs: Runs, path: str) -> None:
    """Its room is there before its answer is, in which a rank stands out."""
    page = tab.page
    held: list[Route] = []
    page.route("**/rank_map?*", held.append)
    page.set_viewport_size({"width": 1440, "height": 900})
    page.goto(f"{tab.address}/runs/{runs.health}{path}")
    bar = page.locator(".range-bar")
    expect(bar).to_be_visible()
    while not held:
        page.wait_for_timeout(20)
    before = bar.bounding_box()
    for route in held:
        route.continue_()
    expect(page.get_by_test_id("picture-rank-map")).to_have_attribute("data-ready", re.compile("."))
    expect(page.locator(".rank-name").first).to_be_visible()
    assert bar.bounding_box() == before
