"""Sends the spools of ranks that are gone, on a thread of its own and with patience."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable

from rangewatch.spool.folder import Folder
from rangewatch.spool.upload import upload
from rangewatch.transport import Outcome, Transport
from rangewatch.watcher.last_batch import Last

TURN_S = 5.0
"""Seconds that a batch waits for its server before it is another folder's turn: they may have different ones."""

PAUSE_S = 0.5
"""Seconds between two rounds in which nothing could be sent."""


class Uploads:
    """What could not be sent when the time is up stays where it is, for `rangewatch replay` or the next watcher."""

    def __init__(self, is_over: Callable[[], bool]) -> None:
        self._is_over = is_over
        self._waiting: deque[tuple[Folder, str | None, list[Last]]] = deque()
        self._busy = 0
        self._wake = threading.Event()
        threading.Thread(target=self._run, name="watcher-uploads", daemon=True).start()

    @property
    def are_done(self) -> bool:
        """Whether nothing waits to be sent."""
        return not self._waiting and not self._busy

    def add(self, folder: Folder, token: str | None, unsaved: list[Last] | None = None) -> None:
        """A claimed folder, the token for its server, and batches after those in it that its disk did not take."""
        self._waiting.append((folder, token, unsaved or []))
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
        folder, token, unsaved = self._waiting.popleft()
        is_done = False
        with contextlib.suppress(Exception):  # one folder's damage is not the others'
            transport = Transport(folder.url, token)
            is_done = upload(folder, transport, TURN_S) and _sent(transport, unsaved)
            transport.close()
        if is_done:
            folder.remove()
        elif self._is_over() or not folder.path.is_dir():
            folder.release()
        else:
            self._waiting.append((folder, token, unsaved))
        return is_done


def _sent(transport: Transport, unsaved: list[Last]) -> bool:
    """Send what is in memory only; whether the server has answered for all of it."""
    for batch, opening in unsaved:
        transport.post(opening)
        if transport.post(batch.body).outcome not in (Outcome.STORED, Outcome.REJECTED):
            return False
    return True
