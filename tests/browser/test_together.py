"""The figures of a page come in one answer, and are asked for before the run itself has answered where it is known."""

from __future__ import annotations

import json
import re

import pytest
from playwright.sync_api import Route, expect

from tests.browser.conftest import Tab
from tests.browser.hand_made import Runs

FIGURES = re.compile(r"/api/v1/runs/\d+/figures\?")  # those that take long are asked for alone
LOSS, TIMELINE = "figure-loss", "figure-timeline"


def test_the_lanes_of_a_page_are_one_request(tab: Tab, runs: Runs) -> None:
    asked: list[str] = []
    tab.page.on("request", lambda request: asked.append(request.url))
    tab.open(f"/runs/{runs.states}")
    assert len([url for url in asked if FIGURES.search(url)]) == 1, asked


def test_one_lane_that_is_refused_says_so_and_the_others_are_drawn(tab: Tab, runs: Runs) -> None:
    def refuse_first(route: Route) -> None:
        answer = route.fetch()
        first, *more = answer.text().splitlines(keepends=True)
        assert "answer" in json.loads(first)
        refused = {"number": 0, "status": 503, "refused": {"code": "time_limit", "error": "that took too long"}}
        route.fulfill(response=answer, body="".join([json.dumps(refused) + "\n", *more]))

    tab.page.route(FIGURES, refuse_first)
    page = tab.page
    page.goto(f"{tab.address}/runs/{runs.states}")
    lane = page.locator(".lane").filter(has=page.get_by_test_id(LOSS))
    expect(lane.locator(".lane-message")).to_have_text("that took too long")
    expect(page.get_by_test_id(TIMELINE)).to_have_attribute("data-ready", re.compile(r"\d"))


@pytest.mark.slow
def test_an_answer_that_breaks_off_or_is_no_answer_is_said(tab: Tab, runs: Runs) -> None:
    def cut(route: Route) -> None:
        answer = route.fetch()
        route.fulfill(response=answer, body=answer.text().splitlines(keepends=True)[0])

    def spoil(route: Route) -> None:
        route.fulfill(status=200, content_type="application/x-ndjson", body="<html>\n" * 20)

    page = tab.page
    page.route(FIGURES, cut)
    page.goto(f"{tab.address}/runs/{runs.states}")
    expect(page.get_by_test_id("error-state").or_(page.locator(".problem"))).to_contain_text(
        "No answer from the server"
    )
    page.unroute_all()
    page.route(FIGURES, spoil)
    page.goto(f"{tab.address}/runs/{runs.states}")
    expect(page.locator(".lane-message").first).to_have_text("The server's answer could not be read.")


def test_a_page_of_a_run_that_is_known_does_not_wait_for_the_run(tab: Tab, runs: Runs) -> None:
    page = tab.open(f"/runs/{runs.states}/layers?rank=0")
    held: list[Route] = []
    page.route(re.compile(rf"/api/v1/runs/{runs.states}$"), lambda route: held.append(route))
    page.locator("#nav a[data-page=overview]").click()
    expect(page.get_by_test_id(TIMELINE)).to_have_attribute("data-ready", re.compile(r"\d"))
    expect(page.get_by_role("heading", level=1)).not_to_be_empty()
    while not held:  # the run is asked for after its figures
        page.wait_for_timeout(10)
    changed = held[0].fetch()
    held[0].fulfill(response=changed, json=changed.json() | {"title": "Another title"})
    expect(page.get_by_role("heading", level=1)).to_have_text("Another title")
    page.unroute_all()


@pytest.mark.slow
def test_a_run_that_has_gone_on_meanwhile_is_drawn_again(tab: Tab, runs: Runs) -> None:
    page = tab.open(f"/runs/{runs.states}/layers?rank=0")
    last = page.evaluate(f"fetch('/api/v1/runs/{runs.states}').then((answer) => answer.json())")["last_step"]
    asked: list[str] = []

    def gone_on(route: Route) -> None:
        answer = route.fetch()
        route.fulfill(response=answer, json=answer.json() | {"last_step": last + 50})

    page.route(re.compile(rf"/api/v1/runs/{runs.states}$"), gone_on)
    page.on("request", lambda request: asked.append(request.url))
    page.locator("#nav a[data-page=overview]").click()
    expect(page.locator(".run-details")).to_contain_text(f"{last + 50:,}")
    page.wait_for_function(
        "() => document.querySelector('[data-testid=figure-timeline]').layout?.xaxis.range[1] > " + str(last + 40)
    )
    assert len([url for url in asked if FIGURES.search(url)]) >= 2
    page.unroute_all()
