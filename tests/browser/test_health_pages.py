"""Collectives, Hang, GPUs, one GPU, Environment, phases: what was sent is what is read, and unknown is unknown."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import numpy as np
import pytest
from playwright.sync_api import Page, expect

from rangewatch.wire.records import Event, Samples
from tests.browser import axe, drawn, hand_made_health
from tests.browser.conftest import Tab
from tests.browser.hand_made import Runs, accept, number
from tests.browser.hand_made_health import KNOWN, LATE, MARK, RANKS, SECOND, STEPS, collectives, with_samples
from tests.server.process import Server
from tests.server.records import batch, opening

SIDEWAYS = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
PIXEL = """(picture, [x, y]) => {
  const canvas = picture.querySelector("canvas");
  const ratio = canvas.width / canvas.clientWidth;
  return [...canvas.getContext("2d").getImageData(Math.round(x * ratio), Math.round(y * ratio), 1, 1).data];
}"""
FLEET_RANKS, FLEET_CARDS = 32, 8


def visit(tab: Tab, path: str) -> Page:
    """As a link does, until the page's first words are there; cards alone are neither figure nor table."""
    tab.page.goto(tab.address + path)
    expect(tab.page.get_by_role("heading", level=1)).to_be_visible()
    tab.page.locator(".verdict p:visible, .state-panel:visible").first.wait_for()
    return tab.page


def test_collectives_say_who_is_waited_for(tab: Tab, runs: Runs) -> None:
    page = visit(tab, f"/runs/{runs.health}/collectives")
    expect(page.get_by_test_id("verdict")).to_contain_text(f"rank {LATE}")
    expect(page.get_by_test_id("verdict")).to_contain_text("30 ms")
    expect(page.locator(".card", has_text="Where")).to_contain_text("data loader")
    first = page.get_by_test_id("ranks-table").locator("tbody tr").first
    expect(first).to_contain_text(re.compile(rf"rank {LATE}\s*100 %\s*(29\.\d|30|30\.\d) ms"))
    table = page.get_by_test_id("collectives-table")
    expect(table.locator("tbody tr", has_text="all_reduce").first).to_contain_text("default_pg")
    expect(table.locator("tbody tr", has_text="broadcast").first).to_contain_text(MARK)
    expect(table.locator("tbody tr", has_text="broadcast").first.locator("td").last).to_have_text("n/a")
    expect(page.locator(".figure-notes", has_text="Left out")).to_contain_text("broadcast (3)")
    expect(page.get_by_test_id("sources")).to_contain_text("Rank 3: hidden under CUDA graphs")
    head = table.get_by_role("columnheader", name="Wait p50")
    head.get_by_role("button").click()
    expect(head).to_have_attribute("aria-sort", "descending")
    waits = table.locator("tbody tr td:nth-child(11)").all_inner_texts()
    assert waits[0] == "30 ms" and waits[-1] == "n/a"
    head.get_by_role("button").click()
    expect(head).to_have_attribute("aria-sort", "ascending")
    expect(table.locator("tbody tr").last).to_contain_text("n/a")


def test_the_heatmap_is_hot_where_a_rank_costs_and_leads_to_the_step(tab: Tab, runs: Runs) -> None:
    tab.expected.append("willReadFrequently")  # the pixels below are read by this test
    page = visit(tab, f"/runs/{runs.health}/collectives")
    picture = page.get_by_test_id("picture-cost")
    picture.focus()
    page.keyboard.press("ArrowLeft")
    for _ in range(LATE):
        page.keyboard.press("ArrowDown")
    lane = page.locator(".lane", has=picture)
    expect(lane.locator("output")).to_have_text(
        re.compile(
            rf"rank {LATE}, step {STEPS - 1}: cost each of the others (30|29\.\d|30\.\d) ms, waited \d+ us itself"
        )
    )
    box = picture.locator(".picture-mark").bounding_box()
    at = picture.bounding_box()
    assert box is not None and at is not None
    hot = picture.evaluate(PIXEL, [box["x"] - at["x"] + box["width"] / 2, box["y"] - at["y"] + box["height"] / 2])
    calm = picture.evaluate(PIXEL, [box["x"] - at["x"] + box["width"] / 2, box["y"] - at["y"] - box["height"] / 2])
    assert hot[0] > hot[2] + 60, "hot is red"
    assert calm[2] > calm[0], "calm is blue"
    page.mouse.click(box["x"] - 200, box["y"] + box["height"] / 2)
    page.wait_for_url(re.compile(r"collectives\?step=\d+$"))
    step = int(page.url.rsplit("=", 1)[1])
    expect(page.get_by_label("Step", exact=True)).to_have_value(str(step))
    page.get_by_role("button", name="Previous step").click()
    page.wait_for_url(f"**/collectives?step={step - 1}")
    expect(page.locator(".lane-note", has_text=f"step {step - 1},")).to_be_visible()
    page.get_by_role("button", name="Newest step").click()
    page.wait_for_url(f"**/runs/{runs.health}/collectives")


