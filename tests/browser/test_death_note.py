"""The Overview says which rank died and how; names and stacks in it are text."""

from __future__ import annotations

from playwright.sync_api import expect

from rangewatch.wire.records import Event
from tests.browser.conftest import Tab
from tests.browser.hand_made import MARKUP, Runs, accept, number
from tests.server.records import batch, catalogue, opening

KNOWN = catalogue(3)
STACK = "Fatal Python error: Segmentation fault\n\n" + "\n".join(MARKUP)
SENTENCE = f"died of signal 11 (SIGSEGV) in step 1042, in forward, inside {MARKUP[0]}; all_reduce 957 enqueued"


def test_a_dead_rank_is_named_and_its_stack_is_text_and_where_nobody_died_nothing_is_said(tab: Tab, runs: Runs) -> None:
    server = runs.server
    data = {"signal": 11, "exit_code": None, "stack": STACK}
    for rank in range(2):
        accept(server, opening(KNOWN, run="died", rank=rank, world_size=2))
        reported = (Event("died", 1, 1042, SENTENCE, data),) if rank else ()
        accept(server, batch(KNOWN, 0, [0, 1], run="died", rank=rank, events=reported))
    run = number(server, "died")
    page = tab.page
    page.goto(f"{tab.address}/runs/{run}")
    note = page.get_by_test_id("death-note")
    expect(note).to_contain_text(f"Rank 1 {SENTENCE}.")
    stack = note.locator("pre")
    expect(stack).not_to_be_visible()
    note.get_by_text("Python's stacks of rank 1").click()
    expect(stack).to_be_visible()
    assert stack.inner_text() == STACK
    assert page.locator("main img, main script, main b, [onerror]").count() == 0
    for width in (390, 1280):
        page.set_viewport_size({"width": width, "height": 900})
        # Figures follow the width a moment later.
        page.wait_for_function("() => document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    tab.visit(f"/runs/{runs.states}")
    expect(page.get_by_test_id("verdict")).to_contain_text("NaN or Inf.")
    expect(note).not_to_be_visible()
