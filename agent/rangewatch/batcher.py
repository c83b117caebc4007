"""Takes blocks over from the training thread, bounded in bytes, and turns them into numbered batches."""

from __future__ import annotations

import threading
from collections import deque
from typing import NamedTuple

from rangewatch import limits, wire
from rangewatch.allowed_inf import AllowedInf
from rangewatch.device_ring import PendingCopy
from rangewatch.merged_steps import merge_steps
from rangewatch.records import Batch, Event, RankInfo, Samples
from rangewatch.step_buffer import POSITIONS, Block, add_skipped_steps, range_rows, series_rows
from rangewatch.tensor_names import TensorNames


class Shipment(NamedTuple):
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
    def _may_go(place: int, shipment: Shipment) -> bool:
        return shipment.is_without_steps or (place == 0 and shipment.is_complete())


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