@pytest.mark.slow
def test_the_timeline_tells_waiting_from_communicating(tab: Tab, runs: Runs) -> None:
    page = visit(tab, f"/runs/{runs.health}/collectives?step=1")
    picture = page.get_by_test_id("picture-step-collectives")
    lane = page.locator(".lane", has=picture)
    picture.focus()
    page.keyboard.press("ArrowRight")
    expect(lane.locator("output")).to_contain_text(
        re.compile(r"rank 0: all_reduce 4 of default_pg \(1 MiB float32\), 31(\.\d)? ms, of that 30(\.\d)? ms waiting")
    )
    page.keyboard.press("ArrowRight")
    expect(lane.locator("output")).to_contain_text("all_reduce 5 of default_pg (2 MiB float32), duration not known")
    page.keyboard.press("ArrowDown")
    expect(lane.locator("output")).to_contain_text("rank 1:")


@pytest.mark.slow
def test_hang_is_marked_only_while_there_is_one(tab: Tab, runs: Runs) -> None:
    page = visit(tab, f"/runs/{runs.states}")
    expect(page.locator("#nav a[data-page=collectives]")).to_be_visible()
    expect(page.locator("#nav a[data-page=hang]")).to_be_visible()
    expect(page.locator("#nav a[data-page=hang][data-alarm]")).to_have_count(0)
    page = visit(tab, f"/runs/{runs.hung}")
    expect(page.get_by_test_id("hang-note")).to_contain_text("Rank 2 has not joined all_reduce")
    page.locator("#nav a[data-page=hang][data-alarm]").click()
    page.wait_for_url("**/hang")
    expect(page.get_by_test_id("verdict")).to_contain_text("Rank 2 is at train.py:71 in load_checkpoint.")
    expect(page.get_by_test_id("hang-note")).to_be_hidden()
    page = visit(tab, f"/runs/{runs.states}/hang")
    expect(page.get_by_test_id("empty-state")).to_contain_text("Nothing hangs")


def test_a_hang_shows_who_is_missing_and_where_each_rank_stands(new_tab: Callable[..., Tab], runs: Runs) -> None:
    page = visit(new_tab(runs.server.url, permissions=["clipboard-read", "clipboard-write"]), f"/runs/{runs.hung}/hang")
    rows = page.get_by_test_id("hang-group").locator("tbody tr")
    expect(rows.nth(0)).to_have_text(re.compile(r"rank 2\s*40\s*40\s*✕ missing"))
    expect(rows.nth(1)).to_have_text(re.compile(r"ranks 0, 1 and 3\s*41\s*40\s*has joined"))
    stacks = page.get_by_test_id("stack")
    expect(stacks).to_have_count(RANKS)
    expect(stacks.first).to_contain_text("rank 2 missing, at step 10")
    expect(stacks.first).to_contain_text("At /home/user/train.py:71 in load_checkpoint")
    expect(stacks.first.locator("pre").first).to_contain_text(f"# rank 2 {MARK}")
    stacks.first.get_by_role("button", name="Copy the stacks").click()
    expect(stacks.first.get_by_role("button")).to_have_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()").endswith(f"# rank 2 {MARK}\n")
    stacks.nth(3).locator("summary").first.focus()
    page.keyboard.press("Enter")
    expect(stacks.nth(3).locator("pre").first).to_contain_text("# rank 3")


