"""Connections whose requests end in time: a timeout for each byte is none for a server that sends one a second.

urllib3 has timeouts for connecting and for the next byte. Left alone, a header that trickles in holds the thread for
hours, and a large body has as long to be sent as a connection has to be made.
"""

from __future__ import annotations

import io
import socket
import time
from typing import Any

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection

from rangewatch import limits


class _Reader(io.RawIOBase):
    """What is read from a socket until a moment: then `TimeoutError`."""

    def __init__(self, sock: socket.socket, raw: Any) -> None:
        self._sock, self._raw = sock, raw
        self._deadline_s = time.monotonic() + limits.REPLY_TIMEOUT_S

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left_s = self._deadline_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("the reply takes too long")
        self._sock.settimeout(min(left_s, limits.READ_TIMEOUT_S))
        count: int | None = self._raw.readinto(buffer)
        return count

    def close(self) -> None:
        self._raw.close()  # it counts as a user of the socket, which is closed after its last
        super().close()


class _Socket:
    """A connected socket, plain or TLS, with a limit for a whole request and one for a whole reply."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)

    def sendall(self, data: Any) -> None:
        self._sock.settimeout(limits.SEND_TIMEOUT_S)  # of all that is given; with TLS of each record, 16 KiB
        self._sock.sendall(data)

    def makefile(self, *args: Any, **options: Any) -> io.BufferedReader:
        """Called once a reply, before its first byte."""
        return io.BufferedReader(_Reader(self._sock, self._sock.makefile("rb", buffering=0)))


class _Connection(HTTPConnection):
    def connect(self) -> None:
        super().connect()
        self.sock = _Socket(self.sock)


class _TlsConnection(HTTPSConnection):
    def connect(self) -> None:
        super().connect()
        self.sock = _Socket(self.sock)


class _Pool(urllib3.HTTPConnectionPool):
    ConnectionCls = _Connection


class _TlsPool(urllib3.HTTPSConnectionPool):
    ConnectionCls = _TlsConnection


def pool_manager() -> urllib3.PoolManager:
    """One connection at a time, no retries of its own, and `limits` for connecting, sending and the reply."""
    timeout = urllib3.Timeout(connect=limits.CONNECT_TIMEOUT_S, read=limits.READ_TIMEOUT_S)
    manager = urllib3.PoolManager(num_pools=1, maxsize=1, timeout=timeout, retries=False)
    manager.pool_classes_by_scheme = {"http": _Pool, "https": _TlsPool}
    return manager
