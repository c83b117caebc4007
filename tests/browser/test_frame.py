"""What stands around every page: the navigation, the run picker, the step range, the keys; small and large screens."""

from __future__ import annotations

import re
from typing import Literal

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser import axe
from tests.browser.conftest import Tab
from tests.browser.hand_made import INF_AT, STEPS, Runs, accept, number
from tests.server.records import batch, catalogue, opening

NAVIGATION = [
    "Runs", "Overview", "Layers", "Loss scale", "Scales", "What if", "Experts", "Collectives", "GPUs", "Hang",
    "Environment", "Alerts", "Agent",
]  # fmt: skip
SHORTCUTS = """async () => {
  const { shortcutsOf } = await import("/static/shell/keyboard.js");
  return shortcutsOf((await import("/static/pages/index.js")).PAGES);
}"""
SIDEWAYS = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
LETTERS = "() => parseFloat(getComputedStyle(document.querySelector('main')).fontSize)"
KNOWN = catalogue(3)


def strip(page: Page) -> Locator:
    return page.get_by_test_id("step-brush")


def drag(page: Page, start: float, stop: float) -> None:
    """Over the strip, from and to places of it from 0 to 1."""
    box = strip(page).bounding_box()
    assert box is not None
    y = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + start * box["width"], y)
    page.mouse.down()
    page.mouse.move(box["x"] + stop * box["width"], y, steps=5)
    page.mouse.up()


def shown(page: Page) -> tuple[int, int]:
    """The window on the strip, as it says to who cannot see it."""
    text = strip(page).get_attribute("aria-valuetext") or ""
    found = re.match(r"steps? ([\d,]+)(?:-([\d,]+))? of", text)
    assert found is not None, text
    first, last = (int(each.replace(",", "")) for each in (found[1], found[2] or found[1]))
    return first, last


def wait_for_steps(page: Page, first: int, last: int) -> None:
    expect(strip(page)).to_be_visible()  # it has its steps before the page shows it, and takes no focus until then
    expect(strip(page)).to_have_attribute("aria-valuetext", re.compile(rf"^steps {first:,}-{last:,} of"))


def test_the_navigation_has_a_runs_pages_in_order(tab: Tab, runs: Runs) -> None:
    page = tab.open(f"/runs/{runs.states}/layers?rank=0&start=50&stop=150")
    entries = page.locator(".nav-pages a")
    expect(entries.locator("nth=1")).to_be_visible()
    titles = [each.inner_text().split("\n")[0] for each in entries.all()]
    assert titles == NAVIGATION
    expect(page.locator("#nav a[aria-current=page]")).to_have_text("Layers")
    page.get_by_role("link", name="Collectives", exact=True).click()
    page.wait_for_url("**/collectives?rank=0&start=50&stop=150")
    tab.visit(f"/runs/{runs.states}/step?step=120&rank=0")
    expect(page.locator("#nav a[aria-current=page]")).to_have_text("Layers")
    assert page.evaluate(LETTERS) == 14
    page.set_viewport_size({"width": 1920, "height": 1080})
    assert page.evaluate(LETTERS) == 16, "as on a projector"
    assert page.evaluate(SIDEWAYS) <= 0
    tab.visit("/")
    expect(page.locator(".nav-pages a")).to_have_count(1)
    expect(page.get_by_test_id("run-picker")).to_be_hidden()


@pytest.mark.slow
def test_the_open_run_its_state_and_when_it_was_seen_are_on_every_page(tab: Tab, runs: Runs) -> None:
    page = tab.open(f"/runs/{runs.partial}")
    expect(page.get_by_role("button", name="Later steps")).to_be_visible()
    expect(page.get_by_role("button", name="Follow live")).to_have_count(0)  # it has ended
    picker = page.get_by_test_id("run-picker")
    for entry in ("layers", "collectives", "gpus", "hang", "environment", "alerts", "agent", "step?step=1&rank=0"):
        tab.visit(f"/runs/{runs.partial}/{entry}")
        expect(picker.get_by_role("button")).to_have_text(re.compile("partial"))
        expect(picker.locator(".badge")).to_be_visible()
        expect(picker.get_by_test_id("last-seen")).to_have_text(re.compile(r"^last seen \d+ (s|min) ago$"))


