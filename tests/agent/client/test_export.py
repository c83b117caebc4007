"""`rangewatch export`: an HTML report that opens with no server, and slices as files. Names in it are text."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow.ipc
import pytest
from playwright.sync_api import Browser, Page

from rangewatch import statistics
from rangewatch.wire.records import Catalogue, TensorEntry
from tests import forked
from tests.browser import hand_made_health
from tests.browser.conftest import Tab, new_context
from tests.server.process import Run, Server
from tests.server.records import batch, catalogue, opening

MARKUP = "<img src=x onerror=alert(1)><b>bold</b>"
KNOWN = Catalogue(
    statistics.ALL,
    tuple(TensorEntry(f"{MARKUP}.{at}", "output", 0, "float16", (4, 8), at, "Linear") for at in range(4)),
)


@pytest.fixture(scope="module")
def exported(served: Server) -> Run:
    """A run whose every name is markup."""
    run = Run(served, f"{MARKUP} exported")
    bad = np.zeros((4, 100))
    bad[2, 60:] = 3
    run.post(opening(KNOWN), batch(KNOWN, 0, range(100), {"inf_count": bad}, series={"loss": 2.0}))
    said = {"title": MARKUP, "note": MARKUP, "tags": [MARKUP]}
    run.ask(method="PATCH", json=said).raise_for_status()
    return run


def export(server: Server, *arguments: object) -> subprocess.CompletedProcess[str]:
    return forked.server.run("-m", "rangewatch", "export", *map(str, arguments), "--url", server.url)


@pytest.mark.slow
def test_the_report_opens_without_a_server(exported: Run, tmp_path: Path, new_tab: Callable[..., Tab]) -> None:
    file = tmp_path / "report.html"
    reported = export(exported.server, exported.id, file)
    assert reported.returncode == 0, reported.stderr
    page = new_tab(exported.server.url).page
    elsewhere: list[str] = []
    page.on("request", lambda request: None if request.url.startswith("file:") else elsewhere.append(request.url))
    page.goto(file.as_uri())
    page.wait_for_selector(".js-plotly-plot .main-svg")
    assert page.locator(".js-plotly-plot").count() >= 3  # loss, ranks, layers
    assert page.locator("h1").inner_text() == MARKUP
    assert "Step 60, rank 0" in page.locator("section.critical h3").inner_text()
    assert page.locator("img, b, iframe, [onerror]").count() == 0
    for width in (390, 1280):
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_function("() => document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    assert elsewhere == []


@pytest.fixture(scope="module")
def health(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A run with collectives, cards, hosts, environments and a scaler's drops."""
    server = Server(str(tmp_path_factory.mktemp("health") / "a.db"))
    hand_made_health.send(server)
    scales = 65_536.0 / 2 ** np.cumsum(np.arange(60) == 30)
    skipped = (np.arange(60) == 30).astype(float)
    bad = np.zeros((3, 60))
    bad[1, 30] = 1
    known = catalogue(3)
    server.post(opening(known, run="scaled"))
    series = {"loss_scale": scales, "skipped_step": skipped, "found_inf": skipped, "loss": 1.0}
    server.post(batch(known, 0, range(60), {"inf_count": bad}, run="scaled", series=series))
    yield server
    server.stop()


@contextmanager
def report(
    server: Server, run: str, file: Path, browser: Browser, theme: Literal["light", "dark"] = "light"
) -> Iterator[Page]:
    """The report, opened from the disk; whatever it asks of the network, or complains of, fails the test."""
    reported = export(server, run, file)
    assert reported.returncode == 0, reported.stderr
    page = new_context(browser, color_scheme=theme, offline=True).new_page()
    problems: list[str] = []
    page.on("request", lambda request: problems.append(request.url) if not request.url.startswith("file:") else None)
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(file.as_uri())
    page.wait_for_selector(".js-plotly-plot .main-svg")
    yield page
    page.context.close()
    assert problems == []


