"""The layers page: axes, statistics, the module tree, orders, name expressions, and what an empty picture says."""

from __future__ import annotations

import re
import time
from urllib.parse import unquote

import numpy as np
import pytest
from playwright.sync_api import Page, expect

from tests.browser import drawn
from tests.browser.conftest import Tab
from tests.browser.hand_made import INF_AT, LIMIT, SILENT_FROM, STEPS, TENSORS, Runs, accept, amax, bits, number
from tests.server.process import Server
from tests.server.records import batch, catalogue, opening

LABELS = "() => [...document.querySelectorAll('.ytick text')].map((label) => label.textContent)"
ALL_DRAWN = "(rows) => document.querySelector('.layers-main .plot')?.cells?.rows.length === rows"


def wait_for_rows(page: Page, rows: int) -> None:
    page.wait_for_function(ALL_DRAWN, arg=rows)


def wait_for_quiet(server: Server) -> None:
    """Until there were no changes for longer than they are gathered: a page that begins to listen fetches everything
    again if there was one of any run, also of one that another test still sends.
    """
    for _ in range(60):
        before = server.client.get("/api/v1/runs").headers["rangewatch-changes"]
        time.sleep(0.6)
        if server.client.get("/api/v1/runs").headers["rangewatch-changes"] == before:
            return
    raise AssertionError("the server's runs go on changing")


@pytest.mark.slow
def test_steps_by_ranks_shows_the_worst_of_the_chosen_layers(tab: Tab, runs: Runs) -> None:
    page = tab.open(f"/runs/{runs.states}/layers?q=ff&kind=grad")
    page.get_by_label("Axes", exact=True).select_option("step,rank")
    page.wait_for_url("**/layers?kind=grad&q=ff&axes=step%2Crank")
    expect(page.get_by_test_id("figure-timeline")).to_have_attribute("data-ready", re.compile("."))
    found = drawn.bits(page, "timeline")
    assert found.shape == (2, STEPS)
    grads = [tensor for tensor in range(TENSORS) if tensor % 3 == 2]
    np.testing.assert_allclose(found[1, :SILENT_FROM], bits(1)[grads, :SILENT_FROM].min(axis=0), atol=1e-3)
    expect(page.locator(".layers-tree")).to_be_hidden()
    expect(page.locator(".worst-table th").first).to_have_text("Rank")


@pytest.mark.parametrize("page_name", ["layers", "overview"])
def test_a_phone_names_the_exact_step(tab: Tab, runs: Runs, page_name: str) -> None:
    """Of columns that hold two steps or more."""
    name, at = f"exact {page_name}", 403
    bad = np.zeros((3, 500))
    bad[1, at] = 1
    accept(runs.server, opening(catalogue(3), name), batch(catalogue(3), 0, range(500), {"inf_count": bad}, run=name))
    tab.page.set_viewport_size({"width": 390, "height": 844})
    page = tab.open(f"/runs/{number(runs.server, name)}" + ("/layers" if page_name == "layers" else ""))
    if page_name == "overview":
        page.get_by_text("The layers as a table").click()
    row = page.locator(".worst-table tbody tr").first
    expect(row).to_contain_text(f"step {at}")
    assert page.get_by_test_id("figure-layers").evaluate("(figure) => figure.cells.dx") > 1


def test_far_headroom_is_one_number_in_the_tree_and_in_the_table(tab: Tab, runs: Runs) -> None:
    """Beyond the end of the colours' scale, too."""
    known = catalogue(2, "bfloat16")
    accept(runs.server, opening(known, "far"), batch(known, 0, range(9), {"amax": np.full((2, 9), 64.0)}, run="far"))
    page = tab.open(f"/runs/{number(runs.server, 'far')}/layers?statistic=headroom_bits")
    expect(page.locator(".worst-table tbody tr").first).to_contain_text("122.0 bits")
    expect(page.locator(".module-worst").first).to_have_text("122.0 bits")


