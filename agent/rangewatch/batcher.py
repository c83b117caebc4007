"""Turns blocks into numbered batches and keeps them, bounded in bytes, until the server has them."""

from __future__ import annotations

import threading
from collections import deque
from typing import NamedTuple

from rangewatch import limits, wire
from rangewatch.allowed_inf import AllowedInf
from rangewatch.device_ring import PendingCopy
from rangewatch.merged_steps import merge_steps
from rangewatch.records import Batch, Event, RankInfo, Samples
from rangewatch.step_buffer import POSITIONS, Block, range_rows, series_rows
from rangewatch.tensor_names import TensorNames


class Shipment(NamedTuple):
    """What is handed over. `tensor_count`: size of the catalogue that the block's columns belong to.

    `copies` are on their way from devices and join the block when they are complete.
    """

    block: Block
    events: tuple[Event, ...]
    tensor_count: int
    copies: tuple[PendingCopy, ...] = ()
    samples: tuple[Samples, ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        samples = sum(each.times_ns.nbytes * (1 + len(each.columns)) for each in self.samples)
        return self.block.nbytes + sum(copy.nbytes for copy in self.copies) + 1000 * len(self.events) + samples

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

    def add(self, reason: str) -> None:
        """One more was lost for `reason`."""
        with self._lock:
            self.counts[reason] = self.counts.get(reason, 0) + 1


class Handoff:
    """Bounded queue from the training thread to the worker: `put` never waits, the oldest goes when it is full."""

    def __init__(self, drops: Drops) -> None:
        self._shipments: deque[Shipment] = deque()
        self._nbytes = 0
        self._lock = threading.Lock()
        self._drops = drops

    def __len__(self) -> int:
        return len(self._shipments)

    def put(self, shipment: Shipment) -> None:
        """Add at the end; called by the training thread."""
        with self._lock:
            self._shipments.append(shipment)
            self._nbytes += shipment.nbytes
            while self._nbytes > limits.HANDOFF_BYTES and len(self._shipments) > 1:
                self._nbytes -= self._shipments.popleft().nbytes
                self._drops.add("worker_behind")

    def get_complete(self) -> Shipment | None:
        """Take from the front, if that is there and complete; called by the worker."""
        with self._lock:
            if not self._shipments or not self._shipments[0].is_complete():
                return None
            shipment = self._shipments.popleft()
            self._nbytes -= shipment.nbytes
            return shipment


class Batcher:
    """Numbers and encodes shipments. Used by the worker alone."""

    def __init__(self, info: RankInfo, names: TensorNames, allow_inf: tuple[str, ...] = ()) -> None:
        self._info, self._names = info, names
        self._allowed_inf = AllowedInf(allow_inf, names)
        self._sequence = 0
        self._digest = ("", -1)

    def batch(self, shipment: Shipment) -> Batch:
        """The shipment as the next batch. It must be complete."""
        block = shipment.block
        for copy in shipment.copies:
            copy.merge_into(block, POSITIONS)
        events = shipment.events + self._allowed_inf.take_out(block, shipment.tensor_count)
        _add_skipped_steps(block.series)
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


def _add_skipped_steps(series: dict[str, dict[int, float]]) -> None:
    # Here and not at the step's end, because found_inf may come from a device.
    if "found_inf" in series:
        series["skipped_step"] = {step: float(value > 0) for step, value in series["found_inf"].items()}


class Encoded(NamedTuple):
    """A batch as bytes, with the size and the digest of the catalogue it belongs to."""

    body: bytes
    tensor_count: int
    catalogue: str


class Queue:
    """Encoded batches in order, bounded in bytes. The first one may be on its way and is never dropped."""

    def __init__(self, max_bytes: int, drops: Drops) -> None:
        self._batches: deque[Encoded] = deque()
        self._max_bytes, self._drops = max_bytes, drops
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._batches)

    def put(self, batch: Encoded) -> None:
        """Add at the end, dropping the oldest but the first when there is no room."""
        self._batches.append(batch)
        self.nbytes += len(batch.body)
        while self.nbytes > self._max_bytes and len(self._batches) > 2:
            first = self._batches.popleft()
            self.nbytes -= len(self._batches.popleft().body)
            self._batches.appendleft(first)
            self._drops.add("queue_full")

    def first(self) -> Encoded:
        """The oldest, which stays. There must be one."""
        return self._batches[0]

    def remove_first(self) -> None:
        """The oldest has arrived, or never will."""
        self.nbytes -= len(self._batches.popleft().body)
