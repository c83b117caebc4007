"""The What if page: the formats, the tensors in each, and what to keep."""

from __future__ import annotations

from functools import partial

from playwright.sync_api import expect

from tests.browser.conftest import Tab
from tests.browser.hand_made import Runs, accept, number
from tests.server.whatif_batches import Lost, send


def made(runs: Runs, name: str, lost: Lost, **options: tuple[int, ...]) -> int:
    send(partial(accept, runs.server), lost, run=name, **options)
    return number(runs.server, name)


def test_formats_and_what_to_keep(runs: Runs, tab: Tab) -> None:
    run = made(runs, "what if", {(0, "mxfp4"): {"flushed_count": 300, "error_sq": 100.0}})
    page = tab.open(f"/runs/{run}/whatif")
    expect(page.get_by_test_id("verdict")).to_contain_text("All 3 tensors survive in 13 of 14 formats")
    expect(page.get_by_test_id("verdict")).to_contain_text("Not all survive in MXFP4 (2 do)")
    expect(page.get_by_test_id("verdict")).to_contain_text("15 dB")
    row = page.get_by_test_id("whatif-formats").get_by_role("row", name="MXFP4")
    expect(row).to_contain_text("2 of 3")
    row.get_by_role("button").click()
    expect(page.get_by_test_id("whatif-keep")).to_contain_text("Keep 1 module out of MXFP4")
    expect(page.get_by_test_id("whatif-keep")).to_contain_text("'blocks.0.up'")
    lost = page.get_by_test_id("whatif-tensors").locator(".survives-not")
    expect(lost).to_have_text("✕ 10.0 dB")
    page.get_by_role("link", name="blocks.0.up output").click()
    page.wait_for_url("**/tensor?*")


def test_nothing_was_read(runs: Runs, tab: Tab) -> None:
    run = made(runs, "what if nothing", {}, read=())
    page = tab.open(f"/runs/{run}/whatif")
    expect(page.get_by_test_id("empty-state")).to_contain_text(f"rangewatch whatif {run} --read")
    expect(page.locator(".range-bar")).to_be_hidden()
    tab.visit(f"/runs/{run}/whatif?stop=1")
    expect(page.locator(".range-bar")).to_be_visible()  # other steps may have been read