@pytest.mark.slow
def test_a_rank_that_has_gone_silent_is_named_though_no_collective_is_known(tab: Tab, runs: Runs) -> None:
    known = opening(KNOWN, "cut", 0, world_size=2), opening(KNOWN, "cut", 1, world_size=2)
    said = {"step": 10, "stalled_s": 12.5, "is_waiting": False, "rung": "step_level", "groups": [], "line": None}
    hung = (Event("hang", time.time_ns() - 60 * SECOND, 10, "no step", said),)
    for rank, message in enumerate(known):
        events = hung if rank == 0 else ()
        accept(runs.server, message, batch(KNOWN, 0, range(11), run="cut", rank=rank, events=events))
    page = visit(tab, f"/runs/{number(runs.server, 'cut')}/hang")
    rows = page.get_by_test_id("hang-ranks").locator("tbody tr")
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text(re.compile("ranks 0 and 1.*n/a"))


@pytest.mark.slow
def test_ranks_that_call_different_things_are_told_apart(tab: Tab, runs: Runs) -> None:
    page = visit(tab, f"/runs/{runs.mismatch}/hang")
    expect(page.get_by_test_id("verdict")).to_contain_text("Ranks do not call the same")
    rows = page.get_by_test_id("hang-mismatch").locator("tbody tr")
    expect(rows.nth(0)).to_contain_text(re.compile(r"ranks 0, 2 and 3\s*all_reduce\s*1 MiB"))
    expect(rows.nth(1)).to_contain_text(re.compile(r"rank 1\s*all_reduce\s*4 KiB\s*float32\s*/home/user/train.py:98"))
    expect(page.get_by_test_id("hang-group").locator("tbody tr").first).to_contain_text("calls something else")


def test_cards_stand_worst_first_by_host(tab: Tab, runs: Runs) -> None:
    page = visit(tab, f"/runs/{runs.health}/gpus")
    expect(page.get_by_test_id("verdict")).to_contain_text("2 of 4 GPUs need attention: rank 2,")
    hosts = page.get_by_test_id("host-group")
    expect(hosts.nth(0)).to_contain_text("node1")
    expect(hosts.nth(1)).to_contain_text(re.compile("network 200 MB/s in, n/a out"))
    tiles = page.get_by_test_id("gpu-tile")
    states = [tile.get_attribute("data-state") for tile in tiles.all()]
    assert states[:3] == ["gone", "alarm", "slowed"] and states[3] in ("ok", "stale")
    expect(tiles.nth(0)).to_contain_text(re.compile(r"busy n/a.*power n/a.*chip n/a"))
    expect(tiles.nth(2)).to_contain_text(re.compile(r"HW thermal slowdown.*chip 88 °C"))
    bars = "(tile) => [...tile.querySelectorAll('.gpu-bar')].map((bar) => bar.firstChild?.style.width ?? null)"
    assert tiles.nth(0).evaluate(bars) == [None] * 4, "what is not known has no bar"
    assert tiles.nth(2).evaluate(bars)[2:] == ["99%", "76%"], "88 of 89 °C, 61 of 80 GiB"
    tiles.nth(2).get_by_role("link").focus()
    page.keyboard.press("Enter")
    page.wait_for_url("**/gpu?rank=1&key=GPU-1")
    expect(page.locator("#nav a[aria-current=page]")).to_have_text("GPUs")


def values(page: Page, figure: str, trace: int) -> np.ndarray:
    """What Plotly holds of a line."""
    read = "(figure, trace) => Array.from(figure.data[trace].y, (value) => value ?? NaN)"
    return np.array(page.locator(drawn.selector(figure)).evaluate(read, trace), float)


def test_a_card_over_the_steps(tab: Tab, runs: Runs) -> None:
    page = tab.open(f"/runs/{runs.health}/gpu?rank=1")
    page.wait_for_url("**/gpu?rank=1&key=GPU-1")
    expect(page.get_by_test_id("verdict")).to_contain_text("throttled: HW thermal slowdown")
    tab.drawn()
    clocks = values(page, "gpu-clocks", 3)  # traces lie in reverse: the limits first, then memory, then SM
    assert (clocks[:80].max(), clocks.min()) == (1980, 1230)
    assert (values(page, "gpu-clocks", 1) == 1980).all(), "the SM maximum"
    assert np.isnan(values(page, "gpu-temperature", 1)).all(), "a memory temperature that is not supported is no line"
    labels = page.locator("[data-testid=figure-gpu-throttle] .ytick text").all_text_contents()
    assert labels == ["sw power cap", "hw thermal slowdown"]
    page.get_by_test_id("figure-gpu-power").focus()
    page.keyboard.press("ArrowLeft")
    readout = page.locator(".lane", has=page.get_by_test_id("figure-gpu-temperature")).locator(".lane-readout")
    expect(readout).to_contain_text("chip 88 °C, memory n/a, slows down at 89 °C")
    expect(page.get_by_test_id("figure-step_time")).to_be_visible()
    expect(page.get_by_test_id("figure-timeline")).to_be_visible()
    page.get_by_test_id("gpu-values").locator("summary").click()
    expect(page.locator(".value-list > div", has_text="Recovery action")).to_contain_text("n/a")
    expect(page.locator(".value-list > div", has_text="Throttle reasons")).to_contain_text("hw thermal slowdown")


