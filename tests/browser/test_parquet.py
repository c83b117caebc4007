"""Parquet of what is shown is the CSV of what is shown, typed: of every kind of figure, as other programs read it."""

from __future__ import annotations

import base64
import csv
import io
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.conftest import Tab
from tests.browser.hand_made import LONG, MARKUP, Runs
from tests.browser.test_pictures import SAFE, lane, menu, save

Kind = Callable[[random.Random], str | float | None]

CALCULATED = tuple("=+-@\t\r\n'")  # what a text begins with that has a ' before it in CSV
WRITE = """async (tables) => {
  const { parquetParts } = await import("/static/charts/saving/parquet.js");
  const text = (blob) => new Promise((done) => {
    const reader = new FileReader();
    reader.onload = () => done(reader.result.split(",")[1] ?? "");
    reader.readAsDataURL(blob);
  });
  return Promise.all(tables.map((table) => text(new Blob(parquetParts(table)))));
}"""
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


def read(data: bytes) -> pa.Table:
    """As pyarrow reads it, which polars' own reader must read alike."""
    import polars

    found = pyarrow.parquet.read_table(io.BytesIO(data))
    if found.num_columns:
        assert polars.read_parquet(io.BytesIO(data)).rows() == [tuple(row.values()) for row in found.to_pylist()]
    return found


def in_csv(value: str | float | None) -> str | float:
    """What a CSV has in place of a value of Parquet."""
    if isinstance(value, str):
        return f"'{value}" if value.startswith(CALCULATED) else value
    return "" if value is None else value


def names(page: Page) -> list[str]:
    """The figures of a page that can be saved."""
    shown = page.locator(".lane:has(.figure-menu:not([hidden])) [data-testid]:is(.plot, .picture)")
    return [each.removeprefix("figure-").removeprefix("picture-") for each in shown.evaluate_all(
        "(nodes) => nodes.filter((node) => node.checkVisibility()).map((node) => node.dataset.testid)"
    )]  # fmt: skip


def compare(csv_file: bytes, parquet_file: bytes) -> pa.Table:
    """The same columns and rows; numbers are doubles, texts are strings."""
    lines = list(csv.reader(io.StringIO(csv_file.decode(), newline="")))
    found = read(parquet_file)
    assert found.column_names == lines[0] and found.num_rows == len(lines) - 1
    for place, field in enumerate(found.schema):
        column = found.column(place).to_pylist()
        reported: list[Any] = [line[place] for line in lines[1:]]
        assert field.type in (pa.string(), pa.float64()), field
        if field.type == pa.float64():
            reported = [float(each) if each else "" for each in reported]
        assert [in_csv(each) for each in column] == reported, field.name
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", PAGES)
def test_every_figure_has_its_csv_as_parquet(name: str, tab: Tab, runs: Runs) -> None:
    run, path, expected = PAGES[name]
    page = tab.open(f"/runs/{getattr(runs, run)}{path}")
    for figure in expected:
        expect(lane(page, figure).locator(".figure-menu")).to_be_visible()
    for figure in expected.union(names(page)):
        first, csv_file = save(page, figure, "CSV of what is shown")
        second, parquet_file = save(page, figure, "Parquet of what is shown")
        assert second.suggested_filename == first.suggested_filename.removesuffix("csv") + "parquet"
        table = compare(csv_file, parquet_file)
        assert table.num_columns > 3, figure
        if name == "hostile":
            found = set(table.column("row").to_pylist())
            assert {f"{each} output" for each in MARKUP} <= found
            assert any(LONG in each for each in found)


