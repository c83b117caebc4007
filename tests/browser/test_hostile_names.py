"""Names of runs, modules, hosts, series and events are text: shown as themselves, never as markup."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.browser.conftest import Tab
from tests.browser.hand_made import LONG, MARKUP, Runs

# What the pages make themselves has none of these; Plotly's own text is svg.
INJECTED = "main img, main script, main b, main i, main u, main iframe, svg a, svg b, svg i, [onerror]"
LABELS = "() => [...document.querySelectorAll('.ytick text')].map((label) => label.textContent)"
ROOM = 27  # letters of a label at this width; a longer name keeps its end


def test_no_name_becomes_markup(tab: Tab, runs: Runs) -> None:
    page = tab.open("/")
    for path in ("", "/layers", "/tensor?tensor=0", "/tensor?tensor=9", "/step?step=0&rank=0"):
        tab.visit(f"/runs/{runs.hostile}{path}")
        expect(page.get_by_role("heading", level=1)).to_have_text(f"{LONG[:80]} … {LONG[:80]}")
        assert page.locator(INJECTED).count() == 0, path
        assert page.locator("a[href^='javascript:' i]").count() == 0, path
        assert page.evaluate("() => document.title.length") < 200
        assert page.evaluate("() => document.querySelector('h1').offsetHeight") < 120


def test_names_are_read_as_they_are_written(tab: Tab, runs: Runs) -> None:
    page = tab.open(f"/runs/{runs.hostile}/layers")
    page.get_by_test_id("figure-layers").focus()
    page.keyboard.press("ArrowLeft")
    expect(page.locator(".lane-readout")).to_contain_text(f"{MARKUP[0]} output: 16.0 bits")
    labels, table = page.evaluate(LABELS), page.locator(".worst-table").inner_text()
    for name in MARKUP:
        text = f"{name} output"
        assert text in table, name
        assert (text if len(text) <= ROOM else f"…{text[1 - ROOM :]}") in labels, name
    expect(page.get_by_test_id("run-notes")).to_contain_text(f"rank 0 failed: {MARKUP[0]}")
    page.get_by_test_id("run-notes").locator("summary").click()
    for name in MARKUP:
        expect(page.get_by_test_id("run-notes")).to_contain_text(f"{name} is not observed (<u>why</u>)")
    tab.visit(f"/runs/{runs.hostile}/step?step=0&rank=0")
    for name in MARKUP:
        expect(page.get_by_test_id("frames-table").get_by_text(name, exact=True)).to_be_visible()
    page.get_by_text("Text report", exact=True).click()
    assert MARKUP[0] in page.get_by_label("Text report").inner_text()
    tab.visit(f"/runs/{runs.hostile}/tensor?tensor=3&rank=0")
    expect(page.locator(".tensor-name")).to_have_text(f"{MARKUP[3]} output")
    tab.visit("/")
    row = page.locator(f"tr[data-run='{runs.hostile}']")
    expect(row).to_contain_text(f"Rank failed. Rank 0: {MARKUP[0]}")
    assert row.evaluate("(row) => row.offsetHeight") < 200
    assert page.locator(INJECTED).count() == 0
