"""Connections bounded in number, in the time headers may take, and in the time a client may not read its answer.

uvicorn bounds none of them. Its only timeout is for a connection idle between two requests: one that sends nothing, or
a byte a second, would stay for as long as the client likes (measured: 200 of them were all open after 2 minutes; with
this, after 10 s none). Its `limit_concurrency` takes every connection, with its file, and refuses requests: those of
agents that are connected already, too, once others hold enough. How many one client may have is a proxy's to say.
"""

from __future__ import annotations

import asyncio
import asyncio.constants
import logging
import sys
import time
from typing import NamedTuple

import h11
import msgspec
from uvicorn.protocols.http.h11_impl import H11Protocol

logger = logging.getLogger("rangewatch.server")

MAX_CONNECTIONS = 10_000  # each agent holds one; 4 KiB each while they wait (measured), so 40 MiB
MOST_ANSWERED = 100  # connections that get the reason at once; further ones are cut without a word
LOG_AGAIN_S = 60.0
RETRY_AFTER_S = 10


_TEXT = "as many connections as this server takes are open already"
_BODY = msgspec.json.encode({"error": _TEXT, "code": "too_many_connections"})
REFUSAL = (
    f"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\ncontent-length: {len(_BODY)}\r\n"
    f"retry-after: {RETRY_AFTER_S}\r\nx-content-type-options: nosniff\r\nconnection: close\r\n\r\n"
).encode() + _BODY


class ConnectionLimit:
    """Counts the open connections of a server. Event loop only."""

    def __init__(self, most: int = MAX_CONNECTIONS) -> None:
        self.most = most
        self.open = 0
        self.refused: set[object] = set()
        """Connections that are being refused: they are not counted, and end in a moment."""
        self._logged_s = -LOG_AGAIN_S

    def take(self) -> bool:
        """Count one more; False where there is no place for it."""
        if self.open < self.most:
            self.open += 1
            return True
        now_s = time.monotonic()
        if now_s - self._logged_s >= LOG_AGAIN_S:
            self._logged_s = now_s
            logger.warning("a connection is refused: %d are open already", self.most)
        return False

    def give_back(self) -> None:
        """One that `take` counted has ended."""
        self.open -= 1


HEADERS_S = 10.0  # from the connection, or a request's first byte, to the end of its headers: agents send them at once
LEFTOVER_S = 10.0  # for the rest of a body whose answer was sent before it had come (a refusal), so that it can be read
STALLED_S = 120.0  # a client that takes less than 48 KiB of its answer in this time has gone, as far as we care
# Over TLS a connection closes when the client has said so, too, and one that idles in a pool does not: asyncio waits
# 30 s, and so did each stop of the server (measured: 20 s, which is all it has). At a stop nothing is left to say.
GOODBYE_S, GOODBYE_AT_STOP_S = 5.0, 0.5
REFUSED_S = 2.0  # one that is refused may send its request and read the answer; to close at once would lose that


