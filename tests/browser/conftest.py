"""A real browser over a real server. A page that logs an error, throws or fails a request fails its test."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Error, Page, Request, ViewportSize, expect

from tests.browser import hand_made
from tests.browser.hand_made import Runs
from tests.conftest import FAILED
from tests.server.process import Server

WIDTH, HEIGHT = 1280, 900
TIMEOUT_MS = 30_000  # the patience of a test beside many others, and no promise of the pages
expect.set_options(timeout=TIMEOUT_MS)
DRAWN = """() => {
  const main = document.querySelector("main");
  const lanes = [...main.querySelectorAll(".plot")];
  return main.childElementCount > 0 && lanes.every((lane) => lane.dataset.ready) &&
    (lanes.length ||
      [...main.querySelectorAll("table, .state-panel, .host-group, .alert, .agent-more")]
        .some((one) => one.checkVisibility()));
}"""


def new_context(browser: Browser, **options: Any) -> BrowserContext:
    """An incognito window."""
    found = browser.new_context(**{"viewport": {"width": WIDTH, "height": HEIGHT}, "color_scheme": "light", **options})
    found.set_default_timeout(TIMEOUT_MS)
    found.set_default_navigation_timeout(45_000)  # a first load compiles 200 modules, beside other tests
    return found


class Tab:
    """A page that remembers what went wrong in it. `expected` holds patterns of what the test brings about itself."""

    def __init__(self, context: BrowserContext, address: str = "", expected: Sequence[str] = ()) -> None:
        self.context = context
        self.page: Page = context.new_page()
        self.address = address
        self.expected = list(expected)
        self.problems: list[str] = []
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.problems.append(f"thrown: {error}"))
        self.page.on("requestfailed", self._request)
        self.page.on("dialog", lambda dialog: (self.problems.append(f"dialog: {dialog.message}"), dialog.dismiss()))

    def _console(self, message: ConsoleMessage) -> None:
        asked_by_itself = message.location.get("url", "").endswith("/favicon.ico")  # by the browser, beside /healthz
        if message.type in ("error", "warning") and not asked_by_itself:
            self.problems.append(f"console: {message.text} ({message.location.get('url')})")

    def _request(self, request: Request) -> None:
        if request.failure != "net::ERR_ABORTED":  # the page itself drops requests it no longer needs
            self.problems.append(f"request: {request.url} {request.failure}")

    def open(self, path: str) -> Page:
        """Go to a page of the site and wait until its figures are drawn."""
        self.page.goto(self.address + path)
        self.drawn()
        return self.page

    def visit(self, path: str) -> Page:
        """Go to another page as a link does, without loading the site anew."""
        self.page.evaluate(
            "path => (history.pushState(null, '', path), dispatchEvent(new PopStateEvent('popstate')))", path
        )
        self.drawn()
        return self.page

    def drawn(self) -> None:
        """Wait until every figure was drawn, or a table or message is there."""
        self.page.wait_for_function(DRAWN)

    def unexpected(self) -> list[str]:
        """What went wrong and was not announced."""
        return [each for each in self.problems if not any(re.search(known, each) for known in self.expected)]


class Pages:
    """The pages of the worker's one context: a page of another context, or a new one, compiles the site's script anew.

    Tests take them, and give them back as they were.
    """

    def __init__(self, browser: Browser) -> None:
        self.browser = browser
        self.context = new_context(browser)
        self.free: list[Tab] = []

    def take(self, address: str, expected: Sequence[str] = ()) -> Tab:
        """A page that nobody uses."""
        found = self.free.pop(0) if self.free else Tab(self.context)
        found.address, found.expected = address, list(expected)
        found.page.bring_to_front()  # a page behind another draws nothing until it is asked for a picture
        return found

    def give_back(self, tab: Tab, *, failed: bool = False) -> list[str]:
        """Make it as new, or close it if its server has gone; after a test that failed, the context with all its pages.
        What went wrong in it.
        """
        problems = tab.unexpected()
        if failed or problems:  # a button held down, a dialog open, single keys switched off: all that the test left
            if tab.context is self.context:
                self.context.close()
                self.context = new_context(self.browser)
                self.free.clear()
            return problems
        try:
            tab.page.unroute_all()
            tab.page.goto(tab.address + "/healthz")  # nothing of the pages is left, and no new process is needed
            tab.page.evaluate("() => (localStorage.clear(), sessionStorage.clear())")
            tab.page.emulate_media(color_scheme="light")
            tab.page.set_viewport_size({"width": WIDTH, "height": HEIGHT})
            tab.page.set_default_timeout(TIMEOUT_MS)
            self.free.insert(0, tab)
        except Error:
            tab.page.close()
        self.context.clear_cookies()
        self.context.clear_permissions()
        tab.problems.clear()
        return problems


@pytest.fixture(scope="session")
def pages(browser: Browser) -> Pages:
    """What all tests of the worker share."""
    return Pages(browser)


@pytest.fixture
def new_tab(
    pages: Pages, browser: Browser, start_server: Callable[..., Server], request: pytest.FixtureRequest
) -> Iterator[Callable[..., Tab]]:
    """Opens tabs in the worker's context. `permissions` and `viewport` are the context's and the page's until the test
    ends; with any other option, or with `own`, it is a context of its own: no cookies, storage or cache of another.
    Servers that the test starts are stopped after it has left their pages.
    """
    shared: list[Tab] = []
    own_ones: list[Tab] = []

    def new(
        address: str,
        *,
        expected: Sequence[str] = (),
        own: bool = False,
        permissions: Sequence[str] = (),
        viewport: ViewportSize | None = None,
        **options: Any,
    ) -> Tab:
        if own or options:
            own_ones.append(Tab(new_context(browser, **options), address, expected))
        else:
            shared.append(pages.take(address, expected))
        found = (own_ones if own or options else shared)[-1]
        if permissions:
            found.context.grant_permissions(permissions, origin=address)
        if viewport:
            found.page.set_viewport_size(viewport)
        return found

    yield new
    problems = [each for tab in own_ones for each in tab.unexpected()]
    for tab in own_ones:
        tab.context.close()
    for tab in shared:
        problems += pages.give_back(tab, failed=request.node.stash.get(FAILED, False))
    assert problems == []


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    """A server that holds the hand-made runs, and those of tests that need no server of their own."""
    folder: Path = tmp_path_factory.mktemp("browser")
    made = hand_made.make(folder / "runs.db")
    yield made
    made.server.stop()


@pytest.fixture
def tab(pages: Pages, runs: Runs, request: pytest.FixtureRequest) -> Iterator[Tab]:
    """A tab on the hand-made runs, as new."""
    found = pages.take(runs.server.url)
    yield found
    assert pages.give_back(found, failed=request.node.stash.get(FAILED, False)) == []


@pytest.fixture(scope="session")
def second_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """For `emptied` alone."""
    found = Server(str(tmp_path_factory.mktemp("second") / "runs.db"))
    yield found
    found.stop()


@pytest.fixture
def emptied(second_server: Server) -> Server:
    """A server that has no run, for a test of the list of all runs."""
    for each in second_server.get("/api/v1/runs")["runs"]:
        assert second_server.client.delete(f"/api/v1/runs/{each['id']}").status_code == 200
    return second_server


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/browser" in item.path.as_posix():
            item.add_marker(pytest.mark.browser)
