"""The palette (Ctrl-K), the mark in a tab's title and icon, and notifications."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.browser.axe import findings
from tests.browser.conftest import Tab
from tests.browser.hand_made import Runs, wait_for_alert


def found(page: Page, group: str) -> list[str]:
    return page.locator(f".palette-list li[data-group='{group}'] .palette-name").all_inner_texts()


def test_anything_is_found_by_its_name_and_opened(tab: Tab, runs: Runs) -> None:
    page = tab.open(f"/runs/{runs.states}")
    page.keyboard.press("Control+k")
    palette = page.get_by_test_id("palette")
    expect(palette).to_be_visible()
    page.keyboard.type("step 121")
    expect(palette.get_by_role("option").first).to_contain_text("step 121")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/runs/{runs.states}/step?step=121")
    expect(palette).not_to_be_visible()
    page.keyboard.press("Control+k")
    page.keyboard.type("partial")
    expect(palette.locator("li[data-group=Run]")).to_contain_text("partial")
    assert palette.locator("img, script, b, [onerror]").count() == 0
    palette.locator("li[data-group=Run]").click()
    page.wait_for_url(re.compile(f"/runs/{runs.partial}/step"))


@pytest.mark.slow
def test_pages_layers_ranks_and_actions_are_found(tab: Tab, runs: Runs) -> None:
    page = tab.open(f"/runs/{runs.states}")
    palette = page.get_by_test_id("palette")
    page.get_by_role("button", name="Find: Ctrl K").click()
    assert "Layers" in found(page, "Page")
    assert findings(page) == []
    page.keyboard.type("rank 1")
    expect(palette.locator("li[data-group=Rank]")).to_have_count(1)
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/runs/{runs.states}?rank=1")
    page.keyboard.press("Control+k")
    page.keyboard.type("output")
    expect(palette.locator("li[data-group=Layer]").first).to_be_visible()
    page.keyboard.press("Escape")
    expect(palette).not_to_be_visible()
    page.keyboard.press("Control+k")
    page.keyboard.type("theme")
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Theme: light")).to_be_visible()
    page.keyboard.press("Control+k")
    page.keyboard.type("no such thing at all")
    expect(palette.get_by_role("status")).to_have_text("Nothing has that in its name.")


@pytest.mark.slow
def test_the_tab_shows_the_verdicts_level(tab: Tab, runs: Runs) -> None:
    wait_for_alert(runs.server, runs.alerted)
    page = tab.open(f"/runs/{runs.alerted}")
    expect(page).to_have_title(re.compile("^■ .*alerted"))
    icon = page.locator("link[rel=icon]")
    expect(icon).to_have_attribute("href", re.compile("^data:image/svg"))
    tab.visit("/")
    expect(page).to_have_title("Runs · rangewatch")
    expect(icon).to_have_attribute("href", re.compile(r"icon\.svg"))


@pytest.mark.slow
def test_notifications_are_asked_for_by_a_press_alone(new_tab: Callable[..., Tab], runs: Runs) -> None:
    tab = new_tab(runs.server.url, own=True)
    tab.page.add_init_script(
        """window.asked = 0;
        window.Notification = class { static permission = "default";
          static async requestPermission() { window.asked += 1; return this.permission = "granted"; } };"""
    )
    page = tab.open(f"/runs/{runs.states}")
    assert page.evaluate("window.asked") == 0
    page.get_by_role("button", name="Notifications: off").click()
    expect(page.get_by_role("button", name="Notifications: on")).to_be_visible()
    assert page.evaluate("window.asked") == 1
    page.get_by_role("button", name="Notifications: on").click()
    expect(page.get_by_role("button", name="Notifications: off")).to_be_visible()
