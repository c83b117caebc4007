"""The thread that looks at every collector once a second, and keeps what they gave until it is shipped."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from rangewatch import limits
from rangewatch.batcher import Drops
from rangewatch.collectors.base import Collector, Told
from rangewatch.guard import Guard
from rangewatch.records import Samples

THREAD = "rangewatch-collectors"


class Runner:
    """Everything but `start`, `take` and `stop` runs on its own thread."""

    def __init__(self, collectors: Sequence[Collector], guard: Guard, drops: Drops, told: Told) -> None:
        self._collectors, self._guard, self._drops, self._told = list(collectors), guard, drops, told
        self._pending: list[Samples] = []
        self._rows = 0
        self._taken_s = time.monotonic()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self.step: Callable[[], int] = lambda: 0
        """The open step."""
        self.ship: Callable[[], None] = lambda: None
        """Sends what waits when the training thread has not for a while: a hung step ships nothing."""
        self.ship_every_s: Callable[[], float] = lambda: 0.0
        """Least seconds between two batches, as the server asks."""
        self._thread = threading.Thread(target=self._run, name=THREAD, daemon=True)

    def start(self) -> None:
        """Start the thread, if there is anything to collect."""
        if self._collectors:
            self._thread.start()

    def take(self) -> tuple[Samples, ...]:
        """What has come since the last call. From any thread."""
        with self._lock:
            taken, self._pending, self._rows, self._taken_s = tuple(self._pending), [], 0, time.monotonic()
        return taken

    def stop(self) -> None:
        """End the thread, waiting for it no longer than a look takes."""
        self._stop.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(limits.COLLECTOR_STOP_S)

    def _run(self) -> None:
        self._collectors = [each for each in self._collectors if self._call(each, partial(each.start, self._told))]
        due_s = time.monotonic()
        while not self._stop.wait(max(due_s - time.monotonic(), 0.0)):
            due_s = max(due_s + limits.COLLECT_EVERY_S, time.monotonic())
            self._look()
        for each in self._collectors:
            self._call(each, each.stop)

    def _look(self) -> None:
        step = self.step()
        for each in list(self._collectors):
            self._call(each, partial(self._collect, each, step))
            if self._guard.counts.get(_place(each), 0) >= limits.FAULTS_TO_DETACH:
                self._collectors.remove(each)
        interval_s = max(limits.SAMPLES_EVERY_S, self.ship_every_s())
        if self._pending and time.monotonic() - self._taken_s >= interval_s:
            self._guard.run("collectors", self.ship)

    def _collect(self, collector: Collector, step: int) -> None:
        found = [each for each in collector.collect(step) if len(each.times_ns)]
        with self._lock:
            self._pending += found
            self._rows += sum(len(each.times_ns) for each in found)
            while self._rows > limits.SAMPLE_ROWS and len(self._pending) > 1:
                self._rows -= len(self._pending.pop(0).times_ns)
                self._drops.add("samples_behind")

    def _call(self, collector: Collector, body: Callable[[], Any]) -> bool:
        return self._guard.run(_place(collector), body)


def _place(collector: Collector) -> str:
    return f"collector {collector.name}"
