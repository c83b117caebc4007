"""CVE-2024-8863, CVE-2025-51464: stored XSS, in a real browser. Text is text; and were it not, no script would run."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, Route

from rangewatch import statistics
from rangewatch.wire.records import Catalogue, Event, TensorEntry
from rangewatch_server.access import middleware
from tests.browser.conftest import Tab
from tests.security.conftest import Inside
from tests.server.records import batch, opening

ATTACK = '<img src="/none" onerror="window.broken=1">'
LINK = '<a href="https://evil.example/">link</a><b>bold</b>'
OF_PLOTLY = """() => [...document.querySelectorAll('.plot svg a, .plot svg tspan')]
  .filter((one) => one.matches('a') || /bold/.test(one.getAttribute('style') ?? '')).length"""
IMAGES = "main img[src='/none'], nav img[src='/none']"


@pytest.fixture
def hostile(inside: Callable[..., Inside]) -> Inside:
    """A run whose every name is an attack."""
    server = inside()
    tensors = [TensorEntry(name, "output", 0, "float16", (4,), i, name) for i, name in enumerate((ATTACK, LINK))]
    known = Catalogue(statistics.ALL, tuple(tensors))
    events = (Event("failed", 1, 0, ATTACK), Event("fault", 1, 0, ATTACK, {ATTACK: 1}))
    sent = batch(known, 0, range(30), run=ATTACK, series={ATTACK: 1.0, "loss": 1.0}, events=events)
    for message in (opening(known, ATTACK), sent):
        assert server.post(message).status_code == 202
    return server


def replaced(page: Page, wrong: tuple[str, str]) -> None:
    """The page's modules with one place made worse."""

    def worse(route: Route) -> None:
        answer = route.fetch()
        text = answer.text()
        assert wrong[0] in text, "the protection has moved: this test must follow it"
        route.fulfill(response=answer, body=text.replace(*wrong))

    page.route(re.compile("/static/[^/]+/app.bundle.js$"), worse)


AS_MARKUP = ("node.append(...children.filter(isPresent));", "for (const one of children.filter(isPresent)) "
             "one instanceof Node ? node.append(one) : node.insertAdjacentHTML('beforeend', one);")  # fmt: skip


@pytest.mark.parametrize(
    "build", ["as it is", *(pytest.param(each, marks=pytest.mark.slow) for each in ("markup", "markup and no policy"))]
)
def test_no_name_runs_as_a_script(
    hostile: Inside, new_tab: Callable[..., Tab], build: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if build == "markup and no policy":
        monkeypatch.delitem(middleware.SECURITY_HEADERS, "content-security-policy")
    tab = new_tab(hostile.url, expected=[] if build == "as it is" else [".*"])
    if build != "as it is":
        replaced(tab.page, AS_MARKUP)
    page = tab.open("/runs/1/layers")
    assert page.evaluate(OF_PLOTLY) == 0
    tab.visit("/")
    assert (page.locator(IMAGES).count() > 0) == (build != "as it is")
    if build == "markup and no policy":
        page.wait_for_function("() => window.broken === 1")  # the attack works
    else:
        assert page.evaluate("() => window.broken") is None, "the policy lets no inline handler run"


@pytest.mark.slow
def test_plotly_would_take_a_name_for_markup(hostile: Inside, new_tab: Callable[..., Tab]) -> None:
    """Weakened; as it is is above."""
    tab = new_tab(hostile.url)
    escaping = "return text.replace(/[&<>]/g, (character) => ENTITIES[character]);"
    replaced(tab.page, (escaping, "return text;"))
    assert tab.open("/runs/1/layers").evaluate(OF_PLOTLY) > 0
