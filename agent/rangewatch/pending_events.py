"""Events until a batch takes them: added from any thread, the oldest go first when nobody takes them."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

from rangewatch import limits
from rangewatch.batcher import Drops
from rangewatch.last_words.scene import Kept
from rangewatch.records import Event


class PendingEvents:
    """What waits for the next batch, and which accounts have been told."""

    def __init__(self, kept: Kept, drops: Drops) -> None:
        self._kept, self._drops, self._lock = kept, drops, threading.Lock()
        self._events: list[Event] = []
        self._told: dict[str, dict[str, Any]] = {}

    def __len__(self) -> int:
        return len(self._events)

    def add(self, step: int, kind: str, message: str = "", data: dict[str, Any] | None = None) -> None:
        """Ship it with the next batch. From any thread."""
        event = Event(kind, time.time_ns(), step, sendable(message), data or {})
        with self._lock:
            if len(self._events) >= limits.EVENTS_A_BATCH:
                del self._events[0]
                self._drops.add("too_many_events")
            self._events.append(event)
            self._kept.event(event)

    def take(self) -> tuple[tuple[Event, ...], int]:
        """Those since the last call, and how many there were in all."""
        with self._lock:
            events, self._events = tuple(self._events), []
            return events, self._kept.event_count

    def tell_changes(self, step: int, accounts: Mapping[str, Mapping[str, Any]]) -> None:
        """An event for each account that is not as it was told last, with its totals since attach."""
        for kind, account in accounts.items():
            now = dict(list(account.items())[: limits.ACCOUNT_NAMES])
            if now != self._told.get(kind, {}):
                self._told[kind] = now
                self.add(step, kind, f"{len(account)} names" if len(account) > len(now) else "", dict(now))


def sendable(text: str) -> str:
    """Without what UTF-8 or a database cannot hold: an exception's message may be anything."""
    return text[: limits.MESSAGE_CHARACTERS].encode("utf-8", "replace").decode().replace("\0", "?")