def test_layers_by_ranks_at_one_step_leads_to_that_rank_and_layer(tab: Tab, runs: Runs) -> None:
    page = tab.open(f"/runs/{runs.states}/layers?axes=tensor%2Crank")
    expect(page.get_by_role("heading", name="worst of steps 0-199")).to_be_visible()
    page.get_by_label("One step").fill("120")
    page.get_by_label("One step").press("Enter")
    page.wait_for_url("**/layers?step=120&axes=tensor%2Crank")
    expect(page.get_by_role("heading", name="step 120")).to_be_visible()
    found = drawn.bits(page, "ranks")
    assert found.shape == (2, TENSORS)
    np.testing.assert_allclose(found[1], bits(1)[:, 120], atol=1e-3)
    x, y, *_ = drawn.place(page, "ranks", INF_AT[0], 0)
    page.mouse.click(x, y)
    page.wait_for_url(f"**/step?step=120&rank=0&tensor={INF_AT[0]}")


def test_another_statistic_is_drawn_on_its_own_scale(tab: Tab, runs: Runs) -> None:
    page = tab.open(f"/runs/{runs.states}/layers?rank=1")
    page.get_by_label("Statistic").select_option("amax")
    page.wait_for_url("**/layers?rank=1&statistic=amax")
    expect(page.get_by_role("heading", name="Largest magnitude by layer, rank 1")).to_be_visible()
    page.wait_for_function("() => document.querySelector('.layers-main .plot').cells?.low === -24")
    found = drawn.bits(page, "layers")
    np.testing.assert_allclose(found[:, :SILENT_FROM], np.log2(amax(1)[:, :SILENT_FROM]), atol=1e-3)
    expect(page.get_by_role("note", name="Legend: largest magnitude")).to_be_visible()
    expect(page.get_by_role("note", name="Legend: headroom")).to_be_hidden()
    first = page.locator(".worst-table tbody tr").first
    expect(first).to_contain_text("blocks.0.ff output")
    expect(first).to_contain_text(f"{LIMIT / 2 ** bits(1)[0, 0]:.2e}".replace("e+0", "e"))


@pytest.mark.slow
def test_the_tree_closes_modules_by_pointer_and_by_keys(tab: Tab, runs: Runs) -> None:
    page = tab.open(f"/runs/{runs.states}/layers")
    root = page.get_by_role("treeitem").first
    expect(root).to_have_attribute("aria-expanded", "true")
    expect(root.locator(".module-worst")).to_have_text(f"{INF_AT[1]}, first")
    expect(page.get_by_role("treeitem")).to_have_count(1 + TENSORS)
    root.click()
    page.wait_for_url("**/layers?closed=blocks")
    wait_for_rows(page, 1)
    assert page.evaluate(LABELS) == ["blocks.*"]
    expect(page.get_by_role("treeitem")).to_have_count(1)
    expect(root).to_be_focused()
    root.press("ArrowRight")
    page.wait_for_url("**/layers")
    wait_for_rows(page, TENSORS)
    expect(page.get_by_role("treeitem").first).to_be_focused()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    expect(page.get_by_role("treeitem").nth(2)).to_be_focused()
    page.keyboard.press("Enter")  # the only tensor of a module
    page.wait_for_url("**/layers?tensor=1")
    page.get_by_role("button", name="Close all").click()
    page.wait_for_url("**/layers?tensor=1&closed=*")


@pytest.mark.slow
def test_rows_can_stand_worst_first(tab: Tab, runs: Runs) -> None:
    page = tab.open(f"/runs/{runs.states}/layers?rank=0&sort=worst")
    labels = page.evaluate(LABELS)
    assert labels[:2] == ["blocks.3.ff output", "blocks.4.ff grad_output"]
    assert labels[2] == "blocks.0.ff output"  # it was saturated


