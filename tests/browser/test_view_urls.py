"""Whatever the view: its address, opened by somebody else or come back to, gives the same picture.

Views are drawn by chance, with a seed that a failure names.
"""

from __future__ import annotations

import os
import random
import re
import time
from collections.abc import Iterator
from itertools import islice
from typing import Any
from urllib.parse import urlencode

import numpy as np
import pytest
from playwright.sync_api import Browser

from tests.browser.conftest import Tab, new_context
from tests.browser.hand_made import Runs
from tests.browser.test_loss_scale_page import send
from tests.browser.view_states import differences, picture, views

LOAD_MS = 60_000
# Whether a table has rows and is sorted so; null: as given.
SORTED = """([name, said]) => {
  const table = document.querySelector(`[data-testid="${name}"]`);
  const by = table?.querySelector("th[aria-sort]");
  return table?.querySelector("tbody tr") && (by ? `${by.textContent} ${by.ariaSort}` : null) === said;
}"""
SEED = int(os.environ.get("RANGEWATCH_SEED", "8"))


@pytest.fixture(scope="module")
def dropping(runs: Runs) -> int:
    """A run with layers that overflow."""
    steps = np.arange(40)
    skipped = np.isin(steps, (10, 20, 30))
    series = {"loss_scale": 65_536.0 / 2 ** np.cumsum(skipped), "skipped_step": skipped, "found_inf": skipped}
    return send(runs, "overflows", series, {10: (3, 1), 20: (3,), 30: (3, 5)})


@pytest.fixture(scope="module")
def still(runs: Runs, dropping: int) -> Runs:
    """Once no run is live any more: until then states change by themselves."""
    ours = (dropping, runs.states, runs.partial, runs.health, runs.hostile, runs.empty, runs.hung, runs.mismatch)
    deadline = time.monotonic() + 60
    while any(runs.server.get(f"/api/v1/runs/{run}")["state"] in ("live", "empty") for run in ours):
        assert time.monotonic() < deadline, "runs that nobody sends to are live still"
        time.sleep(0.5)
    return runs


@pytest.fixture(scope="module")
def stranger(browser: Browser, still: Runs) -> Iterator[Tab]:
    """A browser of somebody else: an incognito window, emptied before each view."""
    tab = Tab(new_context(browser), still.server.url, [])
    tab.page.set_default_timeout(LOAD_MS)
    yield tab
    tab.context.close()
    assert tab.unexpected() == []


def fresh_picture(stranger: Tab, path: str) -> dict[str, Any]:
    """What the address alone leads to: the whole site is loaded, and nothing is remembered."""
    stranger.context.clear_cookies()
    stranger.page.goto(f"{stranger.address}/healthz")
    stranger.page.evaluate("() => (localStorage.clear(), sessionStorage.clear())")
    stranger.open(path)
    return picture(stranger.page)


def press(tab: Tab, table: str, column: str) -> None:
    """The name of a column, behind which stands an arrow."""
    name = re.compile(f"^{re.escape(column)}$")
    tab.page.get_by_test_id(table).locator("th button").filter(has_text=name).click()


def ordered(tab: Tab, table: str, said: str | None) -> list[str]:
    """Its rows, once it is sorted as said: a column with its way, or as given."""
    tab.page.wait_for_function(SORTED, arg=[table, said])
    return tab.page.get_by_test_id(table).locator("tbody tr").all_text_contents()