class BoundedConnection(H11Protocol):
    """One connection; too many, or too slow, and it is closed."""

    limit = ConnectionLimit()
    """Shared by all; `bounded` makes a class with its own."""
    _is_counted = False
    _headers_timer: asyncio.TimerHandle | None = None
    _stalled_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """As uvicorn's; the headers' time begins."""
        assert isinstance(transport, asyncio.Transport)
        super().connection_made(transport)
        self._is_counted = self.limit.take()
        if self._is_counted:
            self._begin()
        else:
            self._refuse(transport)

    def data_received(self, data: bytes) -> None:
        """As uvicorn's; then either the headers are whole, or their time runs. So it does for a body nobody reads."""
        if not self._is_counted:  # refused: what it sends is nothing to us
            return
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE and not self._is_leftover:
            self._end()
        elif self._headers_timer is None:
            self._begin()

    def connection_lost(self, exc: Exception | None) -> None:
        """As uvicorn's."""
        self._end()
        self._flowing()
        self.limit.refused.discard(self)
        if self._is_counted:
            self.limit.give_back()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """As uvicorn's: 64 KiB wait to be sent. Until 16 KiB are left the client has its time."""
        super().pause_writing()
        self._waiting()

    def resume_writing(self) -> None:
        """As uvicorn's; what is left has its time, too."""
        super().resume_writing()
        self._waiting()

    def on_response_complete(self) -> None:
        """As uvicorn's; what the system has not taken of the answer yet has its time, and so has an unread body."""
        super().on_response_complete()
        if self._stalled_timer is None:
            self._waiting()
        if self.transport.is_closing():
            self._say_goodbye(GOODBYE_S)
        elif self._is_leftover and self._headers_timer is None:
            self._begin()

    def timeout_keep_alive_handler(self) -> None:
        """As uvicorn's; over TLS with an end."""
        super().timeout_keep_alive_handler()
        self._say_goodbye(GOODBYE_S)

    def shutdown(self) -> None:
        """As uvicorn's; over TLS with an end."""
        super().shutdown()
        if self.transport.is_closing():
            self._say_goodbye(GOODBYE_AT_STOP_S)

    def _refuse(self, transport: asyncio.Transport) -> None:
        self.connections.discard(self)  # a stop need not wait for it
        if len(self.limit.refused) >= MOST_ANSWERED:
            transport.abort()
            return
        self.limit.refused.add(self)
        transport.write(REFUSAL)
        if transport.can_write_eof():  # not over TLS
            transport.write_eof()
        self.loop.call_later(REFUSED_S, transport.abort)

    @property
    def _is_leftover(self) -> bool:
        """Whether the answer was sent, and its request's body still comes."""
        return self.conn.their_state is h11.SEND_BODY and self.cycle is not None and self.cycle.response_complete

    def _say_goodbye(self, seconds: float) -> None:
        """What was closed ends by then, though the other side says nothing; but for an answer it still takes."""

        def end() -> None:
            if self.transport.get_write_buffer_size() == 0:
                self.transport.abort()

        self.loop.call_later(seconds, end)

    def _waiting(self) -> None:
        self._flowing()
        if left := self.transport.get_write_buffer_size():
            self._stalled_timer = self.loop.call_later(STALLED_S, self._stalled, left)

    def _flowing(self) -> None:
        if self._stalled_timer is not None:
            self._stalled_timer.cancel()
            self._stalled_timer = None

    def _stalled(self, left: int) -> None:
        """To close it would wait until the client reads: only to abort frees the memory and the place."""
        self._stalled_timer = None
        if self.flow.write_paused or self.transport.get_write_buffer_size() >= left:
            self.transport.abort()

    def _begin(self) -> None:
        self._headers_timer = self.loop.call_later(LEFTOVER_S if self._is_leftover else HEADERS_S, self._too_slow)

    def _too_slow(self) -> None:
        self.transport.close()
        self._say_goodbye(GOODBYE_S)

    def _end(self) -> None:
        if self._headers_timer is not None:
            self._headers_timer.cancel()
            self._headers_timer = None


def bounded(connections: ConnectionLimit) -> type[BoundedConnection]:
    """The class of one server's connections, which are counted together."""

    class Counted(BoundedConnection):
        limit = connections

    return Counted


def bound_handshakes() -> None:
    """TLS handshakes get the time of headers: asyncio's minute held 2,000 sockets open that had sent one byte."""
    # uvicorn hands no such option on to create_server, which takes this one then. A connection is one of the bounded
    # only after it.
    setattr(asyncio.constants, "SSL_HANDSHAKE_TIMEOUT", HEADERS_S)  # noqa: B010 - typed as final


if sys.platform != "win32":
    import resource

# Kept for the database, SQLite's file of tokens, backups, exports and the refused. Were connections to take all files,
# no token could be read and nothing committed.
OTHER_FILES = 200
BACKLOG = 2_048  # as uvicorn has it: a fleet that comes back at once


class Files(NamedTuple):
    """What may be open at once."""

    connections: int
    backlog: int
    """Connections that asyncio accepts in one go, before any of them is counted."""


def raise_file_limit() -> Files:
    """Let this process open as many files as it needs, as far as the system allows: 1024 is a usual limit."""
    wanted = MAX_CONNECTIONS + BACKLOG + OTHER_FILES
    if sys.platform == "win32":
        return Files(MAX_CONNECTIONS, BACKLOG)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    backlog = min(BACKLOG, most // 8)
    return Files(max(min(most - backlog - OTHER_FILES, MAX_CONNECTIONS), most // 2), backlog)