@pytest.mark.slow
def test_the_shown_steps_are_asked_for_more_finely(tab: Tab, runs: Runs) -> None:
    page = tab.open(f"/runs/{runs.health}/gpu?rank=1&key=GPU-1&start=40&stop=45")
    assert len(values(page, "gpu-power", 1)) == 10, "two samples a step"
    page.get_by_role("button", name="Show all steps").click()
    page.wait_for_function("() => document.querySelector('[data-testid=figure-gpu-power]').data[1].y.length === 120")


@pytest.mark.slow
def test_events_of_a_card_are_marked_and_listed(tab: Tab, runs: Runs) -> None:
    page = tab.open(f"/runs/{runs.health}/gpu?rank=3")
    table = page.get_by_test_id("gpu-events-table")
    expect(table).to_contain_text("Xid 79, fell off the bus")
    expect(table).to_contain_text(MARK)
    marks = page.locator(drawn.selector("gpu-events")).evaluate("(figure) => [figure.data[0].x, figure.data[0].y]")
    assert sorted(marks[0]) == [45, 50]


@pytest.mark.slow
def test_a_host_and_the_choice_of_card(tab: Tab, runs: Runs) -> None:
    page = tab.open(f"/runs/{runs.health}/gpu?rank=0&key=host")
    expect(page.get_by_test_id("verdict")).to_contain_text("The host node0")
    expect(page.get_by_test_id("figure-host-cpu")).to_be_visible()
    expect(page.locator(".lane", has_text="InfiniBand")).to_contain_text("n/a")
    page.get_by_label("GPU").select_option("3 GPU-3")
    page.wait_for_url("**/gpu?rank=3&key=GPU-3")
    expect(page.get_by_test_id("figure-gpu-clocks")).to_be_visible()


def test_environments_show_findings_odd_ranks_facts_and_links(tab: Tab, runs: Runs) -> None:
    page = visit(tab, f"/runs/{runs.health}/environment")
    expect(page.get_by_test_id("verdict")).to_contain_text("2 warnings on 4 ranks")
    expect(page.get_by_test_id("odd-ranks")).to_contain_text("Rank 3 on node1: NCCL_DEBUG is INFO")
    finding = page.get_by_test_id("findings").locator("li")
    expect(finding).to_have_count(1)
    expect(finding).to_contain_text(f"Neither torch nor NCCL reads it. {MARK}")
    expect(finding.locator("pre")).to_have_text("unset NCCL_TIMEOUT")
    different = page.get_by_test_id("differences")
    expect(different.locator("tr", has_text="variables.NCCL_DEBUG")).to_contain_text("INFO on rank 3")
    expect(different.locator("tr", has_text="torch.nccl")).to_have_count(0)
    facts = page.get_by_test_id("details")
    facts.get_by_role("searchbox").fill("nccl torch")
    expect(facts.locator("tbody tr")).to_have_count(1)
    expect(facts.locator("tbody tr")).to_contain_text("n/a")
    facts.get_by_role("searchbox").fill("")

    expect(page.get_by_test_id("link-verdict")).to_contain_text("bad link 2-5; slow link 0-7")
    expect(page.get_by_test_id("link-problems")).to_contain_text(f"the worker died by SIGSEGV {MARK}")
    picture = page.get_by_test_id("picture-busbw")
    readout = page.locator(".lane", has=picture).locator("output")
    picture.focus()
    page.keyboard.press("ArrowLeft")
    expect(readout).to_have_text("ranks 0 and 7: 30 GB/s, slow")
    for key, words in (("ArrowDown", "ranks 1 and 7: 210 GB/s"), ("ArrowDown", "ranks 2 and 7: 210 GB/s")):
        page.keyboard.press(key)
        expect(readout).to_have_text(words)
    for _ in range(2):
        page.keyboard.press("ArrowLeft")
    expect(readout).to_contain_text("ranks 2 and 5: failed, the worker died by SIGSEGV")


