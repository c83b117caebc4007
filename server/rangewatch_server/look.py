"""One blocking question at a time, in a thread of its own: whoever asks waits no longer than he says."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

Found = TypeVar("Found")


class Look(Generic[Found]):
    """Asked from the event loop only. An answer is kept for `keep_s`; a question that hangs costs one thread, ever."""

    def __init__(self, name: str, ask: Callable[[], Found], keep_s: float) -> None:
        self._name = f"rangewatch-{name}"
        self._ask = ask
        self._keep_s = keep_s
        self._asked: Future[Found | Exception] | None = None
        self._answered_s = 0.0

    async def within(self, seconds: float) -> Found | Exception | None:
        """The answer, or the error of it; None when there is none yet."""
        if self._asked is None or (self._asked.done() and time.monotonic() - self._answered_s > self._keep_s):
            self._asked = Future()
            threading.Thread(target=self._run, args=(self._asked,), name=self._name, daemon=True).start()
        asked = self._asked
        await asyncio.wait([asyncio.wrap_future(asked)], timeout=seconds)
        return asked.result() if asked.done() else None

    def _run(self, asked: Future[Found | Exception]) -> None:
        try:
            found: Found | Exception = self._ask()
        except Exception as error:  # noqa: BLE001 - the answer: whoever asked says what it means
            found = error
        self._answered_s = time.monotonic()
        asked.set_result(found)
