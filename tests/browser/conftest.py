"""A real browser over a real server. A page that logs an error, throws or fails a request fails its test."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request

from tests.browser import hand_made
from tests.browser.hand_made import Runs
from tests.server.process import Server

WIDTH, HEIGHT = 1280, 900
DRAWN = """() => {
  const main = document.querySelector("main");
  const lanes = [...main.querySelectorAll(".plot")];
  return main.childElementCount > 0 && lanes.every((lane) => lane.dataset.ready) &&
    (lanes.length ||
      [...main.querySelectorAll("table, .state-panel, .host-group, .alert")].some((one) => one.checkVisibility()));
}"""


def new_context(browser: Browser, **options: Any) -> BrowserContext:
    """An incognito window."""
    found = browser.new_context(**{"viewport": {"width": WIDTH, "height": HEIGHT}, "color_scheme": "light", **options})
    found.set_default_timeout(10_000)
    found.set_default_navigation_timeout(45_000)  # a first load compiles 200 modules, beside other tests
    return found


class Tab:
    """A page that remembers what went wrong in it. `expected` holds patterns of what the test brings about itself."""

    def __init__(self, context: BrowserContext, address: str, expected: list[str]) -> None:
        self.context = context
        self.page: Page = context.new_page()
        self.address = address
        self.expected = expected
        self.problems: list[str] = []
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.problems.append(f"thrown: {error}"))
        self.page.on("requestfailed", self._request)
        self.page.on("dialog", lambda dialog: (self.problems.append(f"dialog: {dialog.message}"), dialog.dismiss()))

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
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


@pytest.fixture
def new_tab(browser: Browser) -> Iterator[Callable[..., Tab]]:
    """Opens tabs, each in a context of its own: no cookies, storage or cache of another."""
    opened: list[Tab] = []

    def new(address: str, *, expected: list[str] | None = None, **options: Any) -> Tab:
        opened.append(Tab(new_context(browser, **options), address, expected or []))
        return opened[-1]

    yield new
    problems = [each for tab in opened for each in tab.unexpected()]
    for tab in opened:
        tab.context.close()
    assert problems == []


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    """A server that holds the hand-made runs."""
    folder: Path = tmp_path_factory.mktemp("browser")
    made = hand_made.make(folder / "runs.db")
    yield made
    made.server.stop()


@pytest.fixture(scope="session")
def shared_tab(browser: Browser, runs: Runs) -> Tab:
    """What most tests share: a new tab compiles the drawing library anew."""
    return Tab(new_context(browser), runs.server.url, [])


@pytest.fixture
def tab(shared_tab: Tab) -> Iterator[Tab]:
    """A tab on the hand-made runs, as new."""
    yield shared_tab
    shared_tab.page.goto(shared_tab.address + "/healthz")  # nothing of the pages is left, and no new process is needed
    shared_tab.page.unroute_all()
    shared_tab.page.emulate_media(color_scheme="light")
    shared_tab.page.set_viewport_size({"width": WIDTH, "height": HEIGHT})
    problems = shared_tab.unexpected()
    shared_tab.problems.clear()
    shared_tab.expected.clear()
    assert problems == []


@pytest.fixture
def start_empty(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Starts servers of their own for a test: `start(*arguments, db=...)`."""
    started: list[Server] = []

    def start(*arguments: str, db: str = "own.db") -> Server:
        started.append(Server(str(tmp_path / db), *arguments))
        return started[-1]

    yield start
    for server in started:
        if server.process.poll() is None:
            server.stop()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/browser" in item.path.as_posix():
            item.add_marker(pytest.mark.browser)
