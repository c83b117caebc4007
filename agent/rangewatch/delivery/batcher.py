"""Takes over what closed steps, collectors and events have to send, bounded in bytes, and puts it into the spool as
numbered, encoded batches.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from rangewatch import wire
from rangewatch.core import limits
from rangewatch.delivery.spool.queue import Queue
from rangewatch.delivery.spool.record import Encoded
from rangewatch.recording.events import Drops
from rangewatch.recording.nonfinite.allowed_inf import AllowedInf
from rangewatch.recording.rows.device_ring import PendingCopy
from rangewatch.recording.rows.mirror import Mirror
from rangewatch.recording.rows.step_buffer import POSITIONS, Block, range_rows, series_rows
from rangewatch.recording.tensor_names import TensorNames
from rangewatch.wire.records import Batch, Event, RankInfo, Samples, StreamHeader

LAST_COUNT = -1  # the catalogue of the shipment before


class PendingBatch(NamedTuple):
    """What is handed over. `tensor_count`: size of the catalogue that the block's columns belong to.

    `copies` are on their way from devices and join the block when they are complete. `mark` is for `Mirror.sending`.
    """

    block: Block
    events: tuple[Event, ...]
    tensor_count: int = LAST_COUNT
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


class Batcher:
    """From what is handed over to numbered batches in `spool`. `put` is for any thread, all else for the sender's.

    `put` never waits: the oldest goes when more than `limits.HANDOFF_BYTES` wait; then it sets `wake`. `mirror` hears
    of each batch before and after it is put into the spool, but for those that cannot be encoded or are too large.
    `batched` is called with each block.
    """

    def __init__(
        self, info: RankInfo, names: TensorNames, allow_inf: tuple[str, ...], drops: Drops, mirror: Mirror,
        spool: Queue, wake: threading.Event, batched: Callable[[Block], None],
    ) -> None:  # fmt: skip
        self._info, self._names, self._drops, self._mirror = info, names, drops, mirror
        self._spool, self._wake, self._batched = spool, wake, batched
        self._allowed_inf = AllowedInf(allow_inf, names) if allow_inf else None
        self._waiting: deque[PendingBatch] = deque()
        self._nbytes = 0
        self._lock = threading.Lock()
        self.events: list[Event] = []
        """The delivery's own, for the next batch."""
        self._tensor_count = 0
        self._sequence = 0
        self._digest = ("", -1)

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def newest_sequence(self) -> int:
        """Of the batches made so far; -1 before the first."""
        return self._sequence - 1

    def put(self, shipment: PendingBatch) -> None:
        """Hand over."""
        with self._lock:
            self._waiting.append(shipment)
            self._nbytes += shipment.nbytes
            while self._nbytes > limits.HANDOFF_BYTES and len(self._waiting) > 1:
                self._nbytes -= self._waiting.popleft().nbytes
                self._drops.add("worker_behind")
        self._wake.set()

    def take_complete(self) -> PendingBatch | None:
        """From the front, if that is there and complete.

        A device that hangs never completes its copy: what has no steps, such as the word of that hang, goes before it.
        """
        with self._lock:
            for place, shipment in enumerate(self._waiting):
                if shipment.is_without_steps or (place == 0 and shipment.is_complete()):
                    del self._waiting[place]
                    self._nbytes -= shipment.nbytes
                    # What is before it is not in the spool.
                    return shipment if place == 0 else shipment._replace(mark=None)
        return None

    def encode_all(self) -> None:
        """Put all that is complete into the spool."""
        while (shipment := self.take_complete()) is not None:
            if shipment.tensor_count != LAST_COUNT:
                self._tensor_count = shipment.tensor_count
            count, block, info = self._tensor_count, shipment.block, self._info
            for copy in shipment.copies:
                copy.merge_into(block, POSITIONS)
            events, self.events = shipment.events + tuple(self.events), []
            if self._allowed_inf is not None:
                events += self._allowed_inf.take_out(block, count)
            if self._digest[1] != count:
                self._digest = (wire.catalogue_digest(self._names.catalogue(count)), count)
            digest, ranges, series = self._digest[0], range_rows(block, info.ship_every), series_rows(block)
            sequence, self._sequence = self._sequence, self._sequence + 1
            # The sender keeps the order, so what came before has arrived or was dropped when this one is sent.
            batch = Batch(
                info.run, info.rank, info.incarnation, sequence, digest, ranges, series, events, sequence,
                shipment.samples,
            )  # fmt: skip
            self._batched(block)
            body = wire.encode(batch)
            if len(body) > wire.MAX_COMPRESSED_BYTES:
                self._drops.add("too_large")
                continue
            self._mirror.sending(sequence, shipment.mark)
            self._spool.put(Encoded(body, count, digest, sequence), partial(self.opening, count))
            self._mirror.sent()

    def opening(self, tensor_count: int) -> bytes:
        """The stream's header, encoded, with the catalogue as it was when it had so many tensors."""
        return wire.encode(StreamHeader(self._info, self._names.catalogue(tensor_count)))
