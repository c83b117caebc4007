"""Takes blocks over from the training thread, bounded in bytes, and turns them into numbered batches.

`PendingEvents` are added from any thread; the oldest go first when nobody takes them.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

from rangewatch import wire
from rangewatch.core import limits
from rangewatch.recording.allowed_inf import AllowedInf
from rangewatch.recording.device_ring import PendingCopy
from rangewatch.recording.memory.shared_state import SharedState
from rangewatch.recording.step_buffer import POSITIONS, Block, add_skipped_steps, merge_steps, range_rows, series_rows
from rangewatch.recording.tensor_names import TensorNames
from rangewatch.wire.records import Batch, Event, RankInfo, Samples


class PendingBatch(NamedTuple):
    """What is handed over. `tensor_count`: size of the catalogue that the block's columns belong to.

    `copies` are on their way from devices and join the block when they are complete. `mark` is for `Sender.spooling`.
    """

    block: Block
    events: tuple[Event, ...]
    tensor_count: int
    copies: tuple[PendingCopy, ...] = ()
    samples: tuple[Samples, ...] = ()
    mark: object = None

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        samples = sum(each.times_ns.nbytes * (1 + len(each.columns)) for each in self.samples)
        return self.block.nbytes + sum(copy.nbytes for copy in self.copies) + 1000 * len(self.events) + samples

    @property
    def is_without_steps(self) -> bool:
        """It has events and samples only."""
        return not (len(self.block.steps) or self.block.series or self.copies)

    @property
    def is_empty(self) -> bool:
        """Nothing would travel."""
        has_values = len(self.block.steps) or self.block.series or any(not copy.is_empty for copy in self.copies)
        return not has_values and not self.events and not self.samples

    def is_complete(self) -> bool:
        """Whether every copy is there; never waits."""
        return all(copy.is_complete() for copy in self.copies)


class Drops:
    """Counts what was lost, by reason, since attach. Any thread may count."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self._lock = threading.Lock()

    def add(self, reason: str, count: int = 1) -> None:
        """More were lost for `reason`."""
        with self._lock:
            self.counts[reason] = self.counts.get(reason, 0) + count


class SendQueue:
    """Bounded queue from the training thread to the worker: `put` never waits, the oldest goes when it is full."""

    def __init__(self, drops: Drops) -> None:
        self._shipments: deque[PendingBatch] = deque()
        self._nbytes = 0
        self._lock = threading.Lock()
        self._drops = drops

    def __len__(self) -> int:
        return len(self._shipments)

    def put(self, shipment: PendingBatch) -> None:
        """Add at the end; called by the training thread."""
        with self._lock:
            self._shipments.append(shipment)
            self._nbytes += shipment.nbytes
            while self._nbytes > limits.HANDOFF_BYTES and len(self._shipments) > 1:
                self._nbytes -= self._shipments.popleft().nbytes
                self._drops.add("worker_behind")

    def get_complete(self) -> PendingBatch | None:
        """Take from the front, if that is there and complete; called by the worker.

        A device that hangs never completes its copy: what has no steps, such as the word of that hang, goes before it.
        """
        with self._lock:
            places = range(len(self._shipments))
            place = next((place for place in places if self._may_go(place, self._shipments[place])), None)
            if place is None:
                return None
            shipment = self._shipments[place]
            del self._shipments[place]
            self._nbytes -= shipment.nbytes
            return shipment if place == 0 else shipment._replace(mark=None)  # what is before it is not in the spool

    @staticmethod
    def _may_go(place: int, shipment: PendingBatch) -> bool:
        return shipment.is_without_steps or (place == 0 and shipment.is_complete())


class Batcher:
    """Numbers and encodes shipments. Used by the worker alone."""

    def __init__(self, info: RankInfo, names: TensorNames, allow_inf: tuple[str, ...] = ()) -> None:
        self._info, self._names = info, names
        self._allowed_inf = AllowedInf(allow_inf, names)
        self._sequence = 0
        self._digest = ("", -1)

    def batch(self, shipment: PendingBatch) -> Batch:
        """The shipment as the next batch. It must be complete."""
        block = shipment.block
        for copy in shipment.copies:
            copy.merge_into(block, POSITIONS)
        events = shipment.events + self._allowed_inf.take_out(block, shipment.tensor_count)
        add_skipped_steps(block.series)
        ranges, series = range_rows(merge_steps(block, self._info.ship_every)), series_rows(block.series)
        digest = self._digest_of(shipment.tensor_count)
        sequence, self._sequence = self._sequence, self._sequence + 1
        info = self._info
        # The sender keeps the order, so what came before has arrived or was dropped when this one is sent.
        return Batch(
            info.run, info.rank, info.incarnation, sequence, digest, ranges, series, events, sequence, shipment.samples
        )

    def _digest_of(self, count: int) -> str:
        if self._digest[1] != count:
            self._digest = (wire.catalogue_digest(self._names.catalogue(count)), count)
        return self._digest[0]


class PendingEvents:
    """What waits for the next batch, and which accounts have been told."""

    def __init__(self, shared_state: SharedState, drops: Drops) -> None:
        self._shared_state, self._drops, self._lock = shared_state, drops, threading.Lock()
        self._events: list[Event] = []
        self._reported: dict[str, dict[str, Any]] = {}

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
            self._shared_state.event(event)

    def take(self) -> tuple[tuple[Event, ...], int]:
        """Those since the last call, and how many there were in all."""
        with self._lock:
            events, self._events = tuple(self._events), []
            return events, self._shared_state.event_count

    def emit_changes(self, step: int, accounts: Mapping[str, Mapping[str, Any]]) -> None:
        """An event for each account that is not as it was told last, with its totals since attach."""
        for kind, account in accounts.items():
            now = dict(list(account.items())[: limits.ACCOUNT_NAMES])
            if now != self._reported.get(kind, {}):
                self._reported[kind] = now
                self.add(step, kind, f"{len(account)} names" if len(account) > len(now) else "", dict(now))


def sendable(text: str) -> str:
    """Without what UTF-8 or a database cannot hold: an exception's message may be anything."""
    return text[: limits.MESSAGE_CHARACTERS].encode("utf-8", "replace").decode().replace("\0", "?")