@pytest.mark.slow
def test_the_types_of_a_heatmap_are_told_and_what_is_not_known_is_null(tab: Tab, runs: Runs) -> None:
    page = tab.open(f"/runs/{runs.states}/layers?rank=0")
    found = read(save(page, "layers", "Parquet of what is shown")[1])
    double, string = pa.float64(), pa.string()
    kinds = {"row": string, "first_step": double, "last_step": double, "state": string, "headroom_bits": double}
    assert {field.name: field.type for field in found.schema} == kinds
    rows = found.to_pylist()
    assert {row["headroom_bits"] for row in rows if row["state"] in ("NaN", "Inf", "not observed")} == {None}
    assert all(row["headroom_bits"] > 0 for row in rows if row["state"] == "value")
    frame = found.to_pandas()
    assert frame["headroom_bits"].isna().sum() == frame["state"].isin(["NaN", "Inf", "not observed", "all zero"]).sum()


def text(chance: random.Random) -> str | None:
    words = (None, "", "-", "=1+1", "'", 'a,"b"', "two\r\nlines", "é", "\0", *MARKUP, LONG)
    return chance.choice((*words, *[f"word {chance.random()}"] * len(words)))


def number(chance: random.Random) -> float | None:
    return chance.choice((None, 0.0, -0.0, 1e308, 5e-324, -2.5, 2**53, chance.random()))


def null(_kind: Kind, _chance: random.Random, rows: int) -> list[Any]:
    return [None] * rows


def alike(kind: Kind, chance: random.Random, rows: int) -> list[Any]:
    return [kind(chance)] * rows


def mixed(kind: Kind, chance: random.Random, rows: int) -> list[Any]:
    return [kind(chance) for _ in range(rows)]


def made(seed: int) -> dict[str, Any]:
    """A table of any length, of columns that are mixed, all alike or all null."""
    chance = random.Random(seed)
    rows = chance.choice((0, 1, 2, 7, 300, 1_000))
    kinds = [chance.choice((text, number)) for _ in range(chance.choice((1, 2, 20)))]
    columns = [f"{i}{chance.choice(('', ' é', ' <b>', '.x'))}" for i in range(len(kinds))]
    filled = [chance.choice((null, alike, mixed))(kind, chance, rows) for kind in kinds]
    texts = [name for name, kind in zip(columns, kinds, strict=True) if kind is text]
    return {"columns": columns, "textColumns": texts, "rows": [[column[i] for column in filled] for i in range(rows)]}


@pytest.mark.slow
@pytest.mark.parametrize("count", [12, pytest.param(60, marks=pytest.mark.slow)])
def test_any_table_comes_back_as_it_was(tab: Tab, runs: Runs, count: int) -> None:
    page = tab.open(f"/runs/{runs.empty}")
    tables = [made(seed) for seed in range(count)]
    for table, data in zip(tables, page.evaluate(WRITE, tables), strict=True):
        found = read(base64.b64decode(data))
        assert found.column_names == table["columns"]
        assert [list(row.values()) for row in found.to_pylist()] == table["rows"]
        strings = [field.name for field in found.schema if field.type == pa.string()]
        assert strings == table["textColumns"], "also where all is null, and where there is no row"


def failure(page: Page, name: str) -> Locator:
    return lane(page, name).locator(".figure-said")


@pytest.mark.slow
def test_what_writes_it_is_fetched_when_it_is_asked_for(tab: Tab, runs: Runs) -> None:
    """And where it cannot be fetched the menu says so, and tries again when asked again."""
    asked: list[str] = []
    tab.page.on("request", lambda request: asked.append(request.url))
    tab.expected.append("saving/parquet.js|ERR_FAILED")
    page = tab.open(f"/runs/{runs.states}")
    assert asked and not [url for url in asked if "/parquet.js" in url]
    page.route("**/saving/parquet.js", lambda route: route.abort())
    menu(page, "loss").get_by_text("Parquet of what is shown").click()
    expect(failure(page, "loss")).to_contain_text("Not saved:")
    page.unroute("**/saving/parquet.js")
    download, _ = save(page, "loss", "Parquet of what is shown")
    assert SAFE.fullmatch(download.suggested_filename) and Path(download.path()).stat().st_size > 1_000
    assert [url for url in asked if "/parquet.js" in url]
