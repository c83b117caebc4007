"""From picture to cause by clicks; the URL is the view; pages follow the run and survive the server."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
from playwright.sync_api import Page, Route, expect

from tests import long_run
from tests.browser import drawn, hand_made
from tests.browser.conftest import Tab
from tests.browser.hand_made import Runs, accept, number
from tests.server.process import Server
from tests.server.records import batch, catalogue, opening


def click_cell(page: Page, figure: str, step: float, row: float) -> None:
    page.get_by_test_id(f"figure-{figure}").scroll_into_view_if_needed()
    x, y, *_ = drawn.place(page, figure, step, row)
    page.mouse.move(x, y)
    page.mouse.click(x, y)


def wait_for_columns(page: Page, columns: int) -> None:
    page.wait_for_function(f"() => document.querySelector('.plot').cells.columns == {columns}")


def wait_for_rows(page: Page, rows: int) -> None:
    page.wait_for_function(f"() => document.querySelector('.plot').cells.rows.length == {rows}")


def test_clicks_lead_from_timeline_to_layers_to_step_to_tensor(tab: Tab, runs: Runs) -> None:
    page = tab.open(f"/runs/{runs.states}")
    click_cell(page, "timeline", 120, 0)
    page.wait_for_url("**/layers?rank=0&start=70&stop=171")
    tab.drawn()
    click_cell(page, "layers", 120, 3)
    page.wait_for_url("**/step?step=120&rank=0&tensor=3&start=70&stop=171")
    first = page.get_by_test_id("first-nonfinite")
    expect(first).to_have_attribute("data-chosen", "")
    first.get_by_role("link", name="blocks.3.ff").click()
    page.wait_for_url("**/tensor?rank=0&tensor=3&start=70&stop=171")
    expect(page.locator(".tensor-name")).to_have_text("blocks.3.ff output")
    expect(page.get_by_test_id("tensor-table").locator("tbody tr").first).to_contain_text("not finite")
    for address in (
        "**/step?step=120&rank=0&tensor=3&start=70&stop=171",
        "**/layers?rank=0&start=70&stop=171",
        f"**/runs/{runs.states}",
    ):
        page.go_back()
        page.wait_for_url(address)


def test_on_a_phone_the_table_of_a_tensor_names_the_exact_step(tab: Tab, runs: Runs) -> None:
    """There a point is two steps; the smallest magnitude of both may be the other's, and is left out."""
    known = catalogue(1)
    columns = {"amax": np.ones((1, 800)), "inf_count": np.zeros((1, 800))}
    columns["amax"][0, 403], columns["inf_count"][0, 361] = 512.0, 1
    accept(runs.server, opening(known, run="phone"), batch(known, 0, range(800), columns, run="phone"))
    tab.page.set_viewport_size({"width": 390, "height": 844})
    page = tab.open(f"/runs/{number(runs.server, 'phone')}/tensor?rank=0&tensor=0")
    table = page.get_by_test_id("tensor-table")
    for row, step in enumerate(("361", "403")):
        expect(table.locator("tbody tr").nth(row).locator("td").first).to_have_text(step)
    expect(table.get_by_role("columnheader", name="abs min")).to_be_hidden()
    expect(table.locator("tbody tr").first.locator("td")).to_have_count(4)
    page.set_viewport_size({"width": 1280, "height": 844})
    expect(table.get_by_role("columnheader", name="abs min")).to_be_visible()


@pytest.mark.slow
def test_choices_of_another_page_do_not_change_what_a_click_opens(tab: Tab, runs: Runs) -> None:
    carried = "rank=1&kind=grad_output&q=no+such&axes=step%2Crank"
    page = tab.open(f"/runs/{runs.states}?{carried}")
    expect(page.locator(".worst-table caption")).to_have_text(re.compile("all ranks$"))
    click_cell(page, "layers", 120, 3)
    page.wait_for_url("**/step?step=120&rank=0&tensor=3")
    page.go_back()
    tab.drawn()
    click_cell(page, "timeline", 120, 0)
    page.wait_for_url("**/layers?rank=0&start=70&stop=171")


