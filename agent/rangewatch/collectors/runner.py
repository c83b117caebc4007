"""The thread that looks at every collector once a second, and keeps what they gave until it is shipped."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np

from rangewatch.collectors.base import Collector
from rangewatch.core import limits
from rangewatch.core.guard import Guard
from rangewatch.recording.events import Drops, Events, OpenStep
from rangewatch.wire.records import Samples

THREAD = "rangewatch-collectors"


class Shipper(Protocol):
    """The agent, as seen from the collectors' thread."""

    @property
    def send_every_s(self) -> float:
        """Least seconds between two batches, as the server asks."""

    def ship_samples(self) -> None:
        """Send what waits, when the training thread has not for a while: a hung step ships nothing."""


class Runner:
    """Everything but `start`, `take` and `stop` runs on its own thread."""

    def __init__(
        self, collectors: Sequence[Collector], guard: Guard, drops: Drops, events: Events, open_step: OpenStep,
        shipper: Shipper,
    ) -> None:  # fmt: skip
        self.collectors = tuple(collectors)
        self._collectors, self._guard, self._drops, self._events = list(collectors), guard, drops, events
        self._open_step, self._shipper = open_step, shipper
        self._pending: list[Samples] = []
        self._rows = 0
        self._taken_s = time.monotonic()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=THREAD, daemon=True)

    def start(self) -> None:
        """Start the thread, if there is anything to collect."""
        if self._collectors:
            self._thread.start()

    def take(self) -> tuple[Samples, ...]:
        """What has come since the last call. From any thread."""
        with self._lock:
            taken, self._pending, self._rows, self._taken_s = self._pending, [], 0, time.monotonic()
        return joined(taken)

    def guards(self) -> list[Guard]:
        """Of the collectors that are called from elsewhere too, and have one of their own for that (`guard`)."""
        known = (getattr(each, "guard", None) for each in self.collectors)
        return [each for each in known if isinstance(each, Guard)]

    def stop(self) -> None:
        """End the thread, waiting for it no longer than a collection takes."""
        self._stop.set()
        if self._thread.ident is None:  # what was made holds something already: of a process one sees its collectives
            self._end_all()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(limits.COLLECTOR_STOP_S)

    def _run(self) -> None:
        for each in list(self._collectors):
            if not self._guard.run(_place(each), partial(each.start, self._events)):
                self._leave_alone(each)
        due_s = time.monotonic()
        while not self._stop.wait(max(due_s - time.monotonic(), 0.0)):
            due_s = max(due_s + limits.COLLECT_EVERY_S, time.monotonic())
            self._collect_all()
        self._collect_all()  # what came since the last one
        self._end_all()

    def _end_all(self) -> None:
        for each in list(self._collectors):
            self._leave_alone(each)

    def _leave_alone(self, collector: Collector) -> None:
        self._collectors.remove(collector)
        self._guard.run(_place(collector), collector.stop)

    def _collect_all(self) -> None:
        step = self._open_step.number
        for each in list(self._collectors):
            self._guard.run(_place(each), partial(self._collect, each, step))
            if self._guard.counts.get(_place(each), 0) >= limits.FAULTS_TO_DETACH:
                self._leave_alone(each)
        interval_s = max(limits.SAMPLES_EVERY_S, self._shipper.send_every_s)
        if (self._pending or self._events) and time.monotonic() - self._taken_s >= interval_s:
            self._guard.run("collectors", self._shipper.ship_samples)

    def _collect(self, collector: Collector, step: int) -> None:
        tables = [each for each in collector.collect(step) if len(each.times_ns)]
        with self._lock:
            self._pending += tables
            self._rows += sum(len(each.times_ns) for each in tables)
            while self._rows > limits.SAMPLE_ROWS and len(self._pending) > 1:
                self._rows -= len(self._pending.pop(0).times_ns)
                self._drops.add("samples_behind")


def joined(tables: Sequence[Samples]) -> tuple[Samples, ...]:
    """Tables of the same source, key, columns and details as one, in the order of their first rows: many have one."""
    groups: dict[Any, list[Samples]] = {}
    for each in tables:
        alike = groups.setdefault((each.source, each.key, tuple(each.columns)), [])
        if alike and (alike[-1].about != each.about or alike[-1].times_ns[-1] > each.times_ns[0]):
            groups[len(groups)] = alike[:]  # what is there stays as it is
            alike.clear()
        alike.append(each)
    whole = []
    for group in groups.values():
        first = group[0]
        if len(group) > 1:
            columns = {name: np.concatenate([each.columns[name] for each in group]) for name in first.columns}
            times_ns = np.concatenate([each.times_ns for each in group])
            first = Samples(first.source, first.key, times_ns, columns, first.about)
        whole.append(first)
    return tuple(whole)


def _place(collector: Collector) -> str:
    return f"collector {collector.name}"
