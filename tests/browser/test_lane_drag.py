"""Drags over a lane: what they choose, and how they end."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
from playwright.sync_api import Page, expect

from tests.browser import drawn
from tests.browser.conftest import Tab
from tests.browser.hand_made import STEPS, Runs

SHADE = "[data-testid=figure-loss_scale] + .lane-drag"
LOOK_AGAIN = "dispatchEvent(new PopStateEvent('popstate'))"


def press(page: Page, figure: str, share: float) -> tuple[float, float]:
    """At that share of its axis, in its middle."""
    area = drawn.area(page, figure)
    page.wait_for_timeout(100)
    while (now := drawn.area(page, figure)) != area:  # what stands above the lanes may come after them
        area = now
        page.wait_for_timeout(100)
    x, y = area["x"] + area["width"] * share, area["y"] + area["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    return x, y


def stays(page: Page, address: str) -> None:
    """A click would lead away once the page has waited 300 ms for a second one: its timer comes before this one."""
    page.evaluate("() => new Promise((done) => setTimeout(done, 310))")
    assert page.url.endswith(address)


def test_a_drag_shades_what_it_chooses(tab: Tab, runs: Runs) -> None:
    page = tab.open(f"/runs/{runs.states}")
    area = drawn.area(page, "loss_scale")
    x, y = press(page, "loss_scale", 0.75)
    shade = page.locator(SHADE)
    expect(shade).to_be_hidden()
    page.mouse.move(area["x"] + area["width"] * 0.5, y + 30, steps=3)  # back, and off the lane's height
    box = shade.bounding_box()
    assert box is not None
    np.testing.assert_allclose([box["x"], box["x"] + box["width"]], [area["x"] + area["width"] / 2, x], atol=1.5)
    page.mouse.up()
    page.wait_for_url(re.compile(r"\?start=(99|100)&stop=150$"))
    expect(shade).to_be_hidden()
    expect(page.locator(".range-shown")).to_contain_text(re.compile("steps (99|100)-149"))


@pytest.mark.slow
def test_a_drag_beyond_the_plot_goes_to_its_edge(tab: Tab, runs: Runs) -> None:
    page = tab.open(f"/runs/{runs.states}")
    _, y = press(page, "loss_scale", 0.75)
    page.mouse.move(tab.page.viewport_size["width"] - 2, y + 200, steps=4)  # type: ignore[index] # it has one
    page.mouse.up()
    page.wait_for_url(re.compile(rf"\?start=150(&stop={STEPS})?$"))


def test_escape_gives_a_drag_up(tab: Tab, runs: Runs) -> None:
    page = tab.open(f"/runs/{runs.states}")
    x, y = press(page, "loss_scale", 0.25)
    page.mouse.move(x + 200, y, steps=3)
    expect(page.locator(SHADE)).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator(SHADE)).to_be_hidden()
    page.mouse.move(x + 250, y)
    expect(page.locator(SHADE)).to_be_hidden()
    page.mouse.up()
    stays(page, f"/runs/{runs.states}")


@pytest.mark.slow
def test_a_drag_that_comes_back_is_neither_a_choice_nor_a_click(tab: Tab, runs: Runs) -> None:
    page = tab.open(f"/runs/{runs.states}")
    x, y = press(page, "loss_scale", 0.25)
    page.mouse.move(x + 200, y)
    page.mouse.move(x + 1, y)
    page.mouse.up()
    stays(page, f"/runs/{runs.states}")


def test_a_double_click_shows_all_again_and_a_hand_that_trembles_is_no_drag(tab: Tab, runs: Runs) -> None:
    page = tab.open(f"/runs/{runs.states}?start=20&stop=90")
    x, y = press(page, "loss_scale", 0.5)
    page.mouse.move(x + 6, y)
    page.mouse.up()
    stays(page, "?start=20&stop=90")
    page.mouse.dblclick(x, y)
    page.wait_for_url(f"**/runs/{runs.states}")


@pytest.mark.slow
def test_a_drag_under_way_outlasts_new_data(tab: Tab, runs: Runs) -> None:
    page = tab.open(f"/runs/{runs.states}")
    x, y = press(page, "loss_scale", 0.25)
    page.mouse.move(x + 100, y, steps=2)
    other, mine = (page.locator(drawn.selector(name)) for name in ("loss", "loss_scale"))
    versions = [int(each.get_attribute("data-ready") or 0) for each in (other, mine)]
    page.evaluate(LOOK_AGAIN)
    expect(other).to_have_attribute("data-ready", str(versions[0] + 1))
    expect(mine).to_have_attribute("data-ready", str(versions[1]))
    expect(page.locator(SHADE)).to_be_visible()
    page.mouse.up()
    expect(page.locator(SHADE)).to_be_hidden()
    page.wait_for_url(re.compile(r"\?start=50&stop=\d+$"))


@pytest.mark.slow
def test_a_drag_over_a_figure_that_fails_is_given_up(tab: Tab, runs: Runs) -> None:
    page = tab.open(f"/runs/{runs.states}")
    tab.expected.append("503")
    page.route("**/figures?*", lambda route: route.fulfill(status=503, json={"code": "busy", "error": "later"}))
    x, y = press(page, "loss_scale", 0.25)
    page.mouse.move(x + 100, y, steps=2)
    page.evaluate(LOOK_AGAIN)
    expect(page.locator(".lane-message").filter(has_text="later").first).to_be_visible()
    page.unroute("**/figures?*")
    page.evaluate(LOOK_AGAIN)
    expect(page.locator(".lane-message").filter(has_text="later")).to_have_count(0)
    page.mouse.up()
    expect(page.locator(SHADE)).to_be_hidden()
    assert page.url.endswith(f"/runs/{runs.states}")


@pytest.mark.slow
def test_a_release_that_nobody_tells_of_ends_it(tab: Tab, runs: Runs) -> None:
    """As in a menu of the system."""
    page = tab.open(f"/runs/{runs.states}")
    x, y = press(page, "loss_scale", 0.25)
    page.mouse.move(x + 100, y, steps=2)
    page.evaluate(
        """([selector, clientX, clientY]) => document.querySelector(selector).dispatchEvent(
          new PointerEvent("pointermove", { bubbles: true, pointerId: 1, pointerType: "mouse", clientX, clientY }))""",
        [drawn.selector("loss_scale"), x + 150, y],
    )
    expect(page.locator(SHADE)).to_be_hidden()
    page.mouse.up()
    assert page.url.endswith(f"/runs/{runs.states}")


@pytest.mark.slow
def test_another_pointer_ends_no_drag(tab: Tab, runs: Runs) -> None:
    """A hand on the screen beside a pen."""
    page = tab.open(f"/runs/{runs.states}")
    x, y = press(page, "loss_scale", 0.25)
    page.mouse.move(x + 100, y, steps=2)
    page.evaluate("() => dispatchEvent(new PointerEvent('pointerup', { pointerId: 7, pointerType: 'touch' }))")
    expect(page.locator(SHADE)).to_be_visible()
    assert page.url.endswith(f"/runs/{runs.states}")
    page.mouse.up()
    page.wait_for_url(re.compile(r"\?start=50&stop=\d+$"))


@pytest.mark.slow
def test_a_click_soon_after_a_drag_is_no_double_click(tab: Tab, runs: Runs) -> None:
    page = tab.open(f"/runs/{runs.states}")
    x, y = press(page, "loss_scale", 0.25)
    page.mouse.move(x + 100, y)
    page.mouse.up()
    page.mouse.down()
    page.mouse.up()
    page.wait_for_url(lambda url: "start=50" in url or "/step" in url)
    assert "stop=" in page.url, "the click did not show all again"


@pytest.mark.slow
def test_escape_in_a_panel_gives_up_the_drag_and_not_the_panel(tab: Tab, runs: Runs) -> None:
    path = f"/runs/{runs.states}/layers?rank=0&tensor=3"
    page = tab.open(path)
    page.locator(drawn.selector("tensor")).scroll_into_view_if_needed()
    x, y = press(page, "tensor", 0.25)
    page.mouse.move(x + 40, y, steps=2)
    page.keyboard.press("Escape")
    expect(page.locator(drawn.selector("tensor") + " + .lane-drag")).to_be_hidden()
    page.mouse.up()
    assert page.url.endswith(path)


@pytest.mark.slow
@pytest.mark.parametrize("figure", ["loss_scale", "layers"])
def test_a_finger_scrolls_and_chooses_nothing(new_tab: Callable[..., Tab], runs: Runs, figure: str) -> None:
    tab = new_tab(runs.server.url, has_touch=True)
    page = tab.open(f"/runs/{runs.states}")
    page.locator(drawn.selector(figure)).scroll_into_view_if_needed()
    area = drawn.area(page, figure)
    touch = page.context.new_cdp_session(page)
    x, y = area["x"] + area["width"] * 0.5, area["y"] + area["height"] / 2
    touch.send("Input.dispatchTouchEvent", {"type": "touchStart", "touchPoints": [{"x": x, "y": y}]})
    for moved in range(10, 120, 10):
        points = [{"x": x + moved, "y": y}]
        touch.send("Input.dispatchTouchEvent", {"type": "touchMove", "touchPoints": points})
    expect(page.locator(".lane-drag:visible")).to_have_count(0)
    touch.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
    stays(page, f"/runs/{runs.states}")
