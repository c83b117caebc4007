"""How the demo talks: whole lines for what happened, and one line of progress, rewritten on a terminal."""

from __future__ import annotations

import time
from typing import TextIO

PLAIN_EVERY_S = 3.0
"""Between two lines of progress where they cannot be rewritten, as in a log file."""

_ERASE_LINE = "\r\x1b[K"


class Progress:
    """Writes to `stream`; progress is rewritten in place on a terminal, elsewhere it is a plain line now and then."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._tty = stream.isatty()
        self._shown = False
        self._last_plain_s = time.monotonic()

    def say(self, line: str) -> None:
        """One line that stays."""
        self._write(f"{self._erase()}{line}\n")
        self._shown = False

    def update(self, line: str) -> None:
        """The state just now; the next line replaces it."""
        if self._tty:
            self._write(f"{_ERASE_LINE}{line}")
            self._shown = True
        elif time.monotonic() - self._last_plain_s >= PLAIN_EVERY_S:
            self._last_plain_s = time.monotonic()
            self._write(f"{line}\n")

    def _erase(self) -> str:
        return _ERASE_LINE if self._shown else ""

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
