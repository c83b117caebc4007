"""The Overview's lanes: in their order, on one axis, with what not every run has; all against arithmetic."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from playwright.sync_api import Locator, Page, expect

from rangewatch.wire.records import RankInfo, StreamHeader
from tests.browser import drawn
from tests.browser.conftest import Tab
from tests.browser.hand_made import MARKUP, Runs, accept, number
from tests.browser.hand_made_health import DELAY_S, LATE, RANKS, STEPS
from tests.server.records import batch, catalogue, opening

BEFORE_LAYERS = 3
"""Lanes above the heatmap of the layers, which is on the first screen so."""
EDGES = """(figures) => figures.filter((one) => one.checkVisibility({visibilityProperty: true}) && one._fullLayout)
  .map((one) => [one._fullLayout.xaxis._offset + one.getBoundingClientRect().left, one._fullLayout.xaxis._length])"""
SHOWN = """(figures) => figures.filter((one) => one.checkVisibility({visibilityProperty: true}))
  .map((one) => one.dataset.testid.replace("figure-", ""))"""


def lane(page: Page, name: str) -> Locator:
    return page.locator(".lane", has=page.locator(drawn.selector(name)))


def share(seconds: float) -> float:
    """A wait's place on the logarithmic scale from 0.1 ms, calm, to 1 s."""
    return min(1.0, max(0.0, math.log(max(seconds, 1e-9) / 1e-4) / math.log(1e4)))


@pytest.fixture(scope="module")
def logged(runs: Runs) -> int:
    """A run whose program logs a rate, and things with odd names."""
    known, steps = catalogue(2), np.arange(50.0)
    series = {"loss": steps, "lr": steps * 1e-3, MARKUP[0]: 1.0} | {f"z{n}": float(n) for n in range(6)}
    accept(runs.server, opening(known, "logged"), batch(known, 0, range(50), run="logged", series=series))
    return number(runs.server, "logged")


def test_the_lanes_stand_in_order_share_their_edges_and_show_waits_cards_and_the_step_pointed_at(
    tab: Tab, runs: Runs
) -> None:
    page = tab.open(f"/runs/{runs.health}")
    shown = page.locator(".plot").evaluate_all(SHOWN)
    assert shown.index("layers") == BEFORE_LAYERS
    assert {"timeline", "step_time", "phases", "waits", "gpu-cards", "layers"} <= set(shown)
    edges = page.locator(".plot").evaluate_all(EDGES)
    assert len({tuple(map(round, each)) for each in edges}) == 1, edges
    check_waits(page)
    check_cards(page)
    check_cursors(page)


def check_waits(page: Page) -> None:
    """They are those of the collectives."""
    found = drawn.bits(page, "waits")
    assert found.shape == (RANKS, STEPS)
    steps = slice(2, None)  # one duration of the second step is not known
    for rank in range(RANKS):
        if rank == LATE:
            assert (found[rank, steps] < share(0.002)).all(), "the late one hardly waits"
        else:
            np.testing.assert_allclose(found[rank, steps], share(DELAY_S), atol=0.01)
    page.locator(drawn.selector("waits")).scroll_into_view_if_needed()
    x, y, *_ = drawn.place(page, "waits", 30, 0)
    page.mouse.move(x, y)
    readout = lane(page, "waits").locator(".lane-readout")
    expect(readout).to_contain_text("step 30 · rank 0 waited 30")
    expect(readout).to_contain_text("for rank 2 most, 9")  # 30 ms of three others


def check_cards(page: Page) -> None:
    """They show when they were slowed and gone."""
    figure = page.locator(drawn.selector("gpu-cards"))
    names = figure.evaluate("(figure) => figure.layout.yaxis.ticktext")
    assert names == [f"rank {rank}, cuda:{rank % 2}" for rank in range(RANKS)]
    warning, bad = (f"rgb({', '.join(map(str, drawn.colour(page, name)))})" for name in ("warning", "bad"))
    shapes = figure.evaluate(
        "(figure) => figure.layout.shapes.map(({x0, x1, y0, y1, fillcolor}) => [(y0 + y1) / 2, x0, x1, fillcolor])"
    )
    slowed = [each for each in shapes if each[3] == warning]
    gone = [each for each in shapes if each[3] == bad]
    assert [(each[0], round(each[1]), round(each[2])) for each in slowed] == [
        (1, 40, 60)
    ]  # seconds 81 to 119, two a step
    assert [(each[0], round(each[1])) for each in gone] == [(2, 55)]
    assert sorted(figure.evaluate("(figure) => figure.data[0].x")) == [45, 50, 55]
    figure.focus()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowDown")
    expect(lane(page, "gpu-cards").locator(".lane-readout")).to_contain_text(
        "step 59 · rank 1, cuda:1: hw thermal slowdown, 88 °C"
    )
    page.locator(drawn.selector("waits")).dispatch_event("pointerleave")  # it scrolled away from a pointer that rests
    expect(lane(page, "gpu-cards").locator(".lane-readout")).to_contain_text("step 59 · rank 1")