@pytest.mark.slow
def test_last_seen_counts_on_without_any_news(tab: Tab, runs: Runs) -> None:
    accept(runs.server, opening(KNOWN, "ticking"), batch(KNOWN, 0, range(20), run="ticking"))
    page = tab.open(f"/runs/{number(runs.server, 'ticking')}/layers")
    seen = page.get_by_test_id("last-seen")
    before = int((seen.inner_text()).split()[2])
    expect(seen).not_to_have_text(f"last seen {before} s ago", timeout=20_000)
    assert int(seen.inner_text().split()[2]) > before


@pytest.mark.slow
def test_another_run_is_found_by_typing_and_opened_on_the_same_page(tab: Tab, runs: Runs) -> None:
    page = tab.open(f"/runs/{runs.states}/layers?rank=1&tensor=3&step=5&start=10&stop=50")
    page.keyboard.press("r")
    search = page.get_by_role("combobox", name="Find a run")
    expect(search).to_be_focused()
    expect(page.get_by_role("option").first).to_be_visible()
    search.fill("ARTIA")
    only = page.get_by_role("listbox", name="Runs").get_by_role("option")
    expect(only).to_have_count(1)
    expect(only).to_contain_text(re.compile(r"partial.*last seen \d+ (s|min) ago", re.S))
    expect(search).to_have_attribute("aria-activedescendant", only.get_attribute("id") or "none")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/runs/{runs.partial}/layers?rank=1&start=10&stop=50")
    expect(page.get_by_test_id("run-picker").get_by_role("button")).to_have_text(re.compile("partial"))
    expect(search).to_be_hidden()
    page.keyboard.press("r")
    expect(page.get_by_role("option").first).to_be_visible()
    search.fill("TATE")
    search.press("Enter")  # right after it was typed, before the list has followed
    page.wait_for_url(f"**/runs/{runs.states}/layers?rank=1&start=10&stop=50")
    expect(search).to_be_hidden()


@pytest.mark.slow
def test_arrows_choose_and_escape_leaves(tab: Tab, runs: Runs) -> None:
    page = tab.open(f"/runs/{runs.states}")
    button = page.get_by_test_id("run-picker").get_by_role("button")
    button.click()
    options = page.get_by_role("option")
    search = page.get_by_role("combobox", name="Find a run")
    expect(options.first).to_be_visible()
    chosen = page.locator(".picker-list").get_by_role("option", selected=True)
    expect(chosen).to_contain_text("states")  # the open one, to begin with
    page.keyboard.press("ArrowDown")
    expect(chosen).not_to_contain_text("states")
    page.keyboard.press("ArrowUp")
    expect(chosen).to_contain_text("states")
    page.keyboard.press("Escape")
    expect(search).to_be_hidden()
    expect(button).to_be_focused()
    button.click()
    search.fill("no such run at all")
    expect(page.get_by_text("No run has that in its name, title or tags.")).to_be_visible()
    page.keyboard.press("Enter")
    page.locator("h1").click()
    expect(search).to_be_hidden()
    assert page.url.endswith(f"/runs/{runs.states}")


def test_one_range_bar_is_on_every_page_over_steps_and_shows_where_the_run_overflowed(tab: Tab, runs: Runs) -> None:
    page = tab.open("/")
    for path in ("", "/layers", "/tensor?tensor=3", "/collectives", "/loss-scale"):
        tab.visit(f"/runs/{runs.states}{path}{'&' if '?' in path else '?'}start=20&stop=60")
        expect(page.locator(".range-bar")).to_have_count(1)
        wait_for_steps(page, 20, 59)
        expect(page.locator(".range-shown")).to_have_text(f"steps 20-59 (40 of {STEPS})")
    columns = page.locator(".brush-chart").evaluate("(chart) => chart.viewBox.baseVal.width")
    at = [int(found) for found in re.findall(r"M(\d+) 0h1", page.locator(".brush-bad").get_attribute("d") or "")]
    assert int(INF_AT[1] * columns / STEPS) in at
    assert 1 <= len(at) <= 4


