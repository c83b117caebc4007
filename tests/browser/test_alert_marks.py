"""Alerts on the timelines: a row of marks over the lanes, and a hairline through them. Names in findings are text."""

from __future__ import annotations

import re
import time
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Locator, Page, Route, expect

from rangewatch import statistics
from rangewatch.wire.records import Catalogue, Samples, TensorEntry
from tests.browser import drawn
from tests.browser.conftest import Tab
from tests.browser.hand_made import MARKUP, OVERFLOWS_FROM, Runs, accept, number, wait_for_alert
from tests.browser.hand_made_health import KNOWN, SECOND, with_samples
from tests.server.records import batch, opening

ALERTS = re.compile(r"/api/v1/runs/\d+/alerts\?")
SIDEWAYS = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
INJECTED = "main img, main script, main b, main u, main iframe, [onerror], a[href^='javascript:' i]"
LINES = "(lines) => lines.map((line) => { const box = line.getBoundingClientRect(); return box.left + box.width / 2; })"
MARKED_PAGES = ("/layers", "/tensor?tensor=0")
LAYER = Catalogue(statistics.ALL, (TensorEntry(MARKUP[1], "output", 0, "float16", (4, 8), 0, "Linear"),))
FIGURES = "(plots) => plots.filter((plot) => plot.data).map((plot) => plot.dataset.testid.replace('figure-', ''))"
LOOKS = """(glyphs) => glyphs.map((glyph) => {
  const { color, fill } = getComputedStyle(glyph);
  return [glyph.firstChild.getAttribute("d"), color, fill];
})"""
FURTHER_LEFT = "(from) => document.querySelector('.alert-glyph').getBoundingClientRect().left < from - 20"
SPOILT = "[data-testid=error-state], .problem:not([hidden]), .lane-message:visible"


def alert(number: int, step: int | None, severity: str = "warning", **more: Any) -> dict[str, Any]:
    """An alert as the server sends it, with markup for a name."""
    finding = {
        "rule": "first_nonfinite", "severity": severity, "rank": 0, "step": step, "tensor": None, "kind": None,
        "summary": f"{MARKUP[number % len(MARKUP)]} holds Inf", "evidence": [], "path": [], "remedy": [],
        "consequences": [], "links": [],
    }  # fmt: skip
    return {
        "id": number, "run_id": 1, "run": "r", "opened_ns": time.time_ns(), "resolved_ns": None, "resolved_step": None,
        "acknowledged_ns": None, "acknowledged_by": "", "silenced_by": None, "finding": finding,
    } | more  # fmt: skip


def answer_with(page: Page, alerts: list[dict[str, Any]]) -> None:
    """Have the pages see these alerts."""
    page.route(ALERTS, lambda route: route.fulfill(json=body_of(alerts)))


def body_of(alerts: list[dict[str, Any]]) -> dict[str, Any]:
    return {"now_ns": time.time_ns(), "alerts": alerts, "next": None}


def marks(page: Page) -> Locator:
    return page.get_by_test_id("alert-row").locator(".alert-mark")


def counts(page: Page) -> Locator:
    return marks(page).locator(".alert-count")


def middle(page: Page, mark: Locator) -> float:
    """Where a mark's shape stands, in pixels of the window."""
    box = mark.locator(".alert-glyph").bounding_box()
    assert box is not None
    return box["x"] + box["width"] / 2


@pytest.fixture(scope="module")
def run(runs: Runs) -> int:
    """A run whose one layer has markup for a name and is Inf from step 30 on."""
    return wait_for_alert(runs.server, runs.marked)


@pytest.mark.parametrize("path", ["", *(pytest.param(each, marks=pytest.mark.slow) for each in MARKED_PAGES)])
def test_an_alert_stands_at_its_step_with_a_line_through_every_lane(tab: Tab, run: int, path: str) -> None:
    page = tab.open(f"/runs/{run}{path}")
    expect(marks(page)).to_have_count(1)
    mark = marks(page).first
    expect(mark).to_have_accessible_name(re.compile("^Critical, step 30: Step 30, rank 0: the output of <img"))
    expect(mark.locator(".alert-glyph")).to_have_attribute("data-severity", "critical")
    names = page.locator(".plot:visible").evaluate_all(FIGURES)
    assert names
    for name in names:
        x, *_ = drawn.place(page, name, OVERFLOWS_FROM, 0)
        assert abs(middle(page, mark) - x) <= 1, name
        lane = page.locator(".lane", has=page.get_by_test_id(f"figure-{name}"))
        assert lane.locator(".hairlines span").evaluate_all(LINES) == [pytest.approx(x, abs=1)], name
    assert page.locator(INJECTED).count() == 0


