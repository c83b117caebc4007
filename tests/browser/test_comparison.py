"""Comparing on the Layers page: the drawn differences are those of the magnitudes sent, however they are chosen."""

from __future__ import annotations

import math

import numpy as np
import pytest
from playwright.sync_api import Page, expect

from tests.browser import drawn, hand_made
from tests.browser.conftest import Tab
from tests.browser.hand_made import Runs
from tests.browser.test_figures import expected_bits

PARTIAL_BITS = math.log2(hand_made.LIMIT)  # all its magnitudes are 1


def raw_bits(rank: int) -> np.ndarray:
    """As `expected_bits`, but not cut at the top of the headroom scale."""
    with np.errstate(divide="ignore"):
        return np.where(np.isnan(expected_bits(rank)), np.nan, np.log2(hand_made.LIMIT / hand_made.amax(rank)))


def readout(page: Page) -> str:
    return page.locator(".comparison .lane-readout").inner_text()


def test_two_ranks_differ_as_their_magnitudes_do(tab: Tab, runs: Runs) -> None:
    page = tab.open(f"/runs/{runs.states}/layers?rank=0&against=rank:1")
    np.testing.assert_allclose(drawn.bits(page, "comparison"), raw_bits(0) - raw_bits(1), atol=1e-4)
    heading = page.locator(".comparison h2").first
    expect(heading).to_have_text("Difference in headroom, rank 0 compared with rank 1, call order")
    rows = page.locator("[data-testid=comparison-table] tbody tr")
    expect(rows.nth(0)).to_contain_text("blocks.3.ff output")
    expect(rows.nth(0)).to_contain_text("NaN or Inf here only")
    expect(rows.nth(0)).to_contain_text("Inf")
    expect(rows.nth(1)).to_contain_text("NaN")
    expect(rows.nth(2)).to_contain_text("blocks.0.ff output")
    # Saturated from step 40 on: log2(65504 / 60000) bits here, and 3.5 + 59 / 400 on rank 1 in the last step of it.
    expect(rows.nth(2)).to_contain_text("3.5 bits less")
    expect(rows.nth(2)).to_contain_text("step 59")
    scale = page.locator(drawn.selector("comparison")).evaluate(
        "({ cells }) => [cells.low, cells.high, cells.colours.length]"
    )
    assert scale == [-8, 8, 5], "apart from the headroom scale"
    for step, row, expected in (
        (10, 0, "blocks.0.ff output: 1.0 bits less: 2.5 bits on rank 0, 3.5 bits on rank 1"),
        (120, 3, "blocks.3.ff output: Inf on rank 0, value on rank 1"),
        (90, 1, "blocks.1.ff grad_output: not observed on rank 0, value on rank 1"),
        (180, 2, "blocks.2.ff grad: value on rank 0, stale on rank 1"),
    ):
        x, y, _, _ = drawn.place(page, "comparison", step, row)
        page.locator(drawn.selector("comparison")).scroll_into_view_if_needed()
        x, y, _, _ = drawn.place(page, "comparison", step, row)
        page.mouse.move(x, y)
        expect(page.locator(".comparison .lane-readout")).to_have_text(f"step {step} · {expected}")


@pytest.mark.slow
def test_another_run_is_found_by_its_name(tab: Tab, runs: Runs) -> None:
    page = tab.open(f"/runs/{runs.states}/layers?rank=0")
    assert page.locator(drawn.selector("comparison")).count() == 0
    page.get_by_label("Compare with", exact=True).select_option("run")
    page.get_by_label("Part of the other run's name").fill("partial")
    choice = page.get_by_label("Run to compare with")
    expect(choice.locator("option")).to_have_count(2)
    choice.select_option(str(runs.partial))
    page.locator(drawn.selector("comparison")).wait_for()
    tab.drawn()
    assert f"against=run%3A{runs.partial}" in page.url
    found = drawn.bits(page, "comparison")
    assert found.shape[0] == 4
    expected = raw_bits(0)[:4] - PARTIAL_BITS
    expected[:, 60:] = np.nan  # its rank 0 has 60 steps
    np.testing.assert_allclose(found, expected, atol=1e-4)
    notes = page.locator(".comparison-notes")
    expect(notes).to_contain_text("This run has steps 0-199, run")
    expect(notes).to_contain_text("steps 0-59: a step that one of them lacks is not observed there.")
    expect(notes).to_contain_text("In this run only: 8 tensors (blocks.4.ff grad_output")
    page.get_by_role("button", name="Stop comparing").click()
    expect(page.locator(drawn.selector("comparison"))).to_have_count(0)
    assert "against" not in page.url


@pytest.mark.slow
def test_another_step_is_typed(tab: Tab, runs: Runs) -> None:
    page = tab.open(f"/runs/{runs.states}/layers?rank=0&start=20&stop=40")
    page.get_by_label("Compare with", exact=True).select_option("step")
    step = page.get_by_label("Step to compare with")
    expect(step).to_be_focused()
    step.fill("10")
    step.press("Enter")
    page.locator(drawn.selector("comparison")).wait_for()
    tab.drawn()
    expected = raw_bits(0)[:, 20:40] - raw_bits(0)[:, 10:11]
    np.testing.assert_allclose(drawn.bits(page, "comparison"), expected, atol=1e-4)


@pytest.mark.slow
def test_another_rank_is_chosen_and_back_leads_back(tab: Tab, runs: Runs) -> None:
    page = tab.open(f"/runs/{runs.states}/layers?rank=0")
    page.get_by_label("Compare with", exact=True).select_option("rank")
    page.get_by_label("Rank to compare with").select_option("1")
    page.locator(drawn.selector("comparison")).wait_for()
    page.go_back()
    expect(page.locator(drawn.selector("comparison"))).to_have_count(0)
    expect(page.get_by_label("Compare with", exact=True)).to_have_value("")


@pytest.mark.slow
def test_what_is_not_there_is_said(tab: Tab, runs: Runs) -> None:
    tab.expected.append("404")
    page = tab.page
    page.goto(f"{tab.address}/runs/{runs.states}/layers?against=rank:9")
    expect(page.locator(".comparison .lane-message")).to_have_text(f"run {runs.states} has no rank 9")
    expect(page.locator("[data-testid=comparison-table]")).to_be_hidden()


@pytest.mark.slow
def test_nothing_is_wider_than_a_phone(tab: Tab, runs: Runs) -> None:
    tab.page.set_viewport_size({"width": 390, "height": 844})
    page = tab.open(f"/runs/{runs.states}/layers?rank=0&tensor=3&against=run:{runs.partial}")
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
