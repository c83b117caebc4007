"""What is missing is said plainly, and a verdict comes with its evidence."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import expect

from tests.browser import drawn
from tests.browser.conftest import Tab
from tests.browser.hand_made import FAILURE, Runs
from tests.server.process import Server

TWO_LINES = "import rangewatch\nrangewatch.attach(model, optimizer, scaler=scaler)"


def test_without_runs_the_two_lines_can_be_copied(new_tab: Callable[..., Tab], emptied: Server) -> None:
    server = emptied
    tab = new_tab(server.url, permissions=["clipboard-read", "clipboard-write"])
    page = tab.open("/")
    lines, address = page.locator(".paste").all()
    assert lines.locator("pre").text_content() == TWO_LINES
    assert address.locator("pre").text_content() == f"export RANGEWATCH_URL={server.url}"
    for block, text in ((lines, TWO_LINES), (address, f"export RANGEWATCH_URL={server.url}")):
        block.get_by_role("button", name="Copy").click()
        expect(block.get_by_role("button")).to_have_text("Copied")
        assert page.evaluate("navigator.clipboard.readText()") == text
    button = lines.get_by_role("button")
    button.focus()
    for _ in range(2):  # at the second answer the page has done with the first what it does
        with page.expect_response(lambda answer: "/api/v1/runs?limit=1" in answer.url):
            page.evaluate("dispatchEvent(new PopStateEvent('popstate'))")
    expect(button).to_be_focused()


def test_what_is_missing_is_said(tab: Tab, runs: Runs) -> None:
    page = tab.open(f"/runs/{runs.empty}")
    expect(page.get_by_test_id("empty-state")).to_contain_text("No step has arrived yet")
    expect(page.get_by_test_id("empty-state")).to_contain_text("1 of 4 ranks have attached")
    tab.visit(f"/runs/{runs.partial}")
    notes = page.get_by_test_id("run-notes")
    expect(notes).to_contain_text("rank 2 has not reported")
    expect(notes).to_contain_text(re.compile("rank 1 silent for [1-9]+ min, after step 29"))
    expect(notes).to_contain_text(f"rank 3 failed: {FAILURE}")
    expect(page.locator(".run-details")).to_contain_text("step 59")
    tab.visit(f"/runs/{runs.partial}/step?step=40&rank=1")
    expect(page.get_by_test_id("empty-state")).to_contain_text("Nothing is stored for step 40 of rank 1")


@pytest.mark.slow
def test_a_step_shows_every_rank_and_a_cell_opens_its_frames(tab: Tab, runs: Runs) -> None:
    page = tab.open(f"/runs/{runs.states}/step?step=130&rank=1")
    lane = page.locator(".lane", has=page.get_by_test_id("figure-ranks"))
    expect(lane.get_by_role("heading")).to_have_text("Headroom by rank, call order")
    box = drawn.area(page, "ranks")
    at = {"x": box["x"] + box["width"] * 4.5 / 12, "y": box["y"] + box["height"] * 0.25}
    page.mouse.move(**at)
    expect(lane.locator(".lane-readout")).to_have_text("rank 0, blocks.4.ff grad_output: NaN")
    page.mouse.click(**at)
    page.wait_for_url("**/step?*rank=0&tensor=4*")
    expect(page.get_by_role("heading", name="Step 130, rank 0")).to_be_visible()
    page = tab.open(f"/runs/{runs.hostile}/step?step=3")
    assert page.get_by_test_id("figure-ranks").count() == 0, "one rank is no comparison"


def test_what_does_not_exist_is_said_with_a_way_back(tab: Tab) -> None:
    tab.expected.append(r"status of 4(04|22)")
    page = tab.open("/")
    for path, words in (
        ("/runs/999", "There is no such run"),
        ("/runs/none/layers", "There is no such run"),
        ("/runs/1/step?rank=7", "This rank is not in the run"),
        ("/runs/1/nowhere", "There is no such page"),
    ):
        tab.visit(path)
        expect(page.get_by_test_id("error-state")).to_contain_text(words)
        page.get_by_role("link", name="All runs").click()
        expect(page.get_by_test_id("runs-table")).to_be_visible()


def test_a_token_is_asked_for_once(new_tab: Callable[..., Tab], start_server: Callable[..., Server]) -> None:
    server = start_server("--token", "right")
    tab = new_tab(server.url, expected=["status of 401"])
    page = tab.open("/")
    expect(page.get_by_test_id("error-state")).to_contain_text("asks for a token")
    page.get_by_label("Token").fill("wrong")
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_test_id("error-state")).to_contain_text("that is not this server's token")
    page.get_by_label("Token").fill("right")
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_test_id("empty-state")).to_contain_text("No runs yet")
    tab.problems.clear()
    page.reload()
    expect(page.get_by_test_id("empty-state")).to_be_visible()
    assert not any("401" in each for each in tab.problems)
