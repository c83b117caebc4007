"""New data comes on to an open page in place: nothing flickers, nothing chosen is lost; a lost server heals."""

from __future__ import annotations

import base64
import itertools
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
from playwright.sync_api import Page, expect

from tests.browser import drawn
from tests.browser.conftest import Tab
from tests.browser.hand_made import Runs, accept, number
from tests.server.process import Server
from tests.server.records import batch, catalogue, opening

TENSORS, FIRST, MORE, ROUNDS = 60, 100, 50, 4
NUMBERS = itertools.count(1)
KNOWN = catalogue(TENSORS)
LAYERS = drawn.selector("layers")
TOP = "(figure) => document.querySelector(figure).getBoundingClientRect().top"
# The cursor stands at its step on an axis that ends with the newest.
CURSOR_MOVED = """([selector, step, newest]) => {
  const figure = document.querySelector(selector);
  const { xaxis } = figure._fullLayout;
  const cursor = figure.parentElement.querySelector(".lane-cursor").getBoundingClientRect().x;
  const there = figure.getBoundingClientRect().left + xaxis._offset + xaxis.d2p(step);
  return xaxis.range[1] >= newest && Math.abs(cursor - there) <= 2;
}"""
GONE = ["net::ERR_", "Failed to load resource"]
# What the page is made of, and how it looks in every frame from now on.
WATCH = """() => {
  const figures = [...document.querySelectorAll(".plot")];
  const parts = figures.flatMap((figure) => [figure, ...figure.parentElement.querySelectorAll("svg.main-svg, canvas")]);
  const rows = [...document.querySelectorAll("main .lane, main .verdict, main .cards")];
  window.seen = { parts, rows, frames: 0, bare: 0 };
  const heat = ["layers", "timeline"].map((name) => document.querySelector(`canvas:has(+ [data-testid$=${name}])`));
  const pen = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const isPainted = (canvas) => {
    pen.clearRect(0, 0, 1, 1);
    pen.drawImage(canvas, 9, 9, 1, 1, 0, 0, 1, 1);
    return canvas.checkVisibility({ visibilityProperty: true }) && pen.getImageData(0, 0, 1, 1).data[3] > 0;
  };
  const look = () => {
    window.seen.frames += 1;
    if (!heat.every(isPainted)) window.seen.bare += 1;
    requestAnimationFrame(look);
  };
  look();
}"""
LEFT = """() => ({
  frames: seen.frames, bare: seen.bare,
  lost: [...seen.parts, ...seen.rows].filter((node) => !node.isConnected).map((node) => node.tagName),
})"""
HIDE = """(hidden) => {
  Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
  document.dispatchEvent(new Event("visibilitychange"));
}"""
COLUMNS = "([figure, count]) => document.querySelector(figure).cells.columns === count"


class Live:
    """A run that goes on, whose server can be killed and come back at its address."""

    def __init__(self, server: Server, start: Callable[..., Server]) -> None:
        self.start, self.server, self.step, self.sequence = start, server, 0, 0
        self.port = str(urlsplit(server.url).port)
        self.name = f"live {next(NUMBERS)}"
        accept(server, opening(KNOWN, self.name))
        self.path = f"/runs/{number(server, self.name)}"

    def send(self, steps: int) -> None:
        """The next steps of the run, each tensor with headroom of its own."""
        at = np.arange(self.step, self.step + steps)
        amax = 65_504 / 2.0 ** (2 + np.arange(TENSORS)[:, None] % 12 + 0 * at)
        series = {"loss": 2.0 + at / 100, "loss_scale": 1024.0, "step_time_s": 0.25}
        accept(self.server, batch(KNOWN, self.sequence, at, {"amax": amax}, run=self.name, series=series))
        self.step, self.sequence = self.step + steps, self.sequence + 1

    def back(self) -> None:
        self.server = self.start("--port", self.port)


@pytest.fixture
def live(runs: Runs, start_server: Callable[..., Server]) -> Live:
    found = Live(runs.server, start_server)
    found.send(FIRST)
    return found


def columns(page: Page, count: int) -> None:
    """Wait until the layers show so many steps."""
    page.wait_for_function(COLUMNS, arg=[LAYERS, count], timeout=30_000)


def screen(page: Page, clip: Any) -> np.ndarray:
    """The pixels as they are this moment: nothing is waited for."""
    png = base64.b64encode(page.screenshot(clip=clip)).decode()
    width, height, data = page.evaluate(drawn.DECODE, png)
    return np.frombuffer(base64.b64decode(data), np.uint8).reshape(height, width, 4)[..., :3].astype(int)


def old_cells(page: Page) -> np.ndarray:
    """The pixels of the first steps, wherever the figure stands."""
    x, y, width, height = drawn.place(page, "layers", 5, 2)
    return screen(page, {"x": round(x), "y": round(y), "width": round(width * 60), "height": round(height * 20)})


