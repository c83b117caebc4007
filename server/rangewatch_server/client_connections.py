"""How many connections one client may hold, so that others still get in; and a word to those that are one too many.

Proxies that are believed (--forwarded-allow-ips) hold as many as they like: who is behind them is not known before a
request has come. Event loop only.
"""

from __future__ import annotations

import logging
import time
from collections import Counter

import msgspec
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from rangewatch_server.rate_limits import counted_as

logger = logging.getLogger("rangewatch.server")

MAX_CONNECTIONS = 10_000  # each agent holds one; 4 KiB each while they wait (measured), so 40 MiB
MOST_TOLD = 100  # connections that are told why at once; further ones are cut without a word
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
        self.told: set[object] = set()
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
