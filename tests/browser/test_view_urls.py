"""Whatever the view: its address, opened by somebody else or come back to, gives the same picture.

Views are drawn by chance, with a seed that a failure names; RANGEWATCH_SOAK=1 draws many more.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
from playwright.sync_api import Browser

from tests.browser.conftest import Tab, new_context
from tests.browser.hand_made import Runs
from tests.browser.view_states import differences, picture, views

SOAK = bool(os.environ.get("RANGEWATCH_SOAK"))
VIEWS = 150 if SOAK else 15
LOAD_MS = 60_000
SEED = int(os.environ.get("RANGEWATCH_SEED", "8"))


@pytest.fixture(scope="module")
def still(runs: Runs) -> Runs:
    """Once no run is live any more: until then states change by themselves."""
    ours = (runs.states, runs.partial, runs.health, runs.hostile, runs.empty, runs.hung, runs.mismatch)
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


@pytest.mark.timeout(3600 if SOAK else 600)
def test_a_views_address_gives_the_same_picture_to_somebody_else_and_on_the_way_back(
    tab: Tab, stranger: Tab, still: Runs
) -> None:
    tab.open("/")
    before: tuple[str, dict[str, Any]] | None = None
    for path in islice(views(still, random.Random(SEED)), VIEWS):
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
