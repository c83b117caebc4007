"""Each chart can be saved, as a picture and as its values, and read as a table: against what the run really holds."""

from __future__ import annotations

import base64
import csv
import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from xml.etree import ElementTree

import numpy as np
import pytest
from playwright.sync_api import Download, Locator, Page, expect

from tests.browser import drawn, hand_made
from tests.browser.conftest import Tab
from tests.browser.hand_made import LONG, MARKUP, Runs
from tests.browser.test_figures import expected_bits

SVG = "{http://www.w3.org/2000/svg}"
LINK = "{http://www.w3.org/1999/xlink}href"
KEEP_DRAWING = """() => {
  const { toImage } = Plotly;
  Plotly.toImage = async (drawing, options) => {
    window.savedDrawing = await toImage(structuredClone(drawing), { ...options, format: "svg" });
    return toImage(drawing, options);
  };
}"""
KEEP_TEXTS = """() => {
  window.savedTexts = [];
  const { fillText } = CanvasRenderingContext2D.prototype;
  CanvasRenderingContext2D.prototype.fillText = function (text, ...place) {
    window.savedTexts.push(text);
    return fillText.call(this, text, ...place);
  };
}"""
SAFE = re.compile(r"[A-Za-z0-9-]+\.(png|csv|parquet)")
WORDS = ("value", "saturated", "Inf", "NaN", "all zero", "not observed", "stale")


def lane(page: Page, name: str) -> Locator:
    """The panel of a figure, or of a picture on a canvas."""
    return page.locator(f".lane:has(> .plot-wrap [data-testid=figure-{name}], > [data-testid=picture-{name}])")


def menu(page: Page, name: str) -> Locator:
    """The open menu of a chart."""
    button = lane(page, name).locator(".figure-menu-button")
    if button.get_attribute("aria-expanded") != "true":
        button.click()
    return lane(page, name).locator(".figure-choices")


def save(page: Page, name: str, what: str) -> tuple[Download, bytes]:
    """Choose from the menu; what comes is a file with a name of safe characters."""
    with page.expect_download() as reported:
        menu(page, name).get_by_text(what, exact=True).click()
    download = reported.value
    assert SAFE.fullmatch(download.suggested_filename), download.suggested_filename
    return download, Path(download.path()).read_bytes()


def rows_of(data: bytes) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(data.decode(), newline="")))


def picture_pixels(page: Page, png: bytes) -> np.ndarray:
    """(height, width, 3) colours of a PNG."""
    width, height, data = page.evaluate(drawn.DECODE, base64.b64encode(png).decode())
    return np.frombuffer(base64.b64decode(data), np.uint8).reshape(height, width, 4)[..., :3].astype(int)


def drawing_of(page: Page, name: str) -> ElementTree.Element:
    """What Plotly makes a figure's PNG of, as SVG. It is well-formed, and nothing in it loads or runs anything."""
    page.evaluate(KEEP_DRAWING)
    save(page, name, "PNG picture")
    root = ElementTree.fromstring(unquote(page.evaluate("window.savedDrawing").partition(",")[2]))
    for each in root.iter():
        address = each.get("href") or each.get(LINK) or "data:"
        assert each.tag != f"{SVG}script" and address.startswith(("data:", "#")), ElementTree.tostring(each)[:200]
    return root


def texts(root: ElementTree.Element) -> str:
    return " ".join("".join(each.itertext()) for each in root.iter(f"{SVG}text"))


def painted_texts(page: Page, name: str) -> str:
    """What is written into the PNG of a picture on a canvas."""
    page.evaluate(KEEP_TEXTS)
    save(page, name, "PNG picture")
    return " ".join(page.evaluate("window.savedTexts"))