def test_hover_and_focus_say_what_it_is_and_a_click_leads_to_it(tab: Tab, run: int) -> None:
    page = tab.open(f"/runs/{run}")
    tip, mark = page.get_by_test_id("alert-tip"), marks(page).first
    expect(tip).to_be_hidden()
    mark.hover()
    expect(tip).to_contain_text(f"Step 30, rank 0: the output of {MARKUP[0]} is the first to hold Inf")
    assert page.locator(".lane-cursor:visible").count() > 1, "the step is shown on all lanes"
    tip.hover()
    expect(tip).to_be_visible()
    page.mouse.move(5, 5)
    expect(tip).to_be_hidden()
    page.get_by_role("link", name="Alerts", exact=True).last.focus()
    page.keyboard.press("Tab")
    expect(mark).to_be_focused()
    expect(tip).to_be_visible()
    page.keyboard.press("Escape")
    expect(tip).to_be_hidden()
    expect(mark).to_be_focused()
    key = mark.get_attribute("href")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**{key}")
    card = page.locator(f"#alert-{str(key).split('=')[1]}")
    expect(card).to_be_focused()
    expect(card).to_contain_text("is the first to hold Inf")
    page.go_back()
    expect(marks(page)).to_have_count(1)
    marks(page).first.click()
    page.wait_for_url(f"**{key}")


@pytest.mark.slow
def test_the_first_alert_moves_nothing(tab: Tab, runs: Runs) -> None:
    """The row has its room before it is known whether there is any."""
    accept(runs.server, opening(LAYER, run="unmarked"), batch(LAYER, 0, range(3), run="unmarked"))
    held: list[Route] = []
    tab.page.route(ALERTS, lambda route: held.append(route))
    tab.page.goto(f"{tab.address}/runs/{number(runs.server, 'unmarked')}/layers")
    tab.drawn()
    before = tab.page.locator(".lane").first.bounding_box()
    for route in held:
        route.fulfill(json=body_of([alert(1, 1, "critical")]))
    expect(marks(tab.page)).to_have_count(1)
    assert before is not None and tab.page.locator(".lane").first.bounding_box() == before


@pytest.mark.slow
def test_severity_is_told_by_shape_and_colour_and_what_is_over_is_hollow(tab: Tab, runs: Runs) -> None:
    over = {"resolved_ns": time.time_ns()}
    listed = [
        alert(1, 10, "critical"), alert(2, 40, "warning"), alert(3, 70, "info"),
        alert(4, 100, "critical", **over), alert(5, 130, "warning", **over), alert(6, 160, "info", **over),
    ]  # fmt: skip
    answer_with(tab.page, listed)
    for theme in ("light", "dark"):
        tab.page.emulate_media(color_scheme=theme)
        page = tab.open(f"/runs/{runs.states}")
        expect(marks(page)).to_have_count(6)
        found = page.locator(".alert-mark .alert-glyph").evaluate_all(LOOKS)
        assert len({shape for shape, *_ in found}) == 3
        assert [shape for shape, *_ in found[:3]] == [shape for shape, *_ in found[3:]]
        colours = [tuple(drawn.colour(page, name)) for name in ("bad", "warning", "accent")]
        assert [tuple(map(int, re.findall(r"\d+", colour)[:3])) for _, colour, _ in found] == colours * 2
        assert [fill == colour for _, colour, fill in found[:3]] == [True] * 3
        assert [fill for *_, fill in found[3:]] == ["none"] * 3
    expect(marks(page).nth(3)).to_have_accessible_name(re.compile("^Critical, resolved, step 100: "))


