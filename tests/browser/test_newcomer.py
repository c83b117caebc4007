"""What a newcomer wants to know, with only the pages: each answer is at most three clicks from a run's overview.

The runs' troubles are planted, so the answers are known. Controls are found by what they say.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser import drawn
from tests.browser.conftest import Tab
from tests.browser.hand_made import Runs, accept, number
from tests.browser.hand_made_health import LATE
from tests.server.records import batch, catalogue, opening

MOST_CLICKS = 3
THROTTLED = 1  # the rank of the hot card of `hand_made_health`
LOST = 3  # the tensor that has less headroom today
DRIVER = 5  # the tensor that overflows at each drop of the run `driven`


class Newcomer:
    """Someone at a run's overview, whose clicks are counted."""

    def __init__(self, tab: Tab, run: int) -> None:
        self.tab = tab
        self.page: Page = tab.open(f"/runs/{run}")
        self.clicks = 0

    def click(self, what: Locator) -> None:
        """A control, named by what it says."""
        self._count()
        what.click()
        self.tab.drawn()

    def click_at(self, x: float, y: float) -> None:
        """A place in a picture."""
        self._count()
        self.page.mouse.move(x, y)
        self.page.mouse.click(x, y)
        self.tab.drawn()

    def choose(self, list_: str, option: str) -> None:
        """An entry of a list."""
        self._count()
        self.page.get_by_label(list_, exact=True).select_option(label=option)

    def link(self, name: str | re.Pattern[str]) -> Locator:
        return self.page.get_by_role("link", name=name)

    def goes_to(self, name: str) -> None:
        """A page, by the navigation."""
        self.click(self.page.get_by_role("navigation", name="Pages").get_by_role("link", name=name, exact=True))

    def _count(self) -> None:
        self.clicks += 1
        assert self.clicks <= MOST_CLICKS


def test_finds_the_first_overflow(tab: Tab, runs: Runs) -> None:
    newcomer = Newcomer(tab, runs.states)
    said = newcomer.page.get_by_test_id("verdict")
    expect(said.locator("strong")).to_have_text("NaN or Inf.")
    expect(said).to_contain_text("Step 120, rank 0: the output of blocks.3.ff is the first to hold Inf.")
    newcomer.click(said.get_by_role("link", name="Step frames"))
    marked = newcomer.page.get_by_role("row", name="first non-finite")
    expect(marked).to_contain_text("blocks.3.ff")
    expect(marked).to_contain_text("1 Inf")
    expect(marked).to_be_in_viewport()


@pytest.mark.slow
def test_finds_the_rank_that_lags(tab: Tab, runs: Runs) -> None:
    newcomer = Newcomer(tab, runs.health)
    newcomer.goes_to("Collectives")
    expect(newcomer.page.get_by_test_id("verdict")).to_contain_text(re.compile(rf"wait 30 ms a step for rank {LATE}\b"))
    slowest = newcomer.page.get_by_role("table", name=re.compile("By rank")).locator("tbody tr").first
    expect(slowest).to_contain_text(f"rank {LATE}")


@pytest.mark.slow
def test_finds_the_gpu_that_throttles(tab: Tab, runs: Runs) -> None:
    newcomer = Newcomer(tab, runs.health)
    newcomer.goes_to("GPUs")
    newcomer.click(newcomer.link(re.compile("throttled")))
    newcomer.page.wait_for_url(f"**/gpu?rank={THROTTLED}&key=GPU-{THROTTLED}")
    expect(newcomer.page.get_by_test_id("verdict")).to_contain_text(re.compile("rank 1 .*HW thermal slowdown"))


@pytest.fixture(scope="module")
def driven(runs: Runs) -> int:
    """A run whose scale one gradient drives down, three times; another's overflows before it once."""
    known, steps = catalogue(8), np.arange(80)
    skipped, inf = np.isin(steps, (20, 41, 63)), np.zeros((8, 80))
    inf[DRIVER, skipped] = 1
    inf[2, 41] = 1
    series = {
        "loss": 2.0, "loss_scale": 65_536.0 / 2 ** np.cumsum(np.roll(skipped, 1)),
        "skipped_step": skipped, "found_inf": skipped,
    }  # fmt: skip
    amax = {"inf_count": inf, "amax": np.where(np.arange(8)[:, None] == DRIVER, 30_000.0, 1.0)}
    accept(runs.server, opening(known, "driven"), batch(known, 0, steps, amax, run="driven", series=series))
    return number(runs.server, "driven")


@pytest.mark.slow
def test_finds_the_layer_that_drives_the_loss_scale_down(tab: Tab, driven: int) -> None:
    newcomer = Newcomer(tab, driven)
    newcomer.goes_to("Loss scale")
    said = newcomer.page.get_by_test_id("verdict")
    expect(said).to_contain_text(re.compile(rf"3 skipped steps.*blocks\.{DRIVER}\.ff grad overflowed first in 2 of 3"))
    worst = newcomer.page.get_by_role("table", name=re.compile("Layers by overflows")).locator("tbody tr").first
    expect(worst).to_contain_text(re.compile(rf"blocks\.{DRIVER}\.ff grad\s*3"))
    newcomer.click(said.get_by_role("link", name="That layer over the steps"))
    expect(newcomer.page.locator(".tensor-name")).to_have_text(f"blocks.{DRIVER}.ff grad")


@pytest.fixture(scope="module")
def days(runs: Runs) -> tuple[int, int]:
    """Yesterday's run and today's, in which one layer has lost two bits of headroom."""
    known = catalogue(8)
    for run, magnitude in (("yesterday", 1_000.0), ("today", 4_000.0)):
        amax = {"amax": np.where(np.arange(8)[:, None] == LOST, magnitude, 10.0)}
        accept(runs.server, opening(known, run), batch(known, 0, range(40), amax, run=run, series={"loss": 2.0}))
    return number(runs.server, "yesterday"), number(runs.server, "today")


@pytest.mark.slow
def test_compares_with_yesterdays_run(tab: Tab, days: tuple[int, int]) -> None:
    yesterday, today = days
    newcomer = Newcomer(tab, today)
    newcomer.goes_to("Layers")
    newcomer.choose("Compare with", "another run")
    newcomer.choose("Run to compare with", f"yesterday (run {yesterday})")
    newcomer.page.wait_for_url(f"**/layers?against=run%3A{yesterday}")
    worst = newcomer.page.get_by_role("table", name=re.compile("Greatest loss of headroom")).locator("tbody tr").first
    expect(worst).to_contain_text(re.compile(rf"blocks\.{LOST}\.ff.*2\.0 bits", re.S))


@pytest.mark.slow
def test_sends_a_colleague_the_view(tab: Tab, new_tab: Callable[..., Tab], runs: Runs) -> None:
    newcomer = Newcomer(tab, runs.states)
    newcomer.page.locator(drawn.selector("timeline")).scroll_into_view_if_needed()
    x, y, *_ = drawn.place(newcomer.page, "timeline", 120, 0)
    newcomer.click_at(x, y)
    newcomer.page.wait_for_url("**/layers?*start=*")
    tab.drawn()
    seen = drawn.bits(newcomer.page, "layers")
    colleague = new_tab(runs.server.url).open(newcomer.page.url.removeprefix(runs.server.url))
    expect(colleague.get_by_label("Rank", exact=True)).to_have_value("0")
    for heading in ("First step", "Last step"):
        expect(colleague.get_by_label(heading, exact=True)).to_have_value(
            newcomer.page.get_by_label(heading, exact=True).input_value()
        )
    np.testing.assert_array_equal(drawn.bits(colleague, "layers"), seen)
