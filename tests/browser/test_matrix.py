"""Every page with every kind of run: no width and no theme breaks it, and axe-core has nothing grave to say.

The demo's run, one without steps, one with hostile names, 128 ranks, 10,000 layers, and those of `hand_made`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page

from tests import forked
from tests.browser import axe, drawn, large_runs
from tests.browser.conftest import Tab
from tests.browser.hand_made import Runs, number
from tests.browser.large_runs import LargeRuns
from tests.browser.test_hostile_names import INJECTED
from tests.server.process import Server

HAND_MADE = ("states", "empty", "hostile", "partial", "health", "hung", "mismatch")
LARGE = ("demo", "ranks", "layers")
MORE_RANKS = "1,024 ranks"
OF_MANY, MOST_SCREENS = ("ranks", MORE_RANKS), 3
SCREENS = "() => document.documentElement.scrollHeight / innerHeight"
NARROW, USUAL, WIDE = 390, 1280, 1920
SOAK = (pytest.mark.soak, pytest.mark.timeout(1_200))
DEMO = ("--steps=65", "--lr-factor=300", "--run=demo")  # its overflow comes after some 45 steps instead of 400
# What a page shows of a run when it is opened by a link: these would otherwise choose for themselves.
QUERIES = {
    "/runs/{id}/layers": ["", "?tensor=0&against=step:3"],
    "/runs/{id}/tensor": ["?tensor=0&rank=0"],
    "/runs/{id}/step": ["?step=20&rank=0"],
    "/runs/{id}/gpu": ["", "?rank=0&key=host"],
}
ADDRESSES = "async () => (await import('/static/pages/index.js')).PAGES.map(({ path }) => path)"
INK = "() => getComputedStyle(document.body).color"
FITS = "() => document.documentElement.scrollWidth <= document.documentElement.clientWidth"
# Controls and headings beyond an edge, which cannot be reached there unless something around them scrolls.
BEYOND = """() => {
  const scrolls = (node) =>
    node && (/auto|scroll/.test(getComputedStyle(node).overflowX) || scrolls(node.parentElement));
  const nodes = document.querySelectorAll(":is(main, nav) :is(a, button, input, select, summary, h1, h2)");
  return [...nodes].filter((node) => {
    const { left, right } = node.getBoundingClientRect();
    const isSeen = node.checkVisibility({ visibilityProperty: true }) && !node.closest(".visually-hidden, thead");
    return isSeen && (left < -1 || right > innerWidth + 1) && !scrolls(node.parentElement);
  }).map((node) => `${node.tagName} ${node.textContent.slice(0, 40)}`);
}"""

# What opens something, one of each look, each given a name to click it by.
OPENERS = """() => {
  const found = new Map();
  for (const node of document.querySelectorAll("[aria-expanded=false], [aria-haspopup], summary")) {
    const name = `${node.tagName} ${node.className} ${node.parentElement.className}`;
    if (node.checkVisibility({ visibilityProperty: true })) found.set(name, node);
  }
  found.forEach((node, name) => (node.dataset.opener = name));
  return [...found.keys()];
}"""

pytestmark = pytest.mark.timeout(300)  # a dozen pages and more
Visit = Callable[[str], Iterator[Page]]


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LargeRuns]:
    yield from made(tmp_path_factory.mktemp("large"), large_runs.RANKS)


@pytest.fixture(scope="module")
def larger(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LargeRuns]:
    yield from made(tmp_path_factory.mktemp("larger"), large_runs.MORE_RANKS)


def made(folder: Path, ranks: int) -> Iterator[LargeRuns]:
    found = large_runs.make(folder / "large.db", ranks)
    yield found
    found.server.stop()


@pytest.fixture(scope="module")
def demo(large: LargeRuns) -> int:
    """The number of what `rangewatch demo` trains, sooner."""
    done = forked.server.run("-m", "rangewatch", "demo", "--exit", "--json", f"--url={large.server.url}", *DEMO)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["first_overflow"] is not None
    return number(large.server, "demo")


@pytest.fixture
def visit(request: pytest.FixtureRequest, new_tab: Callable[..., Tab]) -> Callable[[str], Iterator[Page]]:
    """Goes through the pages of a run, each drawn."""

    def each_page(name: str) -> Iterator[Page]:
        server, run = find(request, name)
        tab = new_tab(server.url)
        tab.page.set_default_timeout(30_000)
        page = tab.open("/")
        for pattern in page.evaluate(ADDRESSES):
            for query in QUERIES.get(pattern, [""]):
                path = pattern.replace("{id}", str(run)) + query
                print(f"{name}: {path}")  # a test that fails shows where
                tab.visit(path)
                yield page

    return each_page


def find(request: pytest.FixtureRequest, name: str) -> tuple[Server, int]:
    """Where a run is: only what is asked for is made."""
    if name in HAND_MADE:
        runs: Runs = request.getfixturevalue("runs")
        return runs.server, getattr(runs, name)
    large: LargeRuns = request.getfixturevalue("larger" if name == MORE_RANKS else "large")
    if name == MORE_RANKS:
        return large.server, large.ranks
    return large.server, request.getfixturevalue("demo") if name == "demo" else getattr(large, name)


def check(page: Page, *widths: int) -> None:
    """Nothing failed, no name became markup, and at each width nothing sticks out."""
    assert page.locator("[data-testid=error-state], .problem:not([hidden])").count() == 0, page.url
    assert page.locator(INJECTED).count() == 0, page.url
    for width in widths:
        page.set_viewport_size({"width": width, "height": 900})
        page.evaluate(drawn.PAINTED)
        page.wait_for_function(FITS)  # figures follow the width
        assert page.evaluate(BEYOND) == [], (page.url, width)


def test_each_page_opens_at_a_narrow_and_a_wide_width_and_axe_has_nothing_grave_to_say(visit: Visit) -> None:
    found: dict[str, Any] = {}
    for page in visit("health"):
        found |= {page.url: said} if (said := axe.findings(page)) else {}
        check(page, NARROW, USUAL)
    assert found == {}


@pytest.mark.slow
@pytest.mark.parametrize("name", [*LARGE, *HAND_MADE, pytest.param(MORE_RANKS, marks=SOAK)])
def test_every_page_opens_in_both_themes_at_every_width(name: str, visit: Visit) -> None:
    paths = []
    for page in visit(name):
        paths.append(page.url)
        light = page.evaluate(INK)
        page.emulate_media(color_scheme="dark")
        assert page.evaluate(INK) != light, page.url
        check(page, NARROW, WIDE, USUAL)
        if name in OF_MANY:
            assert page.evaluate(SCREENS) <= MOST_SCREENS, page.url
        page.emulate_media(color_scheme="light")
    assert len(paths) >= 12


@pytest.mark.slow
def test_axe_has_nothing_grave_to_say_in_the_dark(visit: Visit) -> None:
    found: dict[str, Any] = {}
    for page in visit("health"):
        page.emulate_media(color_scheme="dark")
        found |= {page.url: said} if (said := axe.findings(page)) else {}
    assert found == {}


@pytest.mark.soak
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("name", [*LARGE, MORE_RANKS, *HAND_MADE])
def test_axe_has_nothing_grave_to_say_of_any_run_in_either_theme(name: str, visit: Visit) -> None:
    found: dict[str, Any] = {}
    for page in visit(name):
        for theme in ("dark", "light"):
            page.emulate_media(color_scheme=theme)
            found |= {f"{page.url} {theme}": said} if (said := axe.findings(page)) else {}
        page.set_viewport_size({"width": NARROW, "height": 900})
        found |= {f"{page.url} at {NARROW}": said} if (said := axe.findings(page)) else {}
        page.set_viewport_size({"width": USUAL, "height": 900})
    assert found == {}


@pytest.mark.slow
@pytest.mark.parametrize("path", ["", "/layers", "/step?step=20&rank=0", "/alerts"])
def test_axe_has_nothing_grave_to_say_of_what_opens(path: str, tab: Tab, runs: Runs) -> None:
    """Menus, lists, dialogs and what is folded away, one of each kind."""
    page = tab.open(f"/runs/{runs.health}{path}")
    found: dict[str, Any] = {}
    for opener in page.evaluate(OPENERS):
        one = page.locator(f"[data-opener='{opener}']")
        if not one.count():
            continue  # drawn anew meanwhile, as what a run's notes say of the time is
        one.click()
        found |= {opener: said} if (said := axe.findings(page)) else {}
        page.keyboard.press("Escape")
    assert found == {}


def test_what_is_wrong_is_seen(tab: Tab, runs: Runs) -> None:
    page = tab.open("/")
    page.evaluate("() => document.querySelector('main').append(document.createElement('button'))")
    page.evaluate("() => (document.querySelector('h1').style.color = '#ddd')")
    rules = {each.split()[1] for each in axe.findings(page)}
    assert {"button-name:", "color-contrast:"} <= rules
    assert page.evaluate(BEYOND) == []
    page.evaluate("() => (document.querySelector('h1').style.cssText = 'position: relative; left: -2000px')")
    assert page.evaluate(BEYOND) == ["H1 Runs"]