@pytest.mark.slow
def test_the_strip_is_dragged_at_its_edges_in_its_middle_and_beside(tab: Tab, runs: Runs) -> None:
    page = tab.open(f"/runs/{runs.states}/layers")
    assert shown(page) == (0, STEPS - 1)
    drag(page, 0.2525, 0.7475)  # all are shown: a drag chooses
    page.wait_for_url("**/layers?start=50&stop=150")
    drag(page, 0.5, 0.6)
    page.wait_for_url("**/layers?start=70&stop=170")
    drag(page, 0.85, 0.9)
    page.wait_for_url("**/layers?start=70&stop=180")
    drag(page, 0.35, 0.25)
    page.wait_for_url("**/layers?start=50&stop=180")
    drag(page, 0.1025, 0.1975)
    page.wait_for_url("**/layers?start=20&stop=40")
    wait_for_steps(page, 20, 39)
    strip(page).dblclick(position={"x": 300, "y": 10})
    page.wait_for_url("**/layers")
    wait_for_steps(page, 0, STEPS - 1)


# Left and right edge of the strip, and of what is drawn over steps.
EDGES = """() => {
  const edges = (box) => [box.left, box.right].map((x) => Math.round(x * 100) / 100);
  const area = (plot) => {
    const { xaxis } = plot._fullLayout;
    const left = plot.getBoundingClientRect().left + xaxis._offset;
    return edges({ left, right: left + xaxis._length });
  };
  const isShown = (plot) => plot.checkVisibility({ visibilityProperty: true }) && !plot.closest("aside");
  const plots = [...document.querySelectorAll("main .plot")].filter(isShown);
  return { strip: edges(document.querySelector(".step-brush").getBoundingClientRect()), plots: plots.map(area) };
}"""
ON_EDGES = f"""() => {{
  const {{ strip, plots }} = ({EDGES})();
  return strip[1] > strip[0] && plots.length > 0 && plots.every((each) => String(each) === String(strip));
}}"""


@pytest.mark.parametrize(
    ("run", "path", "widths"),
    [
        ("states", "/layers?rank=0&tensor=3", (1280, 390)),
        *(pytest.param(*one, (1280, 1920, 390), marks=pytest.mark.slow) for one in (
            ("states", ""), ("states", "/layers?rank=0"), ("states", "/layers?rank=0&tensor=3&against=rank%3A1"),
            ("states", "/tensor?rank=0&tensor=3"), ("states", "/loss-scale"), ("health", "/gpu?rank=1&key=GPU-1"),
        )),
    ],
)  # fmt: skip
def test_the_strip_has_the_edges_of_the_lanes(
    tab: Tab, runs: Runs, run: str, path: str, widths: tuple[int, ...]
) -> None:
    for width in widths:
        tab.page.set_viewport_size({"width": width, "height": 900})
        tab.open(f"/runs/{getattr(runs, run)}{path}")
        tab.page.wait_for_function(ON_EDGES)  # lanes ask anew for columns once their width stays
        assert tab.page.evaluate(SIDEWAYS) <= 0


@pytest.mark.slow
def test_the_strip_has_the_edges_of_the_ranks_by_steps(tab: Tab, runs: Runs) -> None:
    for width, names in ((1280, 84), (1920, 84), (390, 64)):
        tab.page.set_viewport_size({"width": width, "height": 900})
        tab.open(f"/runs/{runs.health}/collectives")
        picture, box = tab.page.get_by_test_id("picture-cost").bounding_box(), strip(tab.page).bounding_box()
        assert picture is not None and box is not None
        assert box["x"] - picture["x"] == pytest.approx(names, abs=0.02)
        assert picture["x"] + picture["width"] - box["x"] - box["width"] == pytest.approx(12, abs=0.02)