@pytest.mark.slow
def test_phases_stand_on_the_overview_where_there_are_any(tab: Tab, runs: Runs) -> None:
    page = tab.open(f"/runs/{runs.health}")
    expect(page.get_by_test_id("figure-phases")).to_be_visible()
    names = page.locator(".lane", has=page.get_by_test_id("figure-phases")).locator(".legend").inner_text()
    assert names.split("\n")[:2] == ["data wait", "forward"]
    backward = values(page, "phases", 2)
    np.testing.assert_allclose(backward, 100.0)
    page = tab.open(f"/runs/{runs.states}")
    expect(page.get_by_test_id("figure-phases")).to_be_hidden()


@pytest.mark.slow
def test_pages_follow_the_run(tab: Tab, runs: Runs) -> None:
    server = runs.server
    accept(server, opening(KNOWN, "grows"), batch(KNOWN, 0, range(5), run="grows"))
    page = visit(tab, f"/runs/{number(server, 'grows')}/gpus")
    expect(page.get_by_test_id("empty-state")).to_contain_text("No GPU is recorded")
    now_ns = time.time_ns()
    found = with_samples(batch(KNOWN, 1, range(5, 8), run="grows"), hand_made_health.card(0, now_ns))
    accept(server, found)
    expect(page.get_by_test_id("gpu-tile")).to_have_count(1)
    expect(page.get_by_test_id("empty-state")).to_be_hidden()
    page.get_by_test_id("gpu-tile").get_by_role("link").focus()
    hot = Samples(
        "gpu",
        "GPU-0",
        np.array([now_ns + SECOND]),
        {"step": np.array([7.0]), "present": np.ones(1), "throttle_reasons": np.array([64.0])},
        {},
    )
    accept(server, with_samples(batch(KNOWN, 2, range(8, 9), run="grows"), hot))
    expect(page.get_by_test_id("gpu-tile")).to_have_attribute("data-state", "slowed")
    expect(page.get_by_test_id("gpu-tile").get_by_role("link")).to_be_focused()


@pytest.mark.slow
def test_no_card_is_said_with_its_reason(tab: Tab, runs: Runs) -> None:
    why = f"GPU health is not recorded: install nvidia-ml-py {MARK}"
    said = (Event("gpu", 1, 0, why, {"reason": "ImportError"}),)
    accept(runs.server, opening(KNOWN, "cardless"), batch(KNOWN, 0, range(3), run="cardless", events=said))
    page = visit(tab, f"/runs/{number(runs.server, 'cardless')}/gpus")
    expect(page.get_by_test_id("empty-state")).to_contain_text(f"rank 0: {why}")


@pytest.mark.slow
def test_a_linkcheck_of_its_own_needs_no_step(tab: Tab, runs: Runs) -> None:
    said = (Event("linkcheck", time.time_ns(), -1, "", hand_made_health.linkcheck()), Event("finished", 1, -1))
    accept(runs.server, opening(KNOWN, "links"), batch(KNOWN, 0, range(0), run="links", events=said))
    page = visit(tab, f"/runs/{number(runs.server, 'links')}/environment")
    expect(page.get_by_test_id("picture-latency")).to_be_visible()
    expect(page.get_by_test_id("link-verdict")).to_contain_text("The links are not all right")


def _fleet(server: Server) -> str:
    now_ns, last = time.time_ns(), FLEET_RANKS - 1
    for rank in range(FLEET_RANKS):
        accept(server, opening(KNOWN, "fleet", rank, world_size=FLEET_RANKS))
        cards = []
        for index in range(FLEET_CARDS):
            bad = 64.0 if (rank, index) == (last, 3) else 0.0
            columns = {
                "step": 1.0,
                "present": 1.0,
                "utilization_gpu_percent": 90.0,
                "temperature_c": 60.0,
                "throttle_reasons": bad,
            }
            about = {"name": "H100", "host": f"node{rank}", "device_index": index}
            rows = {name: np.array([value]) for name, value in columns.items()}
            cards.append(Samples("gpu", f"GPU-{rank}-{index}", np.array([now_ns]), rows, about))
        accept(server, with_samples(batch(KNOWN, 0, range(2), run="fleet", rank=rank), *cards))
    return f"/runs/{number(server, 'fleet')}/gpus"


