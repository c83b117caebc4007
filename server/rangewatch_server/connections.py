"""Connections bounded in number and in the time a request's headers may take; uvicorn bounds neither.

uvicorn's only timeout is for a connection idle between two requests: one that sends nothing, or a byte a second, would
stay for as long as the client likes (measured: 200 of them were all open after 2 minutes; with this, after 10 s none).
"""

from __future__ import annotations

import asyncio
import sys

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

if sys.platform != "win32":
    import resource

HEADERS_S = 10.0  # from the connection, or a request's first byte, to the end of its headers: agents send them at once
MAX_CONNECTIONS = 10_000  # each agent holds one; 4 KiB each while they wait (measured), so 40 MiB


class BoundedConnection(H11Protocol):
    """One connection; too many, or too slow, and it is closed."""

    _headers_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """As uvicorn's; the headers' time begins."""
        assert isinstance(transport, asyncio.Transport)
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            transport.close()
            return
        self._begin()

    def data_received(self, data: bytes) -> None:
        """As uvicorn's; then either the headers are whole, or their time runs."""
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._end()
        elif self._headers_timer is None:
            self._begin()

    def connection_lost(self, exc: Exception | None) -> None:
        """As uvicorn's."""
        self._end()
        super().connection_lost(exc)

    def _begin(self) -> None:
        self._headers_timer = self.loop.call_later(HEADERS_S, self.transport.close)

    def _end(self) -> None:
        if self._headers_timer is not None:
            self._headers_timer.cancel()
            self._headers_timer = None


def raise_file_limit() -> None:
    """Let this process open as many files as connections need, as far as the system allows; 1024 is a usual limit."""
    if sys.platform == "win32":
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_CONNECTIONS + 1_000
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