def check_png(page: Page, runs: Runs) -> None:
    """It has the cells, and the marks of their states."""
    download, data = save(page, "layers", "PNG picture")
    assert download.suggested_filename == f"run-{runs.states}-layers-steps-0-199-rank-0.png"
    found = picture_pixels(page, data)
    box = page.locator(drawn.selector("layers")).bounding_box()
    assert box is not None and found.shape[1] == 2 * round(box["width"])
    assert found.shape[0] > 2 * box["height"], "there is room for a title and a scale"
    named = (("panel", 10_000), ("nonfinite", 20), ("hatch", 50), ("calm", 100), ("ink", 50))
    colours = {name: (drawn.colour(page, name), least) for name, least in named}
    for name, (colour, least) in {**colours, "hot": (drawn.headroom_colour(page, 0), 100)}.items():
        count = int(drawn.near(found, colour, 3).sum())
        assert count > least, (name, count)


def check_csv(page: Page) -> None:
    """Every cell that is shown."""
    rows = rows_of(save(page, "layers", "CSV of what is shown")[1])
    states, bits = hand_made.states(0), expected_bits(0)
    assert len(rows) == states.size
    for at, row in enumerate(rows):
        tensor, step = divmod(at, hand_made.STEPS)
        assert (row["first_step"], row["last_step"]) == (str(step), str(step))
        assert row["state"] == WORDS[states[tensor, step]]
        if np.isfinite(bits[tensor, step]):
            assert abs(float(row["headroom_bits"]) - bits[tensor, step]) <= 1e-5
        else:
            assert row["headroom_bits"] == ""


def check_table(page: Page) -> None:
    """States in words, while it is asked for."""
    table = lane(page, "layers").locator(".figure-table")
    expect(table).to_be_hidden()
    assert table.locator("*").count() == 0, "nothing of it is made before it is asked for"
    menu(page, "layers").get_by_text("Show as a table").click()
    expect(table).to_be_visible()
    expect(table.locator("tbody tr")).to_have_count(hand_made.TENSORS)
    row = table.locator("tbody tr").nth(3)
    expect(row.locator("th[scope=row]")).to_have_count(1)
    expect(row.locator("td").nth(0)).to_have_text("Inf")
    expect(row.locator("td").nth(1)).to_have_text("step 120")
    expect(table.locator("tbody tr").nth(5).locator("td").nth(2)).to_have_text("all zero")
    expect(table.locator("caption")).to_contain_text("Headroom by layer, rank 0")
    menu(page, "layers").get_by_text("Hide the table").click()
    expect(table).to_be_hidden()
    assert table.locator("*").count() == 0


def test_a_heatmap_is_saved_as_values_and_read_as_a_table(tab: Tab, runs: Runs) -> None:
    page = tab.open(f"/runs/{runs.states}/layers?rank=0")
    check_csv(page)
    check_table(page)


@pytest.mark.slow
def test_a_heatmap_is_saved_as_a_picture(tab: Tab, runs: Runs) -> None:
    page = tab.open(f"/runs/{runs.states}/layers?rank=0")
    check_png(page, runs)
    shown = texts(drawing_of(page, "layers"))
    for words in ("Headroom by layer", "run states", "steps 0-199", "rank 0"):
        assert words in shown, words
    for word in ("step", "saturated", "NaN", "not observed", "stale", "headroom, bits", "150"):
        assert word in shown, word


@pytest.mark.slow
def test_a_png_in_the_dark(tab: Tab, runs: Runs) -> None:
    tab.page.emulate_media(color_scheme="dark")
    check_png(tab.open(f"/runs/{runs.states}/layers?rank=0"), runs)