def test_new_steps_come_into_the_same_figures(live: Live, tab: Tab) -> None:
    page = tab.open(live.path)
    columns(page, FIRST)
    page.evaluate(WATCH)
    for _ in range(ROUNDS):
        live.send(MORE)
        columns(page, live.step)
    found = page.evaluate(LEFT)
    assert found["lost"] == [], "a node of the page was made anew"
    assert found["frames"] > ROUNDS and found["bare"] == 0, "a frame was drawn without its heatmap"
    expect(page.locator(".run-details")).to_contain_text(f"step {live.step - 1}")
    np.testing.assert_allclose(drawn.bits(page, "layers")[:, -1], 2 + np.arange(TENSORS) % 12, atol=1e-4)


@pytest.mark.slow
def test_old_cells_keep_their_pixels_while_new_ones_come(live: Live, tab: Tab) -> None:
    total = FIRST + ROUNDS * MORE
    page = tab.open(f"{live.path}/layers?start=0&stop={total}")  # the axis stays as it is
    columns(page, FIRST)
    page.evaluate(drawn.PAINTED)
    before = old_cells(page)
    assert len(np.unique(before.reshape(-1, 3), axis=0)) > 5, "there is something to see"
    looks = 0
    for _ in range(ROUNDS):
        live.send(MORE)
        while page.evaluate(f"document.querySelector('{LAYERS}').cells.columns") < live.step:
            np.testing.assert_allclose(old_cells(page), before, atol=12)
            looks += 1
    page.evaluate(drawn.PAINTED)
    np.testing.assert_allclose(old_cells(page), before, atol=12)
    assert looks >= ROUNDS


@pytest.mark.slow
def test_what_is_chosen_stays_chosen(live: Live, tab: Tab) -> None:
    tab.page.set_viewport_size({"width": 1280, "height": 500})
    page = tab.open(live.path)
    figure = page.locator(LAYERS)
    figure.focus()
    for key in ("ArrowLeft", "ArrowLeft", "ArrowDown", "ArrowDown", "ArrowDown"):
        page.keyboard.press(key)
    readout = page.locator(".lane", has=figure).locator(".lane-readout")
    chosen = readout.inner_text()
    assert chosen.startswith(f"step {FIRST - 2} · blocks.3.ff output")
    page.evaluate("scrollTo(0, 300)")
    page.evaluate("getSelection().selectAllChildren(document.querySelector('.verdict p'))")
    selected = page.evaluate("String(getSelection())")
    assert selected
    assert page.evaluate("scrollY") > 0
    top = page.evaluate(TOP, LAYERS)
    live.send(MORE)
    columns(page, live.step)
    expect(figure).to_be_focused()
    expect(readout).to_have_text(chosen)
    assert abs(page.evaluate(TOP, LAYERS) - top) <= 1, "what is read stays where it is"
    assert page.evaluate("String(getSelection())") == selected
    page.wait_for_function(CURSOR_MOVED, arg=[LAYERS, FIRST - 2, live.step - 1])
    page.keyboard.press("ArrowRight")
    expect(readout).to_contain_text(f"step {FIRST - 1} · ")
    link = page.locator(".card").get_by_role("link").first
    link.focus()
    live.send(MORE)
    columns(page, live.step)
    expect(link).to_be_focused()


@pytest.mark.slow
def test_typing_is_not_disturbed_by_steps_that_come(live: Live, tab: Tab) -> None:
    page = tab.open(f"{live.path}/layers")
    name = page.get_by_label("Part of a layer's name")
    name.press_sequentially("blocks.1")
    page.wait_for_url("**q=blocks.1*")
    live.send(MORE)
    columns(page, live.step)
    expect(name).to_be_focused()
    expect(name).to_have_value("blocks.1")
    first = page.get_by_role("spinbutton", name="First step")
    first.fill("3")
    page.get_by_role("spinbutton", name="Last step").fill("1")
    live.send(MORE)
    columns(page, live.step)
    expect(first).to_have_value("3")
    page.keyboard.press("End")
    page.keyboard.type("9")
    page.keyboard.press("Enter")
    page.wait_for_url("**/layers?start=3&stop=20&q=blocks.1")
    expect(first).to_have_value("3")


def test_a_lost_server_is_said_and_heals(start_server: Callable[..., Server], new_tab: Callable[..., Tab]) -> None:
    live = Live(start_server(), start_server)
    live.send(FIRST)
    page = new_tab(live.server.url, expected=GONE).open(live.path)
    note = page.get_by_test_id("connection-lost")
    expect(note).not_to_be_visible()
    page.evaluate("window.before = document.querySelector('.plot')")
    live.server.kill()
    expect(note).to_be_visible(timeout=30_000)
    expect(note).to_contain_text("Connection to the server lost. What you see is what was last received; trying again.")
    assert drawn.bits(page, "layers").shape == (TENSORS, FIRST), "what was received is still there"
    live.back()
    live.send(MORE)
    columns(page, live.step)
    expect(note).not_to_be_visible(timeout=30_000)
    expect(page.locator(".problem")).not_to_be_visible(timeout=30_000)
    assert page.evaluate("window.before === document.querySelector('.plot')"), "the page was not loaded anew"
    live.send(MORE)  # and from then on it follows again
    columns(page, live.step)


@pytest.mark.slow
def test_a_page_that_was_hidden_catches_up(live: Live, tab: Tab) -> None:
    page = tab.open(live.path)
    page.evaluate(HIDE, True)
    live.send(MORE)
    page.evaluate(HIDE, False)
    columns(page, live.step)
