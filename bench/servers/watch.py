"""Looks at a server under load every two seconds: the home page's latency, memory, processor time, queue."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from typing import NamedTuple

import numpy as np
import psutil
import urllib3
from urllib3.exceptions import HTTPError

from servers.process import Server

PAGES = ("/", "/api/v1/runs")  # what a browser asks for to show the home page
QUEUE = re.compile(r"^rangewatch_\w*queue\w*(?:{.*})? (\S+)", re.MULTILINE)
"""The first such metric of the Prometheus text at /metrics: messages that wait."""

RULES = re.compile(r"^rangewatch_rules_seconds(?:_total)? (\S+)", re.MULTILINE)


class Sample(NamedTuple):
    """One look. Processor times are shares of one core since the look before."""

    at_s: float
    page_ms: float
    """All of `PAGES`, one after the other; infinite when one failed."""
    rss_bytes: int
    server_cpu: float
    load_cpu: float
    queue: float
    """Messages that wait in the server; NaN where it does not say."""
    rules_s: float
    """Seconds that the rules have taken since the server's start; NaN where it does not say."""


class Watch(threading.Thread):
    """Samples until `stop`."""

    def __init__(self, server: Server, load_pid: int, every_s: float) -> None:
        super().__init__(name="watch", daemon=True)
        self.server, self.load, self.every_s = server, psutil.Process(load_pid), every_s
        self.pool = urllib3.PoolManager(maxsize=1, timeout=30, retries=False)
        self.samples: list[Sample] = []
        self._ended = threading.Event()

    def run(self) -> None:
        """Until `stop`, or until a process has gone."""
        began_s = before_s = time.perf_counter()
        before = self._cpu_s()
        with contextlib.suppress(psutil.Error):
            while not self._ended.wait(self.every_s):
                now, now_s = self._cpu_s(), time.perf_counter()
                server, load = ((new - old) / (now_s - before_s) for new, old in zip(now, before, strict=True))
                before, before_s = now, now_s
                page_ms, rss, reported = self._page_ms(), self.server.rss_bytes(), self._get("/metrics") or ""
                sample = (now_s - began_s, page_ms, rss, server, load, _first(QUEUE, reported), _first(RULES, reported))
                self.samples.append(Sample(*sample))

    def stop(self) -> None:
        """End it and wait."""
        self._ended.set()
        self.join()

    def _cpu_s(self) -> tuple[float, float]:
        load = self.load.cpu_times()
        return self.server.cpu_s(), load.user + load.system

    def _page_ms(self) -> float:
        began_s = time.perf_counter()
        answers = [self._get(path) for path in PAGES]
        return (time.perf_counter() - began_s) * 1e3 if None not in answers else float("inf")

    def _get(self, path: str) -> str | None:
        try:
            answer = self.pool.request("GET", f"{self.server.url}{path}")
        except HTTPError:
            return None
        return answer.data.decode("utf-8", "replace") if answer.status == 200 else None


def _first(metric: re.Pattern[str], reported: str) -> float:
    found = metric.search(reported)
    return float(found[1]) if found else float("nan")


def slope_mib_per_min(samples: list[Sample]) -> float:
    """Growth of the server's memory over the last two thirds of the samples, by least squares; the rest is warm-up."""
    kept = samples[len(samples) // 3 :]
    if len(kept) < 3:
        return float("nan")
    at_min = np.array([each.at_s for each in kept]) / 60
    return float(np.polyfit(at_min, np.array([each.rss_bytes for each in kept]) / 2**20, 1)[0])
