"""Work that takes longer than a request may: in a thread of its own, bounded in number, told in lines of JSON.

The threads are daemons, so that none keeps the server from ending, and none of them is one of those that serve pages.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from typing import Any, TypeVar

import msgspec
from fastapi.responses import StreamingResponse
from sqlalchemy.exc import SQLAlchemyError

from rangewatch_server.core.errors import ApiError
from rangewatch_server.maintenance.copies.backup_file import BadBackup
from rangewatch_server.maintenance.jobs import Stopped
from rangewatch_server.store.engine import DatabaseError

logger = logging.getLogger("rangewatch.server")

Told = Callable[[str], None]
Result = TypeVar("Result")
AGAIN_S = 10  # what a client that finds no place is told to wait


class Places:
    """At most so many of one kind of work at a time. `what` is said to who comes when all are taken."""

    def __init__(self, count: int, what: str) -> None:
        self._free = threading.BoundedSemaphore(count)
        self.what = what

    def take(self) -> None:
        """Take one, to be given back from whatever thread. Raises `ApiError` 429."""
        if not self._free.acquire(blocking=False):
            raise ApiError(429, "busy", f"{self.what}; try again when it is done", AGAIN_S)

    def give_back(self) -> None:
        """Others may have it."""
        self._free.release()


async def in_thread(work: Callable[[], Result]) -> Result:
    """What `work` returns or raises. It goes on when nobody waits any more."""
    future: Future[Result] = Future()
    future.set_running_or_notify_cancel()  # from here on it cannot be cancelled

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001 - the answer: whoever waits raises it
            future.set_exception(error)

    threading.Thread(target=run, name="rangewatch-long-work", daemon=True).start()
    return await asyncio.wrap_future(future)


def streamed(work: Callable[[Told], None], ended: Callable[[], None]) -> StreamingResponse:
    """Starts `work` in a thread: what it tells, line by line; then `ended` is called there.

    Lines are `{"line": ...}`, and at last `{"done": true}` or `{"error": ..., "code": ...}`.
    """
    lines = _Lines()
    thread = threading.Thread(target=lines.run, args=(work, ended), name="rangewatch-maintenance", daemon=True)
    thread.start()
    return StreamingResponse(lines.body(), media_type="application/x-ndjson")


class _Lines:
    """From the thread to the answer. As many wait as the work tells: a few for each run."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue = asyncio.Queue[dict[str, Any] | None]()

    def run(self, work: Callable[[Told], None], ended: Callable[[], None]) -> None:
        try:
            work(lambda line: self._emit({"line": line}))
            self._emit({"done": True})
        except Exception as error:  # noqa: BLE001 - told, and logged where nobody expected it
            self._emit(_failure(error))
        finally:
            ended()
            self._emit(None)

    def _emit(self, value: dict[str, Any] | None) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._queue.put_nowait, value)

    async def body(self) -> AsyncIterator[bytes]:
        while (value := await self._queue.get()) is not None:
            yield msgspec.json.encode(value) + b"\n"


def _failure(error: Exception) -> dict[str, Any]:
    """The last line, when it failed."""
    if isinstance(error, BadBackup):
        return {"error": str(error), "code": "bad_backup"}
    if isinstance(error, DatabaseError):
        return {"error": str(error), "code": "database"}
    if isinstance(error, Stopped):
        return {"error": str(error), "code": "stopped"}
    if isinstance(error, SQLAlchemyError):
        return {"error": f"the database failed: {str(error).splitlines()[0]}", "code": "database"}
    logger.error("long work failed", exc_info=error)
    return {"error": "the server failed; its log says more", "code": "internal"}