@pytest.mark.slow
def test_many_at_one_place_are_one_mark_with_their_number(tab: Tab, runs: Runs) -> None:
    answer_with(tab.page, [alert(each, 120 + each % 2, "info") for each in range(120)] + [alert(500, 121, "critical")])
    page = tab.open(f"/runs/{runs.states}")
    expect(counts(page)).to_have_text(["99+"])
    expect(marks(page).first).to_have_accessible_name(re.compile("^121 alerts. Critical, step 121: "))
    assert str(marks(page).first.get_attribute("href")).endswith("?key=500"), "the gravest is opened"
    marks(page).first.hover()
    tip = page.get_by_test_id("alert-tip")
    expect(tip.locator("p")).to_have_count(6)
    expect(tip).to_contain_text("and 116 more")
    assert page.locator(INJECTED).count() == 0
    tab.visit(f"/runs/{runs.states}?start=119&stop=123")
    expect(counts(page)).to_have_text(["60", "61"])


@pytest.mark.slow
def test_arrows_lead_from_mark_to_mark(tab: Tab, runs: Runs) -> None:
    answer_with(tab.page, [alert(1, 20), alert(2, 90), alert(3, 180)])
    page = tab.open(f"/runs/{runs.states}")
    expect(marks(page)).to_have_count(3)
    assert [each.get_attribute("tabindex") for each in marks(page).all()] == ["0", "-1", "-1"]
    marks(page).first.focus()
    for key, at in (("ArrowRight", 1), ("ArrowRight", 2), ("ArrowRight", 2), ("Home", 0), ("End", 2), ("ArrowLeft", 1)):
        page.keyboard.press(key)
        expect(marks(page).nth(at)).to_be_focused()
    expect(page.get_by_test_id("alert-tip")).to_contain_text("Warning, step 90")


@pytest.mark.slow
def test_out_of_the_shown_steps_is_said(tab: Tab, run: int) -> None:
    page = tab.open(f"/runs/{run}/layers?start=0&stop=20")
    row = page.get_by_test_id("alert-row")
    expect(row).to_contain_text("1 alert outside these steps")
    expect(marks(page)).to_have_count(0)
    assert page.locator(".hairlines span").count() == 0


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_marks_come_live_and_the_focus_stays(tab: Tab, runs: Runs) -> None:
    server, run_name, bad = runs.server, "marked live", np.zeros((1, 20))
    bad[0, 10] = 1
    accept(server, opening(LAYER, run=run_name), batch(LAYER, 0, range(20), run=run_name))
    run = number(server, run_name)
    page = tab.open(f"/runs/{run}")
    expect(page.get_by_test_id("alert-row")).to_contain_text("none")
    before = page.get_by_test_id("alert-row").bounding_box()
    accept(server, batch(LAYER, 1, range(20, 40), {"inf_count": bad}, run=run_name))
    expect(marks(page)).to_have_count(1, timeout=120_000)  # the rules look seldom beside other work
    after = page.get_by_test_id("alert-row").bounding_box()
    assert before and after and before["height"] == after["height"], "it takes the room that was kept for it"
    marks(page).first.focus()
    was, place = marks(page).first.element_handle(), middle(page, marks(page).first)
    accept(server, batch(LAYER, 2, range(40, 120), run=run_name))
    page.wait_for_function(FURTHER_LEFT, arg=place, timeout=30_000)
    listed = server.get(f"/api/v1/runs/{run}/alerts")["alerts"]
    answer_with(page, [alert(900_000, 100, "critical"), alert(900_001, 31, "critical"), *listed])
    accept(server, batch(LAYER, 3, range(120, 122), run=run_name))
    expect(counts(page)).to_have_text(["2"], timeout=30_000)
    expect(marks(page)).to_have_count(2)
    assert page.evaluate("(was) => was === document.activeElement && was.isConnected", was), "the same element, focused"
    expect(page.get_by_test_id("alert-tip").locator("p")).to_have_count(2)


@pytest.mark.slow
def test_alerts_that_cannot_be_read_leave_the_page_whole(tab: Tab, run: int) -> None:
    tab.expected.append("status of 500")
    page = tab.open(f"/runs/{run}")
    expect(marks(page)).to_have_count(1)

    def fail(route: Route) -> None:
        route.fulfill(status=500, json={"code": "internal", "error": "the store <b>is</b> away"})

    page.route(ALERTS, fail)
    page = tab.open(f"/runs/{run}")
    expect(page.get_by_test_id("alert-row")).to_contain_text("could not be read: the store <b>is</b> away")
    expect(marks(page)).to_have_count(0)
    assert page.locator(".hairlines span").count() == 0
    assert page.locator(SPOILT, has_text="away").count() == 0
    assert page.locator(INJECTED).count() == 0
    assert drawn.bits(page, "layers").shape == (1, 40)


