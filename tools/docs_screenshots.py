"""`python -m tools.docs_screenshots [NAME...]` takes the pictures of docs/images: the pages as they are, over the runs
of `tools.docs_runs`, in Chromium, 1280 pixels wide and in light colours; and the first screen of five cases, 1440 by
900 pixels, in both themes.
"""

from __future__ import annotations

import argparse
import io
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import Image
from playwright.sync_api import Page, sync_playwright
from tests.browser.conftest import DRAWN, new_context
from tests.conftest import ARGUMENTS, CHROMIUM
from tests.server.process import Server
from tools import docs_runs
from tools.docs_runs import (
    ALERTED,
    BAD_RANK,
    BAD_STEP,
    EIGHT,
    HANGS,
    OVERFLOWS,
    READ,
    ROUTED,
    SCALED,
    STRAGGLES,
    THROTTLED,
    WAITS,
    WELL,
)

IMAGES = Path(__file__).parents[1] / "docs" / "images"
HEIGHT = 860
MOST_BYTES = 200_000
COLOURS = 256
PATIENCE_MS = 60_000
# Resolves when the page has not changed for a while: some figures are drawn after the words around them.
STILL = """() => new Promise((resolve) => {
  let timer = setTimeout(resolve, 2000);
  new MutationObserver(() => (clearTimeout(timer), (timer = setTimeout(resolve, 2000))))
    .observe(document.querySelector("main"), { subtree: true, childList: true });
  setTimeout(resolve, 20000);
})"""
USUAL, FIRST_SCREEN = 1280, (1440, 900)
THEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
CASES = {
    "overflow": OVERFLOWS,
    "straggler": STRAGGLES,
    "throttling": THROTTLED,
    "hang_overview": HANGS,
    "healthy": WELL,
}
# name: (run, path after /runs/{id}, height); no run: the path alone, in which runs stand by name
PICTURES: dict[str, tuple[str, str, int]] = {
    "runs": ("", "/", 420),
    "overview": (OVERFLOWS, "", 960),
    "layers": (OVERFLOWS, "/layers", HEIGHT),
    "loss_scale": (OVERFLOWS, "/loss-scale", HEIGHT),
    "tensor": (OVERFLOWS, "/tensor", HEIGHT),
    "step": (OVERFLOWS, f"/step?step={BAD_STEP}&rank={BAD_RANK}", HEIGHT),
    "agent": (WAITS, "/agent", 700),
    "alerts": (OVERFLOWS, "/alerts", HEIGHT),
    "collectives": (WAITS, "/collectives", HEIGHT),
    "gpus": (WAITS, "/gpus", 700),
    "environment": (WAITS, "/environment", HEIGHT),
    "hang": (HANGS, "/hang", HEIGHT),
    "scales": (SCALED, "/scales", HEIGHT),
    "whatif": (READ, "/whatif", HEIGHT),
    "experts": (ROUTED, "/experts", HEIGHT),
    "compare": ("", f"/compare?runs={{{OVERFLOWS}}},{{{WELL}}}", HEIGHT),
    "mesh": (STRAGGLES, "?rows=pp&columns=tp&fold=pp", 1000),
    "mesh_eight": (EIGHT, "?rows=pp&columns=tp", 1000),
}


def main(arguments: Sequence[str]) -> int:
    """Take those that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join([*PICTURES, *CASES]))
    names = parser.parse_args(arguments).names or [*PICTURES, *CASES]
    if unknown := sorted({*names} - {*PICTURES, *CASES}):
        parser.error(f"no picture is called {', '.join(unknown)}; there are {', '.join([*PICTURES, *CASES])}")
    with tempfile.TemporaryDirectory() as folder:
        server = Server(f"{folder}/docs.db")
        try:
            numbers = docs_runs.send(server)
            alerted = list(ALERTED)
            if "mesh_eight" in names:
                docs_runs.train_eight(server)
                numbers |= {run["name"]: run["id"] for run in server.get("/api/v1/runs")["runs"]}
                alerted.append(EIGHT)
            for run in alerted:
                _wait_for_alerts(server, numbers[run])
            return _take(server, numbers, names)
        finally:
            server.stop()


def _wait_for_alerts(server: Server, run: int) -> None:
    """The rules look seconds after a run has changed."""
    stop = time.monotonic() + 60
    while not server.get(f"/api/v1/runs/{run}/alerts")["alerts"] and time.monotonic() < stop:
        time.sleep(0.5)


def _take(server: Server, numbers: dict[str, int], names: Sequence[str]) -> int:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        page = new_context(browser).new_page()
        page.set_default_timeout(PATIENCE_MS)
        with docs_runs.kept_alive(server):
            sizes: dict[str, int] = {}
            for name in names:
                sizes |= (
                    _case(page, server.url, numbers, name)
                    if name in CASES
                    else _picture(page, server.url, numbers, name)
                )
        browser.close()
    for name, size in sizes.items():
        sys.stdout.write(f"{name}.png: {size:,} bytes\n")
    return int(any(size > MOST_BYTES for size in sizes.values()))


def _picture(page: Page, url: str, numbers: dict[str, int], name: str) -> dict[str, int]:
    run, path, height = PICTURES[name]
    _open(page, (USUAL, height), url + (f"/runs/{numbers[run]}{path}" if run else path.format_map(numbers)))
    return {name: _save(page, name)}


def _case(page: Page, url: str, numbers: dict[str, int], name: str) -> dict[str, int]:
    """In each theme."""
    _open(page, FIRST_SCREEN, f"{url}/runs/{numbers[CASES[name]]}")
    sizes = {}
    for theme in THEMES:
        page.emulate_media(color_scheme=theme)
        page.evaluate(STILL)
        sizes[f"{name}_{theme}"] = _save(page, f"{name}_{theme}")
    page.emulate_media(color_scheme="light")
    return sizes


def _open(page: Page, size: tuple[int, int], address: str) -> None:
    page.set_viewport_size({"width": size[0], "height": size[1]})
    page.goto(address)
    page.wait_for_function(DRAWN)
    page.mouse.move(0, 0)
    page.evaluate(STILL)


def _save(page: Page, name: str) -> int:
    """Bytes of the file."""
    file = IMAGES / f"{name}.png"
    with Image.open(io.BytesIO(page.screenshot(animations="disabled"))) as image:
        _with_palette(image.convert("RGB")).save(file, optimize=True)
    return file.stat().st_size


def _with_palette(image: Image.Image) -> Image.Image:
    """In 256 colours, a third of the bytes: half of them the most frequent as they are, since a palette chosen for
    coverage alone tints the page's white.
    """
    pixels = np.asarray(image).reshape(-1, 3)
    colours, of_pixel, counts = np.unique(pixels, axis=0, return_inverse=True, return_counts=True)
    spread = image.quantize(COLOURS // 2, method=Image.Quantize.MAXCOVERAGE).getpalette() or []
    palette = np.concatenate([colours[np.argsort(-counts)[: COLOURS // 2]], np.reshape(spread, (-1, 3))]).astype(int)
    nearest = ((palette**2).sum(1) - 2 * colours.astype(int) @ palette.T).argmin(1).astype(np.uint8)
    reduced = Image.fromarray(nearest[of_pixel.reshape(-1)].reshape(image.height, image.width), "P")
    reduced.putpalette(palette.ravel().tolist())
    return reduced


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
