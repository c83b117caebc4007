"""A tab of a real Chromium for `web.py`: times are taken in the page itself, from an event to the picture it brings."""

from __future__ import annotations

import json
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psutil

from pages.chromium import Browser

WIDTH, HEIGHT = 1280, 900
MOST_S, LOOK_EVERY_S = 60.0, 0.05
OPENS_S = 2.0  # a window loads pages of the browser's own, such as that of its address bar
WATCH = Path(__file__).with_name("watch.js").read_text()
ALL_POINTS = """async (steps) => {
  const node = document.body.appendChild(document.createElement("div"));
  node.style.height = "120px";
  const x = Float64Array.from({ length: steps }, (_, i) => i);
  const y = x.map((i) => 2 + Math.sin(i) / 10);
  const began = performance.now();
  await Plotly.newPlot(node, [{ type: "scatter", mode: "lines", x, y }], {}, { displayModeBar: false });
  return new Promise((resolve) => requestAnimationFrame(() => resolve(performance.now() - began)));
}"""


class Tab:
    """In a profile of its own: nothing is cached or compiled."""

    def __init__(self, browser: Browser, address: str) -> None:
        self.address = address
        self.browser = browser
        self.profile, self.page = browser.new_profile()
        self.page.send("Page.enable")
        self.page.send("Page.addScriptToEvaluateOnNewDocument", source=WATCH)
        screen = {"width": WIDTH, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": False}
        self.page.send("Emulation.setDeviceMetricsOverride", **screen)
        time.sleep(OPENS_S)

    def __enter__(self) -> Tab:
        return self

    def __exit__(self, *_: object) -> None:
        self.page.close()
        self.browser.drop_profile(self.profile)

    def first_view_ms(self, path: str, what: str = "firstView") -> float:
        """From the start of the navigation until every lane is drawn; `noView`: until it says that there is no run."""
        self.page.send("Page.navigate", url=self.address + path)
        return float(self.wait_for(f"window.bench?.{what}"))

    def evaluate(self, expression: str) -> Any:
        """Its value, waited for. Raises RuntimeError for what it throws."""
        found = self.page.send("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in found:
            raise RuntimeError(f"{expression}: {found['exceptionDetails']}")
        return found["result"].get("value")

    def wait_for(self, expression: str) -> Any:
        """Its value, once it has one. Raises TimeoutError."""
        deadline_s = time.monotonic() + MOST_S
        while time.monotonic() < deadline_s:
            if (found := self.evaluate(expression)) not in (None, False):
                return found
            time.sleep(LOOK_EVERY_S)
        raise TimeoutError(f"not within {MOST_S:g} s: {expression}")

    def box(self, selector: str) -> dict[str, float]:
        """Where the first such element is on the screen. Pixels."""
        name = json.dumps(selector)
        found: dict[str, float] = self.wait_for(f"document.querySelector({name})?.getBoundingClientRect().toJSON()")
        return found

    def mouse(self, kind: str, x: float, y: float) -> None:
        """`kind`: mousePressed, mouseMoved or mouseReleased."""
        self.page.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=1, clickCount=1)

    def click(self, selector: str) -> None:
        box = self.box(selector)
        for kind in ("mousePressed", "mouseReleased"):
            self.mouse(kind, box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)

    def arm(self, event: str) -> None:
        """Start the clock at the next event of this type."""
        self.evaluate(f"bench.time({json.dumps(event)})")

    def took_ms(self) -> float:
        """Of what was done since `arm`."""
        return float(self.wait_for("bench.took"))

    def heap(self) -> dict[str, float]:
        """After a collection of garbage: what the page's scripts hold, the nodes of its documents, its process."""
        self.page.send("HeapProfiler.collectGarbage")
        self.page.send("Performance.enable")
        metrics = {each["name"]: each["value"] for each in self.page.send("Performance.getMetrics")["metrics"]}
        self.page.send("Performance.disable")
        return {"heap_bytes": metrics["JSHeapUsedSize"], "nodes": metrics["Nodes"], "rss_bytes": renderer_bytes()}

    def shown(self) -> list[tuple[int, int]]:
        """(step, Unix time in ms) of each drawing since the last look, whose newest comes again. The page keeps no
        more: those of an hour would be half a MiB of its heap.
        """
        found: list[tuple[int, int]] = self.evaluate("bench.taken()")
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
