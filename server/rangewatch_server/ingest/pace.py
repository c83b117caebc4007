"""How often a rank should send: seldom when there are many, since a request costs more than the steps in it.

Ten steps of 300 tensors in one request cost the server little more than one (bench/ingest.py: 0.8 M values a second at
one step a batch, 5.3 M at ten).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from rangewatch_server.ingest.stream import StreamState

REQUESTS_PER_S = 128  # of all ranks together: a quarter of what two cores take (517, bench/ingest.py)
LEAST_S, MOST_S = 0.5, 10.0  # an agent's own pace; and well below the 15 s after which a rank counts as stale
ACTIVE_NS = 30 * 10**9
COUNT_EVERY_S = 1.0
COMING_S = 60.0  # a rank that has not come by then is not waited for
GOLDEN = 0.6180339887  # its multiples lie evenly between whole numbers, however many ranks there are


class Pace:
    """Counts the ranks that speak. Used by the writer's thread."""

    def __init__(self, streams: Mapping[Any, StreamState]) -> None:
        self._streams = streams
        self._counted_s = float("-inf")
        self._send_every_s = LEAST_S
        self._sizes: dict[int, tuple[int, float]] = {}

    def opened(self, run_id: int, world_size: int) -> None:
        """A rank of a run says how many there will be: they are counted before they come."""
        self._sizes[run_id] = (world_size, time.monotonic())

    def send_every_s(self, rank: int) -> float:
        """Least seconds between two batches of one rank; not the same for all, so that they spread out."""
        every_s = self._for_all()
        if every_s <= LEAST_S:
            return every_s
        return round(min(every_s * (0.75 + rank * GOLDEN % 1 / 2), MOST_S), 3)

    def _for_all(self) -> float:
        now_s = time.monotonic()
        if now_s - self._counted_s >= COUNT_EVERY_S:
            self._counted_s = now_s
            since_ns = time.time_ns() - ACTIVE_NS
            active = sum(each.state == "open" and each.last_seen_ns > since_ns for each in self._streams.values())
            self._sizes = {run: each for run, each in self._sizes.items() if now_s - each[1] < COMING_S}
            active = max(active, sum(size for size, _ in self._sizes.values()))
            self._send_every_s = min(max(active / REQUESTS_PER_S, LEAST_S), MOST_S)
        return self._send_every_s
