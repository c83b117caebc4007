"""The time limit of a request's reads: the database stops at it, and so does our own work between two tiles.

`limited` is put around the reads of one request, in the thread that does them; `check` is called between tiles and
costs a clock. A statement that runs is ended by the database itself: SQLite asks a progress handler, PostgreSQL has a
timeout for each statement, which is what is left of ours when it begins.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from sqlalchemy import Connection, event
from sqlalchemy.exc import OperationalError

from rangewatch_server.core.errors import ApiError

# Four requests read at once (app.READERS): one that takes longer keeps pages from everybody. figures_api has one for
# several figures besides.
READ_LIMIT_S = 10.0
SQLITE_INSTRUCTIONS = 20_000  # between two looks at the clock: about 1 ms of SQLite's work, which 1 us of ours ends
RENEW_S = 1.0  # PostgreSQL gets the time left again when it is that much less: a round trip, so not each statement
CANCELLED = "57014"  # PostgreSQL's query_canceled

_thread = threading.local()


class TimeLimitReached(ApiError):
    """The reads took too long. Answered as 503 `time_limit`: the same request will do no better."""

    def __init__(self, limit_s: float) -> None:
        super().__init__(
            503, "time_limit",
            f"reading took longer than {limit_s:g} s and was ended; ask for fewer steps (start=, stop=), ranks or "
            "tensors, or for merged steps (columns=)",
        )  # fmt: skip


class _Limit:
    """One request's limit. `ends_s` is on the monotonic clock."""

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self.ends_s = time.monotonic() + limit_s

    @property
    def left_s(self) -> float:
        """What is left, in seconds; negative when it is over."""
        return self.ends_s - time.monotonic()


def check() -> None:
    """Raises `TimeLimitReached` when this thread's request has read for too long. Outside a request it does nothing."""
    limit: _Limit | None = getattr(_thread, "limit", None)
    if limit is not None and limit.left_s < 0:
        raise TimeLimitReached(limit.limit_s)


@contextmanager
def limited(connection: Connection, limit_s: float | None = None) -> Iterator[None]:
    """Reads inside, on this connection and in this thread, end after `limit_s` (default `READ_LIMIT_S`).

    Raises `TimeLimitReached`.
    """
    limit = _Limit(READ_LIMIT_S if limit_s is None else limit_s)
    outer = getattr(_thread, "limit", None)
    _thread.limit = limit
    try:
        with (_sqlite if connection.dialect.name == "sqlite" else _server)(connection, limit):
            yield
    except OperationalError as error:
        if not _is_interrupted(error.orig):
            raise
        raise TimeLimitReached(limit.limit_s) from None
    finally:
        _thread.limit = outer


@contextmanager
def tighter(connection: Connection, limit_s: float) -> Iterator[None]:
    """One part of the reads inside `limited` ends after `limit_s`, or with the whole. Raises `TimeLimitReached`, after
    which the connection can be read from further.
    """
    limit: _Limit | None = getattr(_thread, "limit", None)
    if limit is None:
        yield
        return
    ends_s, limit.ends_s = limit.ends_s, min(limit.ends_s, time.monotonic() + limit_s)
    try:
        # A statement that PostgreSQL ends takes its transaction along.
        with nullcontext() if connection.dialect.name == "sqlite" else connection.begin_nested():
            yield
    except OperationalError as error:
        if not _is_interrupted(error.orig):
            raise
        raise TimeLimitReached(limit_s) from None
    finally:
        limit.ends_s = ends_s


@contextmanager
def _sqlite(connection: Connection, limit: _Limit) -> Iterator[None]:
    driver: Any = connection.connection.driver_connection
    driver.set_progress_handler(lambda: limit.left_s < 0, SQLITE_INSTRUCTIONS)
    try:
        yield
    finally:
        driver.set_progress_handler(None, 0)  # the pool gives the connection to others


@contextmanager
def _server(connection: Connection, limit: _Limit) -> Iterator[None]:
    renewed_s = limit.limit_s + 2 * RENEW_S

    def before(_connection: Any, cursor: Any, *_: Any) -> None:
        nonlocal renewed_s
        check()
        left_s = limit.left_s
        if abs(renewed_s - left_s) >= RENEW_S:
            # LOCAL: it ends with the transaction. 0 would mean no limit.
            cursor.execute(f"SET LOCAL statement_timeout = {max(1, int(left_s * 1_000))}")
            renewed_s = left_s

    event.listen(connection, "before_cursor_execute", before)
    try:
        yield
    finally:
        event.remove(connection, "before_cursor_execute", before)


def _is_interrupted(error: BaseException | None) -> bool:
    return getattr(error, "sqlstate", None) == CANCELLED or str(error) == "interrupted"