@pytest.mark.slow
def test_the_collectives_heatmap_has_them(tab: Tab, runs: Runs) -> None:
    answer_with(tab.page, [alert(1, 12, "critical"), alert(2, 40, "info", resolved_ns=1), alert(3, 400)])
    page = tab.open(f"/runs/{runs.health}/collectives")
    expect(marks(page)).to_have_count(2)
    box = page.get_by_test_id("picture-cost").bounding_box()
    assert box is not None
    left, width = box["x"] + 84, box["width"] - 84 - 12
    for at, step in ((0, 12), (1, 40)):
        assert abs(middle(page, marks(page).nth(at)) - (left + width * (step + 0.5) / 60)) <= 1.5
    lines = """(picture) => {
      const canvas = picture.querySelector("canvas"), pen = canvas.getContext("2d");
      const { data } = pen.getImageData(0, 0, canvas.width, 1);
      return Array.from({ length: canvas.width }, (_, x) => data[4 * x + 3]).flatMap((alpha, x) => alpha ? [x] : []);
    }"""
    found = page.get_by_test_id("picture-cost").evaluate(lines)
    assert [round(x) for x in found] == [pytest.approx(84 + width * (step + 0.5) / 60, abs=1.5) for step in (12, 40)]


@pytest.mark.slow
def test_over_the_time_they_stand_when_they_were_raised(tab: Tab, runs: Runs) -> None:
    start_ns = 1_790_100_000 * SECOND
    second = np.arange(600.0)
    columns = {"step": np.minimum(second, 20), "present": np.ones(600), "power_w": np.full(600, 90.0)}
    card = Samples("gpu", "GPU-m", start_ns + second.astype(np.int64) * SECOND, columns, {"name": "H100"})
    accept(runs.server, opening(KNOWN, "marked card"))
    accept(runs.server, with_samples(batch(KNOWN, 0, range(20), run="marked card"), card))
    inside, before = start_ns + 300 * SECOND, start_ns - 60 * SECOND
    answer_with(tab.page, [alert(1, 19, opened_ns=inside), alert(2, 5, opened_ns=before)])
    page = tab.open(f"/runs/{number(runs.server, 'marked card')}/gpu")
    expect(page.get_by_label("Axis")).to_have_value("time")
    expect(marks(page)).to_have_count(1)
    expect(marks(page).first).to_have_accessible_name(re.compile(r"^Warning, raised at \d\d:\d\d:\d\d, of step 19: "))
    x, *_ = drawn.place(page, "gpu-power", 300, 90)
    assert abs(middle(page, marks(page).first) - x) <= 1
    page.get_by_label("Axis").select_option("steps")
    expect(marks(page)).to_have_count(2)


@pytest.mark.slow
def test_it_fits_every_width_in_both_themes(tab: Tab, runs: Runs) -> None:
    listed = [alert(each, each * 7 % 150, ("critical", "warning", "info")[each % 3]) for each in range(150)]
    answer_with(tab.page, [*listed, *(alert(900 + each, 199, "critical") for each in range(120))])
    for theme in ("light", "dark"):
        tab.page.emulate_media(color_scheme=theme)
        for width in (390, 1280, 1920):
            tab.page.set_viewport_size({"width": width, "height": 900})
            page = tab.open(f"/runs/{runs.states}")
            expect(counts(page).last).to_have_text("99+")
            assert page.evaluate(SIDEWAYS) <= 0, (theme, width)
            places = [middle(page, each) for each in marks(page).all()]
            assert min(np.diff(places)) >= 24, "a finger hits one"
            for at in (0, len(places) - 1):
                marks(page).nth(at).focus()
                expect(page.get_by_test_id("alert-tip")).to_be_visible()
                box = page.get_by_test_id("alert-tip").bounding_box()
                assert box is not None
                assert box["x"] >= 0 and box["x"] + box["width"] <= width
                assert page.evaluate(SIDEWAYS) <= 0, (theme, width)
