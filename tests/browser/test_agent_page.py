"""The Agent page: what Rangewatch's own part costs, leaves out and fails at, on few ranks and on many."""

from __future__ import annotations

import re
import time

import msgspec
import numpy as np
import pytest
from playwright.sync_api import expect

from rangewatch.wire.records import Batch, Event, RankInfo, SeriesRows, StreamHeader
from tests.browser.conftest import Tab
from tests.browser.hand_made import LONG, MARKUP, Runs, accept, number
from tests.server.process import Server
from tests.server.records import batch, catalogue

KNOWN = catalogue(3)
STEPS = range(40)
MEASURED = np.array([0, 17, 34], np.int64)
COST_S = (0.004, 0.002, 0.003)
RANKS = 64


def said(kind: str, data: dict[str, object], message: str = "") -> Event:
    return Event(kind, time.time_ns(), 39, message, data)


def attach(server: Server, run: str, rank: int, events: tuple[Event, ...], *, world_size: int, costs: bool) -> None:
    info = RankInfo(run, rank, world_size, rank % 8, f"node{rank // 8}", "a", time.time_ns(), device="cuda:0")
    sent: Batch = batch(KNOWN, 0, STEPS, run=run, rank=rank, series={"step_time_s": 0.1}, events=events)
    if costs:
        cost = SeriesRows("agent_time_s", MEASURED, np.array(COST_S))
        sent = msgspec.structs.replace(sent, series=(*sent.series, cost))
    accept(server, StreamHeader(info, KNOWN), sent)


@pytest.fixture(scope="module")
def troubled(runs: Runs) -> int:
    """64 ranks: one failed, four dropped, one records less, all miss a module, and the rest are well."""
    for rank in range(RANKS):
        events = [said("not_observed", {"lm_head": "output: sparse tensor"})]
        if rank == 41:
            events.append(said("fault", {"output of blocks.3": 2}))
        if rank in (3, 4, 5, 20):
            events.append(said("dropped", {"queue_full": 10 + rank}))
        if rank == 7:
            events.append(said("level", {"kinds": ["output"], "was": ["grad"]}, "outputs only: 3 % of the step"))
        attach(runs.server, "troubled", rank, tuple(events), world_size=RANKS, costs=rank == 0)
    return number(runs.server, "troubled")


@pytest.mark.slow
def test_the_worst_agents_come_first_equal_ones_are_one_row_and_their_cost_is_a_lane(
    tab: Tab, runs: Runs, troubled: int
) -> None:
    page = tab.open(f"/runs/{troubled}/agent")
    rows = page.get_by_test_id("agent-groups").locator("tbody tr")
    expect(rows).to_have_count(4)
    expect(rows.nth(0)).to_contain_text(re.compile(r"rank 41.*output of blocks\.3", re.S))
    expect(rows.nth(1)).to_contain_text(re.compile(r"ranks 3-5 and 20.*72: queue_full", re.S))
    expect(rows.nth(2)).to_contain_text(re.compile(r"rank 7.*outputs only", re.S))
    expect(rows.nth(3)).to_contain_text(re.compile(r"58 ranks: .*8 hosts.*everything", re.S))
    verdict = page.get_by_test_id("verdict")
    expect(verdict).to_contain_text("The agent failed in 1 place: output of blocks.3 on rank 41.")
    expect(verdict).to_contain_text("Dropped: 72 records, most for queue_full.")
    dropped = page.get_by_test_id("agent-dropped").locator("tbody tr")
    expect(dropped).to_have_count(1)
    expect(dropped).to_contain_text(re.compile(r"72.*rank 20: 30.*queue in memory was full", re.S))
    hidden = page.get_by_test_id("agent-not-observed").locator("tbody tr")
    expect(hidden).to_contain_text(re.compile(r"lm_head.*output: sparse tensor.*64 ranks: 0-63", re.S))

    card = page.locator(".card", has_text="Agent overhead per step")
    expect(card).to_contain_text("3 ms")
    expect(card).to_contain_text("3 % of the step, median of 3 measured steps")
    drawn = "(figure) => figure.data.flatMap(({ x, y }) => Array.from(x, (at, i) => [at, y[i]]))"
    points = page.get_by_test_id("figure-agent_cost").evaluate(drawn)
    np.testing.assert_allclose(sorted(points), [[0, 4], [17, 2], [34, 3]])
    page.get_by_role("button", name="Fewer steps").click()
    page.wait_for_url(re.compile(r"/agent\?last=20$"))
    page.wait_for_function("() => document.querySelector('.plot').layout.xaxis.range[0] === 19.5")
    page.get_by_test_id("figure-agent_cost").focus()
    page.keyboard.press("ArrowLeft")
    expect(page.locator(".lane-readout")).to_have_text("step 39 · host 3 ms")


@pytest.mark.slow
def test_an_agent_with_nothing_to_say_is_one_line(tab: Tab, runs: Runs) -> None:
    attach(runs.server, "quiet", 0, (), world_size=1, costs=False)
    page = tab.open(f"/runs/{number(runs.server, 'quiet')}/agent")
    expect(page.get_by_test_id("verdict")).to_contain_text("Nothing was dropped, and no agent failed.")
    more = page.locator(".agent-more")
    expect(more).not_to_have_attribute("open", "")
    expect(page.get_by_test_id("agent-groups")).not_to_be_visible()
    more.locator("> summary").click()
    expect(page.get_by_test_id("agent-groups").locator("tbody tr")).to_have_count(1)
    for name in ("agent-dropped", "agent-faults", "agent-not-observed", "agent-not-fused"):
        expect(page.get_by_test_id(name)).not_to_be_visible()
    expect(page.get_by_test_id("no-cost")).to_contain_text("have not reported what they cost")
    expect(page.locator(".range-bar")).to_have_count(0)
    tab.visit(f"/runs/{runs.empty}/agent")
    page.locator(".agent-more > summary").click()
    expect(page.get_by_test_id("no-cost")).to_contain_text("No step has arrived")


@pytest.mark.slow
def test_names_on_the_agent_page_stay_text(tab: Tab, runs: Runs) -> None:
    page = tab.open(f"/runs/{runs.hostile}/agent")
    expect(page.get_by_test_id("agent-not-observed")).to_contain_text(MARKUP[0])
    expect(page.get_by_test_id("agent-dropped")).to_contain_text(MARKUP[4])
    expect(page.get_by_test_id("agent-faults")).to_contain_text(MARKUP[3])
    assert page.locator("main img, main script, main b, main u, main a[href^=javascript]").count() == 0
    assert LONG not in page.locator("main").inner_text()
