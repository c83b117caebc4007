"""Sends what a spool still holds, as its rank would have: for the watcher and for `rangewatch replay`."""

from __future__ import annotations

import dataclasses
import random
import time
from collections.abc import Callable

from rangewatch.core import limits
from rangewatch.delivery.spool.folder import Folder
from rangewatch.delivery.spool.record import Encoded
from rangewatch.delivery.transport import Outcome, Reply, Transport
from rangewatch.wire import encode
from rangewatch.wire.events import SPOOL_DAMAGED
from rangewatch.wire.records import Batch, Event

_chance = random.SystemRandom()
"""Never the module's own functions: a loop that draws from them would draw others with us than without."""


@dataclasses.dataclass
class Tally:
    """What an upload has done so far. `reason`: what it waits for, or why it is not complete; "" when nothing.

    `retry_after_s`: the pause that the server asked for when it took nothing more; None when it asked for none.
    """

    sent: int = 0
    sent_bytes: int = 0
    rejected: int = 0
    """Batches that the server refused for good. They stay in the folder: a later server may take them."""
    without_opening: int = 0
    """Batches that the server cannot read: the header with their catalogue is not in the folder. They stay there."""
    damaged: int = 0
    """Batches that are lost: what the folder holds of them cannot be read."""
    reason: str = ""
    retry_after_s: float | None = None

    @property
    def leaves(self) -> int:
        """Batches that stay in the folder, though the server has answered for all."""
        return self.rejected + self.without_opening


def upload(
    folder: Folder,
    transport: Transport,
    wait_s: float,
    tally: Tally | None = None,
    reported: Callable[[Tally], None] = lambda tally: None,
    *,
    keeps: bool = False,
) -> bool:
    """Send every batch of a claimed folder; whether the server has answered for all of them, which the tally counts.

    Batches come with their own sequences, so that one which had arrived is not stored twice, and an upload that was
    broken off goes on where it was. Each is tried again for `wait_s` seconds; a refused token ends it at once. At the
    end the run is told of batches that cannot be read. `reported` is called after each, and before each wait. With
    `keeps` nothing is acknowledged in the folder. Raises `OSError`.
    """
    return _Upload(folder, transport, wait_s, Tally() if tally is None else tally, reported).run(keeps=keeps)


class _Upload:
    def __init__(
        self, folder: Folder, transport: Transport, wait_s: float, tally: Tally, reported: Callable[[Tally], None]
    ) -> None:
        self._folder, self._transport, self._wait_s = folder, transport, wait_s
        self._tally, self._reported = tally, reported
        self._opened: str | None = None
        self._refusal = ""

    def run(self, *, keeps: bool) -> bool:
        tally = self._tally
        for batch in self._folder.batches():
            outcome = self._send(batch)
            if outcome is None:
                return False
            tally.without_opening += outcome is Outcome.NEEDS_OPENING
            tally.rejected += outcome is Outcome.REJECTED
            if outcome is Outcome.STORED:
                tally.sent, tally.sent_bytes = tally.sent + 1, tally.sent_bytes + len(batch.body)
                if not keeps:
                    self._folder.acknowledge(batch.sequence)
            tally.damaged = self._folder.damaged
            tally.reason = self._incomplete()
            self._reported(tally)
        tally.damaged = self._folder.damaged
        if tally.damaged and not self._report_damage():
            return False
        tally.reason = self._incomplete()
        return True

    def _incomplete(self) -> str:
        tally = self._tally
        reasons = [
            (tally.rejected, f"{tally.rejected} refused for good, and kept ({self._refusal})"),
            (tally.without_opening, f"{tally.without_opening} whose catalogue is missing"),
            (tally.damaged, f"{tally.damaged} damaged in the spool, and lost"),
        ]
        return "; ".join(text for count, text in reasons if count)

    def _report_damage(self) -> bool:
        """Have the run say that batches are lost: a batch of its own, after all others; False: not now."""
        catalogue, info = next(reversed(self._folder.openings), None), self._folder.info
        if catalogue is None:
            return True  # no batch of this folder can be stored
        sequence = self._folder.next_sequence + self._tally.damaged  # the last ones may be those that are damaged
        lost = Event(SPOOL_DAMAGED, time.time_ns(), -1, "", {SPOOL_DAMAGED: self._tally.damaged})
        batch = Batch(info.run, info.rank, info.incarnation, sequence, catalogue, None, (), (lost,))
        return self._send(Encoded(encode(batch), 0, catalogue, sequence)) is not None

    def _send(self, batch: Encoded) -> Outcome | None:
        """STORED, REJECTED, or NEEDS_OPENING when there is none; None: not now, and the tally says why."""
        for _ in range(limits.OPENINGS_A_BATCH):
            opening = self._folder.opening(batch.catalogue) if self._opened != batch.catalogue else None
            if opening is not None:
                reply = self._post(opening)
                if reply.outcome is not Outcome.STORED:
                    return self._given_up(reply)
                self._opened = batch.catalogue
            reply = self._post(batch.body)
            if reply.outcome is not Outcome.NEEDS_OPENING:
                return self._given_up(reply)
            self._opened = None
            if self._folder.opening(batch.catalogue) is None:
                return Outcome.NEEDS_OPENING
        self._refusal = reply.detail
        return Outcome.REJECTED

    def _given_up(self, reply: Reply) -> Outcome | None:
        if reply.outcome is Outcome.REJECTED:
            self._refusal = reply.detail
        if reply.outcome in {Outcome.STORED, Outcome.REJECTED}:
            return reply.outcome
        self._tally.reason, self._tally.retry_after_s = reply.detail, reply.retry_after_s
        return None

    def _post(self, body: bytes) -> Reply:
        """The first answer that is not "later", or the last one before the time is up."""
        stop_at_s, backoff_s = time.monotonic() + self._wait_s, limits.BACKOFF_FIRST_S
        while True:
            reply = self._transport.post(body)
            if reply.outcome is not Outcome.RETRY:
                return reply
            delay_s = (backoff_s if reply.retry_after_s is None else reply.retry_after_s) * _chance.uniform(1.0, 1.25)
            if time.monotonic() + delay_s >= stop_at_s:
                return reply
            self._tally.reason = reply.detail
            self._reported(self._tally)
            time.sleep(delay_s)
            backoff_s = min(2 * backoff_s, limits.BACKOFF_LAST_S)