@pytest.mark.slow
def test_an_answer_that_comes_late_does_not_move_the_page_that_is_read(tab: Tab, runs: Runs) -> None:
    page = tab.open(f"/runs/{runs.states}")
    held: list[Route] = []
    page.route("**/locate?*", lambda route: held.append(route))
    with page.expect_request("**/locate?*"):
        click_cell(page, "layers", 120, 3)
    page.locator("#nav").get_by_role("link", name="Environment").click()
    page.wait_for_url("**/environment")
    expect(page).to_have_title(re.compile("Environment"))
    with page.expect_response("**/locate?*"):
        held[0].continue_()
    page.evaluate("() => new Promise((done) => setTimeout(done, 100))")  # as long as the late page would need to go on
    assert page.url.endswith("/environment")
    expect(page).to_have_title(re.compile("Environment"))


@pytest.mark.slow
def test_a_row_name_and_the_table_lead_on(tab: Tab, runs: Runs) -> None:
    page = tab.open(f"/runs/{runs.states}/layers")
    box = page.get_by_test_id("figure-layers").bounding_box()
    assert box is not None
    page.mouse.click(box["x"] + 150, drawn.place(page, "layers", 0, 5)[1])
    page.wait_for_url("**/layers?tensor=5")
    page.go_back()
    page.wait_for_url("**/layers")
    tab.drawn()
    first = page.locator(".worst-table tbody tr").first
    expect(first).to_contain_text("blocks.3.ff output")
    first.get_by_role("button").click()
    page.wait_for_url("**/step?step=120&rank=0&tensor=3")


def test_the_address_holds_the_whole_view(tab: Tab, new_tab: Callable[..., Tab], runs: Runs) -> None:
    page = tab.open(f"/runs/{runs.states}/layers")
    page.get_by_label("Rank", exact=True).select_option("0")
    page.get_by_role("button", name="grad_output").click()
    page.get_by_label("Part of a layer's name").fill("ff")
    page.wait_for_url("**/layers?rank=0&kind=grad_output&q=ff")
    wait_for_rows(page, 4)
    left, right = (drawn.place(page, "layers", step, 1) for step in (100, 140))
    page.mouse.move(left[0], left[1])
    page.mouse.down()
    page.mouse.move(right[0], right[1], steps=4)
    page.mouse.up()
    page.wait_for_url(re.compile(r"/layers\?rank=0&start=1\d\d&stop=1\d\d&kind=grad_output&q=ff$"))
    expect(page.locator(".range-shown")).to_contain_text("steps 1")
    page.wait_for_function("() => document.querySelector('.plot').cells.columns < 60")
    seen = drawn.bits(page, "layers")
    assert seen.shape[0] == 4
    assert 38 <= seen.shape[1] <= 43
    other = new_tab(runs.server.url).open(page.url.removeprefix(runs.server.url))
    np.testing.assert_array_equal(drawn.bits(other, "layers"), seen)
    expect(other.get_by_role("button", name="grad_output")).to_have_attribute("aria-pressed", "true")
    expect(other.get_by_label("Part of a layer's name")).to_have_value("ff")
    page.go_back()
    page.wait_for_url("**/layers?rank=0&kind=grad_output&q=ff")
    wait_for_columns(page, 200)


def start_growing(server: Server) -> str:
    """A run that has not ended: 20 steps of 3 tensors. Its path."""
    known = catalogue(3)
    accept(server, opening(known, "growing"), batch(known, 0, range(20), run="growing", series={"loss": 1.0}))
    return f"/runs/{number(server, 'growing')}/layers"


