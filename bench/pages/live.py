"""A run that goes on while a tab shows it: how soon each batch is on the screen, and whether the tab's memory grows."""

from __future__ import annotations

import math
import time
from typing import Any

import urllib3

from load.query_build import BATCH_STEPS
from load.traffic import Rank
from pages.tab import Tab, flatness, percentiles

LIVE_STEPS, LIVE_EVERY_S = 5, 0.5
HEAP_EVERY_S = 15.0
WARM_UP = 4  # samples of the memory


def watch(tab: Tab, path: str, steps: int, tensors: int, minutes: float) -> dict[str, Any]:
    """The tab beside the run that goes on: lags, and memory every few seconds."""
    rank = Rank("bench", 0, 1, tensors)
    rank.step, rank.sequence = steps, math.ceil(steps / BATCH_STEPS)
    pool = urllib3.PoolManager(maxsize=1)
    tab.first_view_ms(path)
    tab.evaluate("bench.follow()")
    sent, shown, memory = [], [], []
    began_s = next_heap_s = time.monotonic()
    while time.monotonic() < began_s + minutes * 60:
        at_s, body = time.monotonic(), rank.batch(LIVE_STEPS)
        sent.append((rank.step - 1, time.time() * 1e3))
        answer = pool.request("POST", f"{tab.address}/api/v1/ingest", body=body)
        if answer.status != 202:
            raise RuntimeError(f"a live batch was refused: {answer.status} {answer.data[:200]!r}")
        time.sleep(max(0.001, at_s + LIVE_EVERY_S - time.monotonic()))
        if time.monotonic() >= next_heap_s:
            shown += tab.shown()
            memory.append(tab.heap())
            next_heap_s += HEAP_EVERY_S
    tab.wait_for(f"bench.shown.some(([at]) => at >= {sent[-1][0]})")
    flat = {name: flatness(memory[WARM_UP:] or memory, name) for name in memory[0]}
    return {"lag_ms": percentiles(lags(sent, shown + tab.shown())), "memory": flat, "minutes": minutes}


def lags(sent: list[tuple[int, float]], shown: list[tuple[int, int]]) -> list[float]:
    """Of each batch: until the first drawing with its last step or a later one."""
    found = []
    for step, sent_ms in sent:
        drawn_ms = next((at_ms for at, at_ms in shown if at >= step), None)
        if drawn_ms is None:
            raise RuntimeError(f"step {step} never came to the screen")
        found.append(drawn_ms - sent_ms)
    return found