def check_cursors(page: Page) -> None:
    """A step that is pointed at is told on every lane."""
    page.evaluate("() => scrollTo(0, 0)")
    x, y, *_ = drawn.place(page, "timeline", 20, 1)
    page.mouse.move(x, y)
    cursors = page.locator(".lane:not(.is-absent) .lane-cursor:not([hidden])")
    shown = [name for name in page.locator(".plot").evaluate_all(SHOWN) if lane(page, name).locator("svg").count()]
    expect(cursors).to_have_count(len(shown))
    places = cursors.evaluate_all("(all) => all.map((one) => Math.round(one.getBoundingClientRect().left))")
    assert len(set(places)) == 1 and abs(places[0] - x) <= 2
    expect(lane(page, "gpu-cards").locator(".lane-readout")).to_contain_text("no GPU throttled")


@pytest.mark.slow
def test_what_a_run_does_not_have_takes_no_room(tab: Tab, runs: Runs) -> None:
    page = tab.open(f"/runs/{runs.states}")
    for name in ("waits", "gpu-cards", "logged-0", "phases"):
        expect(page.locator(drawn.selector(name))).not_to_be_visible()
    before, after = lane(page, "step_time").bounding_box(), lane(page, "layers").bounding_box()
    assert before is not None and after is not None
    assert after["y"] - before["y"] - before["height"] < 20


def test_what_the_program_logs_has_lanes(tab: Tab, logged: int) -> None:
    page = tab.open(f"/runs/{logged}")
    titles = [lane(page, f"logged-{slot}").get_by_role("heading").inner_text() for slot in range(6)]
    assert titles == [MARKUP[0], "lr", "z0", "z1", "z2", "z3"]
    expect(page.get_by_test_id("logged-more")).to_have_text("2 more series are logged: z4, z5.")
    y = page.locator(drawn.selector("logged-1")).evaluate("(figure) => Array.from(figure.data[0].y)")
    np.testing.assert_allclose(y, np.arange(50) * 1e-3)
    assert page.locator("main img, [onerror]").count() == 0


@pytest.mark.slow
def test_before_the_first_answer_there_is_where_things_will_be(tab: Tab, runs: Runs) -> None:
    page = tab.page
    asked = re.compile(rf"/api/v1/runs/{runs.states}$")
    page.route(asked, lambda route: None)  # no answer
    page.goto(f"{tab.address}/runs/{runs.states}")
    expect(page.get_by_test_id("skeleton")).to_be_visible()
    page.unroute(asked)
    tab.open(f"/runs/{runs.states}")
    expect(page.get_by_test_id("skeleton")).to_have_count(0)


@pytest.mark.slow
def test_a_lane_is_pinned_and_the_address_keeps_it(tab: Tab, runs: Runs) -> None:
    page = tab.open(f"/runs/{runs.states}")
    lane(page, "timeline").get_by_role("button", name="View of this lane").focus()
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Pin to the top").click()
    page.wait_for_url("**?lane=timeline.pin")
    shown = page.locator(".plot").evaluate_all(SHOWN)
    assert shown[0] == "timeline"
    assert tab.open(f"/runs/{runs.states}?lane=timeline.pin").locator(".plot").evaluate_all(SHOWN) == shown


def test_memory_by_rank_is_a_lane_and_goodput_a_card(tab: Tab, runs: Runs) -> None:
    known, steps = catalogue(2), np.arange(100.0)
    for rank in range(2):
        info = RankInfo("holds", rank, 2, rank, "host", "a", int(1.7e18))
        held = {"memory_allocated_bytes": (10 + rank + steps / 10) * 2**30, "memory_reserved_bytes": 40.0 * 2**30}
        series = held | {"step_time_s": 1.0, "wall_time_s": 1.7e9 + 25 + steps, "loss": 2 - steps / 100}
        sent = batch(known, 0, range(100), run="holds", rank=rank, series=series)
        accept(runs.server, StreamHeader(info, known), sent)
    page = tab.open(f"/runs/{number(runs.server, 'holds')}")
    expect(page.get_by_role("group", name="Memory, steps")).to_have_accessible_name(
        re.compile("allocated 20.9 GiB, reserved 40 GiB, .*most on rank 1, 20.9 GiB, least on rank 0, 19.9 GiB")
    )
    expect(lane(page, "memory").get_by_role("heading")).to_have_text("Device memory")
    card = page.locator('.card[data-key="Goodput"]')
    expect(card.locator(".card-value")).to_have_text("80.6 %")
    how = re.compile("^Steps that counted took 1 min of the 2 min")
    expect(card.locator(".card-under span")).to_have_attribute("title", how)
