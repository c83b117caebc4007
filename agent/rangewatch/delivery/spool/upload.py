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

NO_OPENING = "a batch's catalogue is missing"
"""The reason when all else was sent: no further try would change that."""


@dataclasses.dataclass
class Tally:
    """What an upload has done so far. `reason`: what it waits for, or why it is not complete; "" when nothing.

    `retry_after_s`: the pause that the server asked for when it took nothing more; None when it asked for none.
    """

    sent: int = 0
    sent_bytes: int = 0
    rejected: int = 0
    without_opening: int = 0
    """Batches that the server cannot read: the header with their catalogue is not in the folder. They stay there."""
    reason: str = ""
    retry_after_s: float | None = None


def upload(
    folder: Folder,
    transport: Transport,
    wait_s: float,
    tally: Tally | None = None,
    reported: Callable[[Tally], None] = lambda tally: None,
    *,
    keeps: bool = False,
) -> bool:
    """Send every batch of a claimed folder; whether the server has answered for all of them.

    Batches come with their own sequences, so that one which had arrived is not stored twice, and an upload that was
    broken off goes on where it was. Each is tried again for `wait_s` seconds; a refused token ends it at once. A batch
    that is refused for good counts as answered for. `reported` is called after each, and before each wait. With `keeps`
    nothing is acknowledged in the folder. Raises `OSError`.
    """
    return _Upload(folder, transport, wait_s, Tally() if tally is None else tally, reported).run(keeps=keeps)


class _Upload:
    def __init__(
        self, folder: Folder, transport: Transport, wait_s: float, tally: Tally, reported: Callable[[Tally], None]
    ) -> None:
        self._folder, self._transport, self._wait_s = folder, transport, wait_s
        self._tally, self._reported = tally, reported
        self._opened: str | None = None

    def run(self, *, keeps: bool) -> bool:
        for batch in self._folder.batches():
            outcome = self._send(batch)
            if outcome is None:
                return False
            if outcome is Outcome.NEEDS_OPENING:
                self._tally.without_opening += 1
            else:
                self._tally.sent += outcome is Outcome.STORED
                self._tally.rejected += outcome is Outcome.REJECTED
                self._tally.sent_bytes += len(batch.body)
                if not keeps:
                    self._folder.acknowledge(batch.sequence)
            self._tally.reason = NO_OPENING if self._tally.without_opening else ""
            self._reported(self._tally)
        return not self._tally.without_opening

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
        return Outcome.REJECTED

    def _given_up(self, reply: Reply) -> Outcome | None:
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
            delay_s = (backoff_s if reply.retry_after_s is None else reply.retry_after_s) * random.uniform(1.0, 1.25)
            if time.monotonic() + delay_s >= stop_at_s:
                return reply
            self._tally.reason = reply.detail
            self._reported(self._tally)
            time.sleep(delay_s)
            backoff_s = min(2 * backoff_s, limits.BACKOFF_LAST_S)
