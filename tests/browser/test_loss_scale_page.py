"""The Loss scale page: its line, every drop with its cause, the layers that overflow; and what is said without any."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import pytest
from playwright.sync_api import Page, expect

from rangewatch.wire.records import Event
from tests.browser import drawn
from tests.browser.conftest import Tab
from tests.browser.hand_made import Runs, accept, number
from tests.server.records import batch, catalogue, opening

KNOWN = catalogue(6, kinds=("output", "grad_output"))  # odd ones are gradients
STEPS = 400
FORWARD, OFTEN, SELDOM = 0, 3, 1
SKIPS = {60: (OFTEN,), 150: (OFTEN, SELDOM), 220: (FORWARD, OFTEN), 300: (SELDOM,)}
SET_AT = 350  # the program sets it to 4
FIRST_ROW_IS_NOT = "(step) => document.querySelector('.drops-table tbody td').innerText !== step"
CELLS = "(rows) => rows.map((row) => [...row.querySelectorAll('td')].map((cell) => cell.innerText))"
MARKUP = "<img src=x onerror=alert(1)>"


@dataclass
class Numbers:
    """Runs by what happened to their scale."""

    dropped: int
    clean: int
    none: int
    many: int


def send(runs: Runs, name: str, series: dict[str, np.ndarray], bad: dict[int, tuple[int, ...]] | None = None) -> int:
    """A run of two ranks; on rank 1 the tensors of `bad` hold Inf at those steps."""
    settings = {"class": MARKUP, "growth_interval": 100, "growth_factor": 2.0, "backoff_factor": 0.5}
    reported = (Event("scaler", 1, 0, "", {"series": "loss_scale", **settings}),)
    steps = range(len(next(iter(series.values()))))
    for rank in range(2):
        counts = np.zeros((6, len(steps)))
        for step, tensors in (bad or {}).items():
            counts[list(tensors), step] = 3 * rank
        accept(runs.server, opening(KNOWN, name, rank, world_size=2))
        columns = {"inf_count": counts, "amax": 1000.0 * (1 + np.arange(6.0))[:, None]}
        accept(runs.server, batch(KNOWN, 0, steps, columns, run=name, rank=rank, series=series, events=reported))
    return number(runs.server, name)


@pytest.fixture(scope="module")
def runs_of_scales(runs: Runs) -> Numbers:
    steps = np.arange(STEPS)
    skipped = np.isin(steps, list(SKIPS))
    falls = np.cumsum(np.roll(skipped, 1) & (steps > 0))
    scale = np.where(steps > SET_AT, 4.0, 65_536.0 / 2**falls)
    several = {"loss_scale": scale, "skipped_step": skipped, "found_inf": skipped, "loss_scale/1": np.full(STEPS, 8.0)}
    every_third = np.arange(240) % 3 == 0
    return Numbers(
        send(runs, "scale drops", several, SKIPS),
        send(runs, "scale is calm", {"loss_scale": np.full(50, 1024.0), "skipped_step": np.zeros(50)}),
        send(runs, "no scale", {"loss": np.ones(50)}),
        send(runs, "many drops", {"loss_scale": np.full(240, 2.0), "skipped_step": every_third}),
    )


def rows(page: Page) -> list[list[str]]:
    """The drops as they stand on the page."""
    found: list[list[str]] = page.get_by_test_id("drops-table").locator("tbody tr").evaluate_all(CELLS)
    return found


def test_every_drop_is_listed_with_its_cause(tab: Tab, runs_of_scales: Numbers) -> None:
    page = tab.open(f"/runs/{runs_of_scales.dropped}/loss-scale")
    assert [row[:5] for row in rows(page)] == [
        ["350", "scaler 1: 2¹² → 2²", "set lower without a skipped step", "none seen", "not known"],
        ["300", "scaler 1: 2¹³ → 2¹²", "a gradient overflowed", "rank 1", "blocks.1.ff grad_output"],
        ["220", "scaler 1: 2¹⁴ → 2¹³", "NaN or Inf before the backward pass", "rank 1", "blocks.0.ff output"],
        ["150", "scaler 1: 2¹⁵ → 2¹⁴", "a gradient overflowed", "rank 1", "blocks.1.ff grad_output"],
        ["60", "scaler 1: 2¹⁶ → 2¹⁵", "a gradient overflowed", "rank 1", "blocks.3.ff grad_output"],
    ]
    assert rows(page)[4][5] == "4.0 bits of float16"  # log2(65504 / 4000)
    verdict = page.get_by_test_id("verdict")
    expect(verdict).to_contain_text("4 skipped steps in 400; the scale was between 2² and 2¹⁶, now 2²")
    expect(verdict).to_have_attribute("data-level", "warning")
    causes = page.locator(".cause-list")
    expect(causes).to_contain_text("The loss scale is not to blame, and lowering it does not help. What to do: ")
    assert causes.locator("dt").count() == 3, "only those that occur are explained"
    expect(page.locator(".cards")).to_contain_text("× 2 after 100 clean steps, × 0.5 at a skip")
    assert page.locator("main img, main script, [onerror]").count() == 0, "names stay text"
    expect(page.locator("nav [aria-current=page]")).to_have_text(re.compile("Loss scale"))
    page.get_by_role("link", name="150", exact=True).click()
    page.wait_for_url("**/step?step=150&rank=1&tensor=1")
    expect(page.get_by_role("heading", name="Step 150, rank 1")).to_be_visible()


@pytest.mark.slow
def test_the_layers_are_ranked_by_overflows(tab: Tab, runs_of_scales: Numbers) -> None:
    page = tab.open(f"/runs/{runs_of_scales.dropped}/loss-scale")
    table = page.get_by_test_id("overflow-table")

    def shown() -> list[list[str]]:
        found: list[list[str]] = table.locator("tbody tr").evaluate_all(CELLS)
        return found

    often = ["blocks.3.ff grad_output", "3", "1", "4.00e3", "6.1 %", "float16", "step 220"]
    assert shown()[0] == often
    assert [row[0] for row in shown()] == ["blocks.3.ff grad_output", "blocks.1.ff grad_output", "blocks.0.ff output"]
    table.get_by_role("button", name="Was first").click()
    assert [row[2] for row in shown()] == ["2", "1", "1"]
    table.get_by_role("link", name="blocks.0.ff output").click()
    page.wait_for_url("**/tensor?tensor=0")


@pytest.mark.slow
def test_every_scaler_has_a_line_and_skips_are_marked(tab: Tab, runs_of_scales: Numbers) -> None:
    page = tab.open(f"/runs/{runs_of_scales.dropped}/loss-scale")
    _, skipped = page.locator(drawn.selector("loss_scale")).evaluate(
        "(figure) => figure._fullData.map(({ x, y }) => [Array.from(x), Array.from(y)])"
    )
    assert skipped[0] == list(SKIPS)
    second = page.locator(drawn.selector("loss-scale-2"))
    expect(page.locator(".lane", has=second).get_by_role("heading")).to_have_text("Loss scale, scaler 2")
    assert set(second.evaluate("(figure) => Array.from(figure._fullData[0].y)")) == {8}
    expect(page.locator(drawn.selector("loss-scale-3"))).not_to_be_visible()


@pytest.mark.slow
def test_a_range_narrows_all_of_it(tab: Tab, runs_of_scales: Numbers) -> None:
    page = tab.open(f"/runs/{runs_of_scales.dropped}/loss-scale?start=100&stop=200")
    assert [row[0] for row in rows(page)] == ["150"]
    expect(page.get_by_test_id("verdict")).to_contain_text("1 skipped step in 100")
    expect(page.get_by_test_id("verdict")).to_contain_text("at the end of these steps")
    assert page.get_by_test_id("overflow-table").locator("tbody tr").count() == 1  # that was first
    page.get_by_role("button", name="Show 1 more layer, never first to overflow").click()
    assert page.get_by_test_id("overflow-table").locator("tbody tr").count() == 2
    page.get_by_test_id("overflow-table").get_by_role("link").first.click()
    page.wait_for_url("**/tensor?tensor=*&start=100&stop=200")
    page.go_back()
    page.get_by_test_id("drops-table").get_by_role("link", name="150", exact=True).click()
    page.wait_for_url("**/step?step=150&*start=100&stop=200")


@pytest.mark.slow
def test_drops_come_in_pages(tab: Tab, runs_of_scales: Numbers) -> None:
    page = tab.open(f"/runs/{runs_of_scales.many}/loss-scale")
    seen = [row[0] for row in rows(page)]
    expect(page.get_by_role("link", name="Newest drops")).to_have_count(0)
    for _ in range(3):
        page.get_by_role("link", name="Earlier drops").click()
        expect(page.get_by_role("link", name="Newest drops")).to_be_visible()
        page.wait_for_function(FIRST_ROW_IS_NOT, arg=seen[-25])
        seen += [row[0] for row in rows(page)]
    assert seen == [str(step) for step in range(237, -1, -3)]
    expect(page.get_by_role("link", name="Earlier drops")).to_have_count(0)
    expect(page.get_by_test_id("verdict")).to_contain_text("80 skipped steps in 240")  # of all, not of the page
    page.reload()
    expect(page.get_by_test_id("drops-table").locator("tbody tr").last).to_contain_text("nothing recorded was to blame")
    page.get_by_role("link", name="Newest drops").click()
    expect(page.get_by_test_id("drops-table").locator("tbody tr").first).to_contain_text("237")


def test_without_a_drop_or_a_scaler_that_is_said(tab: Tab, runs_of_scales: Numbers) -> None:
    page = tab.open(f"/runs/{runs_of_scales.clean}/loss-scale")
    expect(page.get_by_test_id("no-drop")).to_contain_text("never lowered in 50 steps. It is 2¹⁰ now.")
    expect(page.get_by_test_id("drops-table")).not_to_be_visible()
    expect(page.get_by_test_id("verdict")).to_contain_text("No skipped steps in 50; the scale was 2¹⁰ throughout.")
    page = tab.visit(f"/runs/{runs_of_scales.none}/loss-scale")
    expect(page.get_by_test_id("empty-state")).to_contain_text("rangewatch.attach(model, optimizer, scaler=scaler)")
    expect(page.get_by_test_id("verdict")).not_to_be_visible()
