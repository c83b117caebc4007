"""The Tensor page of a second moment says how much of it Adam's eps decides; other tensors' pages say nothing of it."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
from playwright.sync_api import expect

from tests.browser import drawn
from tests.browser.conftest import Tab
from tests.browser.hand_made import accept, number
from tests.server.process import Server
from tests.server.records import batch, catalogue, opening

KNOWN = catalogue(3, dtype="float32", kinds=("output", "exp_avg", "exp_avg_sq"))
LANE = "Beside Adam's eps, share of the elements that move"
STEPS = 400


def moments(server: Server, run: str) -> int:
    """Read every 100 steps: of the last tensor's 32 elements 8 more are below eps each time, and 4 lost at the end."""
    read = (np.arange(STEPS) % 100 == 0).astype(float)
    seen = np.stack([np.ones(STEPS), read, read])
    columns = {
        "call_count": seen, "numel": 32 * seen, "full_numel": 32 * seen, "amax": 1e-9 * seen,
        "moved_count": np.stack([0 * read, 0 * read, 32 * read]),
        "eps_count": np.stack([0 * read, 0 * read, read * np.arange(STEPS) / 100 * 8]),
        "lost_count": np.stack([0 * read, 0 * read, read * (np.arange(STEPS) == 300) * 4]),
    }  # fmt: skip
    accept(server, opening(KNOWN, run=run), batch(KNOWN, 0, range(STEPS), columns, run=run))
    return number(server, run)


def test_shares_over_the_steps(new_tab: Callable[..., Tab], emptied: Server) -> None:
    run = moments(emptied, "moments")
    page = new_tab(emptied.url).open(f"/runs/{run}/tensor?tensor=2&rank=0")
    expect(page.get_by_text(LANE)).to_be_visible()
    figure = page.locator(drawn.selector("moments"))
    lines = figure.evaluate("(figure) => figure.data.map(({ x, y }) => [Array.from(x), Array.from(y)])")
    (lost, below) = [(x, y) for x, y in lines if len(x)]
    assert below == ([0, 100, 200, 300], [0, 25, 50, 75]) and lost == ([0, 100, 200, 300], [0, 0, 0, 12.5])


def test_no_reading_in_the_steps_shown(new_tab: Callable[..., Tab], emptied: Server) -> None:
    run = moments(emptied, "moments")
    page = new_tab(emptied.url).open(f"/runs/{run}/tensor?tensor=2&rank=0&start=110&stop=190")
    expect(page.get_by_text("No reading of the moments in these steps")).to_be_visible()


def test_of_other_tensors_nothing(new_tab: Callable[..., Tab], emptied: Server) -> None:
    run = moments(emptied, "moments")
    page = new_tab(emptied.url).open(f"/runs/{run}/tensor?tensor=1&rank=0")
    expect(page.get_by_text(LANE)).to_be_hidden()


def test_the_kinds_and_shares_are_on_the_layers_page(new_tab: Callable[..., Tab], emptied: Server) -> None:
    run = moments(emptied, "moments")
    page = new_tab(emptied.url).open(f"/runs/{run}/layers?kind=exp_avg_sq&statistic=eps_fraction&rank=0")
    expect(page.get_by_role("button", name=re.compile("exp_avg_sq$"))).to_have_attribute("aria-pressed", "true")
    assert drawn.bits(page, "layers").shape[0] == 1
