"""One tracker's thread: takes what is merged into the row that waits, and writes it at most once a second.

It takes at most half a percent of one core, with the tracker's own threads: after a row it rests for two hundred times
the processor time that the row took, but for a minute at most. Alerts do not wait for that.

However slow a tracker is, what waits is one row and a bounded list of alerts: rows of steps that it had no time for are
merged by their own rules, so that no spike is lost. What it refuses is counted as dropped.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping

from rangewatch.core import limits
from rangewatch.core.guard import logger
from rangewatch.core.redaction import redacted
from rangewatch.recording.events import Drops
from rangewatch.trackers.base import AlertRow, Sink, Tracker
from rangewatch.trackers.headlines import Row
from rangewatch.wire.records import RankInfo

THREAD = "rangewatch-mirror"


class Mirror:
    """`find` is called by the training thread, `add` and `alert` by any; all else happens on a thread of its own."""

    def __init__(self, tracker: Tracker, where: str, info: RankInfo, address: str, drops: Drops) -> None:
        self.tracker = tracker
        self._where, self._info, self._address, self._drops = where, info, address, drops
        self._lock = threading.Lock()
        self._row = Row()
        self._waiting: deque[AlertRow] = deque()
        self._alerts: list[AlertRow] = []
        self._sink: Sink | None = None
        self._has_linked = self._has_warned = False
        self._pause_s = limits.MIRROR_EVERY_S
        self._next_find_s = 0.0
        self._ended = threading.Event()
        self._woken = threading.Event()
        """An alert has come, or the end."""
        self._stop_at_s: float | None = None
        self._thread = threading.Thread(target=self._run, name=f"{THREAD}-{tracker.name}", daemon=True)

    @property
    def is_unfound(self) -> bool:
        """No run was open so far."""
        return self._sink is None

    def start(self) -> None:
        """Start the thread. Raises `RuntimeError` where the interpreter allows none any more."""
        self._thread.start()

    def find(self) -> None:
        """Search the run that the user has opened, now and then until it is there."""
        if self._sink is None and time.monotonic() >= self._next_find_s:
            self._next_find_s = time.monotonic() + limits.MIRROR_EVERY_S
            self._sink = self.tracker.find(self._where, self._info)

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Merge values of a step into the row that waits."""
        with self._lock:
            self._row.add(step, values)

    def alert(self, alert: AlertRow) -> None:
        """One has opened."""
        with self._lock:
            if len(self._waiting) + len(self._alerts) >= limits.MIRROR_ALERTS:
                self._drops.add("mirror_alerts")
                return
            self._waiting.append(alert)
        self._woken.set()

    def stop(self, timeout_s: float) -> None:
        """Write what waits, once, for at most so long, and end the thread. `wait` waits for it."""
        self._stop_at_s = time.monotonic() + timeout_s
        self._ended.set()
        self._woken.set()

    def wait(self) -> None:
        """Until a stop is done, or its time is up: a tracker that hangs is left to itself, its thread is a daemon."""
        if self._stop_at_s is not None and self._thread.ident is not None:
            self._thread.join(max(0.0, self._stop_at_s - time.monotonic()))

    def _run(self) -> None:
        alerts_at_s, row_s = 0.0, time.monotonic()
        row_at_s = row_s + self._pause_s
        while not self._ended.is_set():
            now_s = time.monotonic()
            due_s = min(row_at_s, alerts_at_s) if self._waiting else row_at_s
            if now_s < due_s:
                self._woken.wait(due_s - now_s)
                self._woken.clear()
                continue
            has_row = now_s >= row_at_s
            rest_s = self._attempt(has_row=has_row)
            now_s = time.monotonic()
            # Alerts that come together are given together: some trackers get all of them anew with each.
            alerts_at_s = now_s + self._pause_s
            row_s = now_s if has_row else row_s
            row_at_s = min(max(alerts_at_s, row_at_s) + rest_s, row_s + self._pause_s + limits.MIRROR_REST_S)
        self._attempt(has_row=True)
        sink = self._sink
        if sink is not None:
            try:
                sink.close()
            except Exception as error:  # noqa: BLE001 - whatever a tracker raises
                self._failed(error)

    def _attempt(self, *, has_row: bool) -> float:
        """Write what waits; seconds that the next row is to rest for it."""
        sink = self._sink
        if sink is None:
            return 0.0
        # Python's threads take turns: what a tracker works, the training may have to wait.
        began_s, most_s = time.thread_time(), limits.MIRROR_REST_S
        row, alerts = self._take(has_row=has_row)
        try:
            if not self._has_linked:
                most_s = limits.MIRROR_FIRST_REST_S
                sink.link(self._info.run, self._address)
                self._has_linked = True
            if row.values:
                sink.write(row.step, row.values)
            if alerts:
                sink.alerts(alerts)
        except Exception as error:  # noqa: BLE001 - whatever a tracker raises
            self._failed(error)
        else:
            self._pause_s = limits.MIRROR_EVERY_S
        took_s = (time.thread_time() - began_s) * (1.0 + self.tracker.behind)
        return min(took_s / limits.MIRROR_SHARE, most_s)

    def _take(self, *, has_row: bool) -> tuple[Row, list[AlertRow]]:
        """What waits, the row where it is its turn, and all alerts where any is new."""
        with self._lock:
            row = Row()
            if has_row:
                row, self._row = self._row, row
            is_new = bool(self._waiting)
            self._alerts += self._waiting
            self._waiting.clear()
            return row, list(self._alerts) if is_new else []

    def _failed(self, error: Exception) -> None:
        self._drops.add("mirror_failed")
        self._pause_s = min(2 * self._pause_s, limits.MIRROR_PAUSE_S)  # it may be down for long
        if not self._has_warned:
            self._has_warned = True
            text = redacted(f"{type(error).__name__}: {error}")[:300]
            logger.warning("rangewatch: %s takes no headline numbers: %s; training goes on", self.tracker.name, text)
