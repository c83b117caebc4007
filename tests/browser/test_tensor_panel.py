"""The panel beside the layers: opens by the address, has the tensor's facts and lines, and gives the focus back."""

from __future__ import annotations

import numpy as np
import pytest
from playwright.sync_api import Page, expect

from tests.browser import drawn, hand_made
from tests.browser.conftest import Tab
from tests.browser.hand_made import Runs

PANEL = ".layers-panel"


def facts(page: Page) -> dict[str, str]:
    rows = page.locator(f"{PANEL} .details-list > div")
    return dict(zip(rows.locator("dt").all_inner_texts(), rows.locator("dd").all_inner_texts(), strict=True))


def lines(page: Page, figure: str) -> list[tuple[list[float], list[float]]]:
    # The panel's own figures may come after those of the page behind it.
    page.wait_for_function("(selector) => document.querySelector(selector)?.data", arg=drawn.selector(figure))
    found = page.locator(drawn.selector(figure)).evaluate(
        "(figure) => figure.data.map(({ x, y }) => [Array.from(x), Array.from(y)])"
    )
    return [(x, y) for x, y in found]


def test_the_panel_has_the_tensors_facts_its_magnitudes_and_the_spread_over_ranks(tab: Tab, runs: Runs) -> None:
    page = tab.open(f"/runs/{runs.states}/layers?tensor=3&rank=0")
    expect(page.locator(f"{PANEL} h2").first).to_have_text("blocks.3.ff output")
    assert facts(page) == {
        "Module": "Linear", "Source": "not known", "Kind": "output", "Type": "float16", "Shape": "4 x 8",
        "Call order": "3", "Largest finite": "6.55e4", "Smallest normal": "6.10e-5",
    }  # fmt: skip
    worst = page.locator(PANEL).get_by_role("link", name="step 120, rank 0")
    expect(worst).to_have_attribute("href", f"/runs/{runs.states}/step?step=120&rank=0&tensor=3")
    expect(page.locator(PANEL)).to_contain_text("Worst: Inf at step 120, rank 0.")
    way = page.locator(PANEL).get_by_role("link", name="Open the Tensor page")
    expect(way).to_have_attribute("href", f"/runs/{runs.states}/tensor?rank=0&tensor=3")
    page = tab.open(f"/runs/{runs.states}/layers?tensor=0&rank=0")
    amax = hand_made.amax(0)[0]
    _, y = lines(page, "tensor")[0]
    np.testing.assert_allclose(y, amax)
    expect(page.locator(PANEL)).to_contain_text("Headroom over 2 ranks")
    _, _, (x, least), (_, median), _ = lines(page, "percentiles")
    assert x[:2] == [0, 1]
    # Rank 1 has a bit more until it falls silent: then there is rank 0 alone.
    bits = hand_made.bits(0)[0]
    np.testing.assert_allclose((least[10], median[10]), (bits[10], bits[10] + 0.5), atol=1e-4)
    np.testing.assert_allclose(median[190], bits[190], atol=1e-4)


@pytest.mark.slow
def test_a_run_of_one_rank_says_so(tab: Tab, runs: Runs) -> None:
    page = tab.open(f"/runs/{runs.hostile}/layers?tensor=0")
    expect(page.locator(PANEL)).to_contain_text("the run has one rank, so there is no spread")


@pytest.mark.slow
def test_escape_and_the_button_close_and_give_the_focus_back(tab: Tab, runs: Runs) -> None:
    page = tab.open(f"/runs/{runs.states}/layers?rank=0&against=rank:1")
    name = page.locator("[data-testid=comparison-table]").get_by_role("link").first
    name.focus()
    name.press("Enter")
    heading = page.locator(f"{PANEL} h2").first
    expect(heading).to_be_focused()
    assert "tensor=3" in page.url
    page.keyboard.press("Escape")
    expect(page.locator(PANEL)).to_be_hidden()
    expect(name).to_be_focused()
    assert "tensor=" not in page.url
    tab.open(f"/runs/{runs.states}/layers?rank=0&tensor=5")
    page.locator(PANEL).get_by_role("button", name="Close").click()
    expect(page.locator(PANEL)).to_be_hidden()
    expect(page.locator(drawn.selector("layers"))).to_be_focused()
    assert "tensor=" not in page.url


@pytest.mark.slow
def test_a_number_that_is_no_tensors_is_said(tab: Tab, runs: Runs) -> None:
    page = tab.open(f"/runs/{runs.states}/layers?tensor=99")
    expect(page.locator(PANEL)).to_contain_text("No such tensor")
    page.keyboard.press("Escape")
    expect(page.locator(PANEL)).to_be_hidden()


@pytest.mark.slow
def test_it_lies_beside_the_picture_or_below_it(tab: Tab, runs: Runs) -> None:
    page = tab.open(f"/runs/{runs.states}/layers?tensor=3")
    main, panel = (page.locator(each).bounding_box() for each in (".layers-main", PANEL))
    assert main is not None
    assert panel is not None
    assert panel["x"] >= main["x"] + main["width"]
    page.set_viewport_size({"width": 800, "height": 900})
    main, panel = (page.locator(each).bounding_box() for each in (".layers-main", PANEL))
    assert main is not None
    assert panel is not None
    assert panel["y"] >= main["y"] + main["height"]
