"""What is shipped beside rows: events with the step they belong to, and counts of what was lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

from rangewatch.core import limits
from rangewatch.core.redaction import redacted
from rangewatch.recording.rows.mirror import Mirror
from rangewatch.wire.events import Details, details_of
from rangewatch.wire.records import Event

REDACTED_CHARACTERS = 4 * limits.MESSAGE_CHARACTERS
"""Of a message that are looked at: before it is cut, since half a secret is not known for one."""


class OpenStep:
    """The number of the step that is open. Set by the training thread, read by any."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number


class Drops:
    """Counts what was lost, by reason, since attach. Any thread may count."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self._lock = threading.Lock()

    def add(self, reason: str, count: int = 1) -> None:
        """More were lost for `reason`."""
        with self._lock:
            self.counts[reason] = self.counts.get(reason, 0) + count


class Events:
    """Events of one attached model that wait for the next batch. The oldest go first when nobody takes them."""

    def __init__(self, open_step: OpenStep, mirror: Mirror, drops: Drops) -> None:
        self._open_step, self._mirror, self._drops, self._lock = open_step, mirror, drops, threading.Lock()
        self._waiting: list[Event] = []
        self._count = 0
        self._reported: dict[str, dict[str, Any]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def add(
        self, kind: str | Details, message: str = "", data: dict[str, Any] | None = None, step: int | None = None
    ) -> None:
        """Ship an event of `step` (default: the open one) with the next batch. From any thread. `kind`: with its
        details, where it has a struct for them; else they are `data`.
        """
        if isinstance(kind, Details):
            data, kind = details_of(kind), kind.KIND
        at = self._open_step.number if step is None else step
        event = Event(kind, time.time_ns(), at, sendable(redacted(message[:REDACTED_CHARACTERS])), data or {})
        with self._lock:
            if len(self._waiting) >= limits.EVENTS_A_BATCH:
                del self._waiting[0]
                self._drops.add("too_many_events")
            self._waiting.append(event)
            self._count = self._mirror.event(event)

    def take(self) -> tuple[tuple[Event, ...], int]:
        """Those since the last call, and how many there were in all."""
        with self._lock:
            events, self._waiting = tuple(self._waiting), []
            return events, self._count

    def add_changes(self, totals: Mapping[str, Mapping[str, Any]]) -> None:
        """For each kind of event whose `totals` since attach are not those last shipped: one with all of them."""
        for kind, total in totals.items():
            now = dict(list(total.items())[: limits.ACCOUNT_NAMES])
            if now != self._reported.get(kind, {}):
                self._reported[kind] = now
                self.add(kind, f"{len(total)} names" if len(total) > len(now) else "", dict(now))


def sendable(text: str) -> str:
    """Without what UTF-8 or a database cannot hold: an exception's message may be anything."""
    return text[: limits.MESSAGE_CHARACTERS].encode("utf-8", "replace").decode().replace("\0", "?")
