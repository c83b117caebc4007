"""What a server process says on stderr: read as it comes, or a server that says much would wait for its reader."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from typing import IO

MOST_LINES = 100_000  # a debug level has a line a request
TAIL_LINES, TAIL_WIDTH = 40, 400

_logs: weakref.WeakSet[ServerLog] = weakref.WeakSet()


class ServerLog:
    """All lines of one server, or the newest of very many; a thread reads them until the process ends."""

    def __init__(self, name: str, pipe: IO[str]) -> None:
        self.name = name
        self._pipe = pipe
        self._lines: deque[str] = deque(maxlen=MOST_LINES)
        self._grown = threading.Condition()
        self._thread = threading.Thread(target=self._drain, name=f"log of {name}", daemon=True)
        self._thread.start()
        _logs.add(self)

    def text(self) -> str:
        """What was said so far."""
        with self._grown:
            return "".join(self._lines)

    def whole(self) -> str:
        """Everything, once the process has ended."""
        self._thread.join()
        return self.text()

    def wait_for(self, beginning: str) -> str:
        """The first line that begins so; waits for it, for as long as the process lives."""
        with self._grown:
            while True:
                found = next((line for line in self._lines if line.startswith(beginning)), None)
                if found is not None:
                    return found
                assert self._thread.is_alive(), f"the server ended without {beginning!r}: {''.join(self._lines)}"
                self._grown.wait(0.5)

    def tail(self) -> str:
        """The newest lines."""
        return "".join(f"{line[:TAIL_WIDTH]}\n" for line in self.text().splitlines()[-TAIL_LINES:])

    def _drain(self) -> None:
        with self._pipe:
            for line in self._pipe:
                with self._grown:
                    self._lines.append(line)
                    self._grown.notify_all()


def sections() -> list[tuple[str, str]]:
    """The end of each server's log, for the report of a test that has failed."""
    return [(f"stderr of {each.name}", tail) for each in list(_logs) if (tail := each.tail())]
