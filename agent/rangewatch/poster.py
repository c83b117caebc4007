"""The thread that posts: however long a server takes to answer, what comes meanwhile is encoded and on disk."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from rangewatch.transport import Reply, Transport

THREAD = "rangewatch-poster"


class Poster:
    """Posts one body at a time. `answered` is called by its thread when there is a reply to take."""

    def __init__(self, transport: Transport, answered: Callable[[], None]) -> None:
        self._transport, self._answered = transport, answered
        self._bodies: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._result: Reply | Exception | None = None
        self.is_busy = False
        """A body was given, and its reply is not taken yet."""
        self._thread = threading.Thread(target=self._run, name=THREAD, daemon=True)

    def start(self) -> None:
        """Start the thread. Raises `RuntimeError` where the interpreter allows none any more."""
        self._thread.start()

    def post(self, body: bytes) -> None:
        """Begin to post; not while it is busy."""
        self.is_busy = True
        self._bodies.put(body)

    def take_reply(self) -> Reply | None:
        """The answer, once; None while there is none. Raises what posting raised."""
        result, self._result = self._result, None
        if result is None:
            return None
        self.is_busy = False
        if isinstance(result, Exception):
            raise result
        return result

    def stop(self) -> None:
        """End the thread, after what it is posting; nobody waits for it."""
        self._bodies.put(None)

    def _run(self) -> None:
        while (body := self._bodies.get()) is not None:
            try:
                self._result = self._transport.post(body)
            except Exception as error:  # noqa: BLE001 - the sender's guard gets it
                self._result = error
            self._answered()
        self._transport.close()
