"""A tab of a real Chromium for `web.py`: times are taken in the page itself, from an event to the picture it brings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psutil
from playwright.sync_api import Browser, Page, sync_playwright

CHROMIUM = "/usr/bin/chromium"
ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--no-first-run",
]  # fmt: skip
WIDTH, HEIGHT = 1280, 900
MOST_MS = 60_000
WATCH = Path(__file__).with_name("web_watch.js").read_text()
ALL_POINTS = """async (steps) => {
  const node = document.body.appendChild(document.createElement("div"));
  node.style.height = "120px";
  const x = Float64Array.from({ length: steps }, (_, i) => i);
  const y = x.map((i) => 2 + Math.sin(i) / 10);
  const began = performance.now();
  await Plotly.newPlot(node, [{ type: "scatter", mode: "lines", x, y }], {}, { displayModeBar: false });
  return new Promise((resolve) => requestAnimationFrame(() => resolve(performance.now() - began)));
}"""


@contextmanager
def chromium() -> Iterator[Browser]:
    """One for all samples: what is cold in a new tab is its profile."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


class Tab:
    """In a profile of its own: nothing is cached or compiled."""

    def __init__(self, browser: Browser, address: str) -> None:
        self.address = address
        self.context = browser.new_context(viewport={"width": WIDTH, "height": HEIGHT})
        self.context.add_init_script(WATCH)
        self.page: Page = self.context.new_page()
        self.page.set_default_timeout(MOST_MS)
        self.devtools = self.context.new_cdp_session(self.page)

    def __enter__(self) -> Tab:
        return self

    def __exit__(self, *_: object) -> None:
        self.context.close()

    def first_view_ms(self, path: str, what: str = "firstView") -> float:
        """From the start of the navigation until every lane is drawn; `noView`: until it says that there is no run."""
        self.page.goto(self.address + path)
        return self._ms(what)

    def arm(self, event: str) -> None:
        """Start the clock at the next event of this type."""
        self.page.evaluate("type => bench.time(type)", event)

    def took_ms(self) -> float:
        """Of what was done since `arm`."""
        return self._ms("took")

    def _ms(self, what: str) -> float:
        return float(self.page.wait_for_function("what => window.bench?.[what]", arg=what).json_value())

    def heap(self) -> dict[str, float]:
        """After a collection of garbage: what the page's scripts hold, the nodes of its documents, its process."""
        self.devtools.send("HeapProfiler.collectGarbage")
        self.devtools.send("Performance.enable")
        metrics = {each["name"]: each["value"] for each in self.devtools.send("Performance.getMetrics")["metrics"]}
        return {"heap_bytes": metrics["JSHeapUsedSize"], "nodes": metrics["Nodes"], "rss_bytes": renderer_bytes()}

    def shown(self) -> list[tuple[int, int]]:
        """(step, Unix time in ms) of each drawing since `bench.follow`."""
        found: list[tuple[int, int]] = self.page.evaluate("() => bench.shown")
        return found


def renderer_bytes() -> float:
    """Memory of the processes that run pages."""
    found = 0.0
    for each in psutil.Process().children(recursive=True):
        try:
            if "--type=renderer" in each.cmdline():
                found += each.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return found


def flatness(samples: list[dict[str, float]], name: str) -> dict[str, float]:
    """The median of the first and of the last quarter."""
    values = [each[name] for each in samples]
    quarter = max(1, len(values) // 4)
    first, last = median(values[:quarter]), median(values[-quarter:])
    return {"first": first, "last": last, "ratio": last / first}


def percentiles(values: list[float]) -> dict[str, Any]:
    """p50, p95 and the most."""
    p50, p95, most = np.percentile(values, (50, 95, 100))
    return {"p50": p50, "p95": p95, "max": most, "samples": len(values)}
