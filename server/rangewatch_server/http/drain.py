"""The end of the server: nothing new is taken, what is queued is committed and answered, and then the process ends.

A thread of its own says how far that is and holds it to a bound, since the event loop itself may be what hangs.
Ending early is safe: what was not committed was not acknowledged, so the agents send it again.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

from rangewatch_server.ingest.writer import Writer

DRAIN_S = 20.0  # for the answers in progress; a full queue is about 30 MiB, some seconds on a slow disk
CLOSE_S = 5.0  # more, for the writer's last commit and folding SQLite's log back
BOUND_S = DRAIN_S + CLOSE_S  # keep docker's stop_grace_period above it
QUIET_S = 1.0  # a stop shorter than this says nothing
NOT_DRAINED = 1  # exit status: some messages were not stored


class Drain:
    """`begin` once, from a signal handler; `done` when everything is closed."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="rangewatch-drain", daemon=True)

    def begin(self) -> None:
        """Start to count the time."""
        self._thread.start()

    def done(self) -> None:
        """Everything is stored and closed."""
        self._done.set()

    def end_at_once(self, number: int) -> None:
        """For the second signal: end now, as if killed by it."""
        _print(f"rangewatch serve: ended by {signal.Signals(number).name}, {self._left()}")
        os._exit(128 + number)

    def _watch(self) -> None:
        deadline_s = time.monotonic() + BOUND_S
        while not self._done.wait(QUIET_S):
            if time.monotonic() >= deadline_s:
                _print(f"rangewatch serve: gave up after {BOUND_S:.0f} s, {self._left()}; agents send them again")
                os._exit(NOT_DRAINED)
            _print(f"draining: {self._left()}")

    def _left(self) -> str:
        return f"{self._writer.queued} messages left"


def _print(line: str) -> None:
    """Without the buffers and locks of `sys.stderr`, which the main thread may hold while its handler runs."""
    try:
        os.write(sys.stderr.fileno(), f"{line}\n".encode())
    except OSError:
        return