@pytest.mark.parametrize(
    ("run", "page", "table", "usual", "column", "order"),
    [
        ("overflows", "/loss-scale", "overflow-table", "Overflowed descending", "Tensor", "tensor.up"),
        *(pytest.param(*one, marks=pytest.mark.slow) for one in (
            ("states", "/layers?rank=0&against=rank%3A1", "comparison-table", None, "Layer", "layer.up"),
            ("states", "/layers?rank=0&against=rank%3A1", "comparison-table", None, "On rank 1", "there.down"),
            ("health", "/collectives", "collectives-table", None, "Time max", "time-max.down"),
            ("health", "/collectives", "ranks-table", "Costs a step descending", "Rank", "rank.down"),
            ("health", "/gpu?rank=3&key=GPU-3", "gpu-events-table", "When descending", "Kind", "kind.up"),
            ("hostile", "/agent", "agent-groups", None, "Ranks", "ranks.up"),
            ("health", "/environment", "link-problems", None, "Who", "who.up"),
        )),
    ],
)  # fmt: skip
def test_a_tables_order_is_in_its_address_and_on_the_way_back(
    tab: Tab, runs: Runs, dropping: int, run: str, page: str, table: str, usual: str | None, column: str, order: str
) -> None:
    path = f"/runs/{dropping if run == 'overflows' else getattr(runs, run)}{page}"
    tab.open(path)
    before = ordered(tab, table, usual)
    press(tab, table, column)
    chosen = f"{column} {'descending' if order.endswith('down') else 'ascending'}"
    after = ordered(tab, table, chosen)
    assert sorted(after) == sorted(before)
    assert tab.page.url == f"{tab.address}{path}{'&' if '?' in path else '?'}order={table}.{order}"
    tab.page.go_back()
    assert ordered(tab, table, usual) == before
    tab.page.go_forward()
    assert ordered(tab, table, chosen) == after
    tab.page.reload()
    assert ordered(tab, table, chosen) == after
    if usual is None:  # the order that the rows are given in is no column's: it comes back after both ways
        press(tab, table, column)
        press(tab, table, column)
        assert tab.page.url == tab.address + path
        assert ordered(tab, table, usual) == before


@pytest.mark.slow
def test_the_usual_order_and_one_that_cannot_be_are_no_part_of_a_view_and_the_server_is_not_asked(
    tab: Tab, dropping: int
) -> None:
    path, table, usual = f"/runs/{dropping}/loss-scale", "overflow-table", "Overflowed descending"
    tab.open(path)
    rows = ordered(tab, table, usual)
    assert [row[:11] for row in rows] == ["blocks.3.ff", "blocks.1.ff"]
    press(tab, table, "Overflowed")
    assert tab.page.url == f"{tab.address}{path}?order=overflow-table.overflowed.up"
    press(tab, table, "Overflowed")
    assert tab.page.url == tab.address + path
    assert ordered(tab, table, usual) == rows
    for bad in ("overflow-table.no-such.up", "overflow-table.tensor.sideways", "<b>", "overflow-table..up"):
        tab.visit(f"{path}?{urlencode({'order': bad})}")
        assert ordered(tab, table, usual) == rows
    tab.visit(path)
    tab.expected.append(".*")
    tab.page.route("**/api/**", lambda route: route.abort())
    press(tab, table, "Overflowed")
    assert ordered(tab, table, "Overflowed ascending") != rows, "an order needs nothing from the server"
    tab.page.go_back()
    assert ordered(tab, table, usual) == rows


@pytest.mark.parametrize("count", [
    pytest.param(15, marks=[pytest.mark.slow, pytest.mark.timeout(600)]),
    pytest.param(150, marks=[pytest.mark.soak, pytest.mark.timeout(3600)]),
])  # fmt: skip
def test_a_views_address_gives_the_same_picture_to_somebody_else_and_on_the_way_back(
    tab: Tab, stranger: Tab, still: Runs, count: int
) -> None:
    tab.open("/")
    before: tuple[str, dict[str, Any]] | None = None
    for path in islice(views(still, random.Random(SEED)), count):
        tab.visit(path)  # as a link within the site does
        walked = picture(tab.page)
        assert walked["address"] == path, f"seed {SEED}: the address of a view that is shown is its own"
        assert differences(walked, fresh_picture(stranger, path)) == {}, f"seed {SEED}: {path}, by somebody else"
        if before:
            tab.page.go_back()
            tab.drawn()
            assert differences(before[1], picture(tab.page)) == {}, f"seed {SEED}: back to {before[0]} from {path}"
            tab.page.go_forward()
            tab.drawn()
        before = path, walked