@pytest.mark.slow
def test_a_plot_that_is_still_as_wide_as_the_page_was_does_not_widen_the_page(tab: Tab, runs: Runs) -> None:
    """On a busy machine it is drawn anew only later."""
    page = tab.open(f"/runs/{runs.health}/gpu?rank=0&key=host")
    page.set_viewport_size({"width": 390, "height": 844})
    page.evaluate("() => document.querySelectorAll('.plot > *').forEach((one) => (one.style.minWidth = '891px'))")
    assert page.evaluate(SIDEWAYS) <= 0


@pytest.mark.slow
def test_the_map_of_ranks_pins_one_for_all_pages(tab: Tab, runs: Runs) -> None:
    page = visit(tab, f"/runs/{runs.health}/collectives")
    picture = page.get_by_test_id("picture-rank-map")
    expect(picture).to_have_attribute("aria-label", re.compile(rf"rank {LATE} 30 ms stands out"))
    picture.focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator(".rank-map output")).to_have_text(re.compile(rf"rank {LATE}, .*stands out"))
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/collectives?pin={LATE}")
    name = page.locator(".rank-name", has_text=f"rank {LATE}")
    expect(name).to_have_attribute("aria-pressed", "true")
    page.locator("#nav a[data-page=gpus]").click()
    page.wait_for_url(f"**/gpus?pin={LATE}")
    page.get_by_label("Colour ranks by").select_option("clocks")
    page.wait_for_url(f"**/gpus?pin={LATE}&measure=clocks")
    expect(page.locator(".rank-name[data-odd]")).to_have_text(re.compile("rank 1 .*1230 MHz"))
    assert axe.findings(page) == []
    page.locator(".rank-name[aria-pressed=true]").click()
    page.wait_for_url("**/gpus?measure=clocks")


@pytest.mark.slow
def test_hundreds_of_cards_at_a_glance(tab: Tab, runs: Runs) -> None:
    page = visit(tab, _fleet(runs.server))
    tiles = page.get_by_test_id("gpu-tile")
    expect(tiles).to_have_count(1)
    expect(tiles.first).to_contain_text(f"rank {FLEET_RANKS - 1}")
    expect(tiles.first).to_contain_text("HW thermal slowdown")
    rest = page.get_by_test_id("gpu-rest")
    expect(rest).to_contain_text(re.compile(r"255 other GPUs \(.*; median busy 90 %, chip 60 °C\."))
    rest.get_by_role("button", name="Show all 256 GPUs").click()
    expect(tiles).to_have_count(FLEET_RANKS * FLEET_CARDS)
    assert page.evaluate("() => document.documentElement.scrollHeight") < 3_000, "about three screens"
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate(SIDEWAYS) <= 0


@pytest.mark.slow
def test_a_reading_survives_new_data(tab: Tab, runs: Runs) -> None:
    server = runs.server
    accept(server, opening(KNOWN, "read"), with_samples(batch(KNOWN, 0, range(STEPS), run="read"), collectives(0)))
    accept(
        server,
        opening(KNOWN, "read", 1),
        with_samples(batch(KNOWN, 0, range(STEPS), run="read", rank=1), collectives(1)),
    )
    page = visit(tab, f"/runs/{number(server, 'read')}/collectives")
    picture = page.get_by_test_id("picture-cost")
    picture.focus()
    page.keyboard.press("ArrowLeft")
    drawn_before = int(picture.get_attribute("data-ready") or 0)
    accept(server, batch(KNOWN, 1, range(STEPS, STEPS + 2), run="read"))
    page.wait_for_function(
        "before => Number(document.querySelector('[data-testid=picture-cost]').dataset.ready) > before",
        arg=drawn_before,
    )
    expect(page.locator(".lane", has=picture).locator("output")).to_contain_text(f"rank 0, step {STEPS - 1}")