@pytest.mark.slow
def test_keys_move_the_strip_and_the_shown_steps_and_back_undoes_it(tab: Tab, runs: Runs) -> None:
    page = tab.open(f"/runs/{runs.states}/layers?start=50&stop=150")
    strip(page).focus()
    for key, first, last in (
        ("ArrowRight", 60, 159), ("ArrowLeft", 50, 149), ("End", 100, 199), ("Home", 0, 99),
        ("+", 25, 74), ("-", 0, 99),
    ):  # fmt: skip
        page.keyboard.press(key)
        wait_for_steps(page, first, last)
    expect(strip(page)).to_be_focused()
    tab.open(f"/runs/{runs.states}?start=40&stop=80")
    for key, first, last in (("]", 60, 99), ("[", 40, 79), ("-", 20, 99), ("+", 40, 79)):
        page.keyboard.press(key)
        wait_for_steps(page, first, last)
    page.keyboard.press("0")
    wait_for_steps(page, 0, STEPS - 1)
    expect(page.get_by_role("button", name="Show all steps")).to_have_attribute("aria-disabled", "true")
    page.go_back()
    wait_for_steps(page, 40, 79)
    page.get_by_role("button", name="Later steps").click()
    wait_for_steps(page, 60, 99)


@pytest.mark.slow
def test_following_has_a_width_of_its_own_and_is_switched(tab: Tab, runs: Runs) -> None:
    accept(runs.server, opening(KNOWN, "followed"), batch(KNOWN, 0, range(60), run="followed"))
    path = f"/runs/{number(runs.server, 'followed')}/layers"
    page = tab.open(f"{path}?last=20")
    follow = page.get_by_role("button", name="Follow live")
    wait_for_steps(page, 40, 59)
    expect(follow).to_have_attribute("aria-pressed", "true")
    accept(runs.server, batch(KNOWN, 1, range(60, 70), run="followed"))
    wait_for_steps(page, 50, 69)
    page.keyboard.press("-")
    page.wait_for_url("**/layers?last=40")
    wait_for_steps(page, 30, 69)
    page.keyboard.press("f")
    page.wait_for_url("**/layers?start=30&stop=70")
    expect(follow).to_have_attribute("aria-pressed", "false")
    accept(runs.server, batch(KNOWN, 2, range(70, 80), run="followed"))
    expect(page.locator(".run-details")).to_contain_text("step 79")
    wait_for_steps(page, 30, 69)
    follow.click()
    page.wait_for_url("**/layers?last=40")
    wait_for_steps(page, 40, 79)


@pytest.mark.slow
def test_every_key_is_listed_in_a_dialog_and_two_go_to_each_page(tab: Tab, runs: Runs) -> None:
    page = tab.open(f"/runs/{runs.states}")
    page.keyboard.press("?")
    dialog = page.get_by_role("dialog", name="Keyboard")
    shortcuts = page.evaluate(SHORTCUTS)
    texts = [shortcut["text"] for shortcut in shortcuts]
    assert len(texts) > 20
    for text in texts:
        expect(dialog.get_by_text(text, exact=True).first).to_be_visible()
    page.keyboard.press("g")
    page.keyboard.press("l")
    assert page.url.endswith(f"/runs/{runs.states}"), "no key reaches through a dialog"
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    page.get_by_role("button", name="Keyboard: ?").click()
    expect(dialog).to_be_visible()
    dialog.get_by_role("button", name="Close").click()
    expect(dialog).to_be_hidden()
    keys = [shortcut for shortcut in shortcuts if "page" in shortcut]
    assert [key["text"] for key in keys] == NAVIGATION
    for key in reversed(keys):
        for letter in key["keys"][0].split(" "):
            page.keyboard.press(letter)
        expect(page.locator("#nav a[aria-current=page]")).to_have_text(re.compile(key["text"]))


@pytest.mark.slow
def test_single_keys_can_be_switched_off_for_good(tab: Tab, runs: Runs) -> None:
    page = tab.open(f"/runs/{runs.states}/layers?start=40&stop=80")
    page.get_by_role("button", name="Keyboard: ?").click()
    page.get_by_role("checkbox", name="Use single keys").uncheck()
    page.keyboard.press("Escape")
    page.reload()
    wait_for_steps(page, 40, 79)
    for key in ("?", "]", "0", "/"):
        page.keyboard.press(key)
    expect(page.get_by_role("dialog", name="Keyboard")).to_be_hidden()
    wait_for_steps(page, 40, 79)
    strip(page).focus()
    page.keyboard.press("ArrowRight")
    wait_for_steps(page, 44, 83)  # what has the focus keeps its keys