@pytest.mark.slow
def test_a_picture_of_a_part_of_the_columns_is_that_part(tab: Tab, runs: Runs) -> None:
    """A figure with an axis of its own is zoomed without asking: it has more cells than are shown."""
    page = tab.open(f"/runs/{runs.states}/layers?axes=tensor%2Crank")
    (left, y, *_), (right, *_) = (drawn.place(page, "ranks", column, 0) for column in (3, 4))
    page.mouse.move(left, y)
    page.mouse.down()
    page.mouse.move(right, y, steps=3)
    page.mouse.up()
    page.wait_for_function(f"document.querySelector('{drawn.selector('ranks')}').layout.xaxis.range[0] === 2.5")
    page.mouse.move(0, 0)
    page.evaluate(drawn.PAINTED)
    bad, box = drawn.colour(page, "nonfinite"), page.locator(drawn.selector("ranks")).bounding_box()
    assert box is not None
    shown = np.flatnonzero(drawn.near(drawn.pixels(page, "ranks"), bad, 3).any(axis=0)) - box["x"]
    found = picture_pixels(page, save(page, "ranks", "PNG picture")[1])
    above = found[: found.shape[0] * 2 // 3]  # the legend
    saved = np.flatnonzero(drawn.near(above, bad, 3).any(axis=0)) / 2  # two pixels to one
    assert shown[-1] - shown[0] > 500
    np.testing.assert_allclose(saved[[0, -1]], shown[[0, -1]], atol=4)


@pytest.mark.slow
def test_a_picture_of_lines_names_them(tab: Tab, runs: Runs) -> None:
    page = tab.open(f"/runs/{runs.states}")
    shown = texts(drawing_of(page, "loss_scale"))
    assert "loss scale" in shown and "skipped step" in shown and "run states" in shown and "steps 0-199" in shown


@pytest.mark.slow
def test_the_servers_files_are_of_what_is_shown(tab: Tab, runs: Runs) -> None:
    import pandas

    page = tab.open(f"/runs/{runs.states}/layers?rank=0&start=100&stop=140&q=0")
    frames = [
        pandas.read_csv(io.BytesIO(save(page, "layers", "CSV of every recorded value")[1])),
        pandas.read_parquet(io.BytesIO(save(page, "layers", "Parquet of every recorded value")[1])),
    ]
    for frame in frames:
        assert frame["step"].min() == 100 and frame["step"].max() == 139 and set(frame["rank"]) == {0}
        assert len(frame) == 40 * frame["tensor"].nunique()
        assert all("0" in name for name in frame["fqn"].astype(str))
        tensor, step = int(frame["tensor"].iloc[0]), int(frame["step"].iloc[0])
        assert frame["headroom_bits"].iloc[0] == pytest.approx(expected_bits(0)[tensor, step], abs=1e-3)


@pytest.mark.slow
def test_lines_have_no_file_of_the_server_and_say_so(tab: Tab, runs: Runs) -> None:
    page = tab.open(f"/runs/{runs.states}")
    choices = menu(page, "loss")
    expect(choices).to_contain_text("The server has no file behind this figure")
    expect(choices.locator("a")).to_have_count(0)
    rows = rows_of(save(page, "loss", "CSV of what is shown")[1])
    assert [float(row["value"]) for row in rows] == pytest.approx([2 + step / 100 for step in range(hand_made.STEPS)])


def test_a_menu_is_worked_with_keys(tab: Tab, runs: Runs) -> None:
    page = tab.open(f"/runs/{runs.states}")
    button = lane(page, "timeline").locator(".figure-menu-button")
    expect(button).to_have_accessible_name("Save or show as a table")
    expect(button).to_have_accessible_description("Least headroom by rank")
    button.focus()
    page.keyboard.press("Enter")
    choices = lane(page, "timeline").locator(".figure-choices")
    expect(choices.get_by_text("PNG picture")).to_be_focused()
    page.keyboard.press("Escape")
    expect(choices).to_be_hidden()
    expect(button).to_be_focused()
    page.keyboard.press("Enter")
    for _ in range(4):
        page.keyboard.press("Tab")
    expect(choices.get_by_text("Show as a table")).to_be_focused()
    page.keyboard.press("Enter")
    expect(lane(page, "timeline").locator(".figure-table")).to_be_visible()
    expect(button).to_be_focused()
    page.keyboard.press("Enter")
    page.mouse.click(5, 5)
    expect(choices).to_be_hidden()


@pytest.mark.slow
def test_a_canvas_is_saved_as_a_picture_and_as_values(tab: Tab, runs: Runs) -> None:
    page = tab.open(f"/runs/{runs.health}/collectives")
    shown = painted_texts(page, "cost")
    for word in ("rank 0", "rank 3", "Cost to each of the others", "run health", "not known", "1000+ ms"):
        assert word in shown, word
    rows = rows_of(save(page, "cost", "CSV of what is shown")[1])
    assert {row["row"] for row in rows} == {f"rank {rank}" for rank in range(4)}
    late = [float(row["value"]) for row in rows if row["row"] == "rank 2" and row["value"]]
    assert np.median(late) == pytest.approx(0.03, rel=0.2), "time on the wall"
    png = picture_pixels(page, save(page, "step-collectives", "PNG picture")[1])
    assert drawn.near(png, drawn.colour(page, "accent"), 3).sum() > 200
    rows = rows_of(save(page, "step-collectives", "CSV of what is shown")[1])
    assert {row["op"] for row in rows} >= {"all_reduce"} and {row["rank"] for row in rows} == set("0123")


# A page, and figures that are among its own: lines, heatmaps, bands, canvases, by steps and by the clock.
PAGES = {
    "overview": ("states", "", {"loss", "loss_scale", "timeline", "layers"}),
    "hostile": ("hostile", "/layers", {"layers"}),
    "ranks": ("states", "/layers?axes=tensor%2Crank", {"ranks"}),
    "statistic": ("states", "/layers?statistic=amax&tensor=3&against=step:50", {"layers", "tensor"}),
    "tensor": ("health", "/tensor?tensor=0&rank=0", {"tensor"}),
    "collectives": ("health", "/collectives", {"cost", "step-collectives"}),
    "environment": ("health", "/environment", {"busbw", "latency"}),
    "gpu by the clock": ("health", "/gpu?rank=1&axis=time", {"gpu-power", "gpu-throttle"}),
    "gpu by steps": ("health", "/gpu?rank=1&axis=steps", {"gpu-power", "gpu-throttle", "step_time"}),
}


def names(page: Page) -> list[str]:
    """The figures of a page that can be saved."""
    shown = page.locator(".lane:has(.figure-menu:not([hidden])) [data-testid]:is(.plot, .picture)")
    return [each.removeprefix("figure-").removeprefix("picture-") for each in shown.evaluate_all(
        "(nodes) => nodes.filter((node) => node.checkVisibility()).map((node) => node.dataset.testid)"
    )]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", PAGES)
def test_every_figure_is_saved_as_values(name: str, tab: Tab, runs: Runs) -> None:
    run, path, expected = PAGES[name]
    page = tab.open(f"/runs/{getattr(runs, run)}{path}")
    for figure in expected:
        expect(lane(page, figure).locator(".figure-menu")).to_be_visible()
    for figure in expected.union(names(page)):
        rows = rows_of(save(page, figure, "CSV of what is shown")[1])
        assert all(len(row) > 3 and None not in row and None not in row.values() for row in rows), figure
        if name == "hostile":
            shown = {row["row"] for row in rows}
            assert {f"{each} output" for each in MARKUP} <= shown
            assert any(LONG in each for each in shown)


@pytest.mark.slow
def test_the_links_of_ranks_as_a_table(tab: Tab, runs: Runs) -> None:
    page = tab.open(f"/runs/{runs.health}/environment")
    menu(page, "busbw").get_by_text("Show as a table").click()
    table = lane(page, "busbw").locator(".figure-table")
    expect(table.locator("tbody tr")).to_have_count(8 * 7)
    expect(table).to_contain_text("ranks 2 and 5: failed")
    expect(table).to_contain_text("ranks 3 and 4: not tested")
    expect(table).to_contain_text("ranks 0 and 7: 30 GB/s, slow")


@pytest.mark.slow
def test_the_lanes_of_a_card_by_steps_and_by_the_clock(tab: Tab, runs: Runs) -> None:
    page = tab.open(f"/runs/{runs.health}/gpu?rank=1&axis=steps")
    rows = rows_of(save(page, "gpu-power", "CSV of what is shown")[1])
    assert {row["series"] for row in rows} == {"power", "limit"} and "first_step" in rows[0]
    page = tab.open(f"/runs/{runs.health}/gpu?rank=1&axis=time")
    download, data = save(page, "gpu-throttle", "CSV of what is shown")
    assert "rank-1" in download.suggested_filename
    assert {row["what"] for row in rows_of(data)} == {"hw thermal slowdown", "sw power cap"}
    shown = texts(drawing_of(page, "gpu-temperature"))
    assert "time" in shown and "slows down at" in shown and "rank 1" in shown


@pytest.mark.slow
def test_hostile_names_are_text_in_every_file(tab: Tab, runs: Runs) -> None:
    page = tab.open(f"/runs/{runs.hostile}/layers")
    root = drawing_of(page, "layers")
    assert not [each.tag for each in root.iter() if each.tag.endswith(("}img", "}a", "}b"))]
    assert "onerror=alert(1)>" in texts(root)
    rows = rows_of(save(page, "layers", "CSV of what is shown")[1])
    assert any(row["row"].startswith("<img src=x onerror=alert(1)>") for row in rows)
    menu(page, "layers").get_by_text("Show as a table").click()
    table = lane(page, "layers").locator(".figure-table")
    expect(table).to_contain_text("<b>bold</b>")
    assert table.locator("img, b, a").count() == 0


@pytest.mark.slow
def test_nothing_sticks_out_on_a_phone(new_tab: Callable[..., Tab], runs: Runs) -> None:
    tab = new_tab(runs.server.url, viewport={"width": 390, "height": 844})
    page = tab.open(f"/runs/{runs.states}")
    for name in ("loss", "timeline", "layers"):
        choices = menu(page, name)
        box = choices.bounding_box()
        assert box is not None and box["x"] >= 0 and box["x"] + box["width"] <= 390, name
        choices.get_by_text("Show as a table").click()
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


GREY = """(canvas) => {
  const pen = canvas.getContext("2d");
  const { data } = pen.getImageData(0, 0, canvas.width, canvas.height);
  const linear = (value) => (value <= 10 ? value / 3294.6 : ((value / 255 + 0.055) / 1.055) ** 2.4);
  const grey = [];
  for (let i = 0; i < data.length; i += 4) {
    grey.push(0.2126 * linear(data[i]) + 0.7152 * linear(data[i + 1]) + 0.0722 * linear(data[i + 2]));
  }
  return grey;
}"""


@pytest.mark.slow
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_nan_and_inf_are_told_from_the_scale_and_from_each_other_without_colour(
    tab: Tab, runs: Runs, theme: Any
) -> None:
    """In grey: a saturated cell is plain, Inf and NaN have patterns of enough contrast, and not the same one."""
    tab.page.emulate_media(color_scheme=theme)
    page = tab.open(f"/runs/{runs.states}/layers?rank=0")
    saturated, inf, nan = (
        np.array(page.locator(".legend-item canvas").nth(place).evaluate(GREY)) for place in range(3)
    )
    assert np.ptp(saturated) < 0.01
    for each in (inf, nan):
        low, high = np.percentile(each, (2, 98))
        assert (high + 0.05) / (low + 0.05) > 2.2, "antialiased strokes keep most of their 3:1"
        assert np.mean(each < (low + high) / 2) > 0.08, "the strokes cover a part of the cell"
    assert np.mean(np.abs(inf - nan) > 0.03) > 0.1, "another pattern"
