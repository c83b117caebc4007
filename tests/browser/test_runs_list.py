"""The list of runs: searched, sorted, archived; what is said of a run is set in its page. Names and tags are text."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
from playwright.sync_api import Page, expect

from rangewatch import statistics
from rangewatch.wire.records import Catalogue, TensorEntry
from tests.browser.conftest import Tab
from tests.browser.hand_made import MARKUP, Runs, accept, number
from tests.server.process import Server
from tests.server.records import batch, opening

KNOWN = Catalogue(statistics.ALL, (TensorEntry("a", "output", 0, "float16", (4, 8), 0, "Linear"),))
NAMES = ["zeta", "Alpha", "beta"]


@pytest.fixture
def listed(new_tab: Callable[..., Tab], emptied: Server) -> tuple[Tab, Server]:
    for name in NAMES:
        accept(emptied, opening(KNOWN, run=name))
        accept(emptied, batch(KNOWN, 0, range(40), {"amax": np.linspace(1, 9, 40)}, run=name))
    return new_tab(emptied.url), emptied


def names(page: Page) -> list[str]:
    return page.locator("[data-testid=run-row] .run-name").all_inner_texts()


def say(server: Server, name: str, **about: object) -> None:
    server.client.patch(f"/api/v1/runs/{number(server, name)}", json=about).raise_for_status()


def test_runs_are_searched_and_sorted_and_the_address_says_how(listed: tuple[Tab, Server]) -> None:
    tab, server = listed
    say(server, "zeta", tags=["bf16", MARKUP[0]], title="The long one")
    page = tab.open("/")
    expect(page.get_by_test_id("runs-table")).to_be_visible()
    assert names(page) == ["beta", "Alpha", "The long one"]
    expect(page.get_by_role("status").filter(has_text="3 runs")).to_be_visible()
    page.get_by_label("Order").select_option("name")
    page.wait_for_url("**/?sort=name")
    expect(page.locator("[data-testid=run-row] .run-name").first).to_have_text("Alpha")
    page.get_by_label("Search").fill("BF1")
    page.wait_for_url("**/?q=BF1&sort=name")
    expect(page.get_by_test_id("run-row")).to_have_count(1)
    assert names(page) == ["The long one"]
    assert page.locator("main img, main script, main b, [onerror]").count() == 0
    expect(page.get_by_label("Search")).to_be_focused()
    page.go_back()
    expect(page.get_by_test_id("run-row")).to_have_count(3)
    page.get_by_role("link", name="bf16").click()
    page.wait_for_url("**/?q=bf16")
    expect(page.get_by_test_id("run-row")).to_have_count(1)
    page.get_by_label("Search").fill("no such run")
    expect(page.get_by_test_id("empty-state")).to_contain_text('has "no such run" in its name, title or tags')
    page.get_by_role("link", name="Show all runs").click()
    expect(page.get_by_test_id("run-row")).to_have_count(3)


def test_a_shared_address_shows_the_same_and_columns_names_sort(listed: tuple[Tab, Server]) -> None:
    tab, server = listed
    say(server, "beta", archived=True)
    page = tab.open("/?sort=name&archived=all")
    expect(page.get_by_test_id("run-row")).to_have_count(3)
    assert names(page) == ["Alpha", "beta", "zeta"]
    assert (page.get_by_label("Order").input_value(), page.get_by_label("Show").input_value()) == ("name", "all")
    page.get_by_label("Show").select_option("only")
    expect(page.get_by_test_id("run-row")).to_have_count(1)
    page.get_by_label("Show").select_option("")
    expect(page.get_by_test_id("run-row")).to_have_count(2)
    say(server, "beta", archived=False)
    tab.visit("/")
    expect(page.locator("[data-testid=run-row] .run-name")).to_have_text(["beta", "Alpha", "zeta"])
    expect(page.get_by_role("columnheader", name="Age")).to_have_attribute("aria-sort", "ascending")
    by_name = page.locator(".runs-table .sort", has_text="Run")  # its role's name has the arrow too
    by_name.click()
    page.wait_for_url("**/?sort=name")
    expect(page.locator("[data-testid=run-row] .run-name")).to_have_text(["Alpha", "beta", "zeta"])
    expect(page.locator(".runs-table th").nth(1)).to_have_attribute("aria-sort", "ascending")
    expect(by_name).to_be_focused()
    page.get_by_role("button", name="Age").click()
    expect(page.locator("[data-testid=run-row] .run-name")).to_have_text(["beta", "Alpha", "zeta"])
    page.get_by_role("button", name="Age").click()
    page.wait_for_url("**/?sort=oldest")
    expect(page.locator("[data-testid=run-row] .run-name")).to_have_text(["zeta", "Alpha", "beta"])


def test_a_run_is_titled_archived_and_deleted_in_its_page(listed: tuple[Tab, Server]) -> None:
    tab, server = listed
    run = number(server, "beta")
    page = tab.open(f"/runs/{run}")
    page.get_by_text("Title, tags and note").click()
    page.get_by_label("Title").fill(MARKUP[0])
    page.get_by_label("Tags").fill(" fp16, , sweep 3 ")
    page.get_by_label("Note").fill("first line\nsecond")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.get_by_test_id("run-about")).to_contain_text("Saved.")
    expect(page.locator("h1")).to_have_text(MARKUP[0])
    note = page.get_by_test_id("run-note")
    expect(note.locator(".tag")).to_have_text(["fp16", "sweep 3"])
    expect(note).to_contain_text("first line\nsecond")
    assert page.locator("main img, main script, main b, [onerror]").count() == 0
    page.get_by_role("button", name="Archive").click()
    expect(page.get_by_role("button", name="Unarchive")).to_be_visible()
    page.get_by_role("button", name="Delete…").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("40 steps of 1 rank")
    expect(dialog).to_contain_text("Its training continues, and creates the run again.")
    dialog.get_by_role("button", name="Cancel").click()
    expect(dialog).not_to_be_visible()
    # News of the deletion may be here before the answer to it, and what the page asked meanwhile is answered by a 404.
    tab.expected.append(rf"404 .*/api/v1/runs/{run}(/\w+)?\)")
    page.get_by_role("button", name="Delete…").click()
    dialog.get_by_role("button", name="Delete permanently").click()
    page.wait_for_url(re.compile(r"/$"))
    expect(page.get_by_test_id("run-row")).to_have_count(2)
    assert server.client.get(f"/api/v1/runs/{run}").status_code == 404


@pytest.mark.slow
def test_what_is_typed_of_a_run_stays_until_it_is_saved(listed: tuple[Tab, Server]) -> None:
    tab, server = listed
    page = tab.open(f"/runs/{number(server, 'beta')}")
    page.get_by_text("Title, tags and note").click()
    title, about = page.get_by_label("Title"), page.get_by_test_id("run-about")
    title.fill("half a ti")
    expect(about).to_contain_text("Not saved yet.")
    page.locator("h1").click()
    expect(title).not_to_be_focused()
    say(server, "beta", note="of somebody else")
    expect(page.get_by_test_id("run-note")).to_contain_text("of somebody else")
    expect(page.get_by_label("Note")).to_have_value("of somebody else")
    expect(title).to_have_value("half a ti")
    title.fill("a title")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(about).to_contain_text("Saved.")
    expect(about).not_to_contain_text("Not saved yet.")
    expect(page.locator("h1")).to_have_text("a title")


@pytest.mark.slow
def test_it_fits_the_screen(listed: tuple[Tab, Server]) -> None:
    tab, server = listed
    say(server, "zeta", tags=["x" * 60] * 1 + [f"tag {each}" for each in range(19)], title="t" * 200, note="n" * 500)
    page = tab.open("/")
    for path in ("/", f"/runs/{number(server, 'zeta')}"):
        tab.visit(path)
        for width in (390, 1280, 1920):
            page.set_viewport_size({"width": width, "height": 900})
            page.wait_for_function("() => document.documentElement.scrollWidth <= document.documentElement.clientWidth")


@pytest.mark.slow
def test_a_run_is_one_line_and_no_column_is_cut(listed: tuple[Tab, Server]) -> None:
    tab, server = listed
    long = "a run's very long name " * 6
    say(server, "zeta", tags=[f"tag {each}" for each in range(9)], title=f"{long}seed 17")
    page = tab.open("/")
    for width in (1280, 1440, 1920):
        page.set_viewport_size({"width": width, "height": 900})
        expect(page.get_by_role("columnheader", name="Seen")).to_be_visible()
        page.wait_for_function(
            """() => {
              const scroll = document.querySelector('.table-scroll');
              const all = [...document.querySelectorAll('.runs-table :is(th, td)')];
              const cells = all.filter((one) => one.checkVisibility());
              const rows = [...document.querySelectorAll('.runs-table tbody tr')];
              const last = cells.filter((one) => one.dataset.column === 'Age');
              return scroll.scrollWidth <= scroll.clientWidth && last.length === rows.length + 1 &&
                last.every((one) => one.scrollWidth <= one.clientWidth) &&
                rows.every((one) => Math.abs(one.getBoundingClientRect().height - 36.5) < 1.1);
            }"""
        )
    row = page.locator(f"[data-run='{number(server, 'zeta')}']")
    expect(row.locator(".elide-tail")).to_be_visible()
    expect(row.locator(".run-name")).to_have_text(f"{long}seed 17")
    page.set_viewport_size({"width": 390, "height": 844})
    assert row.evaluate("one => one.getBoundingClientRect().height") < 62, "two lines"


@pytest.mark.slow
def test_runs_are_had_by_state_and_by_any_column(listed: tuple[Tab, Server]) -> None:
    tab, server = listed
    accept(server, batch(KNOWN, 1, range(40, 80), run="zeta", series={"loss": 2.0}))
    accept(server, batch(KNOWN, 1, range(40, 60), run="Alpha", series={"loss": 1.0}))
    page = tab.open("/")
    page.locator(".runs-table .sort", has_text="Loss").click()
    page.wait_for_url("**/?sort=loss")
    expect(page.locator("[data-testid=run-row] .run-name")).to_have_text(["Alpha", "zeta", "beta"])
    page.locator(".runs-table .sort", has_text="Loss").click()
    expect(page.locator("[data-testid=run-row] .run-name")).to_have_text(["zeta", "Alpha", "beta"])
    page.locator(".runs-table .sort", has_text="State").click()
    page.wait_for_url("**/?sort=state")
    state = page.locator(".field", has_text=re.compile("^State")).locator("select")
    state.select_option("hung")
    expect(page.get_by_test_id("empty-state")).to_contain_text("No run that is not archived in this state (hung)")
    state.select_option("live")
    expect(page.get_by_test_id("run-row")).to_have_count(3)


@pytest.mark.slow
def test_standing_alerts_are_counted(listed: tuple[Tab, Server]) -> None:
    tab, server = listed
    bad = np.zeros((1, 40))
    bad[0, 30:] = 3
    accept(server, batch(KNOWN, 1, range(40, 80), {"nan_count": bad}, run="beta"))
    page = tab.open("/")
    row = page.locator(f"[data-run='{number(server, 'beta')}']")
    expect(row.get_by_role("link", name="Alerts: 1 critical")).to_be_visible(timeout=30_000)
    expect(page.locator(".alert-count")).to_have_count(1)
    row.get_by_role("link", name="Alerts: 1 critical").click()
    page.wait_for_url("**/alerts")


@pytest.mark.slow
def test_a_row_under_the_focus_is_brought_up_to_date_all_of_it(listed: tuple[Tab, Server]) -> None:
    tab, server = listed
    page = tab.open("/")
    row = page.locator(f"[data-run='{number(server, 'zeta')}']")
    row.locator(".run-name").focus()
    say(server, "zeta", title="Its new title", tags=["late"])
    accept(server, batch(KNOWN, 1, range(40, 80), {"amax": np.linspace(1, 9, 40)}, run="zeta"))
    expect(row.locator(".run-name")).to_have_text("Its new title", timeout=15_000)
    expect(row.locator(".tag")).to_have_text("late")
    expect(row.locator(".run-name")).to_be_focused()


@pytest.mark.slow
def test_a_run_that_failed_says_why_and_when_it_was_seen_last(tab: Tab, runs: Runs) -> None:
    """Once its other ranks have been silent for 15 s."""
    page = tab.open("/")
    row = page.locator(f"[data-run='{runs.partial}']")
    expect(row).to_contain_text("Rank 3: RuntimeError: the data loader ended", timeout=30_000)
    expect(row).to_contain_text(" ago")


@pytest.mark.slow
def test_open_alerts_are_counted(tab: Tab, runs: Runs) -> None:
    """Once the rules have looked."""
    page = tab.open("/")
    states = page.locator(f"[data-run='{runs.states}']").get_by_role("link", name=re.compile(r"^Alerts: \d+"))
    expect(states).to_be_visible(timeout=100_000)