def test_an_open_page_follows_the_run(tab: Tab, runs: Runs) -> None:
    growing = runs.server
    page = tab.open(start_growing(growing))
    expect(page.get_by_test_id("following")).to_be_visible()
    page.evaluate("() => (window.notReloaded = true)")
    known = catalogue(3)
    accept(growing, batch(known, 1, range(20, 60), {"amax": hand_made.LIMIT / 2}, run="growing"))
    wait_for_columns(page, 60)
    np.testing.assert_allclose(drawn.bits(page, "layers")[:, [19, 20, 59]], [[15.999, 1, 1]] * 3, atol=1e-3)
    expect(page.locator(".run-details")).to_contain_text("step 59")
    page.get_by_label("First step", exact=True).fill("30")
    page.get_by_role("button", name="Go").click()
    wait_for_columns(page, 30)
    accept(growing, batch(known, 2, range(60, 65), run="growing"))
    wait_for_columns(page, 35)  # no right edge was chosen: it follows still
    page.get_by_label("Last step", exact=True).fill("62")
    page.get_by_role("button", name="Go").click()
    wait_for_columns(page, 33)
    expect(page.get_by_test_id("following")).to_be_hidden()
    accept(growing, batch(known, 3, range(65, 70), run="growing"))
    expect(page.locator(".run-details")).to_contain_text("step 69")
    wait_for_columns(page, 33)  # a chosen right edge stays
    assert page.evaluate("() => window.notReloaded")


@pytest.fixture(scope="module")
def long_path(runs: Runs) -> str:
    """The path of the layers of 100,000 steps."""
    accept(runs.server, *long_run.messages("long"))
    return f"/runs/{number(runs.server, 'long')}/layers"


@pytest.mark.slow
@pytest.mark.parametrize(("width", "height"), [(1280, 900), (390, 844)])
def test_one_spike_in_100_000_steps_is_seen_at_full_zoom_out_and_one_click_away(
    tab: Tab, long_path: str, width: int, height: int
) -> None:
    tab.page.set_viewport_size({"width": width, "height": height})
    page = tab.open(long_path)
    page.get_by_test_id("figure-layers").evaluate("(figure) => figure.scrollIntoView({ block: 'center' })")
    rows = len(drawn.bits(page, "layers"))
    row = long_run.SPIKE_TENSOR * rows // long_run.TENSORS
    x, y, *_ = drawn.place(page, "layers", long_run.SPIKE_STEP, row)
    screen = drawn.pixels(page, "layers")
    magenta = drawn.near(screen, drawn.colour(page, "nonfinite"), 20)
    top, bottom = (round(drawn.place(page, "layers", 0, edge)[1]) for edge in (-0.5, rows - 0.5))
    found = np.argwhere(magenta[top:bottom]) + np.array([top, 0])
    assert len(found) >= 4, "the spike is on the screen"
    assert np.abs(found - (y, x)).max() <= 5, "and nowhere else"
    assert drawn.near(drawn.around(screen, x, top - 6, 4), drawn.colour(page, "nonfinite"), 20).any(), (
        "and marked above"
    )
    page.mouse.click(*(float(each) + 0.5 for each in found.mean(axis=0)[::-1]))  # the middle of the pixels
    page.wait_for_url(f"**/step?step={long_run.SPIKE_STEP}&rank=0&tensor={long_run.SPIKE_TENSOR}")
    first = page.get_by_test_id("first-nonfinite")
    expect(first).to_contain_text(f"blocks.{long_run.SPIKE_TENSOR}.ff")
    expect(first).to_have_attribute("data-chosen", "")
    expect(first).to_be_in_viewport()


@pytest.mark.slow
def test_thousands_of_frames_are_listed_in_parts(tab: Tab, runs: Runs) -> None:
    known, bad = catalogue(5_000), np.zeros((5_000, 2))
    bad[3_210, 1] = 7
    accept(runs.server, opening(known, "wide"), batch(known, 0, range(2), {"nan_count": bad}, run="wide"))
    page = tab.open(f"/runs/{number(runs.server, 'wide')}/step?step=1&rank=0")
    rows = page.get_by_test_id("frames-table").locator("tbody tr")
    expect(page.get_by_test_id("first-nonfinite")).to_be_in_viewport()
    expect(rows).to_have_count(400)
    page.get_by_role("button", name="Earlier ones").click()
    expect(rows).to_have_count(800)
    expect(page.get_by_test_id("first-nonfinite")).to_be_in_viewport()
    page.get_by_label("Part of a layer's name").fill("blocks.12.")
    expect(rows).to_have_count(1)
    expect(page).to_have_url(re.compile("q=blocks.12."))
    page.get_by_label("Part of a layer's name").fill("")
    page.get_by_role("button", name="Show it").click()
    expect(page.get_by_test_id("first-nonfinite")).to_be_in_viewport()
