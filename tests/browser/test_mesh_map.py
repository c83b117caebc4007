"""The map of ranks by any two axes of the mesh, and rows by rank that fold: chosen on the page, kept in the address."""

from __future__ import annotations

import re
import time

import numpy as np
import pytest
from playwright.sync_api import expect

from rangewatch.wire import events
from rangewatch.wire.events import Placement, Placements
from rangewatch.wire.records import RankInfo, StreamHeader
from tests.browser import axe
from tests.browser.conftest import Tab
from tests.browser.hand_made import Runs, accept, number
from tests.server.process import Server
from tests.server.records import batch, catalogue
from tests.server.rules.test_axis_replicas import mesh

KNOWN = catalogue(2)
SMALL, LARGE = {"pp": 2, "dp": 4, "tp": 2}, {"pp": 16, "dp": 8, "tp": 8}
A_NODE, STEPS, LOW = 8, 8, 13
SCREENS = "() => document.documentElement.scrollHeight / innerHeight"


def send(server: Server, name: str, sizes: dict[str, int]) -> str:
    """A run of which rank 13 has the least headroom, and its address."""
    count = int(np.prod(list(sizes.values())))
    for rank in range(count):
        info = RankInfo(name, rank, count, rank % A_NODE, f"node{rank // A_NODE}", "a", time.time_ns())
        amax = {"amax": np.full((2, STEPS), 40_000.0 if rank == LOW else 1.0)}
        placed = (events.event(mesh(sizes, rank), 1, 0),)
        sent = batch(KNOWN, 0, range(STEPS), amax, run=name, rank=rank, series={"step_time_s": 0.2}, events=placed)
        accept(server, StreamHeader(info, KNOWN), sent)
    return f"/runs/{number(server, name)}"


def test_when_parameters_were_compared_is_read_once_it_is_opened(tab: Tab, runs: Runs) -> None:
    """The norm has had no turn, and nobody says how the head lies."""
    name, groups = "compared", (Placement({"dp": "replicate"}, ("dp",)), Placement({}))
    placements = Placements(groups, {"norm.weight": 0, "head.weight": 1}, 2)
    for rank in range(2):
        info = RankInfo(name, rank, 2, rank, "node0", "a", time.time_ns())
        said = tuple(events.event(each, 1, 0) for each in (mesh({"dp": 2}, rank), placements))
        sent = batch(KNOWN, 0, range(STEPS), run=name, rank=rank, events=said)
        accept(runs.server, StreamHeader(info, KNOWN), sent)
    page = tab.open(f"/runs/{number(runs.server, name)}")
    compared = page.get_by_test_id("compared")
    compared.locator("summary").click()
    expect(compared.locator("p").first).to_have_text(
        "0 of 2 parameters compared between ranks; 1 not compared in the last 4,096 steps, 1 of which it is unknown "
        "how they lie."
    )
    expect(page.get_by_test_id("compared-table").locator("tbody tr").first).to_contain_text(
        "not compared in the last 4,096 steps"
    )


@pytest.mark.slow
def test_two_axes_are_rows_and_columns_and_a_cell_is_the_worst_of_its_ranks(tab: Tab, runs: Runs) -> None:
    path = send(runs.server, "on a mesh", SMALL)
    page = tab.open(f"{path}?measure=headroom")
    picture = page.get_by_test_id("picture-rank-map")
    expect(page.locator(".rank-name[data-odd]")).to_have_text(
        re.compile(r"rank 13 \(node1, pp 1, dp 2, tp 1\): 0\.7 bits")
    )
    page.get_by_label("Rows", exact=True).select_option("dp")
    page.wait_for_url(f"**{path}?measure=headroom&rows=dp")
    page.get_by_label("Columns", exact=True).select_option("tp")
    page.wait_for_url(f"**{path}?measure=headroom&rows=dp&columns=tp")
    expect(page.locator(".rank-map")).to_contain_text("each cell the worst of its ranks")
    picture.focus()
    page.keyboard.press("ArrowRight")
    read = page.locator(".rank-map output")
    expect(read).to_have_text(re.compile(r"worst of 2 ranks: rank 13, node1, pp 1, dp 2, tp 1: .*stands out"))
    page.keyboard.press("Enter")
    page.wait_for_url("**pin=13&**")
    page.get_by_label("Fold ranks by").select_option("dp")
    page.wait_for_url("**fold=dp**")
    tab.drawn()
    lane = page.get_by_test_id("figure-timeline")
    expect(lane).to_have_attribute("aria-label", re.compile(r"dp 2 \(worst of 4\): saturated"))
    assert axe.findings(page) == []


@pytest.mark.slow
def test_a_thousand_ranks_are_one_small_picture(tab: Tab, runs: Runs) -> None:
    path = send(runs.server, "a large mesh", LARGE)
    page = tab.open(f"{path}?measure=headroom&rows=pp&columns=tp&fold=pp")
    picture = page.get_by_test_id("picture-rank-map")
    expect(picture).to_have_attribute("aria-label", re.compile(r"rank 13 0\.7 bits stands out; 1,023 others"))
    lane = page.get_by_test_id("figure-timeline")
    expect(lane).to_have_attribute("aria-label", re.compile(r"pp 0 \(worst of 64\): saturated"))
    box = picture.bounding_box()
    assert box is not None and box["height"] < 120
    assert page.evaluate(SCREENS) <= 3


def test_an_axis_that_the_run_has_not_is_passed_over(tab: Tab, runs: Runs) -> None:
    page = tab.open(f"/runs/{runs.health}?rows=ep&columns=%3Cb%3E&fold=ep")
    expect(page.get_by_test_id("picture-rank-map")).to_be_visible()
    expect(page.get_by_label("Fold ranks by")).to_be_hidden()
