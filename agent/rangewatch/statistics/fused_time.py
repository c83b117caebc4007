"""What the reads cost a device, by its own clock: events before and after each, which are asked when they are done."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

TIMED_READS = 1024
"""Reads timed in one step at most: two events each, some 3 microseconds of the host. More are taken to cost alike."""

TIMED_STEPS = 4
"""Steps whose times wait to be asked for; the oldest is forgotten when there are more."""

Pair = tuple[Any, Any]


class _Step(NamedTuple):
    step: int
    pairs: list[Pair]
    reads: int


class DeviceTime:
    """One device's. The training thread calls all but `take`, any thread that; nothing here waits.

    Between two events lies also what the device waits for the host, when it has nothing else to do.
    """

    def __init__(self, make_event: Callable[[], Any]) -> None:
        self._make_event = make_event
        self._free: deque[Pair] = deque()
        self._pairs: list[Pair] = []
        self._reads = 0
        self._steps: deque[_Step] = deque()

    def time(self, read: Callable[[], None]) -> None:
        """Call `read`, which queues work on the current stream, and time that."""
        self._reads += 1
        if len(self._pairs) >= TIMED_READS:
            read()
            return
        began, ended = self._free.pop() if self._free else (self._make_event(), self._make_event())
        began.record()
        read()
        ended.record()
        self._pairs.append((began, ended))

    def end_step(self, step: int) -> None:
        """What has been timed since the last call was of `step`."""
        if self._pairs:
            self._steps.append(_Step(step, self._pairs, self._reads))
        self._pairs, self._reads = [], 0
        if len(self._steps) > TIMED_STEPS:
            self._steps.popleft()

    def take(self) -> dict[int, float]:
        """Seconds by step, of the steps whose work is done and that were not taken before."""
        seconds = {}
        while self._steps and all(ended.query() for _, ended in self._steps[0].pairs):
            step, pairs, reads = self._steps.popleft()
            total_ms = sum(began.elapsed_time(ended) for began, ended in pairs)
            seconds[step] = total_ms / 1e3 * reads / len(pairs)
            self._free.extend(pairs)
        return seconds
