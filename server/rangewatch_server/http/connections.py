"""Connections bounded in number, in the time headers may take, and in the time a client may not read its answer.

uvicorn bounds none of them.

Its only timeout is for a connection idle between two requests: one that sends nothing, or a byte a second, would
stay for as long as the client likes (measured: 200 of them were all open after 2 minutes; with this, after 10 s none).

How many connections one client may hold, so that others still get in; and a word to those that are one too many.

Proxies that are believed (--forwarded-allow-ips) hold as many as they like: who is behind them is not known before a
request has come. Event loop only.

How many files this process may open, and how many of them connections may be.
"""

from __future__ import annotations

import asyncio
import asyncio.constants
import logging
import sys
import time
from collections import Counter
from typing import NamedTuple

import h11
import msgspec
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware
from uvicorn.protocols.http.h11_impl import H11Protocol

from rangewatch_server.access.rate_limits import counted_as

logger = logging.getLogger("rangewatch.server")

MAX_CONNECTIONS = 10_000  # each agent holds one; 4 KiB each while they wait (measured), so 40 MiB
MOST_EMITTED = 100  # connections that are told why at once; further ones are cut without a word
SAID_AGAIN_S = 60.0
RETRY_AFTER_S = 10


class TooMany(Exception):
    """One connection too many: the answer to it, as bytes."""

    def __init__(self, status: str, text: str) -> None:
        super().__init__(text)
        body = msgspec.json.encode({"error": text, "code": "too_many_connections"})
        head = (
            f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
            f"retry-after: {RETRY_AFTER_S}\r\nx-content-type-options: nosniff\r\nconnection: close\r\n\r\n"
        )
        self.answer = head.encode() + body


class ClientConnections:
    """Counts the open ones, in all and by client: an IPv4 address, or a /64 of IPv6."""

    def __init__(self, most: int = MAX_CONNECTIONS, most_of_one: int | None = None, proxies: str = "") -> None:
        """`most_of_one` None: two fifths of all, so that two clients leave room for others."""
        self.most = most
        self.most_of_one = max(most * 2 // 5, 1) if most_of_one is None else most_of_one
        self.reported: set[object] = set()
        """Connections that are being refused: they are not counted, and end in a moment."""
        self._all = 0
        self._proxies = ProxyHeadersMiddleware(_nothing, proxies or []).trusted_hosts
        self._open = Counter[str]()
        self._said_s = -SAID_AGAIN_S

    def take(self, address: str) -> str:
        """Count one from `address`; what to give back as. Raises `TooMany`."""
        client = "" if address in self._proxies else counted_as(address)
        if self._all >= self.most:
            raise self._refused(client, "503 Service Unavailable", f"{self.most} connections are open already")
        if client and self._open[client] >= self.most_of_one:
            text = f"{self.most_of_one} connections of this client are open already (--max-connections)"
            raise self._refused(client, "429 Too Many Requests", text)
        self._open[client] += 1
        self._all += 1
        return client

    def give_back(self, client: str) -> None:
        """One that `take` counted has ended."""
        self._all -= 1
        self._open[client] -= 1
        if not self._open[client]:
            del self._open[client]

    def _refused(self, client: str, status: str, text: str) -> TooMany:
        now_s = time.monotonic()
        if now_s - self._said_s >= SAID_AGAIN_S:
            self._said_s = now_s
            logger.warning("a connection is refused: %s", text, extra={"client": client or "a proxy"})
        return TooMany(status, text)


async def _nothing(*_: object) -> None:
    """Of uvicorn's middleware only what it takes for a proxy is used: an application it needs, and never calls."""


HEADERS_S = 10.0  # from the connection, or a request's first byte, to the end of its headers: agents send them at once
LEFTOVER_S = 10.0  # for the rest of a body whose answer was sent before it had come (a refusal), so that it can be read
STALLED_S = 120.0  # a client that takes less than 48 KiB of its answer in this time has gone, as far as we care
# Over TLS a connection closes when the client has said so, too, and one that idles in a pool does not: asyncio waits
# 30 s, and so did each stop of the server (measured: 20 s, which is all it has). At a stop nothing is left to say.
GOODBYE_S, GOODBYE_AT_STOP_S = 5.0, 0.5
TOLD_S = 2.0  # one that is refused may send its request and read the answer; to close at once would lose that


class BoundedConnection(H11Protocol):
    """One connection; too many, or too slow, and it is closed."""

    counts = ClientConnections()
    """Shared by all; `bounded` makes a class with its own."""
    _client: str | None = None
    _headers_timer: asyncio.TimerHandle | None = None
    _stalled_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """As uvicorn's; the headers' time begins."""
        assert isinstance(transport, asyncio.Transport)
        super().connection_made(transport)
        try:
            self._client = self.counts.take(self.client[0] if self.client else "")
        except TooMany as error:
            self._refuse(transport, error.answer)
            return
        self._begin()

    def data_received(self, data: bytes) -> None:
        """As uvicorn's; then either the headers are whole, or their time runs. So it does for a body nobody reads."""
        if self._client is None:  # refused: what it sends is nothing to us
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
        self.counts.reported.discard(self)
        if self._client is not None:
            self.counts.give_back(self._client)
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

    def _refuse(self, transport: asyncio.Transport, answer: bytes) -> None:
        self.connections.discard(self)  # a stop need not wait for it
        if len(self.counts.reported) >= MOST_EMITTED:
            transport.abort()
            return
        self.counts.reported.add(self)
        transport.write(answer)
        if transport.can_write_eof():  # not over TLS
            transport.write_eof()
        self.loop.call_later(TOLD_S, transport.abort)

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


def bounded(counts: ClientConnections) -> type[BoundedConnection]:
    """The class of one server's connections, which are counted together."""

    class Counted(BoundedConnection):
        pass

    Counted.counts = counts
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