@pytest.mark.slow
def test_an_expression_narrows_a_bad_one_is_explained_and_nothing_that_matches_is_said(tab: Tab, runs: Runs) -> None:
    tab.expected.append("422")
    page = tab.open(f"/runs/{runs.states}/layers")
    field = page.get_by_label("Part of a layer's name")
    field.fill("blocks.1?.ff | in:blocks.0")
    wait_for_rows(page, 3)
    field.fill("ff kind:nope")
    expect(page.get_by_role("alert")).to_contain_text("kind 'nope' is not one of")
    expect(field).to_have_attribute("aria-invalid", "true")
    field.fill("ff kind:grad")
    wait_for_rows(page, 4)
    expect(page.get_by_role("alert")).to_be_hidden()
    tab.visit(f"/runs/{runs.states}/layers?q=no-such-layer&kind=grad")
    nothing = page.get_by_test_id("nothing-matches")
    expect(nothing).to_contain_text("the name filter “no-such-layer”, the kinds grad")
    nothing.get_by_role("button", name="Clear the name filter").click()
    page.wait_for_url("**/layers?kind=grad")
    wait_for_rows(page, 4)
    expect(nothing).to_be_hidden()


@pytest.mark.slow
def test_no_part_of_the_page_is_wider_than_the_window(tab: Tab, runs: Runs) -> None:
    for width in (390, 1280, 1920):
        tab.page.set_viewport_size({"width": width, "height": 900})
        for query in ("", "?tensor=3", "?axes=tensor%2Crank", "?statistic=zero_fraction&closed=blocks.3"):
            page = tab.open(f"/runs/{runs.states}/layers{query}")
            assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth"), (width, query)


@pytest.mark.slow
@pytest.mark.parametrize("query", ["", "?tensor=5", "?axes=step%2Crank", "?axes=tensor%2Crank&step=3"])
def test_the_picture_is_asked_for_once(tab: Tab, runs: Runs, query: str) -> None:
    """What stands beside it has its place from the first, or another width would ask for other columns; and what was
    fetched before the page listened is not fetched again.
    """
    wait_for_quiet(runs.server)
    asked: list[str] = []
    tab.page.on("request", lambda request: asked.append(request.url))
    page = tab.open(f"/runs/{runs.states}/layers{query}")
    page.evaluate("() => new Promise((done) => setTimeout(done, 310))")  # a width counts as settled after 300 ms
    pictures = re.findall(r"(?:/figures/|figure=)(layers|timeline|ranks)\?", unquote(" ".join(asked)))
    assert len(pictures) == 1, asked


@pytest.mark.slow
def test_a_layer_chosen_low_on_the_page_opens_in_view(tab: Tab, runs: Runs) -> None:
    page = tab.open(f"/runs/{runs.states}/layers")
    page.set_viewport_size({"width": 1440, "height": 700})
    link = page.locator(".worst-table tbody tr").last.get_by_role("link")
    link.scroll_into_view_if_needed()
    link.click()
    panel = page.get_by_role("complementary", name="The chosen layer")
    expect(panel.get_by_role("heading", level=2).first).to_be_in_viewport()
    expect(panel.get_by_test_id("figure-tensor")).to_be_in_viewport()


@pytest.mark.slow
def test_the_page_keeps_its_height_while_a_filter_finds_nothing(tab: Tab, runs: Runs) -> None:
    page = tab.open(f"/runs/{runs.states}/layers")
    page.wait_for_function("() => document.querySelector('.layers-main .plot')?.dataset.ready")
    before = page.locator(".layers-main").bounding_box()
    page.get_by_label("Part of a layer's name").fill("no.such")
    expect(page.get_by_test_id("nothing-matches")).to_be_visible()
    after = page.locator(".layers-main").bounding_box()
    assert before and after
    assert after["height"] >= before["height"] - 40
    page.get_by_label("Part of a layer's name").fill("ff")
    expect(page.get_by_test_id("nothing-matches")).to_be_hidden()
