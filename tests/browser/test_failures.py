"""What could not be had is said to be so: it is never nothing, and what was had before is not taken for it."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, Route, expect

from tests.browser.conftest import Tab
from tests.browser.hand_made import Runs

REFUSED = "Failed to load resource"  # as the browser's console has it
PANEL = ".layers-panel"


def refuse(tab: Tab, pattern: str, status: int = 422, message: str = "this cannot be asked") -> None:
    """The server answers so from now on."""
    tab.expected.append(REFUSED)
    tab.page.route(re.compile(pattern), lambda route: answer(route, status, message))


def answer(route: Route, status: int, message: str) -> None:
    route.fulfill(status=status, json={"error": message, "code": "bad_parameter"})


def go(page: Page, path: str) -> None:
    """As a link within the site does, without waiting for figures."""
    page.evaluate("path => (history.pushState(null, '', path), dispatchEvent(new PopStateEvent('popstate')))", path)


def test_a_figure_that_fails_keeps_nothing_of_the_view_before(tab: Tab, runs: Runs) -> None:
    page = tab.open(f"/runs/{runs.states}/layers?rank=0")
    picture = page.locator(".layers-main .lane").first
    expect(picture.get_by_role("button", name="Save or show as a table")).to_be_visible()
    expect(page.locator(".worst-table")).to_be_visible()
    refuse(tab, r"/figures/layers\?")
    go(page, f"/runs/{runs.states}/layers?rank=1")
    expect(picture).to_contain_text("this cannot be asked")
    expect(picture.get_by_role("button", name="Save or show as a table")).to_be_hidden()
    expect(page.locator(".worst-table")).to_be_hidden()
    page.unroute_all()
    go(page, f"/runs/{runs.states}/layers?rank=0")
    expect(picture.get_by_role("button", name="Save or show as a table")).to_be_visible()
    expect(page.locator(".worst-table")).to_be_visible()


@pytest.mark.slow
def test_a_comparison_that_fails_keeps_nothing_of_the_view_before(tab: Tab, runs: Runs) -> None:
    path = f"/runs/{runs.states}/layers?rank=0&against=run%3A{runs.partial}"
    page = tab.open(path)
    comparison, table = page.locator(".comparison"), page.get_by_test_id("comparison-table")
    expect(table).to_be_visible()
    expect(comparison).to_contain_text("In this run only")
    refuse(tab, r"/figures\?.*figure=comparison")
    go(page, path + "&q=ff")
    expect(comparison).to_contain_text("this cannot be asked")
    expect(table).to_be_hidden()
    expect(comparison).not_to_contain_text("In this run only")
    page.unroute_all()
    go(page, path)
    expect(table).to_be_visible()
    expect(comparison).to_contain_text("In this run only")


@pytest.mark.slow
def test_a_first_load_that_fails_is_no_empty_one(tab: Tab, runs: Runs) -> None:
    refuse(tab, r"/figures/layers\?")
    page = tab.page
    page.goto(f"{tab.address}/runs/{runs.states}/layers")
    expect(page.locator(".layers-main .lane").first).to_contain_text("this cannot be asked")
    expect(page.get_by_text("No layer was observed")).to_be_hidden()


def test_the_panel_says_what_it_could_not_ask(tab: Tab, runs: Runs) -> None:
    refuse(tab, r"/alerts\?", 500, "no alerts today")
    page = tab.open(f"/runs/{runs.states}/layers?tensor=3&rank=0")
    expect(page.locator(PANEL)).to_contain_text("Its alerts could not be read: no alerts today")
    refuse(tab, r"/locate\?", 500, "no places today")
    plot = page.locator(PANEL).get_by_test_id("figure-tensor")
    plot.focus()
    plot.press("ArrowRight")
    plot.press("Enter")
    expect(page.get_by_text("The step could not be read: no places today")).to_be_visible()


def test_an_address_that_asks_for_too_much_is_not_a_run_that_is_gone(tab: Tab, runs: Runs) -> None:
    refuse(tab, rf"/api/v1/runs/{runs.states}/step\?", message="step: not that one")
    page = tab.page
    page.goto(f"{tab.address}/runs/{runs.states}/step?step=3&rank=0")
    expect(page.get_by_test_id("error-state")).to_contain_text("This address cannot be shown")
    expect(page.get_by_test_id("error-state")).to_contain_text("step: not that one")


def test_a_measure_of_ranks_that_is_none_leaves_the_page_as_it_is(tab: Tab, runs: Runs) -> None:
    tab.expected.append("422")
    page = tab.open(f"/runs/{runs.health}?measure=nope")
    expect(page.get_by_test_id("verdict")).to_be_visible()
    expect(page.get_by_text('Ranks cannot be coloured by "nope"')).to_be_visible()
    expect(page.get_by_test_id("picture-rank-map")).to_have_attribute("data-ready", re.compile("."))
    expect(page).to_have_url(re.compile(rf"/runs/{runs.health}$"))


def test_what_an_address_asks_for_in_vain_is_said(tab: Tab, runs: Runs) -> None:
    page = tab.open(f"/runs/{runs.states}?start=9&stop=2&ranks=x")
    notice = page.locator("#notice")
    expect(notice).to_contain_text("cannot show, and leaves out: start=9, stop=2, ranks=x.")
    expect(page.get_by_label("First step")).to_have_value("")
    expect(notice).to_be_hidden(timeout=10_000)
    tab.visit(f"/runs/{runs.states}/layers?start=2&stop=9")
    expect(notice).to_be_hidden()


def test_a_logout_that_fails_is_said(tab: Tab) -> None:
    page = tab.page
    session = {"name": "ann", "roles": ["read"], "session": True}
    page.route("**/api/v1/access", lambda route: route.fulfill(json=session))
    refuse(tab, r"/logout$", 503, "try again later")
    page.goto(tab.address + "/")
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_test_id("session")).to_contain_text("Not logged out: try again later")
    expect(page.get_by_role("button", name="Log out")).to_be_visible()


@pytest.mark.slow
def test_what_stays_the_same_keeps_its_place_when_the_page_looks_again(tab: Tab, runs: Runs) -> None:
    path = f"/runs/{runs.states}/tensor?rank=0&tensor=3"
    page = tab.open(path)
    page.evaluate(
        "() => document.querySelectorAll('.jumps a, .details-panel h2, .tensor-table button')"
        ".forEach((node) => (node.isKept = true))"
    )
    page.locator(".jumps a").last.focus()
    for _ in range(2):  # at the second answer the page has done with the first what it does
        with page.expect_response(re.compile(r"/figures\?.*figure=tensor")):
            go(page, path)
    tab.drawn()
    kept = (
        "() => [...document.querySelectorAll('.jumps a, .details-panel h2, .tensor-table button')].map((n) => n.isKept)"
    )
    assert set(page.evaluate(kept)) == {True}
    expect(page.locator(".jumps a").last).to_be_focused()
    page.keyboard.press("Enter")
    page.wait_for_url("**tensor=4**")
    expect(page.locator(".details-panel h2")).to_have_attribute("title", re.compile(r"blocks\.4\."))
    expect(page.locator(".jumps a").last).to_be_focused()
