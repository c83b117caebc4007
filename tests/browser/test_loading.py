"""What stands where a page's answers are awaited."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, Route, expect

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


def hold_map(page: Page) -> list[Route]:
    """Answers to what is asked for the map of ranks are kept back."""
    held: list[Route] = []
    page.route(re.compile("/rank_map"), lambda route: held.append(route))
    return held


def release(page: Page, held: list[Route]) -> None:
    while held:
        held.pop().continue_()
    page.unroute_all(behavior="ignoreErrors")
    expect(page.get_by_test_id("picture-rank-map")).to_have_attribute("data-ready", re.compile("."))
    expect(page.locator(".rank-name").first).to_be_visible()


def test_nothing_moves_when_the_map_of_ranks_comes(tab: Tab, runs: Runs) -> None:
    """Its room is there before its answer is, in which a rank stands out."""
    page = tab.page
    page.set_viewport_size({"width": 1440, "height": 900})
    held = hold_map(page)
    with page.expect_request(re.compile("/rank_map")):
        page.goto(f"{tab.address}/runs/{runs.health}")
    tab.drawn()
    before = page.locator(".lanes").bounding_box()
    release(page, held)
    after = page.locator(".lanes").bounding_box()
    assert before is not None and after is not None and before["y"] == after["y"]


@pytest.mark.slow
def test_before_the_first_answer_there_is_nothing_to_press_that_would_move(tab: Tab, runs: Runs) -> None:
    page = tab.page
    held = hold_map(page)
    with page.expect_request(re.compile("/rank_map")):
        page.goto(f"{tab.address}/runs/{runs.health}/collectives")
    expect(page.get_by_test_id("skeleton")).to_be_visible()
    expect(page.locator(".range-bar")).to_be_hidden()
    release(page, held)
    expect(page.locator(".range-bar")).to_be_visible()
