"""Sends the spools of ranks that are gone, on a thread of its own and with patience.

It also makes a dead rank's last batches, of what it left in memory by the same rules as its own.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import msgspec

from rangewatch import wire
from rangewatch.core import limits
from rangewatch.crash.watcher.recovery import Names
from rangewatch.delivery.spool.folder import Folder
from rangewatch.delivery.spool.record import Encoded
from rangewatch.delivery.spool.upload import Tally, upload
from rangewatch.delivery.transport import Outcome, Transport
from rangewatch.recording.nonfinite.allowed_inf import AllowedInf
from rangewatch.recording.rows.step_buffer import EMPTY_BLOCK, Block, range_rows, series_rows
from rangewatch.wire.records import Batch, Event, RankInfo, StreamHeader


class Last(NamedTuple):
    """A batch and its catalogue's `StreamHeader`, both encoded."""

    batch: Encoded
    opening: bytes


def last_batches(
    info: RankInfo,
    names: Names,
    blocks: Sequence[Block],
    events: tuple[Event, ...],
    sequence: int,
    allow_inf: tuple[str, ...] = (),
) -> list[Last]:
    """One batch a block, from `sequence` on; the last has the events. Empty where there is nothing to tell."""
    if not blocks and not events:
        return []
    catalogue = names.catalogue()
    digest, opening = wire.catalogue_digest(catalogue), wire.encode(StreamHeader(info, catalogue))
    known: Any = SimpleNamespace(entries=names.tensors)
    allowed = AllowedInf(allow_inf, known)
    made = []
    every = list(blocks) or [EMPTY_BLOCK]
    for number, block in enumerate(every, sequence):
        allowed.take_out(block, len(names.tensors))  # the rank has said which long ago
        rows, series = range_rows(block, info.ship_every), series_rows(block)
        reported = events if block is every[-1] else ()
        batch = Batch(info.run, info.rank, info.incarnation, number, digest, rows, series, reported, number)
        made.append(Last(Encoded(wire.encode(batch), len(names.tensors), digest, number), opening))
    return made


TURN_S = 5.0
"""Seconds that a batch waits for its server before it is another folder's turn: they may have different ones."""

PAUSE_S = 0.5
"""Seconds between two rounds in which nothing could be sent, and to a folder's second turn; then twice as long each."""


class Waiting(msgspec.Struct):
    """A claimed folder, and when it is its turn again. `unsaved`: batches after its own that its disk did not take."""

    folder: Folder
    token: str | None
    unsaved: list[Last]
    due_s: float = 0.0
    pause_s: float = PAUSE_S

    def postpone(self, retry_after_s: float | None) -> None:
        """Its server takes nothing now: ask it less and less, and not before the time it names."""
        self.due_s = time.monotonic() + max(self.pause_s, retry_after_s or 0.0)
        self.pause_s = min(2 * self.pause_s, limits.BACKOFF_LAST_S)


class Uploads:
    """What could not be sent when the time is up, or was not before the process ends, stays where it is, for
    `rangewatch replay` or the next watcher.
    """

    def __init__(self, is_over: Callable[[], bool]) -> None:
        self._is_over = is_over
        self._waiting: deque[Waiting] = deque()
        self._busy = 0
        self.taken_s = 0.0
        """When a server last took a batch (`time.monotonic`)."""
        self._wake = threading.Event()
        threading.Thread(target=self._run, name="watcher-uploads", daemon=True).start()

    @property
    def are_done(self) -> bool:
        """Whether nothing waits to be sent."""
        return not self._waiting and not self._busy

    def add(self, folder: Folder, token: str | None, unsaved: list[Last] | None = None) -> None:
        """A claimed folder, the token for its server, and batches after those in it that its disk did not take."""
        self._waiting.append(Waiting(folder, token, unsaved or []))
        self._wake.set()

    def _run(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            while self._waiting:
                self._busy = 1
                done = sum(self._turn() for _ in range(len(self._waiting)))
                if not done and self._waiting:
                    time.sleep(PAUSE_S)
                self._busy = 0

    def _turn(self) -> bool:
        """Whether the first folder is done with."""
        waiting = self._waiting.popleft()
        if time.monotonic() < waiting.due_s and not self._is_over():
            self._waiting.append(waiting)
            return False
        tally, is_done, sent = Tally(), False, 0

        def reported(tally: Tally) -> None:
            nonlocal sent
            if tally.sent > sent:
                sent, self.taken_s = tally.sent, time.monotonic()

        with contextlib.suppress(Exception):  # one folder's damage is not the others'
            transport = Transport(waiting.folder.url, waiting.token, has_ended=True)
            is_done = upload(waiting.folder, transport, TURN_S, tally, reported) and _sent(transport, waiting.unsaved)
            transport.close()
        if is_done and not tally.leaves:
            waiting.folder.remove()
        elif is_done or self._is_over() or not waiting.folder.path.is_dir():
            waiting.folder.release()
        else:
            waiting.postpone(tally.retry_after_s)
            self._waiting.append(waiting)
        return is_done


def _sent(transport: Transport, unsaved: list[Last]) -> bool:
    """Send what is in memory only; whether the server has answered for all of it."""
    for batch, opening in unsaved:
        transport.post(opening)
        if transport.post(batch.body).outcome not in (Outcome.STORED, Outcome.REJECTED):
            return False
    return True
