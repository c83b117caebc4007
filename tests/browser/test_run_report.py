"""A run as one file: the pages offer it, and what they give to type is what does it."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser import axe
from tests.browser.conftest import Tab
from tests.browser.hand_made import LONG, MARKUP, Runs

OPENER = re.compile("Report as one file")
COMMANDS = """async ({ names, address }) => {
  const { reportCommand } = await import("/static/widgets/run_report.js");
  return names.map((name) => reportCommand({ id: 7, name }, address));
}"""
QUOTED = (
    "x'; touch owned; '", "''", '"', "$(id)", "`id`", "$HOME", "back\\slash\\", "!!", "~", "*", "# no", "a  b", " ",
    "a|b>c&d", *MARKUP[:5],
)  # fmt: skip
BY_NUMBER = ("-rf", "--help", "two\nlines", "\x15id\r", "\x1b[201~id", "\u202eturned", "", LONG)


def shown(page: Page) -> Locator:
    return page.get_by_role("dialog", name="Report as one file")


def command(page: Page) -> str:
    """What the open dialog says to type."""
    return shown(page).locator("pre").inner_text()


@pytest.mark.slow
def test_any_name_is_one_word_of_a_shell(tab: Tab, runs: Runs) -> None:
    page = tab.open(f"/runs/{runs.states}")
    asked = {"names": [*QUOTED, *BY_NUMBER], "address": "http://[::1]:8642"}
    found = [shlex.split(each) for each in page.evaluate(COMMANDS, asked)]
    rest = ["run-7-report.html", "--url", "http://[::1]:8642"]
    assert found == [["rangewatch", "export", name, *rest] for name in (*QUOTED, *["7"] * len(BY_NUMBER))]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["hostile", pytest.param("states", marks=pytest.mark.slow)])
def test_what_is_typed_writes_the_report(name: str, tab: Tab, runs: Runs, tmp_path: Path) -> None:
    page = tab.open(f"/runs/{getattr(runs, name)}")
    page.get_by_role("button", name=OPENER).click()
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(["sh", "-c", command(page)], cwd=tmp_path, env={**os.environ, "PATH": path}, timeout=100)
    assert done.returncode == 0
    written = tmp_path / f"run-{getattr(runs, name)}-report.html"
    assert list(tmp_path.iterdir()) == [written]
    assert "<html" in written.read_text()[:1_000]


def test_it_is_downloaded_and_a_failure_is_said(tab: Tab, runs: Runs) -> None:
    page = tab.open(f"/runs/{runs.hostile}")
    page.keyboard.press("Control+k")
    page.keyboard.type("report as one")
    page.keyboard.press("Enter")
    download = shown(page).get_by_role("button", name="Download")
    status = shown(page).get_by_role("status")
    tab.expected += ["503"]
    page.route(
        "**/report", lambda route: route.fulfill(status=503, json={"error": "8 exports are under way", "code": "x"})
    )
    download.click()
    expect(status).to_have_text("Nothing was saved: 8 exports are under way")
    page.unroute("**/report")
    with page.expect_download() as saved:
        download.click()
    assert re.fullmatch(rf"rangewatch-[\w-]*run-{runs.hostile}\.html", saved.value.suggested_filename)
    assert saved.value.path().read_text().rstrip().endswith("</html>")
    expect(status).to_have_text(re.compile(r"^Saved, [\d.]+ MiB\.$"))
    expect(download).to_be_enabled()


@pytest.mark.slow
def test_it_is_worked_with_keys(tab: Tab, runs: Runs) -> None:
    page = tab.open(f"/runs/{runs.states}/layers")
    button = page.get_by_role("button", name=OPENER)
    button.focus()
    page.keyboard.press("Enter")
    expect(shown(page)).to_be_visible()
    expect(shown(page)).to_contain_text("opens with no server")
    assert command(page) == f"rangewatch export states run-{runs.states}-report.html --url {runs.server.url}"
    page.keyboard.press("Escape")
    expect(shown(page)).to_be_hidden()
    expect(button).to_be_focused()


@pytest.mark.parametrize("is_refused", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_it_is_copied_with_the_clipboard_or_without(is_refused: bool, tab: Tab, runs: Runs) -> None:
    """Without https there is no clipboard, and beside a dialog nothing can be selected."""
    page = tab.open(f"/runs/{runs.states}")
    tab.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.evaluate("() => navigator.clipboard.writeText('nothing yet')")
    if is_refused:
        page.evaluate("() => (navigator.clipboard.writeText = () => Promise.reject(new Error('no')))")
    page.get_by_role("button", name=OPENER).click()
    shown(page).get_by_role("button", name="Copy").click()
    expect(shown(page).get_by_role("button", name="Copied")).to_be_focused()
    assert page.evaluate("() => navigator.clipboard.readText()") == command(page)
    assert page.locator("textarea[readonly]").count() == 0


@pytest.mark.slow
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_it_fits_and_axe_has_nothing_grave_to_say(
    theme: Literal["light", "dark"], width: int, tab: Tab, runs: Runs
) -> None:
    tab.page.set_viewport_size({"width": width, "height": 844})
    tab.page.emulate_media(color_scheme=theme)
    page = tab.open(f"/runs/{runs.states}")
    page.get_by_role("button", name=OPENER).click()
    box = shown(page).bounding_box()
    assert box is not None and box["x"] >= 0 and box["x"] + box["width"] <= width
    assert page.evaluate("() => document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    code = shown(page).locator("pre")
    assert code.evaluate("(pre) => pre.scrollWidth <= pre.clientWidth"), "all of it is to be seen"
    assert axe.findings(page) == []


@pytest.mark.slow
def test_a_run_with_nothing_to_report_offers_none(tab: Tab, runs: Runs) -> None:
    page = tab.open(f"/runs/{runs.empty}")
    expect(page.locator("h1")).to_have_text("empty")
    expect(page.get_by_role("button", name=OPENER)).to_be_hidden()