def test_the_report_tells_of_collectives_cards_environment_and_ranks(
    health: Server, tmp_path: Path, browser: Browser
) -> None:
    with report(health, "health", tmp_path / "r.html", browser) as page:
        sections = page.locator("h2").all_inner_texts()
        assert sections == [
            "Findings", "Over the steps", "Layers nearest to their limit", "Loss scale", "Collectives", "GPUs",
            "Environment", "Ranks",
        ]  # fmt: skip
        text = page.locator("main").inner_text()
        for said in (
            "rank 2", "all_reduce", "busbw", "1 MiB", "GPU is lost", "NVIDIA H100", "gone", "88 °C", "61 GiB of 80 GiB",
            "node1", "NCCL_TIMEOUT=3600 has no effect", "unset NCCL_TIMEOUT", "variables.NCCL_DEBUG", "INFO (ranks 3)",
            "No loss scale was recorded",
        ):  # fmt: skip
            assert said in text, said
        assert page.locator("img, iframe, [onerror]").count() == 0
        page.locator("nav a", has_text="Environment").click()
        assert page.evaluate("scrollY") > 0


@pytest.mark.parametrize("theme", ["light", pytest.param("dark", marks=pytest.mark.slow)])
def test_the_report_has_drops_of_the_scale_and_both_themes(
    health: Server, tmp_path: Path, browser: Browser, theme: Literal["light", "dark"]
) -> None:
    with report(health, "scaled", tmp_path / "r.html", browser, theme) as page:
        text = page.locator("main").inner_text()
        assert "1 steps were skipped" not in text and "1 step was skipped." in text
        assert "30, skipped" in text and "2^16 to 2^15" in text
        colours = page.evaluate(
            """() => {
              const layers = [...document.querySelectorAll(".js-plotly-plot")].at(-1);
              const [heat] = layers.data;
              const { backgroundColor } = getComputedStyle(document.documentElement);
              return [heat.colorscale[0][1], layers.layout.font.color, backgroundColor];
            }"""
        )
        wanted = {
            "light": ["#7a0403", "#1d2226", "rgb(251, 251, 250)"],
            "dark": ["#ffe3c2", "#e7eaec", "rgb(20, 23, 26)"],
        }
        assert colours == wanted[theme]


def test_a_run_without_steps_is_a_report(run: Run, tmp_path: Path) -> None:
    run.post(opening(KNOWN))
    reported = export(run.server, run.name, tmp_path / "r.html")
    assert reported.returncode == 0, reported.stderr
    text = (tmp_path / "r.html").read_text()
    assert "No step has been recorded yet." in text and "No open finding." in text and "no step, 1 rank;" in text


def test_slices_are_files(exported: Run, tmp_path: Path) -> None:
    import pandas

    for name in ("a.csv", "a.parquet", "a.arrow"):
        chosen = ("--statistic", "amax", "--statistic", "inf_count", "--start", 50)
        reported = export(exported.server, exported.id, tmp_path / name, *chosen)
        assert reported.returncode == 0, reported.stderr
    frames = [
        pandas.read_csv(tmp_path / "a.csv"), pandas.read_parquet(tmp_path / "a.parquet"),
        pyarrow.ipc.open_stream((tmp_path / "a.arrow").read_bytes()).read_pandas(),
    ]  # fmt: skip
    for frame in frames:
        assert len(frame) == 4 * 50 and frame["inf_count"].sum() == 3 * 40
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a.arrow", "a.csv", "a.parquet"]


def test_bad_input_and_a_failure_leave_the_files_as_they_were(exported: Run, tmp_path: Path) -> None:
    for run, file, rest, said in (
        (exported.id, "a.txt", (), "what is 'a.txt' to be?"), ("nobody", "a.html", (), "no run 'nobody'"),
        (exported.id, "no/such/folder/a.csv", (), "No such file"),
        (exported.id, "a.csv", ("--axes", "step,colour"), "axes"),
    ):  # fmt: skip
        reported = export(exported.server, run, tmp_path / file, *rest)
        assert reported.returncode == 2 and said in reported.stderr.replace(f"{tmp_path}/", ""), reported
        assert reported.stderr.startswith("rangewatch export: ")
        assert list(tmp_path.iterdir()) == []
    there = tmp_path / "a.csv"
    there.write_text("old")
    assert export(exported.server, exported.id, there, "--statistic", "no such").returncode == 2
    assert there.read_text() == "old"