@pytest.mark.slow
def test_a_slash_searches_the_layers_from_any_page(tab: Tab, runs: Runs) -> None:
    page = tab.open(f"/runs/{runs.states}?start=40&stop=80")
    page.keyboard.press("/")
    page.wait_for_url("**/layers?start=40&stop=80")
    field = page.locator("main input[type=search]:visible").first
    expect(field).to_be_focused()
    page.keyboard.type("ff[/]0?")
    expect(field).to_have_value("ff[/]0?")  # and no key does anything else meanwhile
    page.wait_for_url(re.compile(r"/layers\?start=40&stop=80&q=ff"))
    expect(page.get_by_role("dialog", name="Keyboard")).to_be_hidden()
    tab.visit("/")
    page.keyboard.press("/")
    expect(page.get_by_label("Search")).to_be_focused()


def test_on_a_phone_the_navigation_is_a_bar_that_opens(tab: Tab, runs: Runs) -> None:
    tab.page.set_viewport_size({"width": 390, "height": 844})
    page = tab.open(f"/runs/{runs.states}/layers")
    menu = page.get_by_role("button", name="Menu")
    alerts = page.locator("#nav a[data-page=alerts]")
    expect(alerts).to_be_hidden()
    bar = page.locator("#nav").bounding_box()
    assert bar is not None and bar["height"] < 80
    page.mouse.wheel(0, 2000)
    expect(page.get_by_test_id("last-seen")).to_be_in_viewport()
    menu.click()
    expect(menu).to_have_attribute("aria-expanded", "true")
    expect(page.get_by_role("button", name="Keyboard: ?")).to_be_visible()
    page.keyboard.press("Escape")
    expect(alerts).to_be_hidden()
    menu.click()
    alerts.click()
    page.wait_for_url("**/alerts")
    expect(alerts).to_be_hidden()
    page.get_by_test_id("run-picker").get_by_role("button").click()
    expect(page.get_by_role("listbox", name="Runs")).to_be_in_viewport()
    assert page.evaluate(SIDEWAYS) <= 0


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_what_opens_has_nothing_grave_for_axe(
    tab: Tab, runs: Runs, theme: Literal["light", "dark"], width: int
) -> None:
    tab.page.set_viewport_size({"width": width, "height": 844})
    page = tab.open(f"/runs/{runs.states}?start=50&stop=150")
    page.emulate_media(color_scheme=theme)
    page.keyboard.press("r")
    expect(page.get_by_role("option").first).to_be_visible()
    assert axe.findings(page) == []
    page.keyboard.press("Escape")
    if width == 390:
        page.get_by_role("button", name="Menu").click()
        assert axe.findings(page) == []
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keyboard")).to_be_visible()
    assert axe.findings(page) == []


def test_a_run_that_hangs_and_alerts_that_stand_are_told_from_any_page(tab: Tab, runs: Runs) -> None:
    page = tab.open(f"/runs/{runs.states}/environment")
    expect(page.locator("#nav a[data-page=hang]")).to_be_visible()
    expect(page.locator("#nav a[data-page=hang][data-alarm]")).to_have_count(0)
    tab.visit(f"/runs/{runs.hung}/environment")
    expect(page.locator("#nav a[data-page=hang][data-alarm]")).to_be_visible()
    expect(page.locator("#nav a[data-page=alerts] .nav-count")).to_have_text(re.compile(r"^\d+$"))


@pytest.mark.slow
def test_a_run_that_is_not_there_leaves_the_frame_whole(tab: Tab) -> None:
    tab.expected.append("status of 404")
    page = tab.open("/runs/999/layers")
    expect(page.get_by_test_id("run-picker")).to_contain_text("Run 999")
    page.keyboard.press("r")
    expect(page.get_by_role("option").first).to_be_visible()
    page.keyboard.press("Enter")
    expect(page.get_by_test_id("error-state")).to_have_count(0)
